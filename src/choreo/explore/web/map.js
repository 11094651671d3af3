// Which algorithm wins where: a map of sizes and ranks. A click opens the moment of that cell.

import { element, formatBytes, formatTime, palette } from "/show/base.js";
import { Latest, served } from "./ask.js";
import { Form } from "./fields.js";
import { fieldsOf } from "./moment/moment.js";
import { change, state } from "./state.js";
import { HUES, Work, sharp } from "./work.js";

const MAP_RANKS = [2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512];
const MAP_SIZES = [...Array(28).keys()].map((power) => 2 ** (power + 3));
const COARSE = { ranks: [2, 4, 6, 8, 12, 16, 24, 32, 64], sizes: MAP_SIZES.filter((_, at) => at % 3 === 0) };
const MAP_LEFT = 52, MAP_BOTTOM = 40;

export class MapView {
  constructor(holder) {
    this.form = new Form(holder, ["collective", "topology", "alpha", "bandwidth", "gamma"]);
    const by = element("label", { class: "field" }, this.form.form);
    element("span", {}, by, "timed by");
    this.by = element("select", { name: "by" }, by);
    for (const [value, words] of [["formula", "formula"], ["simulation", "simulation"]]) element("option", { value }, this.by, words);
    this.by.disabled = !served;
    this.by.addEventListener("change", () => change({ by: this.by.value }));
    this.work = new Work(holder);
    const box = element("div", { class: "map" }, holder);
    this.canvas = element("canvas", { tabindex: 0, role: "img", "aria-label": "the fastest algorithm by size and ranks; arrow keys move, Enter opens" }, box);
    this.tip = element("p", { class: "tip", hidden: "" }, box);
    this.legend = element("p", { class: "legend" }, holder);
    this.note = element("p", { class: "legend" }, holder);
    this.rows = new Map();
    this.winners = new Map();
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => this.open(this.placeOf(event)));
    for (const kind of ["focus", "blur"]) this.canvas.addEventListener(kind, () => this.draw());
    this.latest = new Latest((now) => this.load(now));
    this.update(state(), {});
  }

  update(now, before) {
    this.form.show();
    this.by.value = now.by || "formula";
    const asked = ["collective", "topology", "alpha", "bandwidth", "gamma", "by"];
    if (asked.some((name) => now[name] !== before[name])) {
      this.work.abort();
      this.latest.ask(now);
    } else if (now.cell !== before.cell) this.draw();
  }

  async load(now) {
    const simulated = now.by === "simulation";
    this.sizes = simulated ? COARSE.sizes : MAP_SIZES;
    this.ranks = simulated ? COARSE.ranks : MAP_RANKS;
    this.rows.clear();
    this.winners.clear();
    this.draw();
    try {
      await this.work.run("Timing every algorithm …", "winners", { fields: fieldsOf({ ...now, ranks: "8", cuts: "", slow: "", document: "" }, ""), sizes: this.sizes, ranks: this.ranks, by: now.by || "formula" }, (row) => {
        this.rows.set(row.ranks, row);
        this.work.say(`Timing every algorithm: ${row.ranks} ranks`);
        this.draw();
      });
      this.form.wrong(null);
    } catch (error) {
      this.form.wrong(error);
    }
    this.draw();
    document.documentElement.dataset.map = `${now.by || "formula"} ${this.rows.size}`;
  }

  // The fastest at a place, by how much, and the second.
  winner(row, column) {
    const found = this.rows.get(this.ranks[row]);
    if (!found) return null;
    const order = Object.entries(found.times).map(([name, times]) => [name, times[column]]).sort(([, a], [, b]) => a - b);
    return order.length ? { name: order[0][0], time: order[0][1], next: order[1], ranks: found.ranks, size: this.sizes[column] } : null;
  }

  draw() {
    const { draw, width, height } = sharp(this.canvas), colors = palette();
    this.cell = { width: (width - MAP_LEFT) / this.sizes.length, height: (height - MAP_BOTTOM) / this.ranks.length };
    const names = new Map();
    draw.textBaseline = "middle";
    this.ranks.forEach((ranks, row) => {
      const y = height - MAP_BOTTOM - (row + 1) * this.cell.height;
      draw.fillStyle = colors.muted;
      draw.textAlign = "right";
      draw.fillText(ranks, MAP_LEFT - 8, y + this.cell.height / 2);
      this.sizes.forEach((_, column) => {
        const won = this.winner(row, column);
        draw.fillStyle = colors.empty;
        if (won) {
          if (!names.has(won.name)) names.set(won.name, 0);
          names.set(won.name, names.get(won.name) + 1);
          draw.fillStyle = this.hue(won.name);
          // A narrow win is paler than a clear one.
          draw.globalAlpha = won.next ? 0.35 + 0.65 * Math.min(1, (won.next[1] / won.time - 1) / 0.5) : 1;
        }
        draw.fillRect(MAP_LEFT + column * this.cell.width, y, this.cell.width - 1, this.cell.height - 1);
        draw.globalAlpha = 1;
      });
    });
    draw.fillStyle = colors.muted;
    draw.textAlign = "center";
    const every = Math.max(1, Math.ceil(56 / this.cell.width));
    this.sizes.forEach((size, column) => { if (column % every === 0) draw.fillText(formatBytes(size), MAP_LEFT + (column + 0.5) * this.cell.width, height - MAP_BOTTOM + 14); });
    draw.fillText("message size →", MAP_LEFT + (width - MAP_LEFT) / 2, height - 6);
    draw.textAlign = "left";
    draw.fillText("ranks ↑", 2, height - MAP_BOTTOM + 14);
    const at = this.chosen(), marked = at || (document.activeElement === this.canvas ? { row: 0, column: 0 } : null);
    if (marked) {
      draw.strokeStyle = colors.ink;
      draw.lineWidth = 2;
      draw.strokeRect(MAP_LEFT + marked.column * this.cell.width, height - MAP_BOTTOM - (marked.row + 1) * this.cell.height, this.cell.width - 1, this.cell.height - 1);
    }
    this.legend.replaceChildren();
    for (const [name, count] of [...names].sort(([, a], [, b]) => b - a)) {
      const item = element("span", {}, this.legend);
      element("i", {}, item).style.background = this.hue(name);
      item.append(`${name} (${count})`);
    }
    const byFormula = (state().by || "formula") === "formula" ? " A formula knows only ports: for the links of the network, time by simulation." : "";
    const won = at && this.winner(at.row, at.column);
    this.note.textContent = won ? this.words(won).replaceAll("\n", "; ") : `A colour is faint where the runner-up is close. Click a cell to open it.${byFormula}`;
  }

  // The cell that the arrow keys chose.
  chosen() {
    const [row, column] = (state().cell || "").split(".").map(Number);
    return row >= 0 && row < this.ranks.length && column >= 0 && column < this.sizes.length ? { row, column } : null;
  }

  // A colour for each that wins somewhere; it stays while rows come in.
  hue(name) {
    if (!this.winners.has(name)) this.winners.set(name, HUES[this.winners.size % HUES.length]);
    return this.winners.get(name);
  }

  placeOf(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - MAP_LEFT) / this.cell.width), row = Math.floor((box.height - MAP_BOTTOM - (event.clientY - box.top)) / this.cell.height);
    return column >= 0 && column < this.sizes.length && row >= 0 && row < this.ranks.length ? { row, column } : null;
  }

  point(event) {
    const place = this.placeOf(event), won = place && this.winner(place.row, place.column);
    this.tip.hidden = !won;
    if (!won) return;
    this.tip.textContent = this.words(won);
    this.tip.style.left = `${Math.min(event.offsetX + 14, this.canvas.clientWidth - 250)}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }

  words({ name, time, next, ranks, size }) {
    const second = next ? `\nthen ${next[0]}: ${formatTime(next[1] * 1e6)}, ${Math.round(100 * (next[1] / time - 1))}% more` : "";
    return `${ranks} ranks, ${formatBytes(size)}\n${name}: ${formatTime(time * 1e6)}${second}`;
  }

  open(place) {
    const won = place && this.winner(place.row, place.column);
    if (!won) return;
    const size = formatBytes(won.size).replace(" ", "").replace(/^(\d+)B$/, "$1");
    change({ view: "moment", algorithm: won.name, versus: won.next ? won.next[0] : "", ranks: won.ranks, size, time: "", pick: "", cuts: "", slow: "", document: "", cell: "" });
  }

  key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
    if (document.activeElement !== this.canvas) return false;
    const { row, column } = this.chosen() || { row: 0, column: 0 };
    if (event.key === "Enter") this.open({ row, column });
    else if (move) {
      const to = [Math.max(0, Math.min(this.ranks.length - 1, row + move[0])), Math.max(0, Math.min(this.sizes.length - 1, column + move[1]))];
      change({ cell: to.join(".") }, { step: false });
    } else return false;
    return true;
  }

  fit() {
    this.draw();
  }

  leave() {
    this.work.abort();
  }
}
