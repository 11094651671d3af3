// What every rank holds after each step, and where each contribution came from.
//
// A place is null or a list of entries, one for each contribution in it: who contributed it, how often it is there,
// in which step and from which rank it arrived (step -1: the rank's own input), and the entry it was a copy of.

export class Replay {
  constructor(data) {
    this.data = data;
    this.own = data.before.map((runs, rank) => this.inputs(runs, rank));
    this.given = Array.from({ length: data.chunks }, (_, chunk) => this.own.filter((row) => row[chunk]).length);
    this.rewind();
  }

  inputs(runs, rank) {
    const row = new Array(this.data.chunks).fill(null);
    for (const [first, count] of runs) {
      for (let chunk = first; chunk < first + count; chunk++) {
        row[chunk] = [{ who: rank, times: 1, step: -1, src: rank, from: null }];
      }
    }
    return row;
  }

  rewind() {
    this.done = 0;
    this.held = this.own.map((row) => row.slice());
    this.actions = new Map();
  }

  // After `steps` steps; going back starts again, because places remember only where they came from.
  goTo(steps) {
    if (steps < this.done) this.rewind();
    while (this.done < steps) this.apply(this.done);
  }

  // Every transfer reads what its source held before the step; storing replaces, reducing adds.
  apply(step) {
    const before = this.held.map((row) => row.slice());
    const transfers = this.data.steps[step].slice().sort((a, b) => a.src - b.src);
    this.actions = new Map();
    for (const { src, dst, chunk, count, reduce, from_input } of transfers) {
      const source = from_input ? this.own[src] : before[src];
      for (let at = chunk; at < chunk + count; at++) {
        const arriving = (source[at] || []).map((entry) => (
          { who: entry.who, times: entry.times, step, src, from: entry }));
        const there = reduce && this.held[dst][at];
        const now = there ? merged(there, arriving) : arriving;
        this.held[dst][at] = now.length ? now : null;
        this.actions.set(dst * this.data.chunks + at, reduce ? "add" : "copy");
      }
    }
    this.done = step + 1;
  }

  // How many contributions a run of chunks has at a rank, of how many.
  cell(rank, { first, count }) {
    let have = 0, given = 0, doubled = false, action = "";
    for (let chunk = first; chunk < first + count; chunk++) {
      const entries = this.held[rank][chunk] || [];
      have += entries.length;
      given += this.given[chunk];
      doubled = doubled || entries.some((entry) => entry.times > 1);
      action = this.actions.get(rank * this.data.chunks + chunk) || action;
    }
    return { have, given, doubled, action };
  }

  // Whether a place has every contribution, and each once.
  right(rank, chunk) {
    const entries = this.held[rank][chunk] || [];
    return entries.length >= this.given[chunk] && entries.every(({ times }) => times === 1);
  }

  // Whether some chunk of a run is wrong, of those that the rank must end with.
  broken(rank, { first, count }) {
    const wanted = (chunk) => this.data.after[rank].some(([start, length]) => start <= chunk && chunk < start + length);
    for (let chunk = first; chunk < first + count; chunk++) {
      if (wanted(chunk) && !this.right(rank, chunk)) return true;
    }
    return false;
  }
}

export function merged(there, arriving) {
  const now = new Map(there.map((entry) => [entry.who, entry]));
  for (const entry of arriving) {
    const known = now.get(entry.who);
    now.set(entry.who, known ? { ...known, times: known.times + entry.times } : entry);
  }
  return [...now.values()].sort((a, b) => a.who - b.who);
}

// The ranks a contribution has been at, with the steps in between: the rank it started from comes first.
export function journey(entry, rank) {
  const hops = [];
  for (let at = entry, here = rank; at; at = at.from) {
    if (at.step >= 0) hops.unshift({ step: at.step, src: at.src, dst: here });
    here = at.src;
  }
  return hops;
}

export function chunkLabel(data, message) {
  const sign = message.reduce ? "+" : "";
  if (message.chunks === data.chunks) return `${sign}all`;
  if (data.collective === "all_to_all" && data.chunks_a_block === 1 && message.chunks === 1) {
    const chunk = message.spans[0][0];
    return `${sign}${Math.floor(chunk / data.ranks)}→${chunk % data.ranks}`;
  }
  const label = message.spans.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(",");
  return sign + (label.length > 9 || data.collective === "all_to_all" ? `×${message.chunks}` : label);
}
