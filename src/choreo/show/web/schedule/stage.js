// The ranks in a circle, the switches that reduce inside it, and the messages of a step on their way.

const SVG = "http://www.w3.org/2000/svg";
const CENTER = { x: 300, y: 280 };

function shape(name, attributes, parent, words) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  parent.append(made);
  return made;
}

class Stage {
  constructor(data, svg) {
    this.data = data;
    this.svg = svg;
    this.size = data.ranks <= 8 ? 25 : data.ranks <= 16 ? 20 : data.ranks <= 32 ? 14 : 7.5;
    this.members = data.ranks + data.switches;
    this.radius = this.members === 1 ? 0 : data.ranks <= 8 || data.ranks > 32 ? 240 : 226;
    // The room between neighbours decides how long arrows and their heads can be.
    const room = data.ranks === 1 ? 0 : 2 * this.radius * Math.sin(Math.PI / data.ranks) - 2 * this.size;
    this.gap = Math.max(1.5, Math.min(5, room / 5));
    this.head = Math.max(3.5, Math.min(7, room / 3));
    this.trail = shape("g", { class: "trail" }, svg);
    this.ways = shape("g", {}, svg);
    this.nodes = shape("g", {}, svg);
    this.pills = shape("g", {}, svg);
    this.gauges = Array.from({ length: data.ranks }, (_, rank) => this.node(rank));
    for (let member = data.ranks; member < this.members; member++) this.square(member);
    this.moving = [];
    this.drawn = [];
  }

  place(rank) {
    if (rank >= this.data.ranks) return this.inside(rank - this.data.ranks);
    const turn = (2 * Math.PI * rank) / this.data.ranks - (this.data.ranks === 2 ? Math.PI : Math.PI / 2);
    return { x: CENTER.x + this.radius * Math.cos(turn), y: CENTER.y + this.radius * Math.sin(turn) };
  }

  // One switch stands in the middle, several on a circle of their own, each near the ranks that come next to it.
  inside(number) {
    const { ranks, switches } = this.data, radius = switches === 1 ? 0 : this.radius * 0.45;
    const turn = 2 * Math.PI * ((number + 0.5) / switches - 0.5 / ranks) - Math.PI / 2;
    return { x: CENTER.x + radius * Math.cos(turn), y: CENTER.y + radius * Math.sin(turn) };
  }

  square(member) {
    const { x, y } = this.place(member), half = this.size * 0.9;
    shape("rect", { class: "node switch", x: x - half, y: y - half, width: 2 * half, height: 2 * half }, this.nodes);
    const number = shape("text", { class: "number", x, y: y + this.size * 0.2 }, this.nodes, member - this.data.ranks);
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
    const number = shape("text", { class: `number${root}`, x, y: y + this.size * 0.2 }, this.nodes, rank);
    number.style.fontSize = `${Math.max(8, this.size * 0.62)}px`;
    return gauge;
  }

  // How much of what each rank must end with it has.
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

  // To and from a switch almost straight, on the right of the way so that up and down do not meet.
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
    this.ways.replaceChildren();
    this.pills.replaceChildren();
    this.moving = [];
    this.drawn = [];
    const many = messages.length > 2.2 * this.data.ranks || messages.length > 40;
    const outside = !many && this.labelsOutside(messages);
    for (const message of messages) {
      const curve = this.curve(message);
      const kind = `${message.reduce ? "reduces" : ""}${ghost ? " ghost" : ""}`;
      const group = shape("g", { class: kind }, this.ways);
      this.drawn.push({ message, group });
      if (many) group.style.opacity = ghost ? 0.12 : Math.max(0.22, Math.min(0.6, 40 / messages.length));
      this.arrow(curve, group);
      if (ghost) continue;
      this.moving.push({ curve, pill: this.pill(message, many || outside), rest: this.restOf(message) });
      if (outside) this.outside(message);
    }
    this.rest(many || outside);
  }

  arrow(curve, group) {
    const tip = toward(curve.end, curve.control, this.head);
    shape("path", { class: "way", d: `M${xy(curve.start)}Q${xy(curve.control)} ${xy(tip)}` }, group);
    shape("path", { class: "tip", d: head(curve.end, tip) }, group);
  }

  // Follows a run of chunks: its way in the steps before this one, fainter the longer ago, and the messages that carry
  // it now. Messages at a rank where this step breaks the schedule are marked too.
  mark(span, done, failing) {
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

  // Where a label stands: between neighbours, near the sender further away, and beyond the middle of the way down.
  restOf(message) {
    return message.src >= this.data.ranks ? 0.58 : this.near(message) ? 0.5 : 0.2;
  }

  near(message) {
    return !this.atSwitch(message) && [1, this.data.ranks - 1].includes(Math.abs(message.dst - message.src));
  }

  // Among many ranks the labels of arrows that cross would meet; each then stands at its sender, outside the circle.
  labelsOutside(messages) {
    const senders = new Set(messages.map(({ src }) => src));
    return ![...senders].some((src) => src >= this.data.ranks) && this.data.ranks > 8 && this.size > 12 && senders.size === messages.length && !messages.every((one) => this.near(one));
  }

  outside(message) {
    const { x, y } = toward(this.place(message.src), CENTER, -(this.size + 8));
    const across = (x - CENTER.x) / this.radius, down = (y - CENTER.y) / this.radius;
    const label = shape("text", {
      class: `carried${message.reduce ? " reduces" : ""}`, x: x.toFixed(1), y: (y + 4 + 5 * down).toFixed(1),
    }, this.pills, chunkLabel(this.data, message));
    label.style.textAnchor = Math.abs(across) < 0.2 ? "middle" : across > 0 ? "start" : "end";
  }

  pill(message, many) {
    const group = shape("g", { class: message.reduce ? "reduces" : "" }, this.pills);
    const pill = shape("g", { class: "pill" }, group);
    if (many || this.size < 12) {
      shape("circle", { r: this.size < 12 ? 3.5 : 4.5 }, pill);
      return group;
    }
    const label = chunkLabel(this.data, message);
    const width = 12 + 7 * label.length;
    shape("rect", { x: -width / 2, y: -10, width, height: 20, rx: 10 }, pill);
    shape("text", { y: 4.5 }, pill, label);
    return group;
  }

  // Labels stand near their sender, clear of where arrows cross; dots without one say nothing when they stand still.
  rest(many) {
    for (const one of this.moving) {
      this.put(one, one.rest);
      if (many) one.pill.setAttribute("visibility", "hidden");
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

function toward(from, to, distance) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return { x: from.x + ((to.x - from.x) * distance) / length, y: from.y + ((to.y - from.y) * distance) / length };
}

function head(end, back) {
  const x = (end.y - back.y) * 0.64, y = (end.x - back.x) * 0.64;
  return `M${xy(end)}L${xy({ x: back.x + x, y: back.y - y })} ${xy({ x: back.x - x, y: back.y + y })}z`;
}

function xy({ x, y }) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}
