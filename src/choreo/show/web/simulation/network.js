// The network at a moment: how busy each link is, and how much each device has received.

import { loadColor, palette, shape } from "../base.js";
import { Labels } from "./labels.js";

// How many pixels the dots on a busy link move while the whole run is played.
export const FLOW = 900;

export class Network {
  constructor(data, svg) {
    this.data = data;
    this.svg = svg;
    const { box, wires, levels } = data.network;
    svg.setAttribute("viewBox", box.join(" "));
    // A small network must not be blown up, nor a large one become too small to point at.
    svg.style.minWidth = `${Math.round(0.35 * box[2])}px`;
    this.labels = new Labels(svg, data.network);
    svg.style.setProperty("--aspect", box[3] / box[2]);
    svg.style.setProperty("--tall", `${1.5 * box[3]}px`);
    svg.style.maxHeight = `${1.9 * box[3]}px`;
    this.glows = wires.length <= 260;
    for (const way of data.network.planes) shape("path", { class: "plane", d: way }, svg);
    for (const way of data.network.dotted) shape("path", { class: "dotted", d: way }, svg);
    this.wires = [];
    // From the outside in, so that a box hides the ends of the cables that come to it.
    for (let level = levels; level > 0; level--) {
      const layer = shape("g", {}, svg);
      wires.forEach((wire, at) => { if (wire.level === level) this.wires[at] = this.wire(wire, layer); });
      for (const group of data.network.groups.filter((one) => one.level === level)) this.group(group, levels);
    }
    this.switches = data.network.switches.map((one) => this.switch(one));
    this.devices = data.network.devices.map((one) => this.device(one));
    for (const one of data.network.dots) this.dots(...one);
    for (const [x, y, words] of data.network.headings) this.labels.add(shape("text", { class: "side", x, y, "font-size": 12 }, svg, words));
    this.received = received(data);
    this.restyle();
  }

  // Another run in the same picture; false if its picture is another one.
  renew(data) {
    const now = data.network, before = this.data.network;
    const alike = (name, keys) => now[name].length === before[name].length && now[name].every((one, at) => keys.every((key) => String(one[key]) === String(before[name][at][key])));
    const same = alike("wires", ["way", "width", "slow", "faint"]) && alike("switches", ["x", "y", "name"]) && alike("groups", ["x", "y", "name", "words"]) &&
      alike("devices", ["x", "y", "name", "row", "slow"]) && alike("headings", [2]) && String(now.box) === String(before.box);
    if (!same) return false;
    this.data = data;
    now.wires.forEach(({ series, words }, at) => {
      Object.assign(this.wires[at], { series, words });
      this.wires[at].group.firstChild.textContent = words;
    });
    now.switches.forEach(({ series, words }, at) => {
      this.switches[at].series = series;
      if (words && this.switches[at].told) this.switches[at].told.textContent = words;
    });
    this.received = received(data);
    return true;
  }

  restyle() {
    this.colors = palette();
    this.colorOf = Array.from({ length: 101 }, (_, percent) => loadColor(this.colors, percent));
    for (const wire of this.wires) wire.percent = -1;
  }

  wire(wire, layer) {
    const group = shape("g", {}, layer);
    shape("title", {}, group, wire.words);
    const glow = this.glows ? shape("path", { class: "glow", d: wire.way }, group) : null;
    const line = shape("path", { class: wire.slow ? "wire slow" : "wire", d: wire.way }, group);
    const flow = shape("path", { class: "flow", d: wire.way }, group);
    // A thin line is hard to point at.
    shape("path", { d: wire.way, fill: "none", stroke: "transparent", "stroke-width": 9 }, group);
    return { ...wire, group, glow, line, flow, percent: -1 };
  }

  group({ x, y, width, height, level, name, words }, levels) {
    const even = (levels - level) % 2 === 1 ? "group even" : "group";
    shape("rect", { class: even, x, y, width, height, rx: 10 }, this.svg);
    if (!words) this.labels.add(shape("text", { class: "side", x: x + 10, y: y + 15, "font-size": 10 }, this.svg, name), width - 14, 12);
    else {
      this.labels.add(shape("text", { x: x + width / 2, y: y + height / 2 - 2, "font-size": 10 }, this.svg, name), width, height / 2);
      this.labels.add(shape("text", { class: "note", x: x + width / 2, y: y + height / 2 + 10, "font-size": 9 }, this.svg, words), width, height / 2);
    }
  }

  switch({ x, y, width, height, name, words, copies, series }) {
    const group = shape("g", {}, this.svg);
    const told = words ? shape("title", {}, group, words) : null, boxes = [];
    for (let behind = Math.min(copies, 3) - 1; behind >= 0; behind--) {
      boxes.push(shape("rect", { class: "switch", x: x + 3 * behind, y: y - 3 * behind, width, height, rx: 5 }, group));
    }
    this.labels.add(shape("text", { class: "mid", x: x + width / 2, y: y + height / 2, "font-size": 10.5 }, group, name), width, height);
    return { boxes, series, told };
  }

  device({ x, y, name, row, slow }) {
    const { device_width: width, device_height: height, font } = this.data.network;
    const group = shape("g", { class: `device${row < 0 ? " idle" : ""}${slow ? " slow" : ""}` }, this.svg);
    const place = (more) => ({ x: x - width / 2 - more, y: y - height / 2 - more, width: width + 2 * more, height: height + 2 * more, rx: height / 2 + more });
    shape("title", {}, group, row < 0 ? `${name}: no rank` : this.data.rows[row].name);
    const body = shape("g", {}, group);
    shape("path", { class: "halo", d: rounded(place(4)) }, body);
    shape("rect", place(0), body);
    const gauge = shape("path", { class: "gauge", d: rounded(place(0)), pathLength: 100, "stroke-width": height / 9 }, body);
    this.labels.addDevice(body, shape("text", { x, y: y + font * 0.36, "font-size": font }, group, name), x, y);
    return { group, gauge, row };
  }

  dots(x, y, stepX, stepY, above, words) {
    for (const at of [-1, 0, 1]) shape("circle", { cx: x + stepX * at, cy: y + stepY * at, r: 2.2, fill: "var(--muted)" }, this.svg);
    if (!words) return;
    // Beside dots that stand upon each other, above or below others.
    const upright = Math.abs(stepY) > Math.abs(stepX), half = this.data.network.device_height / 2;
    const place = upright ? { class: "note beside", x: x + 9, y } : { class: "note", x, y: above ? y - half - 4 : y + half + 9 };
    this.labels.add(shape("text", { ...place, "font-size": 10 }, this.svg, words));
  }

  // The picture has another size, or another place.
  fit() {
    this.restyle();
    this.labels.fit();
  }

  // How it looks at a moment; `ends` are the rows of the critical path's message of that moment.
  show(time_us, ends) {
    const total = this.data.figures.time_us;
    const bin = binAt(total, this.data.bins, time_us);
    for (const wire of this.wires) {
      const percent = bin < 0 ? 0 : this.data.series[wire.series][bin];
      if (percent !== wire.percent) this.paint(wire, percent);
      if (percent) wire.flow.setAttribute("stroke-dashoffset", (-FLOW * time_us) / (total || 1));
    }
    for (const { boxes, series } of this.switches) {
      const percent = series && bin >= 0 ? this.data.series[series][bin] : 0;
      for (const box of boxes) {
        box.style.stroke = percent ? this.colorOf[percent] : "";
        box.style.strokeWidth = percent ? 3 : "";
      }
    }
    for (const { group, gauge, row } of this.devices) {
      if (row < 0) continue;
      const share = this.received ? this.received[row](time_us) : 0;
      const done = time_us >= this.data.rows[row].done_us;
      gauge.setAttribute("stroke-dasharray", `${done ? 0 : 100 * share} 1000`);
      gauge.style.display = done || !share ? "none" : "";
      group.classList.toggle("done", done);
      group.classList.toggle("path", ends.includes(row));
    }
  }

  paint(wire, percent) {
    wire.percent = percent;
    const color = this.colorOf[percent], width = wire.width * (percent ? 1 + 0.6 * (percent / 100) : 0.8);
    wire.line.style.stroke = color;
    wire.line.style.strokeWidth = width;
    wire.line.style.opacity = wire.faint && !percent ? 0.4 : "";
    wire.flow.style.display = percent ? "" : "none";
    wire.flow.style.strokeWidth = Math.max(1, width * 0.62);
    if (!wire.glow) return;
    wire.glow.style.display = percent > 20 ? "" : "none";
    wire.glow.style.stroke = color;
    wire.glow.style.strokeWidth = width * 3;
  }

  // Point out wires by their numbers; with none, stop pointing.
  choose(numbers) {
    this.svg.classList.toggle("dim", numbers.length > 0);
    this.wires.forEach(({ group }, at) => group.classList.toggle("chosen", numbers.includes(at)));
  }
}

// A rounded box as a path that starts at the top and goes round clockwise.
export function rounded({ x, y, width, height, rx }) {
  const r = Math.min(rx, height / 2), right = x + width, bottom = y + height;
  return `M${x + width / 2} ${y}H${right - r}A${r} ${r} 0 0 1 ${right - r} ${bottom}H${x + r}A${r} ${r} 0 0 1 ${x + r} ${y}z`;
}

// The bin of a moment; -1 at the end.
export function binAt(total, bins, time_us) {
  return total > 0 && time_us < total ? Math.min(bins - 1, Math.floor((time_us / total) * bins)) : -1;
}

// For each row, the share of its messages received by a time; null where not all messages are known.
export function received({ messages, rows }) {
  if (messages.src.length < messages.all) return null;
  const times = rows.map(() => []);
  messages.dst.forEach((row, at) => times[row].push(messages.written_us[at]));
  return times.map((row) => {
    row.sort((a, b) => a - b);
    return (time_us) => (row.length ? before(row, time_us) / row.length : 0);
  });
}

// How many of a sorted list are not after a value.
export function before(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
