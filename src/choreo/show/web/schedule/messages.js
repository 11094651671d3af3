// The messages of a step: a matrix of senders and receivers, and those of one rank or group in words.

import { element } from "../base.js";
import { Raster, groupName, mixed } from "./groups.js";
import { memberName } from "./timeline.js";

export const LISTED = 30;

export class Messages {
  constructor(data, groups, holder, pick) {
    Object.assign(this, { data, groups });
    this.raster = new Raster(holder, {
      rows: groups, columns: groups, down: "sender", across: "receiver", named: "messages of the step",
      pick: (row) => pick(groups.first[row]), tell: (row, column) => this.tell(row, column),
    });
    this.carried = new Float64Array(groups.length ** 2);
    this.added = new Float64Array(groups.length ** 2);
  }

  show(rows, ghost) {
    const { carried, added, groups: { of, length } } = this;
    carried.fill(0);
    added.fill(0);
    for (let row = rows ? rows.from : 0; rows && row < rows.to; row++) {
      const at = of[rows.src[row]] * length + of[rows.dst[row]];
      carried[at] += rows.count[row];
      if (rows.flags[row] & 1) added[at] += rows.count[row];
    }
    this.most = carried.reduce((most, one) => Math.max(most, one), 1);
    this.ghost = ghost;
  }

  draw(colors, chosen) {
    const { carried, added, most, groups } = this;
    const [empty, copy, add] = [colors.empty, colors.copy, colors.add].map(channels);
    const group = groups.of[chosen.rank];
    this.raster.draw(colors, (row, column) => {
      const at = row * groups.length + column;
      if (!carried[at]) return empty;
      const strength = (0.4 + 0.6 * Math.sqrt(carried[at] / most)) * (this.ghost ? 0.4 : 1);
      return mixed(empty, mixed(copy, add, added[at] / carried[at]), strength);
    }, [[group, null], [null, group]]);
  }

  tell(row, column) {
    const amount = this.carried[row * this.groups.length + column], { data, groups } = this;
    return `${groupName(data, groups, row)} to ${groupName(data, groups, column)}: ${amount ? plural(amount, "chunk") : "nothing"}`;
  }
}

export function plural(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

// The messages with which members `first` to `last` - 1 have to do, in words: what they send and what they receive.
export function spoken(data, rows, first, last) {
  const sends = new Map(), receives = new Map();
  const inside = (member) => first <= member && member < last;
  for (let row = rows.from; row < rows.to; row++) {
    const { src: { [row]: src }, dst: { [row]: dst } } = rows;
    for (const [found, member] of [[sends, src], [receives, dst]]) {
      if (!inside(member)) continue;
      const key = src * (data.ranks + data.relays + data.switches) + dst;
      const message = found.get(key) || { src, dst, chunks: 0, reduce: false, spans: [] };
      message.chunks += rows.count[row];
      message.reduce = message.reduce || Boolean(rows.flags[row] & 1);
      message.spans.push([rows.chunk[row], rows.chunk[row] + rows.count[row] - 1]);
      found.set(key, message);
    }
  }
  const sorted = (found) => [...found.entries()].sort((a, b) => a[0] - b[0]).map(([, message]) => message);
  return { sends: sorted(sends), receives: sorted(receives) };
}

export function said(data, { src, dst, chunks, reduce, spans }, sending, alone) {
  const name = (member) => memberName(data, member);
  const what = `${carriedChunks(data, chunks, spans)}${reduce ? ", to be added" : ""}`;
  if (alone) return sending ? `to ${name(dst)}: ${what}` : `from ${name(src)}: ${what}`;
  return `${name(src)} to ${name(dst)}: ${what}`;
}

export function carriedChunks(data, chunks, spans) {
  if (chunks === data.chunks) return "the whole vector";
  const joined = [];
  for (const [first, last] of spans.sort((a, b) => a[0] - b[0])) {
    const before = joined[joined.length - 1];
    if (before && before[1] + 1 === first) before[1] = last;
    else joined.push([first, last]);
  }
  if (data.before === "PAIR_SOURCE" && data.chunks_a_block === 1 && chunks === 1) {
    return `the block from ${Math.floor(joined[0][0] / data.ranks)} for ${joined[0][0] % data.ranks}`;
  }
  if (joined.length > 4) return plural(chunks, "chunk");
  return `chunk${chunks === 1 ? "" : "s"} ${joined.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ")}`;
}

// `ahead` when the step is still to come.
export function listMessages(data, rows, ahead, [first, last], holder) {
  holder.replaceChildren();
  const found = spoken(data, rows, first, last), alone = last - first === 1;
  for (const [verb, list] of [["send", found.sends], ["receive", found.receives]]) {
    const part = element("div", {}, holder);
    const words = `${ahead ? `will ${verb}` : alone ? `${verb}s` : verb} ${list.length ? plural(list.length, "message") : "nothing"}`;
    element("h3", {}, part, words);
    const lines = element("ul", { class: "arrivals" }, part);
    for (const one of list.slice(0, LISTED)) element("li", {}, lines, said(data, one, verb === "send", alone));
    if (list.length > LISTED) element("li", {}, lines, `and ${(list.length - LISTED).toLocaleString("en")} more`);
  }
}
