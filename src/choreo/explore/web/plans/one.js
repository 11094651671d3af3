// One plan: its figures at the side, and the page that `choreo plan --html` writes of it, over the cloud.

import { element } from "/show/base.js";
import { seconds } from "./cloud.js";

const TOLD = { fits_chance: "chance that it fits", bubble_s: "pipeline bubble", tokens_per_s_per_gpu: "tokens/s per GPU" };

export class OnePlan {
  constructor(side, holder, { open, close }) {
    this.side = side;
    this.open = open;
    this.dialog = element("dialog", { class: "page", "aria-label": "the plan's page" }, holder);
    const bar = element("p", { class: "tools" }, this.dialog);
    this.heading = element("span", { class: "said" }, bar);
    element("button", { type: "button", class: "small" }, bar, "Close").addEventListener("click", close);
    this.sheet = element("iframe", { title: "the plan's page", sandbox: "allow-scripts" }, this.dialog);
    this.dialog.addEventListener("cancel", (event) => { event.preventDefault(); close(); });
  }


  show(row, found) {
    this.side.replaceChildren();
    element("h2", {}, this.side, found.plan);
    element("p", { class: "said" }, this.side, found.summary);
    element("button", { type: "button" }, this.side, "Open its page").addEventListener("click", () => this.open(row));
    const list = element("dl", {}, this.side);
    for (const [name, value] of Object.entries(found.step)) {
      if (typeof value !== "number" && typeof value !== "boolean") continue;
      element("dt", {}, list, TOLD[name] || name.replace(/_(s|bytes)$/, "").replace(/^(mfu|hfu)$/, (word) => word.toUpperCase()).replaceAll("_", " ").replace("gpu", "GPU"));
      if (name.endsWith("_bytes")) element("dd", {}, list, `${Number((value / 1e9).toPrecision(4))} GB`);
      else if (name.endsWith("_s") && !name.includes("_per_")) element("dd", {}, list, seconds(value));
      else if (/^(mfu|hfu|fits_chance)$/.test(name)) element("dd", {}, list, `${(100 * value).toFixed(1)} %`);
      else element("dd", {}, list, typeof value === "number" ? String(Number(value.toPrecision(4))) : value ? "yes" : "no");
    }
    document.documentElement.dataset.plan = found.plan;
  }

  page(row, heading, address) {
    this.heading.textContent = heading;
    this.sheet.src = address;
    if (!this.dialog.open) this.dialog.showModal();
    document.documentElement.dataset.page = String(row);
  }

  closed() {
    if (this.dialog.open) this.dialog.close();
    delete document.documentElement.dataset.page;
  }
}
