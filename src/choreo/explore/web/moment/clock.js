// The clock that all views follow: play, pause, and a slider over the time.

import { element, formatTime } from "/show/base.js";

// Seconds that the whole run takes on the page.
const WHOLE = 10, TICKS = 2000;

export class Clock {
  constructor(holder, tell) {
    this.tell = tell;
    this.total = 0;
    this.time = 0;
    this.playing = false;
    this.bar = element("div", { class: "clock" }, holder);
    this.play = element("button", { type: "button", class: "play", title: "play or pause (Space)", "aria-label": "play" }, this.bar, "Play");
    this.slider = element("input", { type: "range", min: 0, max: TICKS, step: 1, "aria-label": "time" }, this.bar);
    this.words = element("output", { class: "now" }, this.bar);
    this.play.addEventListener("click", () => (this.playing ? this.pause() : this.start()));
    this.slider.addEventListener("input", () => { this.pause(); this.go((Number(this.slider.value) / TICKS) * this.total); });
    this.slider.addEventListener("change", () => this.tell(this.time, true));
  }

  // Another run, at a moment of it.
  set(total, time) {
    this.total = total;
    this.show(Math.max(0, Math.min(total, time)));
  }

  go(time, settled = false) {
    this.show(Math.max(0, Math.min(this.total, time)));
    this.tell(this.time, settled);
  }

  show(time) {
    this.time = time;
    this.slider.value = this.total > 0 ? Math.round((time / this.total) * TICKS) : 0;
    this.slider.setAttribute("aria-valuetext", formatTime(time));
    this.words.textContent = `${formatTime(time)} of ${formatTime(this.total)}`;
  }

  start() {
    if (!(this.total > 0)) return;
    if (this.time >= this.total) this.show(0);
    this.playing = true;
    this.play.textContent = "Pause";
    this.play.setAttribute("aria-label", "pause");
    const from = this.time, began = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      this.go(from + (Math.max(0, now - began) / 1000 / WHOLE) * this.total);
      if (this.time >= this.total) this.pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.play.textContent = "Play";
    this.play.setAttribute("aria-label", "play");
    this.tell(this.time, true);
  }

  // Keys, as on the other pages.
  key(event) {
    const step = this.total / 200;
    const moves = { ArrowLeft: this.time - step, ArrowRight: this.time + step, Home: 0, End: this.total };
    if (event.key in moves) {
      this.pause();
      this.go(moves[event.key], true);
    } else if (event.key === " ") (this.playing ? this.pause() : this.start());
    else return false;
    return true;
  }
}
