// Ask without SQL: what the store keeps, by columns, filters and a chart, with the SQL that it stands for.

import { element, formatTime, palette } from "/show/base.js";
import { Latest, ask, served } from "./ask.js";
import { change, state } from "./state.js";
import { HUES, Work, sharp } from "./work.js";

const CHARTS = {
  compared: "predicted against measured",
  time: "over time",
  machine: "by machine",
  table: "a table of your own",
};
const QUESTIONS = {
  compared: { view: "compared", columns: ["predicted_s", "measured_s", "algorithm", "size_bytes", "ranks", "source", "collective"] },
  time: { view: "result", columns: ["began", "time_s", "algorithm", "size_bytes", "kind"], order_by: ["began"] },
  machine: { view: "result", columns: ["count(*)", "median(time_s)"], group_by: ["machine", "kind", "algorithm"] },
};

export class StoreView {
  constructor(holder) {
    this.form = element("form", { class: "fields" }, holder);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.chart = this.select("chart", "show", Object.entries(CHARTS));
    this.columns = this.input("columns", "columns", "algorithm, median(time_s), count(*)");
    this.where = this.input("where", "where", "ranks >= 8; algorithm = ring");
    this.group = this.input("group", "grouped by", "algorithm, size_bytes");
    this.wrong = element("p", { class: "wrong", hidden: "" }, holder);
    this.work = new Work(holder);
    const sql = element("p", { class: "command" }, holder);
    sql.append("the SQL it stands for: ");
    this.sql = element("code", {}, sql);
    const box = element("div", { class: "chart" }, holder);
    this.canvas = element("canvas", { role: "img", "aria-label": "the chart" }, box);
    this.tip = element("p", { class: "tip", hidden: "" }, box);
    this.legend = element("p", { class: "legend" }, holder);
    this.table = element("div", { class: "table" }, holder);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.known = null;
    ask("store_columns", {}).then((found) => { this.known = found; this.hints(); }, () => {});
    this.latest = new Latest((now) => this.load(now));
    this.update(state(), {});
  }

  field(name, words, wide) {
    const label = element("label", { class: `field${wide ? " wide" : ""}`, "data-field": name }, this.form);
    element("span", {}, label, words);
    return label;
  }

  select(name, words, options) {
    const made = element("select", { name }, this.field(name, words));
    for (const [value, said] of options) element("option", { value }, made, said);
    made.addEventListener("change", () => change({ [name]: made.value }));
    made.disabled = !served;
    return made;
  }

  input(name, words, hint) {
    const made = element("input", { name, placeholder: hint, spellcheck: "false" }, this.field(name, words, true));
    made.addEventListener("change", () => change({ [name]: made.value.trim() }));
    made.disabled = !served;
    return made;
  }

  hints() {
    this.columns.title = `columns: ${Object.keys(this.known.views.result).join(", ")}; figures: ${this.known.figures.join(", ")}`;
    this.where.title = `a column, one of ${this.known.operators.join(" ")}, and a value; several with ;`;
  }

  update(now) {
    const chart = now.chart || "compared";
    this.chart.value = chart;
    for (const [name, input] of [["columns", this.columns], ["where", this.where], ["group", this.group]]) if (document.activeElement !== input) input.value = now[name] || "";
    for (const input of [this.columns, this.group]) input.closest("label").hidden = chart !== "table";
    this.latest.ask(now);
  }

  question(now) {
    const chart = now.chart || "compared", list = (text) => (text || "").split(",").map((one) => one.trim()).filter(Boolean);
    const where = (now.where || "").split(";").map((one) => one.trim()).filter(Boolean).map((one) => {
      const [, column, operator, value] = /^(\w+)\s*(<=|>=|!=|=|<|>|like|in)\s*(.*)$/i.exec(one) || [null, one, "", ""];
      return { column, operator, value: value !== "" && Number.isFinite(Number(value)) ? Number(value) : value };
    });
    if (chart !== "table") return { ...QUESTIONS[chart], where };
    return { view: "result", columns: list(now.columns), group_by: list(now.group), where };
  }

  async load(now) {
    try {
      this.found = await this.work.run("Asking the store …", "ask_store", this.question(now), () => {});
      this.wrong.hidden = true;
    } catch (error) {
      this.found = null;
      this.wrong.hidden = false;
      this.wrong.textContent = error.message;
    }
    this.draw();
    document.documentElement.dataset.asked = this.found ? String(this.found.rows.length) : "none";
  }

  draw() {
    const found = this.found, chart = state().chart || "compared";
    this.sql.textContent = found ? found.sql : "";
    this.table.replaceChildren();
    this.legend.replaceChildren();
    const plotted = found && found.rows.length && (chart === "compared" || chart === "time");
    this.canvas.parentElement.hidden = !plotted;
    this.dots = [];
    if (plotted) this.plot(found, chart);
    if (!found) return;
    if (found.word) element("p", { class: "word" }, this.table, found.word);
    if (!found.rows.length) return;
    const table = element("table", {}, this.table), head = element("tr", {}, element("thead", {}, table));
    for (const name of found.columns) element("th", { scope: "col" }, head, name);
    const body = element("tbody", {}, table);
    for (const row of found.rows.slice(0, 200)) {
      const line = element("tr", {}, body);
      row.forEach((value, at) => element("td", {}, line, value === null ? "" : /_s\)?$/.test(found.columns[at]) && typeof value === "number" ? formatTime(value * 1e6) : String(value)));
    }
    if (found.rows.length > 200) element("p", { class: "legend" }, this.table, `the first 200 of ${found.rows.length} rows`);
  }

  plot(found, chart) {
    const { draw, width, height } = sharp(this.canvas), colors = palette(), at = (name) => found.columns.indexOf(name);
    const compared = chart === "compared", [xs, ys] = compared ? [at("measured_s"), at("predicted_s")] : [at("began"), at("time_s")];
    const rows = found.rows.filter((row) => row[ys] > 0 && row[xs]), names = [...new Set(rows.map((row) => row[at("algorithm")] || "other"))];
    const number = (value) => (compared ? Math.log(value) : Date.parse(value)), x0 = rows.map((row) => number(row[xs])), y0 = rows.map((row) => Math.log(row[ys]));
    const all = compared ? [...x0, ...y0] : x0;
    const low = { x: Math.min(...all), y: compared ? Math.min(...all) : Math.min(...y0) }, high = { x: Math.max(...all), y: compared ? Math.max(...all) : Math.max(...y0) };
    const left = 70, bottom = height - 26, span = (one) => (high[one] - low[one] || 1);
    const x = (value) => left + ((value - low.x) / span("x")) * (width - left - 14), y = (value) => bottom - 6 - ((value - low.y) / span("y")) * (bottom - 18);
    draw.textAlign = "right";
    for (let power = Math.floor(low.y / Math.LN10); power <= high.y / Math.LN10 + 1; power++) {
      const place = y(power * Math.LN10);
      if (place < 4 || place > bottom) continue;
      draw.fillStyle = colors.muted;
      draw.fillText(formatTime(10 ** (power + 6)), left - 8, place + 4);
      draw.fillStyle = colors.line;
      draw.fillRect(left, place, width - left, 1);
    }
    if (compared) {
      draw.fillStyle = colors.part;
      draw.globalAlpha = 0.25;
      draw.beginPath();
      draw.moveTo(x(low.x), y(low.x + Math.log(1.1)));
      draw.lineTo(x(high.x), y(high.x + Math.log(1.1)));
      draw.lineTo(x(high.x), y(high.x + Math.log(0.9)));
      draw.lineTo(x(low.x), y(low.x + Math.log(0.9)));
      draw.fill();
      draw.globalAlpha = 1;
    }
    rows.forEach((row, nth) => {
      const hue = HUES[names.indexOf(row[at("algorithm")] || "other") % HUES.length], px = x(x0[nth]), py = y(y0[nth]);
      draw.fillStyle = hue;
      draw.globalAlpha = 0.7;
      draw.beginPath();
      draw.arc(px, py, 3.5, 0, 7);
      draw.fill();
      this.dots.push([px, py, row]);
    });
    draw.globalAlpha = 1;
    draw.fillStyle = colors.muted;
    draw.textAlign = "center";
    draw.fillText(compared ? "measured (predicted upwards; the band is ±10 %)" : "time of the run", (left + width) / 2, height - 8);
    names.forEach((name, nth) => {
      const item = element("span", {}, this.legend);
      element("i", {}, item).style.background = HUES[nth % HUES.length];
      item.append(name);
    });
  }

  point(event) {
    let best = null, least = 12;
    for (const [x, y, row] of this.dots || []) {
      const away = Math.hypot(x - event.offsetX, y - event.offsetY);
      if (away < least) [best, least] = [row, away];
    }
    this.tip.hidden = !best;
    if (!best) return;
    this.tip.textContent = this.found.columns.map((name, at) => `${name}: ${name.endsWith("_s") ? formatTime(best[at] * 1e6) : best[at]}`).join("\n");
    this.tip.style.left = `${Math.min(event.offsetX + 14, this.canvas.clientWidth - 220)}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }

  fit() {
    this.draw();
  }

  leave() {
    this.work.abort();
  }
}
