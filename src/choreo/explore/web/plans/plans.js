// Plans: all plans of a search as points, and what if the cluster had more or less of something.

import { element, say } from "/show/base.js";
import { Latest, bytesOf, served } from "../ask.js";
import { change, state } from "../state.js";
import { HUES, Work } from "../work.js";
import { Cloud, seconds } from "./cloud.js";
import { OnePlan } from "./one.js";

const JOB = { model: "llama3-8b", cluster: "hgx-h100:8", batch: "256", seq: "8192", software: "megatron-core" };
// What if there were this many times of it; the slider's stops.
const WHAT_IF = { bandwidth: "link bandwidth", latency: "link latency", flops: "FLOP/s", memory_bandwidth: "memory bandwidth", memory: "memory" };
const FACTORS = ["0.25", "0.5", "0.707", "1", "1.414", "2", "4"];
const SEARCHED = [...Object.keys(JOB), ...Object.keys(WHAT_IF).map((name) => `if_${name}`)];
const MOST_COLOURS = 16;

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
      this.inputs[name].addEventListener("change", () => change({ [name]: this.inputs[name].value.trim(), plan: "", look: "", brush: "" }));
    }
    this.row = element("div", { class: "fields whatif" }, holder);
    element("span", { class: "lead" }, this.row, "what if");
    for (const [name, words] of Object.entries(WHAT_IF)) this.whatIf(name, words);
    const colour = element("label", { class: "field" }, this.row);
    element("span", {}, colour, "colour");
    this.colour = element("select", { name: "colour" }, colour);
    this.colour.addEventListener("change", () => change({ colour: this.colour.value }, { step: false }));
    this.wrong = element("p", { class: "wrong", hidden: "" }, holder);
    this.work = new Work(holder);
    this.making = new Work(holder);
    this.title = element("p", { class: "said" }, holder);
    const row = element("div", { class: "plans" }, holder), open = (plan) => change({ plan, page: plan });
    this.cloud = new Cloud(row, { open, moved: (looks) => change(looks, { step: false }), words: (plan) => this.words(plan) });
    this.one = new OnePlan(element("aside", { class: "one", "aria-live": "polite" }, row), holder, { open, close: () => change({ page: "" }) });
    this.legend = element("p", { class: "legend" }, holder);
    this.latest = new Latest((now) => this.load(now));
    this.picked = new Latest((plan) => this.detail(plan));
    this.opened = new Latest((plan) => this.page(plan));
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
    slider.addEventListener("change", () => change({ [`if_${name}`]: FACTORS[slider.value] === "1" ? "" : FACTORS[slider.value], plan: "", look: "", brush: "" }));
    this.ifs = { ...this.ifs, [name]: show };
  }

  job(now) {
    const ifs = Object.fromEntries(Object.keys(WHAT_IF).map((name) => [name, Number(now[`if_${name}`] || 1)]));
    return { model: now.model || JOB.model, cluster: now.cluster || JOB.cluster, global_batch: Number(now.batch || JOB.batch), seq: Number(now.seq || JOB.seq), software: now.software || JOB.software, ...ifs };
  }

  update(now, before) {
    for (const [name, input] of Object.entries(this.inputs)) if (document.activeElement !== input) input.value = now[name] || JOB[name];
    for (const [name, show] of Object.entries(this.ifs)) show(now[`if_${name}`] || "1");
    if (!now.page) this.one.closed();
    else if (this.data && now.page !== before.page) this.opened.ask(Number(now.page));
    if (SEARCHED.some((name) => (now[name] || "") !== (before[name] || "")) || !Object.keys(before).length) {
      this.work.abort();
      this.latest.ask(now);
    } else if (this.data) {
      if (now.colour !== before.colour) this.paint();
      const { look, brush } = this.cloud.looks;
      if ((now.look || "") !== look || (now.brush || "") !== brush) this.cloud.looks = now;
      if (now.plan !== before.plan && now.plan) this.picked.ask(Number(now.plan));
      this.draw();
    }
  }

  // Ask for something; undefined if it was cancelled, or refused with a message.
  async ask(work, words, verb, fields) {
    try {
      const found = await work.run(words, verb, fields, () => {});
      this.wrong.hidden = true;
      return found;
    } catch (error) {
      this.wrong.hidden = false;
      say(error.message, this.wrong);
      return undefined;
    }
  }

  async load(now) {
    const found = await this.ask(this.work, "Searching all plans …", "plans", this.job(now));
    if (!found) return;
    this.take(found);
    if (now.page) this.opened.ask(Number(now.page));
    if (now.plan && Number(now.plan) < found.count) this.picked.ask(Number(now.plan));
    else if (found.best.length) this.picked.ask(found.best[0]);
    document.documentElement.dataset.plans = String(found.count);
  }

  take(found) {
    this.data = found;
    this.columns = { limit: new Int16Array(bytesOf(found.limit).buffer) };
    const floats = (text) => new Float32Array(bytesOf(text).buffer);
    this.times = { memory: floats(found.memory_bytes), time: floats(found.time_s) };
    this.cloud.set({ ...found, ...this.times });
    this.cloud.looks = state();
    this.title.textContent = found.title;
    const now = state().colour || "limit";
    this.colour.replaceChildren(...["limit", ...Object.keys(found.fields)].map((name) => {
      const option = document.createElement("option");
      option.value = name;
      option.textContent = name === "limit" ? "what limits" : name.replaceAll("_", " ");
      option.selected = name === now;
      return option;
    }));
    this.paint();
    this.draw();
  }

  // A field of all plans; read when it is first needed.
  column(name) {
    if (!(name in this.columns) && name in this.data.fields) this.columns[name] = new Int16Array(bytesOf(this.data.fields[name]).buffer);
    return this.columns[name];
  }

  // Colours by a field, and the legend.
  paint() {
    const asked = state().colour || "limit", name = this.column(asked) ? asked : "limit", column = this.column(name);
    const values = [...new Set(column)].sort((a, b) => a - b), code = new Uint8Array(1 << 16);
    values.forEach((value, at) => { code[value & 0xffff] = Math.min(MOST_COLOURS - 1, at); });
    const hue = new Uint8Array(column.length), hues = [...Array(MOST_COLOURS).keys()].map((at) => HUES[at] || "#888888");
    for (let at = 0; at < hue.length; at++) hue[at] = code[column[at] & 0xffff];
    this.cloud.paint(hues, hue);
    const words = name === "limit" ? this.data.limits : this.data.words[name], count = (number) => number.toLocaleString("en");
    this.legend.replaceChildren();
    const items = [...values.slice(0, MOST_COLOURS).entries()];
    if (name === "limit" && values[0] === 0) items.push(items.shift());  // none of these: after all of these
    items.forEach(([at, value]) => {
      const item = element("span", {}, this.legend), more = at === MOST_COLOURS - 1 && values.length > MOST_COLOURS;
      element("i", {}, item).style.background = hues[at];
      item.append(`${words ? words[value] : `${name.replaceAll("_", " ")} ${value}`}${more ? " and more" : ""}`);
    });
    element("span", {}, this.legend, `${count(this.data.count)} of ${count(this.data.considered)} plans can be run. No plan beats those on the line in both. Drag to pan, scroll to zoom, shift-drag to brush, click a plan for its page.`);
  }

  draw() {
    this.cloud.picked = state().plan === undefined || state().plan === "" ? -1 : Number(state().plan);
    this.cloud.draw();
  }

  words(row) {
    const names = ["dp", "tp", "pp", "cp", "ep", "zero", "micro_batch"];
    const said = names.filter((name) => this.column(name) && (this.column(name)[row] > 1 || name === "dp")).map((name) => `${name.replace("_batch", "")} ${this.column(name)[row]}`);
    return `${said.join(", ")}\n${seconds(this.times.time[row])} a step, ${(this.times.memory[row] / 1e9).toFixed(1)} GB (estimated)`;
  }

  async detail(row) {
    const found = await this.ask(this.work, "Evaluating this plan in detail …", "one_plan", { ...this.job(state()), row });
    if (found) this.one.show(row, found);
  }

  async page(row) {
    const found = await this.ask(this.making, "Making the plan's page …", "plan_page", { ...this.job(state()), row });
    if (found && state().page) this.one.page(row, this.words(row).split("\n")[0], found.address);
  }

  key(event) {
    if (!this.data || this.one.dialog.open) return false;
    if (event.key === "Enter") {
      if (!state().plan) return false;
      change({ page: state().plan });
    } else if (event.key === "n" || event.key === "p") {
      // Along the edge that nothing beats.
      const { front } = this.data, now = front.indexOf(Number(state().plan));
      change({ plan: front[(now + (event.key === "n" ? 1 : -1) + front.length) % front.length] }, { step: false });
    } else return this.cloud.key(event);
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
