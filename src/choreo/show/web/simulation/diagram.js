// Every message in space and time: ranks down, time across, a message from where it starts to where it arrives. With many
// ranks, a map of what each sends takes the place of the messages.

import { formatBytes, formatTime, niceStep, palette, timeUnit } from "../base.js";
import { activityAt, paintActivity } from "./activity.js";

export const RIGHT = 60;  // enough for "1.75 MiB" in a wide font

export class Diagram {
  constructor(data, holder, scrub) {
    this.data = data;
    this.holder = holder;
    this.drawn = holder.querySelector(".drawn");
    this.live = holder.querySelector(".live");
    this.tip = holder.querySelector(".tip");
    this.total = data.figures.time_us;
    let held = false;
    const at = (event) => this.timeAt(event.clientX - this.live.getBoundingClientRect().left);
    this.live.addEventListener("pointerdown", (event) => { held = true; this.live.setPointerCapture(event.pointerId); scrub(at(event)); });
    this.live.addEventListener("pointermove", (event) => { if (held) scrub(at(event)); else this.point(event); });
    this.live.addEventListener("pointerup", () => { held = false; });
    this.live.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  // Another run in the same place.
  renew(data) {
    this.data = data;
    this.total = data.figures.time_us;
    this.tip.hidden = true;
  }

  // As large as there is room for; everything that does not move is drawn once.
  fit() {
    const { width, height } = this.holder.getBoundingClientRect();
    this.ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    for (const canvas of [this.drawn, this.live]) {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
    }
    this.left = gutter(width > 560 ? window.innerWidth : width);
    this.top = 8;
    this.bottom = height - 20;
    this.colors = palette();
    this.redraw();
  }

  // The same room, with another run in it.
  redraw() {
    this.still = this.layer((draw) => this.paint(draw));
  }

  layer(paint) {
    const canvas = document.createElement("canvas");
    canvas.width = this.drawn.width;
    canvas.height = this.drawn.height;
    const draw = canvas.getContext("2d");
    draw.scale(this.ratio, this.ratio);
    paint(draw);
    return canvas;
  }

  x(time_us) {
    return this.left + (this.total > 0 ? time_us / this.total : 0) * (this.width - this.left - RIGHT);
  }

  y(row) {
    const rows = this.data.rows.length;
    return rows === 1 ? (this.top + this.bottom) / 2 : this.top + 4 + (row / (rows - 1)) * (this.bottom - this.top - 8);
  }

  timeAt(x) {
    const share = (x - this.left) / (this.width - this.left - RIGHT);
    return Math.max(0, Math.min(1, share)) * this.total;
  }

  // The background: rows with their names, and times.
  frame(draw) {
    const { activity, rows } = this.data, room = (this.bottom - this.top) / rows.length;
    const every = Math.max(1, Math.ceil(14 / room));
    const step = every === 1 ? 1 : niceStep(every);
    draw.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    draw.textBaseline = "middle";
    draw.textAlign = "right";
    rows.forEach(({ name }, row) => {
      if (row % step === 0) {
        draw.fillStyle = this.colors.muted;
        draw.fillText(name, this.left - 10, this.y(row), this.left - 12);
      }
      if (!activity && (row % step === 0 || room > 5)) line(draw, this.left, this.y(row), this.width - RIGHT, this.y(row), this.colors.line, 1);
    });
    if (!(this.total > 0)) return;
    const span = this.longest || this.total, [unit, scale] = timeUnit(span); // two runs on one clock have one axis
    draw.textBaseline = "alphabetic";
    draw.textAlign = "center";
    draw.fillStyle = this.colors.muted;
    const tick = niceStep(span / scale / Math.max(2, (this.x(span) - this.left) / 90));
    for (let at = 0; at * scale <= span * 1.0001; at += tick) {
      const x = this.x(at * scale);
      line(draw, x, this.top, x, this.bottom, this.colors.line, 1);
      draw.fillText(at ? `${Number(at.toPrecision(6))} ${unit}` : "0", x, this.height - 5);
    }
  }

  paint(draw) {
    if (this.data.activity) paintActivity(this, draw);
    else this.lines(draw);
    this.critical(draw, this.data.path.legs);
  }

  lines(draw) {
    const { messages } = this.data;
    const room = (this.bottom - this.top) / this.data.rows.length, thick = room > 14 ? 1.3 : 0.9;
    const { deep, ink } = this.density(thick);
    for (let at = 0; at < messages.src.length; at++) {
      const [y1, y2] = [this.y(messages.src[at]), this.y(messages.dst[at])];
      const [start, out, arrived] = [messages.start_us[at], messages.out_us[at], messages.arrived_us[at]].map((time) => this.x(time));
      const color = messages.reduce[at] ? this.colors.add : this.colors.copy;
      draw.fillStyle = draw.strokeStyle = color;
      if (deep < 4) {
        // The band between its first byte and its last.
        draw.globalAlpha = 0.17 / deep;
        draw.beginPath();
        draw.moveTo(start, y1);
        draw.lineTo(out, y1);
        draw.lineTo(arrived, y2);
        draw.lineTo(Math.max(start, arrived - (out - start)), y2);
        draw.fill();
      }
      draw.globalAlpha = Math.max(0.25, 0.85 / Math.sqrt(deep)) * Math.min(1, Math.max(0.12, 0.6 / ink));
      line(draw, start, y1, arrived, y2, color, thick);
    }
    draw.globalAlpha = 1;
  }

  critical(draw, legs) {
    this.way(draw, legs, this.colors.paper, 5);
    this.way(draw, legs, this.colors.ink, 2);
    if (legs.length > 60) return;
    for (const { way } of legs) dot(draw, this.x(way[0][0]), this.y(way[0][1]), 2.6, this.colors.ink, this.colors.paper);
    const last = legs[legs.length - 1];
    if (last) dot(draw, this.x(last.way[last.way.length - 1][0]), this.y(last.dst), 3.4, this.colors.ink, this.colors.paper);
  }

  // How many bands overlap, and how much of the area lines would cover: the more, the fainter each message is drawn.
  density(thick) {
    const { messages, rows } = this.data;
    let crossed = 0, covered = 0;
    for (let at = 0; at < messages.src.length; at++) {
      crossed += Math.abs(messages.dst[at] - messages.src[at]) * (messages.out_us[at] - messages.start_us[at]);
      covered += Math.hypot(
        this.x(messages.arrived_us[at]) - this.x(messages.start_us[at]), this.y(messages.dst[at]) - this.y(messages.src[at]));
    }
    const area = (this.width - this.left - RIGHT) * (this.bottom - this.top);
    return { deep: Math.max(1, crossed / ((this.total || 1) * rows.length)), ink: (covered * thick) / area };
  }

  way(draw, legs, color, width) {
    draw.strokeStyle = color;
    draw.lineWidth = width;
    draw.lineJoin = "round";
    draw.beginPath();
    let [fromX, fromY] = [-10, -10];
    legs.forEach(({ way }, at) => way.forEach(([time_us, row], point) => {
      const x = this.x(time_us), y = this.y(row), last = at === legs.length - 1 && point === way.length - 1;
      if (!last && Math.abs(x - fromX) + Math.abs(y - fromY) < 1) return;  // thousands of legs are finer than pixels
      if (at || point) draw.lineTo(x, y);
      else draw.moveTo(x, y);
      [fromX, fromY] = [x, y];
    }));
    draw.stroke();
  }

  // The past is bright and the future pale; messages in flight are dots.
  show(time_us) {
    if (!this.still.width || !this.still.height) return;  // in a folded cell of a notebook, or a hidden frame
    const draw = this.drawn.getContext("2d"), now = this.x(time_us);
    draw.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    draw.clearRect(0, 0, this.width, this.height);
    this.frame(draw);
    for (const [from, to, alpha] of [[0, now, 1], [now, this.width, 0.34]]) {
      draw.save();
      draw.beginPath();
      draw.rect(from, 0, to - from, this.height);
      draw.clip();
      draw.globalAlpha = alpha;
      draw.drawImage(this.still, 0, 0, this.width, this.height);
      draw.restore();
    }
    const live = this.live.getContext("2d");
    live.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    live.clearRect(0, 0, this.width, this.height);
    line(live, now, 2, now, this.bottom, this.colors.ink, 1.5);
    const { messages } = this.data, under = underWay(this.data, time_us);
    if (!this.data.activity && under.length <= 40) {
      for (const at of under) {
        const whole = messages.arrived_us[at] - messages.start_us[at];
        const share = whole > 0 ? (time_us - messages.start_us[at]) / whole : 1;
        const y = this.y(messages.src[at]) + (this.y(messages.dst[at]) - this.y(messages.src[at])) * share;
        dot(live, now, y, 3, messages.reduce[at] ? this.colors.add : this.colors.copy, this.colors.paper);
      }
    }
    live.fillStyle = this.colors.ink;
    live.beginPath();
    live.moveTo(now - 5, 0);
    live.lineTo(now + 5, 0);
    live.lineTo(now, 7);
    live.fill();
  }

  // What is under the pointer: a message, or what a rank sends.
  point(event) {
    const box = this.live.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const words = this.data.activity ? this.rankAt(x, y) : this.messageAt(x, y);
    this.tip.hidden = !words;
    this.tip.textContent = words;
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, this.width - 270))}px`;
    this.tip.style.top = `${y + (y > this.height - 60 ? -48 : 14)}px`;
  }

  rankAt(x, y) {
    const row = this.rowAt(y);
    return x < this.left || row < 0 ? "" : activityAt(this.data, row, this.timeAt(x));
  }

  // The row at a height, or -1.
  rowAt(y) {
    const { rows } = this.data, row = Math.round(((y - this.top - 4) / (this.bottom - this.top - 8)) * (rows.length - 1));
    return row >= 0 && row < rows.length ? row : -1;
  }

  messageAt(x, y) {
    const { messages, rows } = this.data, best = this.nearest(x, y);
    if (best < 0) return "";
    const sent = `${rows[messages.src[best]].name} → ${rows[messages.dst[best]].name}, ${formatBytes(messages.bytes[best])}`;
    return `step ${messages.step[best]}: ${sent}, ${formatTime(messages.start_us[best])} to ${formatTime(messages.arrived_us[best])}`;
  }

  // The number of the message at a point, or -1.
  nearest(x, y) {
    const { messages } = this.data;
    let best = -1, least = 6;
    for (let at = 0; at < messages.src.length; at++) {
      const away = distance(x, y, this.x(messages.start_us[at]), this.y(messages.src[at]), this.x(messages.arrived_us[at]), this.y(messages.dst[at]));
      if (away < least) [best, least] = [at, away];
    }
    return best;
  }
}

// The width of the names left of every time axis.
export function gutter(room = window.innerWidth) {
  return room > 900 ? 138 : room > 560 ? 96 : 60;
}

// The messages that have started and not arrived.
export function underWay({ messages }, time_us) {
  const found = [];
  for (let at = 0; at < messages.src.length; at++) {
    if (messages.start_us[at] <= time_us && time_us < messages.arrived_us[at]) found.push(at);
  }
  return found;
}

export function line(draw, x1, y1, x2, y2, color, width) {
  draw.strokeStyle = color;
  draw.lineWidth = width;
  draw.beginPath();
  draw.moveTo(x1, y1);
  draw.lineTo(x2, y2);
  draw.stroke();
}

export function dot(draw, x, y, radius, color, edge) {
  draw.beginPath();
  draw.arc(x, y, radius, 0, 2 * Math.PI);
  draw.fillStyle = color;
  draw.fill();
  draw.strokeStyle = edge;
  draw.lineWidth = 1;
  draw.stroke();
}

export function distance(x, y, x1, y1, x2, y2) {
  const [dx, dy] = [x2 - x1, y2 - y1], long = dx * dx + dy * dy;
  const share = long ? Math.max(0, Math.min(1, ((x - x1) * dx + (y - y1) * dy) / long)) : 0;
  return Math.hypot(x - x1 - share * dx, y - y1 - share * dy);
}
