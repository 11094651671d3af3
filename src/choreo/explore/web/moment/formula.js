// What it costs: the formula with its three terms as a bar, beside the simulated time and the bound.

import { element, formatRate, formatTime, say, threeDigits } from "/show/base.js";
import { served } from "../ask.js";
import { change } from "../state.js";

const TERMS = [
  ["alpha", "α", "copy", "messages, one after another"],
  ["beta", "β", "add", "bytes on the wire"],
  ["gamma", "γ", "whole", "bytes reduced"],
];

export class Formula {
  constructor(holder) {
    this.holder = holder;
    this.wide = 0;  // of a bar's track, measured when it is first drawn, and again when there is another room for it
    new ResizeObserver(() => { this.wide = 0; }).observe(holder);
  }

  // `longest` is the time that fills the width, so that two stand on one scale.
  show({ cost, run, time_us: simulated, calibrated, calibrated_on: day, uncalibrated, command }, longest, now) {
    this.holder.replaceChildren();
    const said = element("p", { class: "formula", "aria-label": "the cost formula" }, this.holder);
    const parts = [[cost.messages, "α"], [cost.sent, "n β"], [cost.reduced, "n γ"]].filter(([number]) => number);
    said.append("T = ");
    parts.forEach(([number, unit], at) => {
      if (at) said.append(" + ");
      element("b", {}, said, plain(number));
      said.append(` ${unit}`);
    });
    if (!parts.length) said.append("0");
    element("small", {}, said, ` = ${formatTime(cost.total_us)}`);
    const scale = longest || 1;
    this.terms("formula", cost, scale);
    if (calibrated) this.terms("this machine", calibrated, scale);
    const sim = this.bar("simulated", simulated, scale);
    const own = run ? run.path.parts : [];
    const sum = own.reduce((total, { time_us }) => total + time_us, 0);
    const colors = { sending: "add", "sharing links": "wrong", latency: "copy", overhead: "copy", "further hops": "copy", "reducing, writing": "whole", waiting: "part" };
    for (const { name, time_us } of own) {
      const part = element("i", { title: `${name}: ${formatTime(time_us)}` }, sim);
      part.style.width = `${(100 * time_us) / sum}%`;
      part.style.background = `var(--${colors[name]})`;
      label(part, `${name} ${formatTime(time_us)}`, (time_us / sum) * (simulated / scale) * this.wide);
    }
    if (!own.length) element("i", { class: "plain" }, sim).style.width = "100%";
    const mark = element("u", { class: "mark" }, sim.parentElement);
    mark.style.left = `${Math.min(100, (100 * now) / scale)}%`;
    this.mark = { mark, scale };
    if (run && run.figures.bound_us !== null) {
      const bound = this.bar("lower bound", run.figures.bound_us, scale);
      element("i", { class: "plain" }, bound).style.width = "100%";
    }
    const facts = element("p", { class: "legend" }, this.holder);
    const told = [`${cost.steps} steps`, `fan-in ${cost.max_fan_in}`, `α ${formatTime(cost.alpha_s * 1e6)}`, `1/β ${formatRate(cost.bandwidth_bytes_per_s)}`];
    if (run) told.push(`busbw ${formatRate(run.figures.busbw_bytes_per_s)}`);
    if (run && run.figures.efficiency !== null) told.push(`${threeDigits(100 * run.figures.efficiency)}% of the best possible`);
    for (const words of told) element("span", {}, facts, words);
    if (uncalibrated) element("span", {}, facts, uncalibrated);
    if (calibrated) this.constants(facts, calibrated, day);
    if (!command) return;
    const same = element("p", { class: "command" }, this.holder, "on the command line: ");
    say(command, element("code", {}, same));
  }

  // A price, term by term.
  terms(name, cost, scale) {
    const bar = this.bar(name, cost.total_us, scale);
    this.wide ||= bar.parentElement.clientWidth;
    for (const [term, sign, color, words] of TERMS) {
      const time = cost[`${term}_us`];
      if (!time) continue;
      const part = element("i", { title: `${sign}: ${words}, ${formatTime(time)}` }, bar);
      part.style.width = `${(100 * time) / cost.total_us}%`;
      part.style.background = `var(--${color})`;
      label(part, `${sign} ${formatTime(time)}`, Math.min(1, time / scale) * this.wide);
    }
  }

  // What was measured here, and a button that puts it into the fields.
  constants(holder, { alpha_s: alpha, bandwidth_bytes_per_s: bandwidth, gamma_s_per_byte: gamma }, day) {
    const four = (number) => Number(number.toPrecision(4));
    element("span", {}, holder, `this machine, calibrated ${day}: α ${formatTime(alpha * 1e6)}, 1/β ${formatRate(bandwidth)}, 1/γ ${gamma ? formatRate(1 / gamma) : "∞"}`);
    if (!served) return;
    const use = element("button", { type: "button", class: "small" }, holder, "use these");
    use.addEventListener("click", () => change({ alpha: `${four(alpha * 1e6)}us`, bandwidth: `${four(bandwidth / 1e9)}GB/s`, gamma: String(four(gamma)), time: "" }));
  }

  bar(name, time_us, scale) {
    const row = element("div", { class: "cost" }, this.holder);
    element("span", { class: "name" }, row, name);
    const track = element("div", { class: "track" }, row);
    const bar = element("div", { class: "bar" }, track);
    bar.style.width = `${Math.max(0.5, Math.min(100, (100 * time_us) / scale))}%`;
    element("span", { class: "time" }, row, formatTime(time_us));
    return bar;
  }

  now(time_us) {
    if (this.mark) this.mark.mark.style.left = `${Math.min(100, (100 * time_us) / this.mark.scale)}%`;
  }
}

// A number without needless digits.
function plain(number) {
  return Number.isInteger(number) ? String(number) : String(Number(number.toPrecision(4)));
}

// Words in a bar of this width, if they fit.
function label(part, words, width) {
  if (7 * words.length + 8 < width) part.textContent = words;
}
