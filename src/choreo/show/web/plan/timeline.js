// A step in space and time: stages down, time across, a rectangle for every pass of a micro-batch.

import { formatTime, niceStep, timeUnit } from "../base.js";

export const GUTTER = 64, MARGIN = 14;
export const KINDS = { F: "forward", B: "backward", W: "weight gradients" };
export const KIND_COLOR = { F: "forward", B: "backward", W: "weight" };

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// A canvas as sharp as the screen, to be drawn on in CSS pixels.
export function prepared(holder) {
  const canvas = holder.querySelector("canvas"), { width, height } = holder.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  draw.clearRect(0, 0, width, height);
  draw.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return { draw, width, height };
}

export function timeAxis(draw, x, total_s, top, bottom, width) {
  const [unit, scale] = timeUnit(total_s * 1e6), shown = (total_s * 1e6) / scale;
  const tick = niceStep(shown / Math.max(2, (width - GUTTER) / 90));
  draw.textAlign = "center";
  draw.textBaseline = "alphabetic";
  for (let at = 0; at <= shown * 1.0001; at += tick) {
    const place = x((at * scale) / 1e6);
    draw.fillStyle = color("line");
    draw.fillRect(place, top, 1, bottom - top);
    draw.fillStyle = color("muted");
    draw.fillText(at ? `${Number(at.toPrecision(6))} ${unit}` : "0", place, bottom + 14);
  }
}

export class Timeline {
  constructor(holder, choose) {
    this.holder = holder;
    this.tip = holder.querySelector(".tip");
    holder.addEventListener("pointermove", (event) => this.point(event));
    holder.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    holder.addEventListener("click", (event) => { if (this.plan) choose(this.stageAt(event)); });
  }

  show(plan) {
    this.plan = plan;
    const rows = plan.timeline.stages;
    this.holder.style.setProperty("--tall", `${Math.max(96, Math.min(340, 30 * rows + 40))}px`);
    const { draw, width, height } = prepared(this.holder);
    const total = plan.step_time_s, bottom = height - 20, tall = (bottom - 4) / rows;
    this.x = (time) => GUTTER + (time / total) * (width - GUTTER - MARGIN);
    this.y = (stage) => 4 + stage * tall;
    this.tall = tall;
    timeAxis(draw, this.x, total, 4, bottom, width);
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    draw.fillStyle = color("muted");
    const every = Math.max(1, Math.ceil(14 / tall));
    for (let stage = 0; stage < rows; stage += every) draw.fillText(`stage ${stage}`, GUTTER - 10, this.y(stage) + tall / 2);
    const inset = tall > 8 ? 1 : 0;
    for (let stage = 0; stage < rows; stage++) {
      draw.fillStyle = color("empty");
      draw.fillRect(GUTTER, this.y(stage) + inset, this.x(total) - GUTTER, tall - 2 * inset);
    }
    this.paint(draw, inset);
    this.tail(draw, inset);
  }

  paint(draw, inset) {
    const { kind, stage, micro_batch: batch, chunk, start_s: start, end_s: end } = this.plan.timeline;
    const fills = Object.fromEntries(Object.entries(KIND_COLOR).map(([name, value]) => [name, color(value)]));
    const chunks = Math.max(1, ...chunk) + 1, ink = color("ink");
    draw.textAlign = "center";
    for (let at = 0; at < kind.length; at++) {
      const left = this.x(start[at]), right = this.x(end[at]), wide = right - left, gap = wide > 4 ? 0.8 : 0;
      draw.fillStyle = fills[kind[at]];
      draw.globalAlpha = chunks > 2 ? 1 - 0.55 * (chunk[at] / (chunks - 1)) : 1;
      draw.fillRect(left, this.y(stage[at]) + inset, Math.max(0.4, wide - gap), this.tall - 2 * inset);
      draw.globalAlpha = 1;
      if (wide > 18 && this.tall > 13) {
        draw.fillStyle = ink;
        draw.fillText(batch[at], left + wide / 2, this.y(stage[at]) + this.tall / 2 + 0.5);
      }
    }
  }

  // After the pipeline: gradients, what overlapping them cost, optimizer, and waiting for stragglers.
  tail(draw, inset) {
    for (const { color: name, start_s: start, end_s: end } of this.plan.timeline.tail) {
      draw.fillStyle = color(name);
      for (let stage = 0; stage < this.plan.timeline.stages; stage++) {
        draw.fillRect(this.x(start), this.y(stage) + inset, Math.max(0.5, this.x(end) - this.x(start)), this.tall - 2 * inset);
      }
    }
  }

  stageAt(event) {
    const y = event.clientY - this.holder.getBoundingClientRect().top;
    return Math.max(0, Math.min(this.plan.timeline.stages - 1, Math.floor((y - 4) / this.tall)));
  }

  point(event) {
    if (!this.plan) return;
    const box = this.holder.getBoundingClientRect(), x = event.clientX - box.left, stage = this.stageAt(event);
    const time = ((x - GUTTER) / (box.width - GUTTER - MARGIN)) * this.plan.step_time_s;
    const { timeline } = this.plan;
    if (time < 0 || time > this.plan.step_time_s) { this.tip.hidden = true; return; }
    let words = "waiting";
    for (let at = 0; at < timeline.kind.length; at++) {
      if (timeline.stage[at] === stage && timeline.start_s[at] <= time && time < timeline.end_s[at]) {
        const part = timeline.chunks > 1 ? `, chunk ${timeline.chunk[at]}` : "";
        words = `${KINDS[timeline.kind[at]]} of micro-batch ${timeline.micro_batch[at]}${part}, ${formatTime(1e6 * (timeline.end_s[at] - timeline.start_s[at]))}`;
      }
    }
    for (const part of timeline.tail) {
      if (part.start_s <= time && time < part.end_s) words = `${part.name}, ${formatTime(1e6 * (part.end_s - part.start_s))}`;
    }
    place(this.tip, box, x, event.clientY - box.top, `stage ${stage} at ${formatTime(1e6 * time)}: ${words}`);
  }
}

export function place(tip, box, x, y, words) {
  tip.textContent = words;
  tip.hidden = false;
  const wide = tip.offsetWidth;
  tip.style.left = `${Math.max(0, Math.min(box.width - wide, x + 12))}px`;
  tip.style.top = `${y + 16}px`;
}
