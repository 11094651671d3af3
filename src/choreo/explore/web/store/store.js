// Ask without SQL: columns, filters and a chart of what the store keeps, with the SQL that it stands for.

import { element, say } from "/show/base.js";
import { Latest, ask, served } from "../ask.js";
import { Chart, said } from "./chart.js";
import { change, state } from "../state.js";
import { Work } from "../work.js";

// Where to start from; everything in it can be changed.
const STARTS = {
  compared: ["predicted vs measured", { from: "compared", chart: "points", x: "measured_s", y: "predicted_s", hue: "algorithm", more: "size_bytes, ranks, source, collective" }],
  time: ["over time", { from: "result", chart: "points", x: "began", y: "time_s", hue: "algorithm", more: "size_bytes, kind" }],
  machine: ["by machine", { from: "result", chart: "bars", x: "machine", y: "median(time_s)", hue: "algorithm", more: "" }],
  size: ["by size", { from: "result", chart: "lines", x: "size_bytes", y: "median(time_s)", hue: "algorithm", more: "" }],
  table: ["a table", { from: "result", chart: "table", x: "", y: "", hue: "", more: "algorithm, ranks, size_bytes, median(time_s), count(*)" }],
};
const KEYS = ["from", "chart", "x", "y", "hue", "more", "where"];
const OPERATORS_SAID = { "=": "is", "!=": "is not", "<": "<", "<=": "≤", ">": ">", ">=": "≥", like: "is like (% is anything)", in: "is one of", "is null": "is missing", "is not null": "is present" };
const CONDITION = /^(\w+)\s*(is not null|is null|<=|>=|!=|=|<|>|like|in)\s*(.*)$/i;
const MOST_SHOWN = 200;

const list = (text) => (text || "").split(",").map((one) => one.trim()).filter(Boolean);

export class StoreView {
  constructor(holder) {
    this.form = element("form", { class: "fields" }, holder);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.start = this.select("start", "start from", (to) => change({ start: to, ...Object.fromEntries(KEYS.map((name) => [name, ""])) }));
    this.from = this.select("from", "rows", (to) => this.set({ from: to, x: "", y: "", hue: "", more: "" }));
    this.kind = this.select("chart", "chart", (to) => this.set({ chart: to }));
    this.x = this.select("x", "x axis", (to) => this.set({ x: to }));
    this.y = this.select("y", "y axis", (to) => this.set({ y: to }));
    this.hue = this.select("hue", "colour", (to) => this.set({ hue: to }));
    this.fill(this.start, Object.entries(STARTS).map(([name, [words]]) => [name, words]));
    this.fill(this.from, [["compared", "predicted and measured"], ["result", "every result"]]);
    this.fill(this.kind, ["points", "lines", "bars", "table"].map((name) => [name, name === "table" ? "table only" : name]));
    this.columns = element("p", { class: "picks" }, holder);
    this.filters = element("p", { class: "picks" }, holder);
    this.wrong = element("p", { class: "wrong", hidden: "" }, holder);
    this.work = new Work(holder);
    const sql = element("p", { class: "command", hidden: "" }, holder);
    sql.append("SQL: ");
    this.sql = element("code", {}, sql);
    const copy = element("button", { type: "button", class: "small" }, sql, "Copy");
    copy.addEventListener("click", () => this.copy(copy));
    const legend = element("p", { class: "legend" });
    this.answer = element("div", { class: "answer" }, holder);
    const drawn = element("div", { class: "drawn" }, this.answer);
    this.chart = new Chart(drawn, legend);
    drawn.append(legend);
    this.table = element("div", { class: "table" }, this.answer);
    this.known = null;
    this.latest = new Latest((now) => this.load(now));
    ask("store_columns", {}).then((found) => { this.known = found; this.update(state(), {}); }, (error) => this.say(error.message));
  }

  select(name, words, act) {
    const label = element("label", { class: "field", "data-field": name }, this.form);
    element("span", {}, label, words);
    const made = element("select", { name }, label);
    made.addEventListener("change", () => act(made.value));
    made.disabled = !served;
    return made;
  }

  fill(select, options) {
    select.replaceChildren(...options.map(([value, words]) => { const option = document.createElement("option"); option.value = value; option.textContent = words; return option; }));
  }

  // What is asked: where one starts from, with what was changed.
  now() {
    const now = state(), start = STARTS[now.start] ? now.start : "compared", own = STARTS[start][1];
    const asked = Object.fromEntries(KEYS.map((name) => [name, now[name] || own[name] || ""]));
    if (now.from && now.from !== own.from) Object.assign(asked, this.first(now.from), Object.fromEntries(KEYS.filter((name) => now[name]).map((name) => [name, now[name]])));
    return { ...asked, start };
  }

  // What a view shows before anything is picked.
  first(from) {
    return from === "compared" ? { x: "measured_s", y: "predicted_s", hue: "algorithm", more: "" } : { x: "size_bytes", y: "time_s", hue: "algorithm", more: "" };
  }

  set(changes) {
    change({ ...this.now(), ...changes });
  }

  update(now, before) {
    if (!this.known) return;
    if (Object.keys(before).length && !["start", ...KEYS].some((name) => (now[name] || "") !== (before[name] || ""))) return;
    const asked = this.now(), view = this.known.views[asked.from] || {}, names = Object.keys(view);
    const numbers = names.filter((name) => view[name] === "number"), figures = ["count(*)", ...numbers.flatMap((name) => this.known.figures.filter((figure) => figure !== "count").map((figure) => `${figure}(${name})`))];
    const options = (some) => some.map((name) => [name, name]);
    this.fill(this.x, options(names));
    this.fill(this.y, options([...numbers, ...figures]));
    this.fill(this.hue, [["-", "nothing"], ...options(names)]);
    for (const [select, value] of [[this.start, asked.start], [this.from, asked.from], [this.kind, asked.chart], [this.x, asked.x], [this.y, asked.y], [this.hue, asked.hue || "-"]]) select.value = value;
    for (const select of [this.x, this.y, this.hue]) select.closest("label").hidden = asked.chart === "table";
    this.picks(asked, [...names, ...figures]);
    this.conditions(asked, names);
    this.latest.ask(asked);
  }

  // The columns besides the chart's, each with a button that leaves it out.
  picks(asked, names) {
    const some = list(asked.more).filter((name) => name !== "-");
    this.columns.replaceChildren(asked.chart === "table" ? "columns " : "more columns ");
    for (const name of some) {
      const chip = element("button", { type: "button", class: "chip plain", title: "leave it out" }, this.columns, `${name} ×`);
      chip.addEventListener("click", () => this.set({ more: some.filter((one) => one !== name).join(", ") || "-" }));
    }
    this.adder(this.columns, "Add a column …", names.filter((name) => !some.includes(name)), (name) => this.set({ more: [...some, name].join(", ") }));
  }

  adder(holder, words, names, act) {
    const select = element("select", { class: "adder", "aria-label": words }, holder);
    this.fill(select, [["", words], ...names.map((name) => [name, name])]);
    select.addEventListener("change", () => { if (select.value) act(select.value); });
  }

  // The filters: a column, how it compares, and a value.
  conditions(asked, names) {
    const some = this.parsed(asked.where), tell = (rows) => this.set({ where: rows.map(({ column, operator, value }) => `${column} ${operator} ${value}`.trim()).join("; ") || "-" });
    this.filters.replaceChildren("filters ");
    some.forEach((one, at) => {
      const box = element("span", { class: "filter" }, this.filters);
      const column = element("select", { "aria-label": `column of filter ${at + 1}` }, box), operator = element("select", { "aria-label": `comparison of filter ${at + 1}` }, box);
      this.fill(column, names.map((name) => [name, name]));
      this.fill(operator, this.known.operators.map((name) => [name, OPERATORS_SAID[name] || name]));
      column.value = one.column;
      operator.value = one.operator;
      const input = element("input", { value: one.value, "aria-label": `value of filter ${at + 1}`, spellcheck: "false" }, box);
      input.hidden = /null/.test(one.operator);
      const edit = () => tell(some.map((other, nth) => (nth === at ? { column: column.value, operator: operator.value, value: /null/.test(operator.value) ? "" : input.value.trim() } : other)));
      for (const part of [column, operator, input]) part.addEventListener("change", edit);
      element("button", { type: "button", class: "small", "aria-label": `leave out filter ${at + 1}` }, box, "×").addEventListener("click", () => tell(some.filter((_, nth) => nth !== at)));
    });
    this.adder(this.filters, some.length ? "Add another …" : "Add a filter …", names, (name) => tell([...some, { column: name, operator: "=", value: "" }]));
  }

  parsed(text) {
    return (text || "").split(";").map((one) => CONDITION.exec(one.trim())).filter(Boolean).map(([, column, operator, value]) => ({ column, operator: operator.toLowerCase(), value }));
  }

  // With a figure like median(time_s) among what is asked for, the rest is what it is taken over.
  question(asked) {
    const axes = asked.chart === "table" ? [] : [asked.x, asked.y, asked.hue === "-" ? "" : asked.hue];
    const names = [...new Set([...axes, ...list(asked.more)].filter((name) => name && name !== "-"))], figures = names.filter((name) => name.includes("("));
    const plain = names.filter((name) => !name.includes("("));
    const where = this.parsed(asked.where).filter(({ operator, value }) => value !== "" || /null/.test(operator)).map(({ column, operator, value }) => {
      const text = this.known.views[asked.from][column] === "text", read = (one) => (!text && one !== "" && Number.isFinite(Number(one)) ? Number(one) : one);
      return { column, operator, value: /null/.test(operator) ? null : operator === "in" ? list(value).map(read) : read(value) };
    });
    const order = asked.chart === "table" || asked.x.includes("(") ? plain.slice(0, 2) : plain.includes(asked.x) ? [asked.x] : [];
    return { view: asked.from, columns: figures.length ? figures : plain, group_by: figures.length ? plain : [], where, order_by: order };
  }

  async load(asked) {
    try {
      this.found = await this.work.run("Asking the store …", "ask_store", this.question(asked), () => {});
      this.wrong.hidden = true;
    } catch (error) {
      this.found = null;
      this.say(error.message);
    }
    this.draw();
    document.documentElement.dataset.asked = this.found ? String(this.found.rows.length) : "none";
  }

  say(words) {
    this.wrong.hidden = false;
    say(words, this.wrong);
    document.documentElement.dataset.asked ||= "none";
  }

  draw() {
    const { found } = this, asked = this.now(), plotted = Boolean(found && found.rows.length && asked.chart !== "table");
    this.sql.textContent = found ? found.sql : "";
    this.sql.parentElement.hidden = !found;
    this.chart.box.hidden = !plotted;
    this.chart.legend.hidden = !plotted;
    this.answer.classList.toggle("plotted", plotted);
    this.table.replaceChildren();
    if (found) this.tabulate(found);
    // Last, as the table leaves it more or less room.
    if (plotted) this.chart.show(found, { kind: asked.chart, x: asked.x, y: asked.y, hue: asked.hue });
  }

  tabulate(found) {
    if (found.word) element("p", { class: "word" }, this.table, found.word);
    if (!found.rows.length) return;
    const table = element("table", {}, this.table), head = element("tr", {}, element("thead", {}, table));
    for (const name of found.columns) element("th", { scope: "col" }, head, name);
    const body = element("tbody", {}, table);
    for (const row of found.rows.slice(0, MOST_SHOWN)) {
      const line = element("tr", {}, body);
      row.forEach((value, at) => element("td", {}, line, said(found.columns[at], value)));
    }
    if (found.rows.length > MOST_SHOWN) element("p", { class: "legend" }, this.table, `the first ${MOST_SHOWN} of ${found.rows.length.toLocaleString("en")} rows`);
  }

  async copy(button) {
    try {
      await navigator.clipboard.writeText(this.sql.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and copy";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  fit() {
    this.draw();
  }

  leave() {
    this.work.abort();
  }
}
