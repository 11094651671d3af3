// The cloud of plans: memory against the time of a step, with what is not beaten in both. It can be panned, zoomed,
// brushed and pointed at.

import { element, palette } from "/show/base.js";
import { sharp } from "../work.js";
import { Points } from "./points.js";

const UNIT_SQUARE = { left: 0, bottom: 0, width: 1, height: 1 };

export function seconds(time) {
  return time >= 1 ? `${Number(time.toPrecision(3))} s` : `${Number((1e3 * time).toPrecision(3))} ms`;
}

export class Cloud {
  // `open` is called with the plan that is clicked, `moved` when what is seen or brushed has changed, and `words` tells
  // of a plan in two lines.
  constructor(holder, { open, moved, words }) {
    const box = element("div", { class: "cloud" }, holder);
    this.dots = element("canvas", { class: "dots" }, box);
    this.over = element("canvas", { class: "over", tabindex: 0, role: "img", "aria-label": "plans by memory and time; drag to pan, wheel to zoom, shift and drag to brush, click for one" }, box);
    this.tip = element("p", { class: "tip", hidden: "" }, box);
    this.points = new Points(this.dots);
    this.view = { ...UNIT_SQUARE };
    this.open = open;
    this.moved = moved;
    this.words = words;
    this.data = null;
    this.brush = null;
    this.picked = -1;
    this.hold();
  }

  // Another search: its columns, the rows that nothing beats, and the best.
  set(data) {
    const { memory, time, count, room_bytes: room } = data;
    this.data = data;
    let [least, most, shortest, longest] = [Infinity, room, Infinity, 0];
    for (let at = 0; at < count; at++) {
      least = Math.min(least, memory[at]);
      most = Math.max(most, memory[at]);
      shortest = Math.min(shortest, time[at]);
      longest = Math.max(longest, time[at]);
    }
    this.range = { x: [Math.log(least * 0.9), Math.log(most * 1.1)], y: [Math.log(shortest * 0.9), Math.log(longest * 1.1)] };
    this.place = new Float32Array(2 * count);
    for (let at = 0; at < count; at++) {
      this.place[2 * at] = this.unit("x", memory[at]);
      this.place[2 * at + 1] = this.unit("y", time[at]);
    }
  }

  // What is seen and brushed, as texts of four numbers each; empty for all and for nothing.
  get looks() {
    const { left, bottom, width, height } = this.view, text = (numbers) => numbers.map((number) => Number(number.toFixed(4))).join(",");
    const look = text([left, bottom, width, height]), { brush } = this;
    return { look: look === "0,0,1,1" ? "" : look, brush: brush ? text([brush.left, brush.bottom, brush.right, brush.top]) : "" };
  }

  set looks({ look = "", brush = "" }) {
    const four = (text) => { const found = text.split(",").map(Number); return found.length === 4 && found.every(Number.isFinite) ? found : null; };
    const [left, bottom, width, height] = four(look) || [0, 0, 1, 1], edges = four(brush);
    this.view = width > 0 && height > 0 ? { left, bottom, width, height } : { ...UNIT_SQUARE };
    this.brush = edges && { left: edges[0], bottom: edges[1], right: edges[2], top: edges[3] };
    if (this.hue && this.hue.length === this.data.count) this.dimmed();
  }

  // The colours, and the number of each plan's.
  paint(hues, hue) {
    this.hues = hues;
    this.hue = hue;
    this.dimmed();
  }

  // Plans outside of the brush are dim.
  dimmed() {
    const { brush, place, hue } = this;
    const outside = (_, at) => Number(place[2 * at] < brush.left || place[2 * at] > brush.right || place[2 * at + 1] < brush.bottom || place[2 * at + 1] > brush.top);
    this.points.set(place, hue, brush ? Uint8Array.from(hue, outside) : null);
  }

  unit(axis, value) {
    const [low, high] = this.range[axis];
    return (Math.log(value) - low) / (high - low || 1);
  }

  value(axis, unit) {
    const [low, high] = this.range[axis];
    return Math.exp(low + unit * (high - low));
  }

  draw() {
    if (!this.data) return;
    const { count, front, best, room_bytes: room } = this.data;
    this.points.draw(this.view, this.hues, count > 200_000 ? 2 : count > 20_000 ? 3 : 5);
    const { draw, width, height } = sharp(this.over), colors = palette(), { view, place, brush } = this;
    const x = (unit) => ((unit - view.left) / view.width) * width, y = (unit) => height - ((unit - view.bottom) / view.height) * height;
    draw.clearRect(0, 0, width, height);
    this.axes(draw, colors, { x, y, width, height });
    draw.textAlign = "left";
    labelled(draw, "↑ time of a step", 5, 12, colors);
    draw.textAlign = "right";
    labelled(draw, "memory of a GPU →", width - 6, height - 25, colors);
    const edge = x(this.unit("x", room));
    draw.fillStyle = colors.wrong;
    draw.globalAlpha = 0.07;
    draw.fillRect(edge, 0, width - edge, height);
    draw.globalAlpha = 1;
    draw.fillRect(edge, 0, 1.5, height);
    draw.textAlign = edge > width - 90 ? "right" : "left";
    draw.fillText("does not fit →", edge > width - 90 ? edge - 6 : edge + 6, 12);
    draw.strokeStyle = colors.ink;
    draw.lineWidth = 1.8;
    draw.beginPath();
    front.forEach((row, at) => {
      const [px, py] = [x(place[2 * row]), y(place[2 * row + 1])];
      if (at) {
        draw.lineTo(px, y(place[2 * front[at - 1] + 1]));
        draw.lineTo(px, py);
      } else draw.moveTo(px, py);
    });
    draw.stroke();
    if (brush) {
      draw.setLineDash([5, 4]);
      draw.strokeRect(x(brush.left), y(brush.top), x(brush.right) - x(brush.left), y(brush.bottom) - y(brush.top));
      draw.setLineDash([]);
    }
    const ring = (row, radius, color) => {
      draw.strokeStyle = color;
      draw.lineWidth = 2;
      draw.beginPath();
      draw.arc(x(place[2 * row]), y(place[2 * row + 1]), radius, 0, 7);
      draw.stroke();
    };
    for (const row of best) ring(row, 5, colors.ink);
    if (this.picked >= 0 && this.picked < count) ring(this.picked, 8, colors.wrong);
  }

  // The cloud fills its canvas; the axes are drawn over its edge.
  axes(draw, colors, { x, y, width, height }) {
    const { view } = this;
    draw.lineWidth = 1;
    draw.textBaseline = "middle";
    draw.strokeStyle = colors.line;
    draw.fillStyle = colors.muted;
    for (const axis of ["x", "y"]) {
      const [from, span] = axis === "x" ? [view.left, view.width] : [view.bottom, view.height];
      const low = this.value(axis, from), high = this.value(axis, from + span), ticks = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) for (const step of [1, 2, 5]) ticks.push(step * 10 ** power);
      for (const tick of ticks.filter((one) => one >= low && one <= high)) {
        const at = axis === "x" ? x(this.unit("x", tick)) : y(this.unit("y", tick));
        draw.globalAlpha = 0.6;
        draw.beginPath();
        if (axis === "x") {
          draw.moveTo(at, 0);
          draw.lineTo(at, height);
        } else {
          draw.moveTo(0, at);
          draw.lineTo(width, at);
        }
        draw.stroke();
        draw.globalAlpha = 1;
        draw.textAlign = axis === "x" ? "center" : "left";
        if (axis === "x" && at > 40 && at < width - 24) labelled(draw, `${Number((tick / 1e9).toPrecision(3))} GB`, at, height - 9, colors);
        if (axis === "y" && at > 30 && at < height - 20) labelled(draw, seconds(tick), 5, at - 7, colors);
      }
    }
  }

  unitsAt(event) {
    const box = this.over.getBoundingClientRect();
    return [this.view.left + ((event.clientX - box.left) / box.width) * this.view.width, this.view.bottom + (1 - (event.clientY - box.top) / box.height) * this.view.height];
  }

  soon() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
    clearTimeout(this.rests);
    this.rests = setTimeout(() => this.moved(this.looks), 250);
  }

  // Brush what lies between these edges; without any, nothing.
  select(edges) {
    this.brush = edges;
    this.dimmed();
    this.soon();
  }

  hold() {
    let from = null, moved = false;
    this.over.addEventListener("pointerdown", (event) => {
      from = { at: this.unitsAt(event), view: { ...this.view }, x: event.clientX, y: event.clientY, brushing: event.shiftKey };
      moved = false;
      if (event.isTrusted) this.over.setPointerCapture(event.pointerId);
    });
    this.over.addEventListener("pointermove", (event) => {
      if (!this.data) return;
      if (!from) {
        this.point(event);
        return;
      }
      moved ||= Math.hypot(event.clientX - from.x, event.clientY - from.y) > 4;
      if (from.brushing) {
        const to = this.unitsAt(event);
        this.brush = { left: Math.min(from.at[0], to[0]), right: Math.max(from.at[0], to[0]), bottom: Math.min(from.at[1], to[1]), top: Math.max(from.at[1], to[1]) };
      } else {
        const box = this.over.getBoundingClientRect();
        this.view = { ...from.view, left: from.view.left - ((event.clientX - from.x) / box.width) * this.view.width, bottom: from.view.bottom + ((event.clientY - from.y) / box.height) * this.view.height };
      }
      this.soon();
    });
    this.over.addEventListener("pointerup", (event) => {
      if (this.data && from && from.brushing) {
        this.select(moved ? this.brush : null);
      } else if (this.data && from && !moved) {
        const row = this.nearest(event);
        if (row >= 0) this.open(row);
      }
      from = null;
    });
    this.over.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.over.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, this.unitsAt(event));
    }, { passive: false });
    this.over.addEventListener("dblclick", () => { this.view = { ...UNIT_SQUARE }; this.soon(); });
  }

  zoom(factor, [x, y]) {
    const { left, bottom, width, height } = this.view;
    if (width * factor > 4 || width * factor < 1e-3) return;
    this.view = { left: x - (x - left) * factor, bottom: y - (y - bottom) * factor, width: width * factor, height: height * factor };
    this.soon();
  }

  nearest(event) {
    const [x, y] = this.unitsAt(event), box = this.over.getBoundingClientRect(), { place } = this;
    const across = box.width / this.view.width, up = box.height / this.view.height;
    let best = -1, least = 10 ** 2;
    for (let at = 0; at < this.data.count; at++) {
      const dx = (place[2 * at] - x) * across, dy = (place[2 * at + 1] - y) * up, away = dx * dx + dy * dy;
      if (away < least) {
        best = at;
        least = away;
      }
    }
    return best;
  }

  point(event) {
    const row = this.nearest(event);
    this.tip.hidden = row < 0;
    if (row < 0) return;
    this.tip.textContent = this.words(row);
    this.tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, this.over.clientWidth - 240))}px`;
    this.tip.style.top = `${Math.min(event.offsetY + 14, this.over.clientHeight - 50)}px`;
  }

  key(event) {
    const middle = [this.view.left + this.view.width / 2, this.view.bottom + this.view.height / 2], step = 0.08;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    const { left, bottom, width, height } = this.view;
    if (event.key === "0") {
      this.view = { ...UNIT_SQUARE };
      this.soon();
    } else if (event.key === "b") this.select({ left, bottom, right: left + width, top: bottom + height });
    else if (event.key === "Escape" && this.brush) this.select(null);
    else if (event.key === "+" || event.key === "=") this.zoom(1 / 1.2, middle);
    else if (event.key === "-") this.zoom(1.2, middle);
    else if (moves) {
      this.view = { ...this.view, left: this.view.left + moves[0] * step * this.view.width, bottom: this.view.bottom + moves[1] * step * this.view.height };
      this.soon();
    } else return false;
    return true;
  }
}

// Words that can be read on top of points.
function labelled(draw, words, x, y, colors) {
  draw.save();
  draw.strokeStyle = colors.paper;
  draw.fillStyle = colors.ink;
  draw.lineWidth = 3.5;
  draw.lineJoin = "round";
  draw.strokeText(words, x, y);
  draw.fillText(words, x, y);
  draw.restore();
}
