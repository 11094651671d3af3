// The chunk matrix: ranks down, chunks across, and how much of each place is there at a moment.

import { channels, counted, element, formatTime, niceStep, palette } from "/show/base.js";
import { bytesOf } from "../ask.js";

const LEFT = 34, TOP = 18;

export class ChunkMatrix {
  constructor(holder, pick) {
    this.holder = holder;
    this.canvas = element("canvas", { role: "img", "aria-label": "who holds which chunk" }, holder);
    this.tip = element("p", { class: "tip", hidden: "" }, holder);
    this.word = element("p", { class: "word", hidden: "" }, holder);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => {
      const at = this.cellAt(event);
      if (!at || !this.data) return;
      if (at.column < 0) pick("rank", at.row * this.data.ranks_per_row);
      else pick("chunk", at.column * this.data.chunks_per_column);
    });
    this.data = null;
    this.time = 0;
  }

  // Nothing is known yet, or never will be: say so.
  say(words) {
    this.data = null;
    this.waiting = false;
    this.canvas.classList.remove("waits");
    this.word.textContent = words;
    this.word.hidden = !words;
    this.canvas.hidden = true;
  }

  // Something else is to come; until then what was there stays, faint.
  wait() {
    if (!this.data) this.say("…");
    this.waiting = true;
    this.canvas.classList.add("waits");
  }

  set(data, total) {
    this.say("");
    this.data = data;
    this.total = total;
    this.canvas.hidden = false;
    this.frames = data.frames.map(bytesOf);
    this.held = Int32Array.from(data.start);
    this.at = 0;
    this.fit();
    const heading = this.holder.parentElement.querySelector("h3"), { ranks_per_row: ranks, chunks_per_column: chunks, follows_one_of: every } = data;
    const cells = ranks * chunks > 1 ? `, in cells of ${counted(ranks, "rank")} × ${counted(chunks, "chunk")}` : "";
    heading.textContent = `Who holds which chunk${cells}${every > 1 ? ` (1 in ${every} followed)` : ""}`;
  }

  fit() {
    const { width, height } = this.holder.getBoundingClientRect();
    if (!this.data || !width || !height) return;
    this.size = { width, height };
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    this.colors = palette();
    const { rows, columns } = this.data;
    this.cell = { width: Math.min(120, (width - LEFT - 4) / columns), height: Math.min(52, (height - TOP - 4) / rows) };
  }

  // The share of each cell at a moment, from 0 to 1.
  shares(time_us) {
    const { data } = this;
    if (this.frames.length) {
      const last = this.frames.length - 1;
      const at = this.total > 0 ? Math.min(last, Math.floor((time_us / this.total) * last + 1e-9)) : last;
      return Float32Array.from(this.frames[at], (value) => value / 255);
    }
    if (this.at && data.time_us[this.at - 1] > time_us) {
      this.held = Int32Array.from(data.start);
      this.at = 0;
    }
    const slack = time_us + 1e-9 * this.total;
    for (; this.at < data.cell.length && data.time_us[this.at] <= slack; this.at++) this.held[data.cell[this.at]] = data.value[this.at];
    return Float32Array.from(this.held, (value) => Math.min(1, value / data.whole));
  }

  show(time_us, picked = {}) {
    if (this.waiting) return;
    this.time = time_us;
    this.picked = picked;
    if (!this.data || !this.cell) return;
    const draw = this.canvas.getContext("2d");
    this.last = this.shares(time_us);
    draw.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    draw.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (Math.min(this.cell.width, this.cell.height) > 6) this.boxes(draw);
    else this.density(draw);
    this.names(draw);
    this.marks(draw);
  }

  // Few cells: a box each.
  boxes(draw) {
    const { rows, columns, wanted } = this.data, { width, height } = this.cell, shares = this.last;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const at = row * columns + column, place = [LEFT + column * width, TOP + row * height, width - 1, height - 1];
        draw.fillStyle = this.colors.empty;
        draw.globalAlpha = wanted[at] || shares[at] ? 1 : 0.45;
        draw.fillRect(...place);
        if (!shares[at]) continue;
        draw.globalAlpha = opacity(shares[at]);
        draw.fillStyle = shares[at] >= 1 && wanted[at] ? this.colors.whole : this.colors.copy;
        draw.fillRect(...place);
      }
    }
    draw.globalAlpha = 1;
  }

  // Many cells: a pixel each, in a picture that is stretched without seams.
  density(draw) {
    const { rows, columns, wanted } = this.data, shares = this.last;
    if (!this.image || this.image.width !== columns || this.image.height !== rows) {
      this.small = document.createElement("canvas");
      [this.small.width, this.small.height] = [columns, rows];
      this.image = this.small.getContext("2d").createImageData(columns, rows);
    }
    const { data } = this.image, [paper, empty, whole, copy] = ["paper", "empty", "whole", "copy"].map((name) => channels(this.colors[name]));
    for (let at = 0; at < rows * columns; at++) {
      const share = shares[at], front = share >= 1 && wanted[at] ? whole : copy, much = share ? opacity(share) : 0, shown = wanted[at] || share ? 1 : 0.45;
      for (let part = 0; part < 3; part++) {
        const back = paper[part] + (empty[part] - paper[part]) * shown;
        data[4 * at + part] = back + (front[part] - back) * much;
      }
      data[4 * at + 3] = 255;
    }
    this.small.getContext("2d").putImageData(this.image, 0, 0);
    draw.imageSmoothingEnabled = false;
    draw.drawImage(this.small, LEFT, TOP, columns * this.cell.width, rows * this.cell.height);
  }

  names(draw) {
    const { rows, columns, ranks_per_row: ranks, chunks_per_column: chunks } = this.data, { width, height } = this.cell;
    draw.fillStyle = this.colors.muted;
    draw.font = `10px ${getComputedStyle(document.body).fontFamily}`;
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (let row = 0; row < rows; row += stride(13 / height)) draw.fillText(row * ranks, LEFT - 6, TOP + (row + 0.5) * height);
    draw.textAlign = "center";
    for (let column = 0; column < columns; column += stride(28 / width)) draw.fillText(column * chunks, LEFT + (column + 0.5) * width, TOP - 8);
  }

  // What is picked, and the cells that messages just brought.
  marks(draw) {
    const { rows, columns, ranks_per_row: ranks, chunks_per_column: chunks } = this.data, { width, height } = this.cell;
    const { rank, chunk, cells = [] } = this.picked;
    draw.strokeStyle = this.colors.wrong;
    draw.lineWidth = 2;
    if (rank !== undefined) draw.strokeRect(LEFT - 1, TOP + Math.floor(rank / ranks) * height - 1, columns * width + 1, height + 1);
    if (chunk !== undefined) draw.strokeRect(LEFT + Math.floor(chunk / chunks) * width - 1, TOP - 1, width + 1, rows * height + 1);
    for (const cell of cells) draw.strokeRect(LEFT + (cell % columns) * width, TOP + Math.floor(cell / columns) * height, width - 1, height - 1);
  }

  cellAt(event) {
    if (!this.data || !this.cell) return null;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - LEFT) / this.cell.width), row = Math.floor((event.clientY - box.top - TOP) / this.cell.height);
    return row >= 0 && row < this.data.rows && column < this.data.columns ? { row, column } : null;
  }

  point(event) {
    const at = this.cellAt(event);
    this.tip.hidden = !at || at.column < 0;
    if (this.tip.hidden) return;
    const { ranks_per_row: ranks, chunks_per_column: chunks, columns, whole } = this.data, share = this.last[at.row * columns + at.column];
    const some = (first, count, noun) => (count === 1 ? `${noun} ${first}` : `${noun}s ${first * count} to ${first * count + count - 1}`);
    const held = ranks === 1 && chunks === 1 && whole > 1 ? `${Math.round(share * whole)} of ${whole} contributions` : share ? `${Math.round(100 * share)}% there` : "not there";
    this.tip.textContent = `${some(at.row, ranks, "rank")}, ${some(at.column, chunks, "chunk")} at ${formatTime(this.time)}: ${held}`;
    this.tip.style.left = `${Math.min(event.offsetX + 12, Math.max(0, this.holder.clientWidth - 240))}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }

  // The cells that a message writes, and the messages that carry a chunk; both only where every event is known.
  cellsOf(message) {
    return this.data && !this.waiting ? this.data.message.flatMap((one, at) => (one === message ? [this.data.cell[at]] : [])) : [];
  }

  messagesOf(chunk) {
    if (!this.data || this.waiting) return null;
    const found = new Set();
    this.data.cell.forEach((cell, at) => { if (cell % this.data.columns === chunk) found.add(this.data.message[at]); });
    return this.data.frames.length ? null : found;
  }
}

// How strong the colour of a share is.
function opacity(share) {
  return share >= 1 ? 1 : 0.15 + 0.6 * share;
}

// Every how many names there is room for one.
function stride(least) {
  return least <= 1 ? 1 : niceStep(Math.ceil(least));
}
