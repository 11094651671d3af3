// Ask the server: one POST per verb. In a file without a server, the answers are in the file.

const kept = document.getElementById("answers");
const answers = kept ? JSON.parse(kept.textContent) : null;

export const served = answers === null;

export class Refused extends Error {
  constructor({ error, field }) {
    super(error);
    this.field = field || "";
  }
}

// The answer of a verb; `part` is called with what comes before it. Aborting `signal` ends the work on the server.
export async function ask(verb, fields, { signal, part } = {}) {
  if (!served) {
    const key = verb === "words" ? "words" : `${verb} ${fields.algorithm}`;
    if (key in answers) return answers[key];
    throw new Refused({ error: "this is a file without a server; run choreo explore to change things", field: "" });
  }
  let response;
  try {
    response = await fetch(`/do/${verb}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields), signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    gone(true);
    throw new Refused({ error: "the server does not answer", field: "" });
  }
  gone(false);
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let parts = [];  // of a line; it may have millions of letters
  for (;;) {
    let done, value;
    try {
      ({ done, value } = await reader.read());
    } catch (error) {
      if (error.name === "AbortError") throw error;
      gone(true);
      throw new Refused({ error: "the server is gone", field: "" });
    }
    const [first, ...rest] = (value ? decoder.decode(value, { stream: true }) : "").split("\n");
    parts.push(first);
    for (const next of rest) {
      const told = JSON.parse(parts.join(""));
      parts = [next];
      if ("done" in told) return told.done;
      if ("error" in told) throw new Refused(told);
      if (part) part(told.part);
    }
    if (done) throw new Refused({ error: "the server ended in the middle of an answer", field: "" });
  }
}

// The bytes of a text in base64.
export function bytesOf(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

// The latest of a kind of question: while one is being answered only the newest of those that follow is kept.
export class Latest {
  constructor(answer) {
    this.answer = answer;
    this.running = false;
    this.next = null;
  }

  ask(...given) {
    this.next = given;
    if (!this.running) this.go();
  }

  async go() {
    this.running = true;
    while (this.next) {
      const given = this.next;
      this.next = null;
      try {
        await this.answer(...given);
      } catch (error) {
        document.documentElement.dataset.error = String(error.stack || error);
      }
    }
    this.running = false;
  }
}

export function gone(is) {
  const note = document.getElementById("gone");
  note.hidden = !is;
  note.textContent = is ? "The server is gone; this is its last answer. Start choreo explore again, and open the address that it prints." : "";
}

// A server that dies is reported, even while nothing is asked.
if (served) {
  setInterval(async () => {
    if (document.hidden) return;
    try {
      gone(!(await fetch("/alive")).ok);
    } catch {
      gone(true);
    }
  }, 4000);
}
