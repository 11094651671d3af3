// The ranks in a circle, relays and the switches that reduce inside it, and the messages of a step on their way.

import { shape } from "../base.js";
import { drawBundles } from "./bundles.js";
import { chunkLabel } from "./replay.js";
import { memberName } from "./timeline.js";

export const CENTER = { x: 300, y: 280 };
// With more messages than this in a step, the arrows of one rank stand out and the others are faint; with more than
// this for each rank, the others are drawn as bundles between groups.
export const CROWD = 40, BUNDLED = 4;

export class Stage {
  constructor(data, svg, hint) {
    this.data = data;
    this.svg = svg;
    this.hint = hint;
    // Many ranks are dots, and only some of them have a number, outside.
    this.small = data.ranks > 32;
    this.size = data.ranks <= 8 ? 25 : data.ranks <= 16 ? 20 : this.small ? Math.min(6.5, 420 / data.ranks) : 14;
    this.members = data.ranks + data.relays + data.switches;
    this.radius = this.members === 1 ? 0 : data.ranks <= 8 ? 240 : this.small ? 234 : 226;
    // The room between neighbours decides how long arrows and their heads can be.
    this.room = data.ranks === 1 ? 0 : 2 * this.radius * Math.sin(Math.PI / data.ranks) - 2 * this.size;
    this.gap = Math.max(1.5, Math.min(5, this.room / 5));
    this.head = Math.max(3.5, Math.min(7, this.room / 3));
    this.bundles = shape("g", {}, svg);
    this.trail = shape("g", { class: "trail" }, svg);
    this.ways = shape("g", this.small ? { class: "fine" } : {}, svg);
    this.nodes = shape("g", this.small ? { class: "small" } : {}, svg);
    this.pills = shape("g", {}, svg);
    this.gauges = Array.from({ length: data.ranks }, (_, rank) => this.node(rank));
    for (let member = data.ranks; member < this.members; member++) this.helper(member);
    this.moving = [];
    this.drawn = [];
  }

  place(rank) {
    if (rank >= this.data.ranks) return this.inside(rank - this.data.ranks);
    const turn = (2 * Math.PI * rank) / this.data.ranks - (this.data.ranks === 2 ? Math.PI : Math.PI / 2);
    return { x: CENTER.x + this.radius * Math.cos(turn), y: CENTER.y + this.radius * Math.sin(turn) };
  }

  // One helper stands in the middle, several on a circle of their own, each near the ranks that come next to it.
  inside(number) {
    const { ranks } = this.data, helpers = this.members - ranks, radius = helpers === 1 ? 0 : this.radius * 0.45;
    const turn = 2 * Math.PI * ((number + 0.5) / helpers - 0.5 / ranks) - Math.PI / 2;
    return { x: CENTER.x + radius * Math.cos(turn), y: CENTER.y + radius * Math.sin(turn) };
  }

  // A switch is a square, a device that relays a circle.
  helper(member) {
    const { x, y } = this.place(member), half = this.size * 0.9, [kind, named] = memberName(this.data, member).split(" ");
    if (kind === "switch") shape("rect", { class: "node switch", x: x - half, y: y - half, width: 2 * half, height: 2 * half }, this.nodes);
    else shape("circle", { class: "node relay", cx: x, cy: y, r: half, "stroke-dasharray": "4 3" }, this.nodes);
    const number = shape("text", { class: "number", x, y: y + this.size * 0.2 }, this.nodes, named);
    number.style.fontSize = `${Math.max(8, this.size * 0.62)}px`;
    shape("title", {}, number, memberName(this.data, member));
  }

  node(rank) {
    const { x, y } = this.place(rank);
    const root = rank === this.data.root ? " root" : "";
    shape("circle", { class: `node${root}`, cx: x, cy: y, r: this.size }, this.nodes);
    const gauge = shape("circle", {
      class: "gauge", cx: x, cy: y, r: this.size, pathLength: 100, transform: `rotate(-90 ${x} ${y})`,
    }, this.nodes);
    if (this.small) this.tick(rank);
    else {
      const number = shape("text", { class: `number${root}`, x, y: y + this.size * 0.2 }, this.nodes, rank);
      number.style.fontSize = `${Math.max(8, this.size * 0.62)}px`;
    }
    return gauge;
  }

  tick(rank) {
    if (rank % Math.max(4, Math.ceil(this.data.ranks / 16)) && rank !== this.data.root) return;
    const { x, y } = toward(this.place(rank), CENTER, -(this.size + 14));
    shape("text", { class: "tick", x, y: y + 4 }, this.nodes, rank);
  }

  // Fill each rank's ring by the share it has of what it must end with.
  fill(shares) {
    this.gauges.forEach((gauge, rank) => gauge.setAttribute("stroke-dasharray", `${shares[rank] * 100} 100`));
  }

  // Neighbours send round the outside one way and inside the other; further ones pass inside the ranks between
  // them, again with a lane for each way. A curve's middle lies half way between the chord and its control point.
  curve(message) {
    const { ranks } = this.data;
    const a = this.place(message.src), b = this.place(message.dst);
    if (this.atSwitch(message)) return this.spoke(a, b);
    const turn = (message.dst - message.src + ranks) % ranks;
    const apart = Math.min(turn, ranks - turn), onward = 2 * turn <= ranks;
    const chord = this.radius * Math.cos((Math.PI * apart) / ranks);
    const length = Math.hypot(b.x - a.x, b.y - a.y);
    // Outward from the centre, for either way round.
    const side = onward ? 1 : -1;
    const out = { x: (side * (b.y - a.y)) / length, y: (-side * (b.x - a.x)) / length };
    const lane = Math.min(13, this.size * 0.6);
    let middle = chord + (onward ? lane : -lane);
    if (apart > 1) middle = Math.min(chord, this.radius - 2 * this.size - 4) + (onward ? lane / 2 : -1.5 * lane);
    if (2 * apart === ranks) middle = lane;
    const pull = 2 * (middle - chord);
    const control = { x: (a.x + b.x) / 2 + out.x * pull, y: (a.y + b.y) / 2 + out.y * pull };
    const start = toward(a, control, this.size + this.gap), end = toward(b, control, this.size + this.gap + 1);
    return { start, control, end };
  }

  // Almost straight, to the right of the line, so that the ways to and from a switch do not overlap.
  spoke(a, b) {
    const length = Math.hypot(b.x - a.x, b.y - a.y), lane = Math.min(13, this.size * 0.6);
    const control = {
      x: (a.x + b.x) / 2 - (lane * (b.y - a.y)) / length, y: (a.y + b.y) / 2 + (lane * (b.x - a.x)) / length,
    };
    return { start: toward(a, control, this.size + this.gap), control, end: toward(b, control, this.size + this.gap + 1) };
  }

  atSwitch({ src, dst }) {
    return Math.max(src, dst) >= this.data.ranks;
  }

  show(messages, ghost) {
    for (const layer of [this.bundles, this.ways, this.pills]) layer.replaceChildren();
    const ends = new Set(messages.map(({ src, dst }) => `${src} ${dst}`));
    Object.assign(this, { messages, ends, ghost, moving: [], drawn: [], own: null });
    this.bundled = this.data.ranks > 8 && this.members === this.data.ranks && messages.length > BUNDLED * this.data.ranks;
    this.crowded = messages.length > CROWD && !messages.every((one) => this.near(one));
    this.outer = !this.crowded && this.labelsOutside(messages);
    if (this.bundled) drawBundles(this, messages);
    else messages.forEach((message) => this.add(message));
    this.rest();
  }

  add(message) {
    const curve = this.curve(message);
    const group = shape("g", { class: `${message.reduce ? "reduces" : ""}${this.ghost ? " ghost" : ""}` }, this.ways);
    this.drawn.push({ message, group });
    this.arrow(curve, group);
    if (this.ghost) return;
    this.moving.push({ curve, pill: this.pill(message), rest: this.restOf(message) });
    if (this.outer) this.outside(message);
  }

  // Of many messages those of one rank stand out: what it sends, or if it sends nothing what it receives.
  single(rank) {
    const sends = this.messages.some(({ src }) => rank === src);
    const own = ({ src, dst }) => (sends ? src : dst) === rank;
    if (this.bundled && this.own !== rank) {
      for (const layer of [this.ways, this.pills]) layer.replaceChildren();
      Object.assign(this, { moving: [], drawn: [], own: rank });
      this.messages.filter(own).forEach((message) => this.add(message));
      this.rest();
    }
    for (const { message, group } of this.drawn) group.classList.toggle("faint", this.crowded && !own(message));
    this.explain(rank, sends);
  }

  explain(rank, sends) {
    const named = `what ${memberName(this.data, rank)} ${sends ? "sends" : "receives"}`;
    const all = `${this.messages.length.toLocaleString("en")} messages`;
    this.hint.textContent = this.bundled ? `${all}, bundled by group of ranks; arrows: ${named}`
      : this.crowded ? `${all}; in full colour: ${named}` : "a rank's ring fills as the rank gets the data it must end with";
  }

  arrow(curve, group) {
    const tip = toward(curve.end, curve.control, this.head);
    shape("path", { class: "way", d: `M${xy(curve.start)}Q${xy(curve.control)} ${xy(tip)}` }, group);
    shape("path", { class: "arrow-tip", d: head(curve.end, tip) }, group);
  }

  // Follows a run of chunks: its way in the steps before this one, fainter the longer ago, and the messages that carry
  // it now. Messages at a rank where this step breaks the schedule are marked too.
  mark(span, done, failing, rank) {
    this.single(rank);
    const carries = ([first, last]) => span && first < span.first + span.count && span.first <= last;
    for (const { message, group } of this.drawn) {
      group.classList.toggle("followed", message.spans.some(carries));
      group.classList.toggle("failing", failing !== null && [message.src, message.dst].includes(failing));
    }
    const latest = new Map();
    for (let step = 0; span && step < done; step++) {
      for (const { src, dst, chunk, count } of this.data.steps[step]) {
        if (carries([chunk, chunk + count - 1])) latest.set(`${src} ${dst}`, { src, dst, step });
      }
    }
    this.trail.replaceChildren();
    for (const { src, dst, step } of latest.values()) {
      const group = shape("g", { opacity: (0.25 + (0.55 * (step + 1)) / done).toFixed(2), "data-step": step }, this.trail);
      this.arrow(this.curve({ src, dst }), group);
    }
  }

  // Where along its arrow a label stands: in the middle between neighbours, before it where they swap and so have two,
  // near the sender for longer arrows, past the middle from a switch.
  restOf(message) {
    const swaps = this.ends.has(`${message.dst} ${message.src}`);
    return message.src >= this.data.ranks ? 0.58 : this.near(message) ? (swaps ? 0.34 : 0.5) : 0.2;
  }

  near(message) {
    return !this.atSwitch(message) && [1, this.data.ranks - 1].includes(Math.abs(message.dst - message.src));
  }

  // Among many ranks labels on arrows would overlap; each then stands at its sender, outside the circle.
  labelsOutside(messages) {
    const senders = new Set(messages.map(({ src }) => src));
    if (this.data.ranks <= 8 || this.small || senders.size < messages.length) return false;
    return messages.every(({ src }) => src < this.data.ranks) && (this.room < 34 || !messages.every((one) => this.near(one)));
  }

  outside(message) {
    const { x, y } = toward(this.place(message.src), CENTER, -(this.size + 8));
    const across = (x - CENTER.x) / this.radius, down = (y - CENTER.y) / this.radius;
    const label = shape("text", {
      class: `carried${message.reduce ? " reduces" : ""}`, x: x.toFixed(1), y: (y + 4 + 5 * down).toFixed(1),
    }, this.pills, chunkLabel(this.data, message));
    label.style.textAnchor = Math.abs(across) < 0.2 ? "middle" : across > 0 ? "start" : "end";
  }

  pill(message) {
    const group = shape("g", { class: message.reduce ? "reduces" : "" }, this.pills);
    const pill = shape("g", { class: "pill" }, group);
    if (this.dots()) {
      shape("circle", { r: this.small ? 3.5 : 4.5 }, pill);
      return group;
    }
    const label = chunkLabel(this.data, message);
    const width = 12 + 7 * label.length;
    shape("rect", { x: -width / 2, y: -10, width, height: 20, rx: 10 }, pill);
    shape("text", { y: 4.5 }, pill, label);
    return group;
  }

  // Whether messages are dots: their labels stand elsewhere, or there are too many.
  dots() {
    return this.crowded || this.outer || this.small;
  }

  // Labels stand near their sender, clear of where arrows cross; dots say nothing when they stand still.
  rest() {
    for (const one of this.moving) {
      this.put(one, one.rest);
      if (this.dots()) one.pill.setAttribute("visibility", "hidden");
    }
  }

  move(share) {
    for (const one of this.moving) this.put(one, share);
  }

  put({ curve: { start, control, end }, pill }, share) {
    const u = 1 - share;
    const x = u * u * start.x + 2 * u * share * control.x + share * share * end.x;
    const y = u * u * start.y + 2 * u * share * control.y + share * share * end.y;
    pill.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
    pill.setAttribute("visibility", "visible");
  }
}

export function toward(from, to, distance) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return { x: from.x + ((to.x - from.x) * distance) / length, y: from.y + ((to.y - from.y) * distance) / length };
}

export function head(end, back) {
  const x = (end.y - back.y) * 0.64, y = (end.x - back.x) * 0.64;
  return `M${xy(end)}L${xy({ x: back.x + x, y: back.y - y })} ${xy({ x: back.x - x, y: back.y + y })}z`;
}

export function xy({ x, y }) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}
