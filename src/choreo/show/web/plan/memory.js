// Memory of one stage over a step, stacked by part; the device's capacity is a line.

import { formatTime, niceStep } from "../base.js";
import { GUTTER, MARGIN, color, place, prepared, timeAxis } from "./timeline.js";

export class Memory {
  constructor(holder) {
    this.holder = holder;
    this.tip = holder.querySelector(".tip");
    holder.addEventListener("pointermove", (event) => this.point(event));
    holder.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  show(plan, stage) {
    this.plan = plan;
    this.stage = stage;
    const { draw, width, height } = prepared(this.holder);
    const { parts, capacity_bytes: capacity, stages } = plan.memory;
    const { time_s: times, series } = stages[stage];
    const peak = Math.max(...times.map((_, at) => parts.reduce((sum, name) => sum + series[name][at], 0)));
    const top = Math.max(capacity * 1.06, peak * 1.04), bottom = height - 20;
    this.x = (time) => GUTTER + (time / plan.step_time_s) * (width - GUTTER - MARGIN);
    const y = (bytes) => bottom - (bytes / top) * (bottom - 4);
    const tick = niceStep(top / 1e9 / 5);
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (let at = 0; at * 1e9 <= top; at += tick) {
      draw.fillStyle = color("line");
      draw.fillRect(GUTTER, y(at * 1e9), width - GUTTER - MARGIN, 1);
      draw.fillStyle = color("muted");
      draw.fillText(at ? `${at} GB` : "0", GUTTER - 10, y(at * 1e9));
    }
    timeAxis(draw, this.x, plan.step_time_s, 4, bottom, width);
    let below = times.map(() => 0);
    for (const name of parts) {
      const above = below.map((sum, at) => sum + series[name][at]);
      draw.fillStyle = color(`m-${name}`);
      draw.beginPath();
      times.forEach((time, at) => draw.lineTo(this.x(time), y(above[at])));
      for (let at = times.length - 1; at >= 0; at--) draw.lineTo(this.x(times[at]), y(below[at]));
      draw.fill();
      below = above;
    }
    draw.strokeStyle = color("wrong");
    draw.lineWidth = 1.5;
    draw.setLineDash([5, 4]);
    draw.beginPath();
    draw.moveTo(GUTTER, y(capacity));
    draw.lineTo(width - MARGIN, y(capacity));
    draw.stroke();
    draw.setLineDash([]);
    draw.fillStyle = color("wrong");
    draw.textAlign = "right";
    draw.textBaseline = "bottom";
    draw.fillText(`${(capacity / 1e9).toFixed(1)} GB on the device`, width - MARGIN, y(capacity) - 2);
  }

  point(event) {
    if (!this.plan) return;
    const box = this.holder.getBoundingClientRect(), x = event.clientX - box.left;
    const time = ((x - GUTTER) / (box.width - GUTTER - MARGIN)) * this.plan.step_time_s;
    const { time_s: times, series } = this.plan.memory.stages[this.stage];
    if (time < 0 || time > this.plan.step_time_s) { this.tip.hidden = true; return; }
    let at = times.findIndex((moment) => moment > time);
    at = at < 0 ? times.length - 1 : Math.max(0, at - 1);
    const lines = this.plan.memory.parts.filter((name) => series[name][at] > 5e7).reverse().map((name) => `${name} ${(series[name][at] / 1e9).toFixed(1)} GB`);
    const total = this.plan.memory.parts.reduce((sum, name) => sum + series[name][at], 0);
    place(this.tip, box, x, event.clientY - box.top, [`${formatTime(1e6 * time)}: ${(total / 1e9).toFixed(1)} GB`, ...lines].join("\n"));
  }
}
