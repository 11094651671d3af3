// Long work: a line that says what is being done, with a button that cancels it.

import { element } from "/show/base.js";
import { ask } from "./ask.js";

export class Work {
  constructor(holder) {
    this.line = element("p", { class: "work", role: "status", hidden: "" }, holder);
    this.words = element("span", {}, this.line);
    this.cancel = element("button", { type: "button", class: "small" }, this.line, "Cancel");
    this.cancel.addEventListener("click", () => this.abort());
    this.ends = null;
  }

  say(words) {
    this.words.textContent = words;
  }

  // Do it; undefined where it was cancelled or something else took its place.
  async run(words, verb, fields, part) {
    this.abort();
    const ends = new AbortController(), began = performance.now();
    this.ends = ends;
    this.say(words);
    this.line.hidden = false;
    document.documentElement.dataset.busy = words;
    const clock = setInterval(() => { this.cancel.textContent = `Cancel (${Math.round((performance.now() - began) / 1000)} s)`; }, 1000);
    try {
      return await ask(verb, fields, { signal: ends.signal, part: (one) => { if (this.ends === ends) part(one); } });
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      return undefined;
    } finally {
      clearInterval(clock);
      this.cancel.textContent = "Cancel";
      if (this.ends === ends) {
        this.ends = null;
        this.line.hidden = true;
        delete document.documentElement.dataset.busy;
      }
    }
  }

  // Something quick: it is announced, and can be cancelled, only if it takes a while after all.
  async during(words, act) {
    this.abort();
    const ends = new AbortController();
    this.ends = ends;
    const late = setTimeout(() => { this.say(words); this.line.hidden = false; }, 400);
    try {
      return await act(ends.signal);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      return undefined;
    } finally {
      clearTimeout(late);
      if (this.ends === ends) {
        this.ends = null;
        this.line.hidden = true;
      }
    }
  }

  abort() {
    if (this.ends) this.ends.abort();
    this.ends = null;
    this.line.hidden = true;
    delete document.documentElement.dataset.busy;
  }
}

// A canvas that is as sharp as the screen; returns what to draw with, in CSS pixels.
export function sharp(canvas) {
  const { width, height } = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const draw = canvas.getContext("2d");
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return { draw, width, height };
}

// Colours that people with any kind of colour blindness tell apart, in light and dark.
export const HUES = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb7733", "#7799dd", "#99aa44", "#cc88aa", "#558877", "#997755", "#888888", "#cc4444", "#44aa99"];
