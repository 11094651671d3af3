// What the ranks hold: a map of ranks by chunks, tinted by how much of the sum, or of the vector, is there.
//
// In an all-to-all a column is the blocks from one rank, and dark is what a rank has of those for itself.

import { channels } from "../base.js";
import { Groups, Raster, groupName, mixed } from "./groups.js";

export class HeatMap {
  constructor(data, groups, holder, pick) {
    Object.assign(this, { data, groups });
    this.pairs = data.before === "PAIR_SOURCE";
    this.chunksAColumn = this.pairs ? data.ranks * data.chunks_a_block : 1;
    this.columns = new Groups(data.chunks / this.chunksAColumn);
    const cells = groups.length * this.columns.length;
    for (const name of ["have", "whole", "added", "copied", "wrong"]) this[name] = new Float64Array(cells);
    this.raster = new Raster(holder, {
      rows: groups, columns: this.columns, down: "rank", across: this.pairs ? "blocks from rank" : "chunk",
      named: "what the ranks hold",
      pick: (row, column) => pick(groups.first[row], this.columns.first[column] * this.chunksAColumn),
      tell: (row, column) => this.tell(row, column),
    });
  }

  cell(rank, chunk) {
    const column = this.chunksAColumn === 1 ? chunk : Math.floor(chunk / this.chunksAColumn);
    return this.groups.of[rank] * this.columns.length + this.columns.of[column];
  }

  rewind() {
    for (const name of ["have", "whole", "added", "copied", "wrong"]) this[name].fill(0);
  }

  begin() {
    this.added.fill(0);
    this.copied.fill(0);
  }

  // A rank has its own contribution to every chunk.
  everything(rank) {
    for (let column = 0, at = this.groups.of[rank] * this.columns.length; column < this.columns.length; column++, at++) {
      this.have[at] += this.columns.size(column);
    }
  }

  // A place has more contributions than before, and may have become complete (1) or be no longer (-1).
  changed(rank, chunk, more, whole) {
    const cell = this.cell(rank, chunk);
    if (!this.pairs) {
      this.whole[cell] += whole;
      this.have[cell] += more;
    } else if (Math.floor(chunk / this.data.chunks_a_block) % this.data.ranks === rank) this.whole[cell] += whole;
    else this.have[cell] += more;
  }

  // A rank has just received some chunks.
  received(rank, chunk, count, adds) {
    const fresh = adds ? this.added : this.copied;
    for (let at = chunk; at < chunk + count; at++) fresh[this.cell(rank, at)] += 1;
  }

  // At the end, the places that are wrong of those the contract asks for; before, those with something twice.
  mark(replay, final) {
    this.wrong.fill(0);
    if (this.data.proof.holds) return;
    for (let rank = 0; rank < this.data.ranks; rank++) {
      for (const [first, count] of replay.after.runs(rank)) {
        for (let chunk = first; chunk < first + count; chunk++) {
          const bad = final ? !replay.complete(rank, chunk) : replay.doubled(rank, chunk);
          if (bad) this.wrong[this.cell(rank, chunk)] += 1;
        }
      }
    }
  }

  // Of a cell: how many places and contributions there are to have.
  most(row, column) {
    const { data, groups, columns, pairs } = this, places = groups.size(row) * columns.size(column);
    if (pairs) return { whole: places * data.chunks_a_block, have: places * (data.ranks - 1) * data.chunks_a_block };
    return { whole: places, have: places * (data.reduces ? data.ranks : 1) };
  }

  // The tint grows fast at first, so that a few contributions can be told apart from one.
  draw(colors, chosen) {
    const names = ["empty", "part", "whole", "add", "copy", "wrong"];
    const [empty, part, whole, add, copy, wrong] = names.map((name) => channels(colors[name]));
    const nearly = mixed(part, whole, 0.4);
    const marks = [[this.groups.of[chosen.rank], null]];
    if (chosen.chunk !== null) marks.push([null, this.columns.of[Math.floor(chosen.chunk / this.chunksAColumn)]]);
    this.raster.draw(colors, (row, column) => {
      const at = row * this.columns.length + column, most = this.most(row, column);
      const done = this.whole[at] / most.whole, held = this.have[at] / (most.have || 1);
      if (this.wrong[at]) return mixed(empty, wrong, 0.5 + (0.5 * this.wrong[at]) / most.whole);
      const base = mixed(mixed(empty, nearly, held > 0 ? 0.1 + 0.9 * held ** 0.4 : 0), whole, done);
      const fresh = this.added[at] + this.copied[at];
      if (!fresh) return base;
      const tint = mixed(copy, add, this.added[at] / fresh);
      return mixed(base, tint, 0.6 + 0.4 * Math.min(1, fresh / most.whole));
    }, marks);
  }

  tell(row, column) {
    const { data, groups, columns } = this, at = row * columns.length + column, most = this.most(row, column);
    const percent = (share) => `${Math.round(100 * share)} %`;
    const where = `${groupName(data, groups, row)}, ${this.pairs ? "blocks from " : data.chunks === 1 ? "" : "chunk "}${columns.name(column)}`;
    const whole = percent(this.whole[at] / most.whole);
    if (this.pairs) return `${where}: ${whole} of those for ${groups.size(row) === 1 ? "it" : "them"}`;
    return data.reduces ? `${where}: ${percent(this.have[at] / most.have)} of the contributions, ${whole} complete` : `${where}: ${whole} there`;
  }
}

// One rank, chunk by chunk: how many are complete, in part, and wrong.
export function tally(data, replay, rank) {
  const found = { whole: 0, part: 0, twice: 0 };
  for (let chunk = 0; chunk < data.chunks; chunk++) {
    if (replay.complete(rank, chunk)) found.whole += 1;
    else if (replay.doubled(rank, chunk)) found.twice += 1;
    else if (replay.have(rank, chunk)) found.part += 1;
  }
  return found;
}
