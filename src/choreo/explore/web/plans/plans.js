// Plans: all plans of a search as points, memory against the time of a step, with the edge that nothing beats.

import { element, palette } from "/show/base.js";
import { Latest, served } from "../ask.js";
import { Points } from "./points.js";
import { change, state } from "../state.js";
import { HUES, Work, sharp } from "../work.js";

const JOB = { model: "llama3-8b", cluster: "hgx-h100:8", batch: "256", seq: "8192", software: "megatron-core" };
// What if there were so many times of it; the slider's stops.
const WHAT_IF = { bandwidth: "link bandwidth", latency: "link latency", flops: "FLOP/s", memory_bandwidth: "memory bandwidth", memory: "memory" };
const FACTORS = ["0.25", "0.5", "0.707", "1", "1.414", "2", "4"];
// Where drawing all points takes longer than this, a drag moves their picture until it ends.
const SLOW_MS = 20;

function numbers(text, kind) {
  return new kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

function seconds(time) {
  return time >= 1 ? `${Number(time.toPrecision(3))} s` : `${Number((1e3 * time).toPrecision(3))} ms`;
}

export class PlansView {
  constructor(holder) {
    this.form = element("form", { class: "fields", autocomplete: "off" }, holder);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.inputs = {};
    for (const [name, value] of Object.entries(JOB)) {
      const label = element("label", { class: `field${name === "cluster" ? " wide" : ""}`, "data-field": name }, this.form);
      element("span", {}, label, { batch: "global batch", seq: "sequence length" }[name] || name);
      this.inputs[name] = element("input", { name, placeholder: value, spellcheck: "false" }, label);
      this.inputs[name].disabled = !served;
      this.inputs[name].addEventListener("change", () => change({ [name]: this.inputs[name].value.trim() }));
    }
    this.row = element("div", { class: "fields whatif" }, holder);
    element("span", { class: "lead" }, this.row, "what if");
    for (const [name, words] of Object.entries(WHAT_IF)) this.whatIf(name, words);
    const colour = element("label", { class: "field" }, this.row);
    element("span", {}, colour, "coloured by");
    this.colour = element("select", { name: "colour" }, colour);
    this.colour.addEventListener("change", () => change({ colour: this.colour.value }, { step: false }));
    this.wrong = element("p", { class: "wrong", hidden: "" }, holder);
    this.work = new Work(holder);
    this.making = new Work(holder);
    this.title = element("p", { class: "said" }, holder);
    const row = element("div", { class: "plans" }, holder), box = element("div", { class: "cloud" }, row);
    this.dots = element("canvas", { class: "dots" }, box);
    this.over = element("canvas", { class: "over", tabindex: 0, role: "img", "aria-label": "plans by memory and time; drag to pan, wheel to zoom, shift and drag to brush, click for one" }, box);
    this.tip = element("p", { class: "tip", hidden: "" }, box);
    this.side = element("aside", { class: "one", "aria-live": "polite" }, row);
    this.legend = element("p", { class: "legend" }, holder);
    this.points = new Points(this.dots);
    this.view = { left: 0, bottom: 0, width: 1, height: 1 };
    this.hold();
    this.latest = new Latest((now) => this.load(now));
    this.picked = new Latest((row) => this.one(row));
    this.opened = new Latest((row) => this.open(row));
    this.dialog = element("dialog", { class: "page", "aria-label": "the plan's page" }, holder);
    const bar = element("p", { class: "tools" }, this.dialog);
    this.heading = element("span", { class: "said" }, bar);
    element("button", { type: "button", class: "small" }, bar, "Close").addEventListener("click", () => change({ page: "" }));
    this.sheet = element("iframe", { title: "the plan's page", sandbox: "allow-scripts" }, this.dialog);
    this.dialog.addEventListener("cancel", (event) => { event.preventDefault(); change({ page: "" }); });
    this.update(state(), {});
  }

  // A slider over what the cluster could have.
  whatIf(name, words) {
    const label = element("label", { class: "field slides", "data-field": `if_${name}` }, this.row);
    const said = element("span", {}, label);
    const slider = element("input", { type: "range", min: 0, max: FACTORS.length - 1, step: 1, "aria-label": `what if: times the ${words}` }, label);
    const show = (factor) => {
      said.textContent = factor === "1" ? words : `${factor}× the ${words}`;
      said.classList.toggle("changed", factor !== "1");
      slider.value = FACTORS.indexOf(factor);
      slider.setAttribute("aria-valuetext", `${factor} times`);
    };
    slider.disabled = !served;
    slider.addEventListener("input", () => show(FACTORS[slider.value]));
    slider.addEventListener("change", () => change({ [`if_${name}`]: FACTORS[slider.value] === "1" ? "" : FACTORS[slider.value], plan: "" }));
    this.ifs = { ...this.ifs, [name]: show };
  }

  job(now) {
    const ifs = Object.fromEntries(Object.keys(WHAT_IF).map((name) => [name, Number(now[`if_${name}`] || 1)]));
    return { model: now.model || JOB.model, cluster: now.cluster || JOB.cluster, global_batch: Number(now.batch || JOB.batch), seq: Number(now.seq || JOB.seq), software: now.software || JOB.software, ...ifs };
  }

  update(now, before) {
    for (const [name, input] of Object.entries(this.inputs)) if (document.activeElement !== input) input.value = now[name] || JOB[name];
    for (const [name, show] of Object.entries(this.ifs)) show(now[`if_${name}`] || "1");
    if (!now.page) this.closed();
    else if (this.data && now.page !== before.page) this.opened.ask(Number(now.page));
    if (["model", "cluster", "batch", "seq", "software", ...Object.keys(WHAT_IF).map((name) => `if_${name}`)].some((name) => (now[name] || "") !== (before[name] || "")) || !Object.keys(before).length) {
      this.work.abort();
      this.latest.ask(now);
    } else if (this.data) {
      if (now.colour !== before.colour) this.paint();
      if (now.plan !== before.plan && now.plan) this.picked.ask(Number(now.plan));
      this.draw();
    }
  }

  async load(now) {
    let found;
    try {
      found = await this.work.run("Searching all plans …", "plans", this.job(now), () => {});
      this.wrong.hidden = true;
    } catch (error) {
      this.wrong.hidden = false;
      this.wrong.textContent = error.message;
      return;
    }
    if (!found) return;
    this.take(found);
    if (now.page) this.opened.ask(Number(now.page));
    if (now.plan) this.picked.ask(Number(now.plan));
    else if (found.best.length) this.picked.ask(found.best[0]);
    document.documentElement.dataset.plans = String(found.count);
  }

  take(found) {
    const memory = numbers(found.memory_bytes, Float32Array), time = numbers(found.time_s, Float32Array);
    this.data = { ...found, memory, time, limit: numbers(found.limit, Int16Array) };
    this.columns = Object.fromEntries(Object.entries(found.fields).map(([name, text]) => [name, numbers(text, Int16Array)]));
    let [least, most, shortest, longest] = [Infinity, found.room_bytes, Infinity, 0];
    for (let at = 0; at < found.count; at++) {
      least = Math.min(least, memory[at]);
      most = Math.max(most, memory[at]);
      shortest = Math.min(shortest, time[at]);
      longest = Math.max(longest, time[at]);
    }
    this.range = { x: [Math.log(least * 0.9), Math.log(most * 1.1)], y: [Math.log(shortest * 0.9), Math.log(longest * 1.1)] };
    const place = new Float32Array(2 * found.count);
    for (let at = 0; at < found.count; at++) {
      place[2 * at] = this.unit("x", memory[at]);
      place[2 * at + 1] = this.unit("y", time[at]);
    }
    this.place = place;
    this.points.fill("place", place);
    // What is near what, for pointing: a grid of the unit square.
    this.brush = null;
    this.view = { left: 0, bottom: 0, width: 1, height: 1 };
    this.title.textContent = found.title;
    const names = ["limit", ...Object.keys(this.columns)], now = state().colour || "limit";
    this.colour.replaceChildren(...names.map((name) => { const option = document.createElement("option"); option.value = name; option.textContent = name === "limit" ? "what limits" : name.replace("_", " "); option.selected = name === now; return option; }));
    this.paint();
    this.draw();
  }

  unit(axis, value) {
    const [low, high] = this.range[axis];
    return (Math.log(value) - low) / (high - low || 1);
  }

  value(axis, unit) {
    const [low, high] = this.range[axis];
    return Math.exp(low + unit * (high - low));
  }

  // Colours by a field, and the legend.
  paint() {
    const name = state().colour || "limit", column = name === "limit" ? this.data.limit : this.columns[name] || this.data.limit;
    const values = [...new Set(column)].sort((a, b) => a - b), code = new Map(values.map((value, at) => [value, Math.min(15, at)]));
    const words = name === "limit" ? this.data.limits : this.data.words[name];
    this.points.fill("hue", Float32Array.from(column, (value) => code.get(value)));
    this.dimmed();
    this.hues = values.slice(0, 16).map((_, at) => HUES[at % HUES.length]);
    while (this.hues.length < 16) this.hues.push("#888888");
    this.legend.replaceChildren();
    for (const value of values.slice(0, 16)) {
      const item = element("span", {}, this.legend);
      element("i", {}, item).style.background = this.hues[code.get(value)];
      item.append(words ? words[value] : `${name.replace("_", " ")} ${value}`);
    }
    element("span", {}, this.legend, `${this.data.count.toLocaleString("en")} plans can be run, of ${this.data.considered.toLocaleString("en")}; the line is what nothing beats in both. Drag to pan, wheel to zoom, shift-drag to brush, click a plan for its page.`);
  }

  // Those outside of the brush are dim.
  dimmed() {
    const dim = new Float32Array(this.data.count), { brush } = this;
    if (brush) {
      for (let at = 0; at < dim.length; at++) {
        const [x, y] = [this.place[2 * at], this.place[2 * at + 1]];
        dim[at] = x < brush.left || x > brush.right || y < brush.bottom || y > brush.top ? 1 : 0;
      }
    }
    this.points.fill("dim", dim);
  }

  size() {
    return this.data.count > 200_000 ? 2 : this.data.count > 20_000 ? 3 : 5;
  }

  draw() {
    if (!this.data) return;
    this.scatter();
    const { draw, width, height } = sharp(this.over), colors = palette(), { view } = this;
    draw.clearRect(0, 0, width, height);
    // The cloud fills its canvas; axes are drawn over its edge.
    const x = (unit) => ((unit - view.left) / view.width) * width, y = (unit) => height - ((unit - view.bottom) / view.height) * height;
    draw.lineWidth = 1;
    draw.textBaseline = "middle";
    for (const axis of ["x", "y"]) {
      const [from, span] = axis === "x" ? [view.left, view.width] : [view.bottom, view.height];
      const low = this.value(axis, from), high = this.value(axis, from + span), ticks = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) for (const step of [1, 2, 5]) ticks.push(step * 10 ** power);
      for (const tick of ticks.filter((one) => one >= low && one <= high)) {
        const at = axis === "x" ? x(this.unit("x", tick)) : y(this.unit("y", tick));
        draw.strokeStyle = colors.line;
        draw.beginPath();
        if (axis === "x") { draw.moveTo(at, 0); draw.lineTo(at, height); } else { draw.moveTo(0, at); draw.lineTo(width, at); }
        draw.globalAlpha = 0.6;
        draw.stroke();
        draw.globalAlpha = 1;
        draw.fillStyle = colors.muted;
        draw.textAlign = axis === "x" ? "center" : "left";
        if (axis === "x") draw.fillText(`${Number((tick / 1e9).toPrecision(3))} GB`, at, height - 9);
        else draw.fillText(seconds(tick), 5, at - 7);
      }
    }
    const room = x(this.unit("x", this.data.room_bytes));
    draw.fillStyle = colors.wrong;
    draw.globalAlpha = 0.07;
    draw.fillRect(room, 0, width - room, height);
    draw.globalAlpha = 1;
    draw.fillRect(room, 0, 1.5, height);
    draw.textAlign = "left";
    draw.fillText("does not fit →", Math.min(room + 6, width - 90), 12);
    draw.strokeStyle = colors.ink;
    draw.lineWidth = 1.8;
    draw.beginPath();
    this.data.front.forEach((row, at) => {
      const [px, py] = [x(this.place[2 * row]), y(this.place[2 * row + 1])];
      if (at) { draw.lineTo(px, y(this.place[2 * this.data.front[at - 1] + 1])); draw.lineTo(px, py); } else draw.moveTo(px, py);
    });
    draw.stroke();
    if (this.brush) {
      draw.setLineDash([5, 4]);
      draw.strokeRect(x(this.brush.left), y(this.brush.top), x(this.brush.right) - x(this.brush.left), y(this.brush.bottom) - y(this.brush.top));
      draw.setLineDash([]);
    }
    for (const row of this.data.best) this.ring(draw, x(this.place[2 * row]), y(this.place[2 * row + 1]), 5, colors.ink);
    if (state().plan) this.ring(draw, x(this.place[2 * state().plan]), y(this.place[2 * state().plan + 1]), 8, colors.wrong);
  }

  // All points, or while they are dragged and many, their last picture moved.
  scatter() {
    if (this.dragged && this.cost > SLOW_MS) {
      const box = this.over.getBoundingClientRect(), { view, drawnView: from } = this;
      this.dots.style.transform = `translate(${((from.left - view.left) / view.width) * box.width}px, ${((view.bottom - from.bottom) / view.height) * box.height}px)`;
      return;
    }
    const began = performance.now();
    this.dots.style.transform = "";
    this.points.draw(this.view, this.hues, this.size());
    this.points.finish();
    this.drawnView = { ...this.view };
    this.cost = performance.now() - began;
  }

  ring(draw, x, y, radius, color) {
    draw.strokeStyle = color;
    draw.lineWidth = 2;
    draw.beginPath();
    draw.arc(x, y, radius, 0, 7);
    draw.stroke();
  }

  unitsAt(event) {
    const box = this.over.getBoundingClientRect();
    return [this.view.left + ((event.clientX - box.left) / box.width) * this.view.width, this.view.bottom + (1 - (event.clientY - box.top) / box.height) * this.view.height];
  }

  soon() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  hold() {
    let from = null, moved = false;
    this.over.addEventListener("pointerdown", (event) => {
      from = { at: this.unitsAt(event), view: { ...this.view }, x: event.clientX, y: event.clientY, brushing: event.shiftKey };
      moved = false;
      if (event.isTrusted) this.over.setPointerCapture(event.pointerId);
    });
    this.over.addEventListener("pointermove", (event) => {
      if (!this.data) return;
      if (!from) {
        this.point(event);
        return;
      }
      moved ||= Math.hypot(event.clientX - from.x, event.clientY - from.y) > 4;
      if (from.brushing) {
        const to = this.unitsAt(event);
        this.brush = { left: Math.min(from.at[0], to[0]), right: Math.max(from.at[0], to[0]), bottom: Math.min(from.at[1], to[1]), top: Math.max(from.at[1], to[1]) };
      } else {
        const box = this.over.getBoundingClientRect();
        this.dragged = true;
        this.view = { ...from.view, left: from.view.left - ((event.clientX - from.x) / box.width) * this.view.width, bottom: from.view.bottom + ((event.clientY - from.y) / box.height) * this.view.height };
      }
      this.soon();
    });
    this.over.addEventListener("pointerup", (event) => {
      this.dragged = false;
      if (moved) this.soon();
      if (this.data && from) {
        if (from.brushing) {
          if (!moved) this.brush = null;
          this.dimmed();
          this.soon();
        } else if (!moved) {
          const row = this.nearest(event);
          if (row >= 0) change({ plan: row, page: row });
        }
      }
      from = null;
    });
    this.over.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.over.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, this.unitsAt(event));
    }, { passive: false });
    this.over.addEventListener("dblclick", () => { this.view = { left: 0, bottom: 0, width: 1, height: 1 }; this.soon(); });
  }

  zoom(factor, [x, y]) {
    const { left, bottom, width, height } = this.view;
    if (width * factor > 4 || width * factor < 1e-3) return;
    this.view = { left: x - (x - left) * factor, bottom: y - (y - bottom) * factor, width: width * factor, height: height * factor };
    this.soon();
  }

  nearest(event) {
    const [x, y] = this.unitsAt(event), box = this.over.getBoundingClientRect();
    let best = -1, least = 10 ** 2;
    for (let at = 0; at < this.data.count; at++) {
      const dx = ((this.place[2 * at] - x) / this.view.width) * box.width, dy = ((this.place[2 * at + 1] - y) / this.view.height) * box.height;
      const away = dx * dx + dy * dy;
      if (away < least) [best, least] = [at, away];
    }
    return best;
  }

  words(row) {
    const names = ["dp", "tp", "pp", "cp", "ep", "zero", "micro_batch"];
    const said = names.filter((name) => this.columns[name] && (this.columns[name][row] > 1 || name === "dp")).map((name) => `${name.replace("_batch", "")} ${this.columns[name][row]}`);
    return `${said.join(", ")}\n${seconds(this.data.time[row])} a step, ${(this.data.memory[row] / 1e9).toFixed(1)} GB (estimated)`;
  }

  point(event) {
    if (this.data.count > 100_000 && this.slow) return;
    const began = performance.now(), row = this.nearest(event);
    this.slow = performance.now() - began > 12;
    this.tip.hidden = row < 0;
    if (row < 0) return;
    this.tip.textContent = this.words(row);
    this.tip.style.left = `${Math.min(event.offsetX + 14, this.over.clientWidth - 240)}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }

  async one(row) {
    let found;
    try {
      found = await this.work.run("Evaluating this plan in detail …", "one_plan", { ...this.job(state()), row }, () => {});
    } catch (error) {
      this.side.textContent = error.message;
      return;
    }
    if (!found) return;
    this.side.replaceChildren();
    element("h2", {}, this.side, found.plan);
    element("p", { class: "said" }, this.side, found.summary);
    element("button", { type: "button" }, this.side, "Open its page").addEventListener("click", () => change({ plan: row, page: row }));
    const list = element("dl", {}, this.side);
    for (const [name, value] of Object.entries(found.step)) {
      if (typeof value !== "number" && typeof value !== "boolean") continue;
      element("dt", {}, list, name.replace(/_(s|bytes)$/, "").replace(/^(mfu|hfu)$/, (word) => word.toUpperCase()).replaceAll("_", " ").replace("gpu", "GPU"));
      if (name.endsWith("_bytes")) element("dd", {}, list, `${Number((value / 1e9).toPrecision(4))} GB`);
      else if (name.endsWith("_s") && !name.includes("_per_")) element("dd", {}, list, seconds(value));
      else if (/^(mfu|hfu|fits_chance)$/.test(name)) element("dd", {}, list, `${(100 * value).toFixed(1)} %`);
      else element("dd", {}, list, typeof value === "number" ? String(Number(value.toPrecision(4))) : value ? "yes" : "no");
    }
    document.documentElement.dataset.plan = found.plan;
  }

  // The page that `choreo plan --html` writes of a plan, over the cloud.
  async open(row) {
    let found;
    try {
      found = await this.making.run("Making the plan's page …", "plan_page", { ...this.job(state()), row }, () => {});
    } catch (error) {
      this.wrong.hidden = false;
      this.wrong.textContent = error.message;
      return;
    }
    if (!found || !state().page) return;
    this.heading.textContent = this.words(row).split("\n")[0];
    this.sheet.src = found.address;
    if (!this.dialog.open) this.dialog.showModal();
    document.documentElement.dataset.page = String(row);
  }

  closed() {
    if (this.dialog && this.dialog.open) this.dialog.close();
    delete document.documentElement.dataset.page;
  }

  key(event) {
    const middle = [this.view.left + this.view.width / 2, this.view.bottom + this.view.height / 2], step = 0.08;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!this.data || this.dialog.open) return false;
    if (event.key === "Enter") {
      if (!state().plan) return false;
      change({ page: state().plan });
    } else if (event.key === "+" || event.key === "=") this.zoom(1 / 1.2, middle);
    else if (event.key === "-") this.zoom(1.2, middle);
    else if (moves) {
      this.view = { ...this.view, left: this.view.left + moves[0] * step * this.view.width, bottom: this.view.bottom + moves[1] * step * this.view.height };
      this.soon();
    } else if (event.key === "n" || event.key === "p") {
      // Along the edge that nothing beats.
      const { front } = this.data, now = front.indexOf(Number(state().plan));
      change({ plan: front[(now + (event.key === "n" ? 1 : -1) + front.length) % front.length] }, { step: false });
    } else return false;
    return true;
  }

  fit() {
    this.draw();
  }

  leave() {
    this.work.abort();
    this.making.abort();
  }
}
