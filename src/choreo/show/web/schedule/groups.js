// Neighbouring ranks, and neighbouring chunks, that a drawing has no room to tell apart.

import { element } from "../base.js";
import { memberName } from "./timeline.js";

export const MOST = 128;

export class Groups {
  // `extra` more members after the first `count`, relays and switches, have groups of their own.
  constructor(count, extra = 0) {
    const size = Math.ceil(count / MOST), more = Math.ceil(extra / 16) || 1;
    this.count = count;
    this.first = [];
    for (let at = 0; at < count; at += size) this.first.push(at);
    this.main = this.first.length;
    for (let at = count; at < count + extra; at += more) this.first.push(at);
    this.first.push(count + extra);
    this.length = this.first.length - 1;
    this.of = new Int16Array(count + extra);
    for (let group = 0; group < this.length; group++) this.of.fill(group, this.first[group], this.first[group + 1]);
  }

  size(group) {
    return this.first[group + 1] - this.first[group];
  }

  // Its numbers as words: "8" or "8–15".
  name(group) {
    const first = this.first[group], last = this.first[group + 1] - 1;
    return first === last ? `${first}` : `${first}–${last}`;
  }
}

export function groupName(data, groups, group) {
  const [first, last] = [groups.first[group], groups.first[group + 1] - 1].map((member) => memberName(data, member).split(" "));
  if (first[0] !== last[0]) return `${first.join(" ")} to ${last.join(" ")}`;
  if (first[1] === last[1]) return first.join(" ");
  return `${first[0]}${first[0] === "switch" ? "es" : "s"} ${first[1]}–${last[1]}`;
}

export function mixed(one, other, share) {
  return [0, 1, 2].map((at) => Math.round(one[at] + (other[at] - one[at]) * share));
}

// A drawing of rows by columns of colours with numbered sides. `pick` gets the row and column that is clicked.
export class Raster {
  constructor(holder, { rows, columns, down, across, named, pick, tell }) {
    Object.assign(this, { rows, columns, down, across, named, tell });
    this.holder = holder;
    this.canvas = element("canvas", { role: "img", "aria-label": named }, holder);
    this.tip = element("div", { class: "tip", hidden: "" }, holder);
    this.image = new ImageData(columns.length, rows.length);
    this.small = Object.assign(document.createElement("canvas"), { width: columns.length, height: rows.length });
    this.canvas.addEventListener("click", (event) => this.at(event, pick));
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
  }

  at(event, then) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - left - this.left) / this.width) * this.columns.length);
    const row = Math.floor(((event.clientY - top - this.top) / this.height) * this.rows.length);
    const inside = row >= 0 && column >= 0 && row < this.rows.length && column < this.columns.length;
    if (inside) then(row, column);
    return inside;
  }

  point(event) {
    this.tip.hidden = !this.at(event, (row, column) => { this.tip.textContent = this.tell(row, column); });
    if (this.tip.hidden) return;
    const { left, top, width } = this.holder.getBoundingClientRect();
    this.tip.style.left = `${Math.max(0, Math.min(event.clientX - left + 12, width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${event.clientY - top + 16}px`;
  }

  // As large as there is room for, with room for the numbers at the sides.
  fit(width, height, square) {
    const scale = window.devicePixelRatio || 1;
    [this.left, this.top] = [46, 34];
    this.width = Math.max(60, width - this.left - 8);
    this.height = Math.max(60, height - this.top - 8);
    if (square) this.width = this.height = Math.min(this.width, this.height);
    this.canvas.width = Math.round((this.left + this.width + 8) * scale);
    this.canvas.height = Math.round((this.top + this.height + 8) * scale);
    this.canvas.style.width = `${this.left + this.width + 8}px`;
    this.canvas.style.height = `${this.top + this.height + 8}px`;
    this.scale = scale;
  }

  // `color` gives the three channels of a row and column; `marks` are rows, columns or cells to draw a frame round.
  draw(colors, color, marks) {
    const { rows, columns, image, width, height } = this, pixels = image.data;
    for (let row = 0, at = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++, at += 4) {
        const [red, green, blue] = color(row, column);
        pixels[at] = red; pixels[at + 1] = green; pixels[at + 2] = blue; pixels[at + 3] = 255;
      }
    }
    this.small.getContext("2d").putImageData(image, 0, 0);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.small, this.left, this.top, width, height);
    this.sides(pen, colors);
    pen.strokeStyle = colors.ink;
    pen.lineWidth = 1;
    for (const [row, column] of marks) this.frame(pen, row, column);
  }

  frame(pen, row, column) {
    const high = this.height / this.rows.length, wide = this.width / this.columns.length;
    const x = column === null ? this.left : this.left + column * wide, y = row === null ? this.top : this.top + row * high;
    const across = column === null ? this.width : wide, down = row === null ? this.height : high;
    pen.strokeRect(x - 0.5, y - 0.5, across + 1, down + 1);
  }

  // A few round numbers on each side, and what they count.
  sides(pen, colors) {
    pen.fillStyle = colors.muted;
    pen.font = "11px Inter, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const high = this.height / this.rows.length, wide = this.width / this.columns.length;
    for (const row of ticks(this.rows, this.height / 40)) pen.fillText(this.rows.first[row], this.left - 5, this.top + (row + 0.5) * high);
    pen.textAlign = "center";
    for (const column of ticks(this.columns, this.width / 55)) {
      pen.fillText(this.columns.first[column], this.left + (column + 0.5) * wide, this.top - 8);
    }
    pen.textAlign = "left";
    pen.fillStyle = colors.ink;
    pen.fillText(`${this.across} →`, this.left, this.top - 25);
    pen.save();
    pen.translate(8, this.top);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "right";
    pen.fillText(`← ${this.down}`, 0, 0);
    pen.restore();
  }
}

// Every so many groups, at most this many of them.
export function ticks(groups, most) {
  const { main } = groups;
  const every = [1, 2, 4, 8, 16, 32, 64, 128].find((step) => main / step <= Math.max(2, most));
  return Array.from({ length: Math.ceil(main / every) }, (_, at) => at * every);
}
