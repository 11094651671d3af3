// The fields: what runs, where, and how much of it. Texts are those of the command line; sliders move along round numbers.

import { element, say } from "/show/base.js";
import { ask, served } from "./ask.js";
import { change, state } from "./state.js";

const SIZE_STOPS = [...Array(31).keys()].map((power) => sizeText(2 ** power));
const RANK_STOPS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096].map(String);
const ALPHAS = steps(["ns", 1e-9], ["us", 1e-6], ["ms", 1e-3]);
const BANDWIDTHS = steps(["MB/s", 1e6], ["GB/s", 1e9], ["TB/s", 1e12]).filter((text) => !/^[1-9]0?MB/.test(text));

function sizeText(bytes) {
  const [scale, unit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, ""]].find(([least]) => bytes >= least);
  return `${bytes / scale}${unit}`;
}

function steps(...units) {
  return units.flatMap(([unit]) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((number) => `${number}${unit}`));
}

const FIELDS = [
  { name: "collective", words: "collective" },
  { name: "algorithm", words: "algorithm", hint: "leave it empty for the one that suits the network", shown: "automatic", named: true },
  { name: "versus", words: "against", hint: "a second algorithm, on the same clock", shown: "none", named: true },
  { name: "topology", words: "network", hint: "ring, torus, hgx-h100, torus(4x4x4, 45GB/s, 1us), …", wide: true },
  { name: "packets", words: "packets", hint: "the memory of a switch; and lossy, spray, dcqcn", shown: "flows" },
  { name: "ranks", words: "ranks", stops: RANK_STOPS },
  { name: "size", words: "size", stops: SIZE_STOPS },
  { name: "alpha", words: "α, latency", hint: "seconds a message", stops: ALPHAS },
  { name: "bandwidth", words: "1/β, bandwidth", hint: "bytes a second", stops: BANDWIDTHS },
  { name: "gamma", words: "γ, reduction", hint: "seconds per reduced byte, or the rate: 100GB/s" },
];

export class Form {
  constructor(holder, names) {
    this.form = element("form", { class: "fields", autocomplete: "off" }, holder);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.inputs = {};
    for (const field of FIELDS.filter(({ name }) => names.includes(name))) this.field(field);
    this.words = null;
    this.complete();
  }

  field({ name, words, hint = "", shown = hint, stops, wide, named }) {
    const label = element("label", { class: `field${stops ? " slides" : ""}${wide ? " wide" : ""}${named ? " named" : ""}`, "data-field": name }, this.form);
    element("span", { title: hint }, label, words);
    const input = element("input", { name, list: `names-${name}`, spellcheck: "false", "aria-describedby": `wrong-${name}`, placeholder: stops ? "" : shown }, label);
    const slider = stops ? element("input", { type: "range", min: 0, max: stops.length - 1, step: 1, "aria-label": `${words}, ${hint || name}`, tabindex: 0 }, label) : null;
    if (!stops) element("datalist", { id: `names-${name}` }, label);
    element("output", { class: "wrong", id: `wrong-${name}`, hidden: "" }, label);
    input.disabled = !served;
    if (slider) slider.disabled = !served;
    if (name === "topology") input.addEventListener("input", () => this.blocks(input.value));
    input.addEventListener("change", () => change({ [name]: input.value.trim(), time: "" }));
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") change({ [name]: input.value.trim(), time: "" }); });
    if (slider) {
      let first = true;
      slider.addEventListener("input", () => {
        input.value = stops[slider.value];
        change({ [name]: stops[slider.value], time: "" }, { step: first });
        first = false;
      });
      slider.addEventListener("change", () => { first = true; });
    }
    this.inputs[name] = { input, slider, stops, label };
  }

  // The names that can be typed, from the server.
  async complete() {
    this.words = await ask("words", {}).catch(() => null);
    this.show();
  }

  show() {
    const now = state();
    for (const [name, { input, slider, stops }] of Object.entries(this.inputs)) {
      if (document.activeElement !== input || input.value.trim() === "") input.value = now[name];
      if (slider) {
        const at = stops.indexOf(now[name]);
        if (at >= 0) slider.value = at;
        slider.setAttribute("aria-valuetext", now[name]);
      }
    }
    if (!this.words) return;
    const { collectives, algorithms, packets } = this.words, own = algorithms[now.collective] || {};
    this.list("collective", collectives);
    this.list("algorithm", own);
    this.list("versus", own);
    this.list("packets", packets);
    if (this.inputs.topology) this.blocks(this.inputs.topology.input.value);
  }

  // What can be typed into the network's field: a name, or after an x another block.
  blocks(text) {
    if (!this.words) return;
    const { topologies, blocks } = this.words, [, before] = /^(.* x\s)[^()]*$/.exec(text) || [];
    this.list("topology", before ? Object.fromEntries(Object.entries(blocks).map(([block, about]) => [`${before}${block}`, about])) : topologies);
  }

  list(name, words) {
    if (!this.inputs[name]) return;
    const list = this.form.querySelector(`#names-${name}`), known = Object.keys(words).join();
    if (list.dataset.known === known) return;
    list.dataset.known = known;
    list.replaceChildren(...Object.entries(words).map(([value, about]) => {
      const option = document.createElement("option");
      option.value = value;
      option.label = about;
      return option;
    }));
  }

  // An error at its field; one that belongs to none stands at the end.
  wrong(error) {
    for (const { label } of Object.values(this.inputs)) {
      label.classList.remove("bad");
      label.querySelector(".wrong").hidden = true;
    }
    this.form.querySelectorAll(":scope > .wrong").forEach((one) => one.remove());
    if (!error) return;
    const at = this.inputs[error.field];
    const note = at ? at.label.querySelector(".wrong") : element("output", { class: "wrong" }, this.form);
    if (at) at.label.classList.add("bad");
    note.hidden = false;
    say(error.message, note);
  }
}
