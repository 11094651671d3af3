// The keys of each view, in a dialog that ? opens and Escape closes.

import { element } from "/show/base.js";

const CLOCK_KEYS = [["Space", "play or pause"], ["← →", "a step in time"], ["Home End", "the start, the end"]];
const PICK_KEYS = [["R L C M", "pick a rank, a link, a chunk or a message"], ["[ ]", "the one before, the next"], ["Esc", "pick nothing"]];
const VIEW_KEYS = {
  moment: [...CLOCK_KEYS, ...PICK_KEYS],
  write: [...CLOCK_KEYS, ...PICK_KEYS],
  map: [["← → ↑ ↓", "another cell, once the map has the focus"], ["Enter", "open that cell"]],
  run: [["Tab, then Enter", "run it"]],
  plans: [["← → ↑ ↓", "pan"], ["+ −", "zoom in, zoom out"], ["0", "show all plans"], ["N P", "the next or previous plan on the edge"], ["Enter", "open the plan's page"], ["B", "brush what is in view"], ["Esc", "close the page, drop the brush"]],
  ask: [["Tab", "the next field"]],
};

export class KeysDialog {
  constructor(opener) {
    this.opener = opener;
    this.dialog = element("dialog", { class: "keys", "aria-label": "keys" }, document.body);
    opener.addEventListener("click", () => this.open(this.view));
  }

  open(view) {
    this.dialog.replaceChildren();
    element("h2", {}, this.dialog, "Keys");
    const list = element("dl", {}, this.dialog);
    for (const [keys, words] of [...VIEW_KEYS[view], ["1 to 6", "the views"], ["?", "these keys"]]) {
      const names = element("dt", {}, list);
      for (const key of keys.split(" ")) {
        if (key === "to" || key === "then") names.append(` ${key} `);
        else {
          element("kbd", {}, names, key.replace(",", ""));
          names.append(" ");
        }
      }
      element("dd", {}, list, words);
    }
    const close = element("button", { type: "button", class: "small" }, this.dialog, "Close");
    close.addEventListener("click", () => this.dialog.close());
    this.dialog.showModal();
  }
}
