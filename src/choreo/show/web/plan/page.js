// The page of a planning: choose a plan; see its step, its memory, where the time goes, and what-if curves.

import { element, formatTime, shape, threeDigits } from "../base.js";
import { Memory } from "./memory.js";
import { Timeline } from "./timeline.js";

const find = (id) => document.getElementById(id);
const data = JSON.parse(find("plan").textContent);
window.addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const gigabytes = (bytes) => `${threeDigits(bytes / 1e9)} GB`;

function figures(plan) {
  const holder = find("figures");
  holder.replaceChildren();
  const add = (name, value, unit, hint) => {
    const block = element("div", { title: hint }, holder);
    element("dt", {}, block, name);
    const told = element("dd", {}, block, value);
    if (unit) element("small", {}, told, unit);
    return block;
  };
  const bar = (block, share, over) => element("i", over ? { class: "over" } : {}, element("div", { class: "bar" }, block)).style.width = `${Math.min(100, 100 * share)}%`;
  const range = (block, [from, to], format, more = "") => { if (to > from) element("p", { class: "range", title: "90 % of similar published runs were this close to their prediction" }, block, `${format(from)} to ${format(to)}${more}`); };
  const [number, unit] = formatTime(1e6 * plan.step_time_s).split(" ");
  range(add("step", number, unit, "one step of training"), plan.step_time_range_s, (value) => formatTime(1e6 * value));
  add(`${data.unit}/s per GPU`, Math.round(plan.tokens_per_s_per_gpu).toLocaleString("en"), "", `${data.unit} per second and GPU`);
  bar(add("MFU", (100 * plan.mfu).toFixed(1), "%", "model FLOPs per second over the devices' peak"), plan.mfu);
  bar(add("HFU", (100 * plan.hfu).toFixed(1), "%", "the same, with recomputed FLOPs"), plan.hfu);
  const memory = add("memory", (plan.memory_bytes / 1e9).toFixed(1), "GB", `of ${gigabytes(plan.memory.capacity_bytes)}`);
  bar(memory, plan.memory_bytes / plan.memory.capacity_bytes, !plan.fits);
  range(memory, plan.memory_range_bytes, gigabytes, `; fits: ${Math.round(100 * plan.fits_chance)} %`);
}

function table(chosen, choose) {
  const head = find("plans").tHead, body = find("plans").tBodies[0];
  head.replaceChildren();
  body.replaceChildren();
  const fields = ["dp", "tp", "pp", "cp", "ep"].filter((name) => data.plans.some(({ plan }) => plan[name] > 1));
  if (data.plans.some(({ plan }) => plan.etp)) fields.push("etp");
  const row = element("tr", {}, head);
  for (const name of ["plan", ...fields, "ZeRO", "SP", "micro-batch"]) element("th", {}, row, name);
  for (const name of ["schedule", "recompute"]) element("th", { class: "words" }, row, name);
  for (const name of ["step", "MFU", "memory", "bubble"]) element("th", {}, row, name);
  element("th", { class: "words" }, row, "limited by");
  data.plans.forEach((one, index) => {
    const line = element("tr", { tabindex: 0, class: index === chosen ? "chosen" : "" }, body), { plan } = one;
    const cells = [index === 0 ? "best" : `${index + 1}`, ...fields.map((name) => plan[name] || plan.tp), plan.zero, plan.sequence_parallel ? "yes" : "", plan.micro_batch];
    for (const cell of cells) element("td", {}, line, cell);
    element("td", { class: "words" }, line, plan.pp > 1 ? plan.schedule + (plan.interleave > 1 ? ` ×${plan.interleave}` : "") : "");
    element("td", { class: "words" }, line, plan.recompute);
    for (const cell of [formatTime(1e6 * one.step_time_s), percent(one.mfu), gigabytes(one.memory_bytes), percent(one.bubble_s / one.step_time_s)]) element("td", {}, line, cell);
    element("td", { class: "words" }, line, one.limits);
    line.addEventListener("click", () => choose(index));
    line.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(index); } });
  });
  find("choice-note").textContent = data.considered > 1
    ? `of ${data.considered.toLocaleString("en")} considered, one for each way to divide the devices; click one to see it` : "the plan you asked for";
  if (data.equal > 1) find("choice-note").textContent += `; the first ${data.equal} differ by less than the error of such predictions`;
}

function breakdown(bar, list, parts, total, format) {
  bar.replaceChildren();
  list.replaceChildren();
  for (const { name, value, color: shade } of parts) {
    const piece = element("i", { title: `${name}: ${format(value)}` }, bar);
    piece.style.width = `${(100 * value) / total}%`;
    piece.style.background = `var(--${shade})`;
    const row = element("li", {}, list), label = element("span", {}, row);
    element("i", {}, label).style.background = `var(--${shade})`;
    label.append(name);
    element("span", {}, row, format(value));
    element("span", { class: "share" }, row, percent(value / total));
  }
}

function change(share) {
  const rounded = Math.round(100 * share);
  return `${rounded > 0 ? "+" : rounded < 0 ? "−" : "±"}${Math.abs(rounded)} %`;
}

function charts(plan) {
  const holder = find("charts");
  holder.replaceChildren();
  const highest = Math.max(...plan.what_if.flatMap(({ points }) => points.map(({ step_time_s: time }) => time)));
  const scale = Math.min(highest, 3 * plan.step_time_s) * 1.05;
  for (const { title, points } of plan.what_if) {
    const figure = element("figure", {}, holder), [wide, tall, left, low] = [230, 118, 34, 98];
    const caption = element("figcaption", {}, figure);
    element("b", {}, caption, title);
    const svg = shape("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": title }, figure);
    const x = (factor) => left + ((Math.log2(factor) + 2) / 4) * (wide - left - 8);
    const y = (time) => low - (Math.min(time, scale) / scale) * (low - 6);
    for (const share of [0, 0.5, 1]) {
      const at = low - share * (low - 6);
      shape("line", { class: "grid", x1: left, x2: wide - 8, y1: at, y2: at }, svg);
      shape("text", { x: left - 4, y: at + 3, "text-anchor": "end" }, svg, share ? formatTime(1e6 * share * scale) : "0");
    }
    for (const factor of [0.25, 0.5, 1, 2, 4]) shape("text", { x: x(factor), y: low + 13, "text-anchor": "middle" }, svg, { 0.25: "¼×", 0.5: "½×", 1: "as is", 2: "2×", 4: "4×" }[factor]);
    if (!points.length) continue;
    const way = points.map(({ factor, step_time_s: time }, at) => `${at ? "L" : "M"}${x(factor).toFixed(1)} ${y(time).toFixed(1)}`).join("");
    shape("path", { class: "area", d: `${way}L${x(points[points.length - 1].factor)} ${low}L${x(points[0].factor)} ${low}Z` }, svg);
    shape("path", { class: "curve", d: way }, svg);
    for (const { factor, step_time_s: time, plan: other } of points) {
      const dot = shape("circle", { class: factor === 1 ? "here" : other ? "changed" : "dot", cx: x(factor), cy: y(time), r: factor === 1 ? 4 : 3 }, svg);
      shape("title", {}, dot, `${threeDigits(factor)} times: ${formatTime(1e6 * time)}${other ? `, with ${other}` : ""}`);
    }
    for (const at of [0, points.length - 1]) {
      const { factor, step_time_s: time } = points[at];
      if (factor === 1) continue;
      shape("text", { class: "told", x: x(factor) + (at ? 2 : 4), y: y(time) < 20 ? y(time) + 4 : y(time) - 7, dx: !at && y(time) < 20 ? 9 : 0, "text-anchor": at ? "end" : "start" }, svg, change(time / plan.step_time_s - 1));
    }
  }
  find("what-if-note").textContent = plan.what_if.some(({ points }) => points.some(({ plan: other }) => other))
    ? "the step time as one thing changes and the rest stays; with more or less memory, the best plan that fits (hollow points: another plan)"
    : "the step time as one thing changes and the rest stays";
}

function launch(plan) {
  const holder = find("launch");
  holder.replaceChildren();
  for (const { name, options, notes } of plan.launch) {
    const block = element("div", {}, holder), head = element("h3", {}, block, name);
    if (options.length) {
      const copy = element("button", { type: "button" }, head, "copy");
      const text = options.join(" ");
      const lines = element("pre", {}, block);
      options.forEach((option, at) => { if (at) lines.append(" "); element("span", {}, lines, option); });
      copy.addEventListener("click", () => navigator.clipboard?.writeText(text).then(() => { copy.textContent = "copied"; }));
    }
    for (const note of notes) element("p", {}, block, note);
  }
  find("options-title").hidden = !plan.launch.length;
}

function ruledOut() {
  const list = find("ruled-out");
  for (const [reason, count] of Object.entries(data.ruled_out).sort((a, b) => b[1] - a[1])) {
    const row = element("li", {}, list);
    element("span", {}, row, reason);
    element("span", {}, row, count.toLocaleString("en"));
  }
  list.previousElementSibling.hidden = !list.children.length;
}

function legend(holder, items) {
  holder.replaceChildren();
  for (const [name, shade] of items) {
    const item = element("span", {}, holder);
    element("i", {}, item).style.background = `var(--${shade})`;
    item.append(name);
  }
}

let chosen = 0, stage = 0;
const memory = new Memory(find("memory"));
const timeline = new Timeline(find("timeline"), (at) => { stage = at; find("stage").value = at; memory.show(data.plans[chosen], stage); });

function show(index) {
  chosen = index;
  const plan = data.plans[index];
  stage = plan.memory.fullest;
  figures(plan);
  table(index, show);
  timeline.show(plan);
  const kinds = new Set(plan.timeline.kind);
  legend(find("time-legend"), [
    ["forward", "forward"], ["backward", "backward"], ...(kinds.has("W") ? [["weight gradients", "weight"]] : []),
    ...plan.timeline.tail.map(({ name, color: shade }) => [name, shade]), ["waiting", "empty"],
  ]);
  const select = find("stage");
  select.replaceChildren();
  plan.memory.stages.forEach((_, at) => element("option", { value: at }, select, `stage ${at}${at === plan.memory.fullest && plan.memory.stages.length > 1 ? " (fullest)" : ""}`));
  select.value = stage;
  memory.show(plan, stage);
  legend(find("memory-legend"), [...plan.memory.parts].filter((name) => plan.memory.peak[name] > 0).map((name) => [name, `m-${name}`]));
  breakdown(find("bar"), find("parts"), plan.where, plan.step_time_s, (value) => formatTime(1e6 * value));
  find("where-note").textContent = "on the busiest stage; communication that overlaps with compute does not count";
  const peaks = plan.memory.parts.map((name) => ({ name, value: plan.memory.peak[name], color: `m-${name}` })).filter(({ value }) => value > 0);
  breakdown(find("peak"), find("peaks"), peaks, plan.memory_bytes, gigabytes);
  find("peak-note").textContent = `${gigabytes(plan.memory_bytes)} of ${gigabytes(plan.memory.capacity_bytes)}${plan.fits ? "" : ": it does not fit"}`;
  charts(plan);
  launch(plan);
}

find("stage").addEventListener("change", (event) => { stage = Number(event.target.value); memory.show(data.plans[chosen], stage); });
const redraw = () => { timeline.show(data.plans[chosen]); memory.show(data.plans[chosen], stage); };
window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
ruledOut();
show(0);
