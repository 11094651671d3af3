// Points, lines or bars of an answer: two of its columns as axes, and one that colours.

import { element, formatBytes, formatTime, niceStep, palette } from "/show/base.js";
import { HUES, sharp } from "../work.js";

const CHART_LEFT = 76, CHART_BOTTOM = 40, CHART_TOP = 12, CHART_RIGHT = 16;

// A moment of the store as people read it, to the minute or to the second.
function moment(text, seconds) {
  return String(text).slice(0, seconds ? 19 : 16).replace("T", " ");
}

// A value as people read it: by what its column is called.
export function said(name, value) {
  if (value === null || value === undefined) return "";
  if (name === "began") return moment(value, true);
  if (typeof value !== "number") return String(value);
  if (/_s\)?$/.test(name)) return formatTime(value * 1e6);
  if (/_bytes\)?$/.test(name)) return formatBytes(value);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}

// A column as an axis is called: its values have their units beside them.
function titled(name) {
  return name.replace(/_(s|bytes)(\)?)$/, "$2").replaceAll("_", " ");
}

// The axis of some values: times and sizes by their logarithm, moments along the calendar, names one after another.
export class Axis {
  constructor(name, values, { zero = false, named = false } = {}) {
    this.name = name;
    const numbers = values.filter((value) => typeof value === "number");
    this.moments = !named && name === "began";
    this.named = named || (!this.moments && numbers.length < values.length);
    this.names = this.named ? [...new Set(values)].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)))) : [];
    this.log = !this.named && !this.moments && !zero && /(_s|_bytes|ratio|ranks)\)?$/.test(name) && numbers.every((value) => value > 0);
    const places = this.named ? [-0.5, this.names.length - 0.5] : values.map((value) => this.number(value));
    this.low = zero ? 0 : Math.min(...places);
    this.high = Math.max(...places);
    const edge = this.named || zero ? 0 : (this.high - this.low || Math.abs(this.high) || 1) * 0.05;
    this.low -= edge;
    this.high += edge || (zero ? this.high * 0.05 : 0) || (this.named ? 0 : 1);
  }

  number(value) {
    if (this.named) return this.names.indexOf(value);
    if (this.moments) return Date.parse(value);
    return this.log ? Math.log10(value) : value;
  }

  place(value) {
    return (this.number(value) - this.low) / (this.high - this.low || 1);
  }

  // Where a scale is written, and what.
  ticks(room) {
    if (this.named) {
      const every = Math.max(1, Math.ceil(this.names.length / Math.max(1, room)));
      return this.names.map((one, at) => [(at - this.low) / (this.high - this.low || 1), said(this.name, one)]).filter((_, at) => at % every === 0);
    }
    const made = [], span = this.high - this.low;
    if (this.moments) {
      for (let at = 0; at <= 3; at++) made.push([at / 3, moment(new Date(this.low + (span * at) / 3).toISOString(), span < 600_000)]);
      return made;
    }
    if (this.log && span > 1) {
      const every = Math.max(1, Math.ceil(span / Math.max(2, room)));
      for (let power = Math.ceil(this.low); power <= this.high; power += every) made.push([(power - this.low) / span, said(this.name, 10 ** power)]);
      return made;
    }
    if (!this.log && span > 0) {
      const step = niceStep(span / 5);
      for (let nth = Math.ceil(this.low / step); nth * step <= this.high; nth++) made.push([(nth * step - this.low) / span, nth ? said(this.name, Number((nth * step).toPrecision(6))) : "0"]);
      return made;
    }
    for (let at = 0; at <= 4; at++) {
      const value = this.low + (span * (0.5 + at)) / 5;
      made.push([(0.5 + at) / 5, said(this.name, 10 ** value)]);
    }
    return made;
  }
}

export class Chart {
  constructor(holder, legend) {
    this.box = element("div", { class: "chart" }, holder);
    this.canvas = element("canvas", { role: "img", "aria-label": "the chart" }, this.box);
    this.tip = element("p", { class: "tip", hidden: "" }, this.box);
    this.legend = legend;
    this.dots = [];
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  // `kind` is points, lines or bars; `x`, `y` and `hue` are names of columns of the answer.
  show({ columns, rows: all }, { kind, x: xName, y: yName, hue }) {
    this.columns = columns;
    this.dots = [];
    this.legend.replaceChildren();
    const [xAt, yAt, hueAt] = [xName, yName, hue].map((name) => columns.indexOf(name));
    const rows = all.filter((row) => row[xAt] !== null && typeof row[yAt] === "number");
    const { draw, width, height } = sharp(this.canvas), colors = palette();
    draw.clearRect(0, 0, width, height);
    if (!rows.length) return;
    const bars = kind === "bars", x = new Axis(xName, rows.map((row) => row[xAt]), { named: bars }), y = new Axis(yName, rows.map((row) => row[yAt]), { zero: bars });
    const compared = new Set([xName, yName]).has("measured_s") && new Set([xName, yName]).has("predicted_s");
    if (compared) for (const axis of [x, y]) [axis.low, axis.high] = [Math.min(x.low, y.low), Math.max(x.high, y.high)];
    const px = (value) => CHART_LEFT + x.place(value) * (width - CHART_LEFT - CHART_RIGHT), py = (value) => height - CHART_BOTTOM - y.place(value) * (height - CHART_BOTTOM - CHART_TOP);
    this.frame(draw, colors, x, y, width, height);
    if (compared) this.band(draw, colors, x, y, width, height);
    const names = hueAt < 0 ? [""] : [...new Set(rows.map((row) => said(hue, row[hueAt])))].sort(), color = (row) => HUES[Math.min(HUES.length - 1, hueAt < 0 ? 0 : names.indexOf(said(hue, row[hueAt])))];
    if (bars) this.bars(draw, rows, { x, px, py, xAt, yAt, names, color, of: (row) => (hueAt < 0 ? 0 : names.indexOf(said(hue, row[hueAt]))), width });
    else {
      if (kind === "lines") {
        for (const name of names) {
          const own = rows.filter((row) => hueAt < 0 || said(hue, row[hueAt]) === name).sort((a, b) => x.number(a[xAt]) - x.number(b[xAt]));
          draw.strokeStyle = color(own[0]);
          draw.lineWidth = 1.8;
          draw.beginPath();
          own.forEach((row, at) => (at ? draw.lineTo(px(row[xAt]), py(row[yAt])) : draw.moveTo(px(row[xAt]), py(row[yAt]))));
          draw.stroke();
        }
      }
      draw.globalAlpha = rows.length > 400 ? 0.45 : 0.75;
      for (const row of rows) {
        draw.fillStyle = color(row);
        draw.beginPath();
        draw.arc(px(row[xAt]), py(row[yAt]), rows.length > 2000 ? 2 : 3.4, 0, 7);
        draw.fill();
        this.dots.push([px(row[xAt]), py(row[yAt]), row]);
      }
      draw.globalAlpha = 1;
    }
    const told = names.length > HUES.length ? HUES.length - 1 : names.length;
    (hueAt < 0 ? [] : names).slice(0, told).forEach((name, at) => {
      const item = element("span", {}, this.legend);
      element("i", {}, item).style.background = HUES[at];
      item.append(name || `no ${hue}`);
    });
    if (names.length > told) element("span", {}, this.legend, `and ${names.length - told} more`);
    if (compared) element("span", {}, this.legend, "the line is where both are equal, the band ±10 %");
  }

  frame(draw, colors, x, y, width, height) {
    draw.textBaseline = "middle";
    for (const [at, words] of y.ticks((height - CHART_BOTTOM) / 40)) {
      const place = height - CHART_BOTTOM - at * (height - CHART_BOTTOM - CHART_TOP);
      draw.fillStyle = colors.line;
      draw.fillRect(CHART_LEFT, place, width - CHART_LEFT - CHART_RIGHT, 1);
      draw.fillStyle = colors.muted;
      draw.textAlign = "right";
      draw.fillText(words, CHART_LEFT - 8, place, CHART_LEFT - 12);
    }
    draw.textAlign = "center";
    for (const [at, words] of x.ticks((width - CHART_LEFT) / 110)) {
      const place = CHART_LEFT + at * (width - CHART_LEFT - CHART_RIGHT);
      draw.fillStyle = colors.line;
      draw.fillRect(place, CHART_TOP, 1, height - CHART_BOTTOM - CHART_TOP);
      draw.fillStyle = colors.muted;
      draw.fillText(words, Math.min(place, width - draw.measureText(words).width / 2 - 2), height - CHART_BOTTOM + 13, 150);
    }
    draw.fillStyle = colors.ink;
    draw.fillText(`${titled(x.name)} →`, (CHART_LEFT + width) / 2, height - 9);
    draw.textAlign = "left";
    draw.fillText(`↑ ${titled(y.name)}`, CHART_LEFT + 6, CHART_TOP + 4);
  }

  // Ten percent around what is equal.
  band(draw, colors, x, y, width, height) {
    const share = Math.log10(1.1) / (x.high - x.low), at = (along, aside) => [CHART_LEFT + along * (width - CHART_LEFT - CHART_RIGHT), height - CHART_BOTTOM - (along + aside) * (height - CHART_BOTTOM - CHART_TOP)];
    draw.save();
    draw.beginPath();
    draw.rect(CHART_LEFT, CHART_TOP, width - CHART_LEFT - CHART_RIGHT, height - CHART_BOTTOM - CHART_TOP);
    draw.clip();
    draw.fillStyle = colors.part;
    draw.globalAlpha = 0.4;
    draw.beginPath();
    for (const [along, aside] of [[0, share], [1, share], [1, -share], [0, -share]]) draw.lineTo(...at(along, aside));
    draw.fill();
    draw.globalAlpha = 1;
    draw.strokeStyle = colors.muted;
    draw.lineWidth = 1;
    draw.beginPath();
    for (const along of [0, 1]) draw.lineTo(...at(along, 0));
    draw.stroke();
    draw.restore();
  }

  bars(draw, rows, { x, py, xAt, yAt, names, color, of, width }) {
    const wide = (width - CHART_LEFT - CHART_RIGHT) / x.names.length, thin = Math.min(46, (wide * 0.8) / names.length), floor = py(0);
    for (const row of rows) {
      const left = CHART_LEFT + (x.number(row[xAt]) + 0.5) * wide - (thin * names.length) / 2 + of(row) * thin, top = py(row[yAt]);
      draw.fillStyle = color(row);
      draw.fillRect(left, top, Math.max(1, thin - 1), Math.max(1, floor - top));
      this.dots.push([left + thin / 2, top, row]);
    }
  }

  point(event) {
    let best = null, least = 16;
    for (const [x, y, row] of this.dots) {
      const away = Math.hypot(x - event.offsetX, y - event.offsetY);
      if (away < least) [best, least] = [row, away];
    }
    this.tip.hidden = !best;
    if (!best) return;
    this.tip.textContent = this.columns.map((name, at) => `${name}: ${said(name, best[at])}`).join("\n");
    this.tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, this.canvas.clientWidth - 220))}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }
}
