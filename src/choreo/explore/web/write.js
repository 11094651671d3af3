// Write and break: a schedule as a table of transfers or as its JSON document, with the result beside it.

import { element } from "/show/base.js";
import { ask } from "./ask.js";
import { MomentView, fieldsOf } from "./moment/moment.js";
import { change, state } from "./state.js";

const COLUMNS = ["step", "src", "dst", "chunk", "count"], FLAGS = ["reduce", "from_input"];
// A longer document stays in the page, as an address cannot hold it.
const LONGEST = 30_000;

export class WriteView extends MomentView {
  constructor(holder) {
    super(holder);
    holder.classList.add("writing");
    this.form.inputs.versus.label.hidden = true;
    // Beside each other where there is room.
    const both = element("div", { class: "beside" });
    this.main.replaceWith(both);
    this.editor = element("section", { class: "editor", "aria-label": "the schedule" }, both);
    both.append(this.main);
    const bar = element("p", { class: "tools" }, this.editor);
    this.said = element("span", { class: "said" }, bar);
    this.button(bar, "Add a transfer", () => this.add());
    this.switcher = this.button(bar, "As JSON", () => change({ as: state().as === "json" ? "" : "json" }));
    this.button(bar, "Start again", () => change({ document: "" }));
    this.table = element("div", { class: "table" }, this.editor);
    this.text = element("textarea", { spellcheck: "false", "aria-label": "the document", hidden: "" }, this.editor);
    this.text.addEventListener("input", () => this.later(() => this.send(this.text.value)));
    this.own = null;
    this.turn(state());
    this.fetch();
  }

  button(holder, words, act) {
    const made = element("button", { type: "button", class: "small" }, holder, words);
    made.addEventListener("click", act);
    return made;
  }

  // After the last of some quick changes.
  later(act) {
    clearTimeout(this.timer);
    this.timer = setTimeout(act, 150);
  }

  update(now, before) {
    super.update(now, before);
    if (!this.editor) return;
    if (now.as !== before.as) this.turn(now);
    const named = ["collective", "algorithm", "ranks"].some((name) => now[name] !== before[name]);
    if (named && now.document) change({ document: "" }, { step: false });
    else if (named || (now.document !== before.document && now.document !== this.own)) this.fetch();
  }

  async fetch() {
    const now = state();
    try {
      const text = now.document || (await ask("document", fieldsOf({ ...now, document: "" }, now.algorithm))).text;
      this.own = now.document;
      this.read(text);
    } catch (error) {
      this.table.replaceChildren();
      element("p", { class: "word" }, this.table, error.message);
    }
  }

  read(text) {
    this.text.value = text;
    try {
      this.document = JSON.parse(text);
    } catch {
      return;
    }
    const steps = Array.isArray(this.document.steps) ? this.document.steps : [];
    this.rows = steps.flatMap((rows, step) => rows.map((row) => ({ step, count: 1, reduce: false, from_input: false, ...row })));
    this.tabulate();
  }

  tabulate() {
    this.table.replaceChildren();
    const table = element("table", {}, this.table), head = element("tr", {}, element("thead", {}, table));
    for (const name of [...COLUMNS, ...FLAGS, ""]) element("th", { scope: "col" }, head, name.replace("_", " "));
    const body = element("tbody", {}, table), broken = this.found[0] ? this.found[0].proof : {};
    this.rows.forEach((row, at) => {
      const line = element("tr", { "data-step": row.step, class: broken.known && !broken.holds && broken.step === row.step ? "broken" : "" }, body);
      for (const name of COLUMNS) {
        const input = element("input", { type: "number", min: 0, value: row[name], "aria-label": `${name} of transfer ${at}` }, element("td", {}, line));
        input.addEventListener("change", () => { row[name] = Number(input.value); this.edited(); });
      }
      for (const name of FLAGS) {
        const box = element("input", { type: "checkbox", "aria-label": `${name} of transfer ${at}` }, element("td", {}, line));
        box.checked = Boolean(row[name]);
        box.addEventListener("change", () => { row[name] = box.checked; this.edited(); });
      }
      const out = element("button", { type: "button", class: "small", "aria-label": `leave out transfer ${at}` }, element("td", {}, line), "×");
      out.addEventListener("click", () => { this.rows.splice(at, 1); this.edited(); this.tabulate(); });
    });
  }

  add() {
    const last = this.rows[this.rows.length - 1] || { step: 0, src: 0, dst: 1, chunk: 0, count: 1 };
    this.rows.push({ ...last });
    this.edited();
    this.tabulate();
    this.table.scrollTop = this.table.scrollHeight;
  }

  edited() {
    const last = Math.max(-1, ...this.rows.map(({ step }) => step)), steps = Array.from({ length: last + 1 }, () => []);
    for (const { step, src, dst, chunk, count, reduce, from_input: input } of this.rows) {
      steps[step].push({ src, dst, chunk, ...(count === 1 ? {} : { count }), ...(reduce ? { reduce } : {}), ...(input ? { from_input: input } : {}) });
    }
    const head = { ...this.document, algorithm: "yours", steps: [] };
    const text = JSON.stringify(head).replace(/"steps":\[\]/, `"steps":[\n${steps.filter(({ length }) => length).map((rows) => JSON.stringify(rows)).join(",\n")}\n]`);
    this.text.value = text;
    this.send(text);
  }

  send(text) {
    this.own = text;
    change({ document: text, time: "", pick: "" }, { step: text.length < LONGEST });
  }

  // As a table or as JSON.
  turn({ as }) {
    this.text.hidden = as !== "json";
    this.table.hidden = as === "json";
    this.switcher.textContent = as === "json" ? "As a table" : "As JSON";
    if (as !== "json" && this.text.value) this.read(this.text.value);
  }

  tell(now, { proof }) {
    super.tell(now);
    if (!this.said) return;
    this.said.textContent = proof.known ? (proof.holds ? "✓ It does what it promises." : `✗ ${proof.story}`) : "Not proved.";
    this.said.className = proof.holds ? "said proved" : "said refuted";
    for (const row of this.table.querySelectorAll("tr[data-step]")) row.classList.toggle("broken", proof.known && !proof.holds && Number(row.dataset.step) === proof.step);
  }
}
