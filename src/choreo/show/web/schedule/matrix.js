// What each rank and switch holds: one table of ranks by chunks, or a small table for each rank.

import { element } from "../base.js";
import { memberName } from "./timeline.js";

export function spanOf({ first, count }) {
  return count === 1 ? `${first}` : `${first}–${first + count - 1}`;
}

// With more ranks than this the table is a map of tints in groups of eight.
export const DENSE = 24, GROUP = 8;
// Pixels that the contributions below the table need.
export const INSPECTOR = 150;

export class Matrix {
  constructor(data, holder, choose) {
    this.data = data;
    this.members = data.ranks + data.relays + data.switches;
    this.holder = holder;
    this.rows = data.grid.cells.length / data.grid.columns;
    this.places = data.after.map((runs) => data.grid.cells.map((cell) => covered(runs, cell)));
    const asked = this.places.slice(0, data.ranks).flat();
    this.partial = asked.some(Boolean) && !asked.every(Boolean);
    this.cells = [];
    if (this.rows > 1) this.cards();
    else this.table();
    this.fit();
    holder.addEventListener("click", (event) => this.pick(event, choose));
    holder.addEventListener("mouseover", (event) => this.pick(event, choose));
    holder.addEventListener("focusin", (event) => this.pick(event, choose));
    holder.addEventListener("keydown", (event) => this.walk(event));
  }

  pick(event, choose) {
    const cell = event.target.closest("td");
    if (cell) choose(Number(cell.dataset.rank), Number(cell.dataset.cell));
  }

  table() {
    const { columns, cells } = this.data.grid;
    this.dense = this.members > DENSE;
    const table = element("table", { class: this.dense ? "dense" : "", "aria-label": "ranks by chunks" }, this.holder);
    const head = element("tr", {}, element("thead", {}, table));
    element("th", { scope: "col" }, head, columns > 1 ? "chunk" : "");
    const every = columns <= 20 ? 1 : columns <= 40 && !this.dense ? 4 : GROUP;
    this.heads = cells.map((cell, index) => {
      const words = columns > 1 && index % every === 0 ? (cell.count === 1 ? cell.first : this.short(cell)) : "";
      const made = element("th", { scope: "col" }, head);
      element("span", {}, made, words);
      return made;
    });
    const body = element("tbody", {}, table);
    for (let rank = 0; rank < this.members; rank++) {
      const opens = this.dense && rank && rank % GROUP === 0;
      const row = element("tr", opens ? { class: "opens" } : {}, body);
      element("th", { scope: "row" }, row, this.dense && rank % GROUP ? "" : memberName(this.data, rank));
      this.cells.push(cells.map((_, index) => this.td(row, rank, index)));
    }
  }

  short(cell) {
    const words = spanOf(cell);
    return this.data.grid.columns * words.length > 70 ? `${cell.first}` : words;
  }

  cards() {
    const { columns } = this.data.grid;
    this.named = this.data.grid.square && this.data.ranks <= 8;
    this.holder.classList.add("cards");
    for (let rank = 0; rank < this.members; rank++) {
      const name = memberName(this.data, rank);
      const card = element("div", { class: "card" }, this.holder, name);
      const table = element("table", { "aria-label": name }, card);
      const made = [];
      if (this.named) this.targets(table);
      for (let row = 0; row < this.rows; row++) {
        const line = element("tr", {}, table);
        if (this.named) element("th", { scope: "row" }, line, row ? row : "from 0");
        for (let column = 0; column < columns; column++) made.push(this.td(line, rank, row * columns + column));
      }
      this.cells.push(made);
    }
  }

  targets(table) {
    const head = element("tr", {}, table);
    element("th", { scope: "col" }, head, "for");
    for (let target = 0; target < this.data.ranks; target++) {
      element("span", {}, element("th", { scope: "col", class: "target" }, head), target);
    }
  }

  td(row, rank, index) {
    return element("td", { "data-rank": rank, "data-cell": index, tabindex: -1 }, row);
  }

  // As large as there is room for, within reason.
  fit() {
    const { members, data: { grid }, holder } = this;
    const wide = window.innerWidth > 900, main = holder.closest("main");
    const top = holder.getBoundingClientRect().top - main.getBoundingClientRect().top;
    const down = wide ? Math.max(90, main.clientHeight - top - INSPECTOR) : 420;
    const across = holder.clientWidth - 6;
    let width = 0, height = 0;
    if (this.rows === 1) {
      const names = Math.max(...[...holder.querySelectorAll("th[scope=row]")].map((name) => name.offsetWidth));
      const [gap, ruled] = this.dense ? [0, 2 / GROUP] : [1, 0];
      width = Math.min((across - names - 4) / grid.columns - gap - ruled, 60);
      height = Math.min((down - 24) / members - gap - ruled, 36);
    } else {
      for (let abreast = 1; abreast <= members; abreast++) {
        const deep = Math.ceil(members / abreast);
        const [left, above] = this.named ? [54, 50] : [14, 32];
        const fits = Math.min((across / abreast - left) / grid.columns, (down / deep - above) / this.rows) - 1;
        height = width = Math.max(width, Math.min(fits, 28));
      }
    }
    width = Math.max(width, 2.5);
    height = Math.max(height, 3);
    // Whole pixels, so that all rows of a map are equally tall.
    if (this.dense) [width, height] = [width, height].map((size) => (size > 4 ? Math.floor(size) : size));
    for (const cell of this.cells.flat()) {
      cell.style.minWidth = cell.style.width = `${width.toFixed(1)}px`;
      cell.style.height = `${height.toFixed(1)}px`;
    }
    this.least = this.dense ? 12 : Math.max(14, 250 / height);
    this.numbers = this.data.reduces && this.rows === 1 && height >= 15 && width >= 17;
  }

  show(replay, final) {
    for (let rank = 0; rank < this.members; rank++) {
      this.data.grid.cells.forEach((span, index) => {
        const cell = this.cells[rank][index];
        const { have, given, doubled, action } = replay.cell(rank, span);
        const full = have >= given;
        const asked = final && this.partial && this.places[rank][index];
        const broken = final && replay.broken(rank, span);
        const counted = this.numbers && span.count === 1;
        const opens = this.dense && index && index % GROUP === 0;
        const classes = [
          action, full && "full", doubled && "doubled", broken && "broken", asked && "wanted", counted && "counted", opens && "opens"];
        cell.className = classes.filter(Boolean).join(" ");
        cell.dataset.have = have;
        cell.dataset.given = given;
        const level = full ? 100 : have ? Math.max(this.least, Math.min(84, (100 * have) / given)) : 0;
        // Where the amount is a tint, what is new must still stand out.
        const tinted = counted || this.dense;
        cell.style.setProperty("--level", `${tinted && action && have ? Math.max(level, 60) : level}%`);
        cell.textContent = counted && have ? (doubled ? "‼" : have) : "";
        const words = `${doubled ? ", some more than once" : ""}${broken ? ", wrong" : ""}`;
        cell.setAttribute("aria-label", `${memberName(this.data, rank)}, chunk ${spanOf(span)}: ${have} of ${given}${words}`);
      });
    }
  }

  // Mark the cell that is looked at and, if it is followed, its chunk at every other rank.
  choose(rank, index, followed) {
    for (const cell of this.holder.querySelectorAll(".chosen, .column")) {
      cell.classList.remove("chosen", "column");
      if (cell.matches("td")) cell.tabIndex = -1;
    }
    const cell = this.cells[rank][index];
    cell.classList.add("chosen");
    cell.tabIndex = 0;
    if (!followed) return;
    for (const row of this.cells) row[index].classList.add("column");
    if (this.heads) this.heads[index].classList.add("column");
  }

  // In the matrix the arrow keys go from cell to cell.
  walk(event) {
    const cell = event.target.closest("td");
    const { columns } = this.data.grid;
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!cell || !steps[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    const [down, right] = steps[event.key];
    let rank = Number(cell.dataset.rank), index = Number(cell.dataset.cell) + right;
    if (this.rows === 1) rank += down;
    else index += down * columns;
    if (index < 0 || index >= this.data.grid.cells.length) {
      rank += Math.sign(index) || -1;
      index = index < 0 ? this.data.grid.cells.length - 1 : 0;
    }
    const next = this.cells[rank] && this.cells[rank][index];
    if (next) next.focus();
  }
}

export function covered(runs, { first, count }) {
  return runs.some(([start, length]) => start <= first && first + count <= start + length);
}
