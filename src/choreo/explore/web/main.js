// The page: its views, and which of them is shown.

import { element } from "/show/base.js";
import { served } from "./ask.js";
import { KeysDialog } from "./keys.js";
import { MapView } from "./map.js";
import { MomentView } from "./moment/moment.js";
import { PlansView } from "./plans/plans.js";
import { RunView } from "./run.js";
import { StoreView } from "./store/store.js";
import { WriteView } from "./write.js";
import { change, onChange, state } from "./state.js";

window.addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });
window.addEventListener("unhandledrejection", (event) => { document.documentElement.dataset.error = String(event.reason); });

const EVERY = {
  moment: ["One moment", MomentView],
  map: ["Who wins where", MapView],
  write: ["Write and break", WriteView],
  run: ["Press run", RunView],
  plans: ["Plans", PlansView],
  ask: ["Ask", StoreView],
};

const VIEWS = served ? EVERY : { moment: EVERY.moment };
const holder = document.getElementById("view"), tabs = document.getElementById("tabs");
const keys = new KeysDialog(document.getElementById("keys"));
let shown = "", view = null;

for (const [name, [words]] of Object.entries(VIEWS)) {
  const tab = element("button", { type: "button", "data-view": name }, tabs, words);
  tab.addEventListener("click", () => change({ view: name }));
}

function update(now, before) {
  const name = now.view in VIEWS ? now.view : "moment";
  for (const tab of tabs.children) tab.setAttribute("aria-current", tab.dataset.view === name ? "page" : "false");
  if (name === shown) {
    view.update(now, before);
    return;
  }
  if (view && view.leave) view.leave();
  shown = keys.view = name;
  holder.replaceChildren();
  holder.className = `view-${name}`;
  view = new VIEWS[name][1](holder);
  window.explored = view;  // for whoever looks at it from the console
}

onChange(update);
update(state(), {});

let resized = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => view.fit && view.fit());
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.fit && view.fit());
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || keys.dialog.open) return;
  if (event.target.matches("input:not([type=range]), select, textarea") || (event.target.matches("input") && event.key.startsWith("Arrow"))) return;
  if ((event.key === " " || event.key === "Enter") && event.target.matches("button")) return;
  const number = Number(event.key);
  if (event.key === "?") keys.open(shown);
  else if (number >= 1 && number <= Object.keys(VIEWS).length) change({ view: Object.keys(VIEWS)[number - 1] });
  else if (!(view.key && view.key(event))) return;
  event.preventDefault();
});

const share = document.getElementById("share");
share.addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(window.location.href);
    share.textContent = "Copied";
  } catch {
    share.textContent = "Copy the address";
  }
  setTimeout(() => { share.textContent = "Copy link"; }, 1500);
});
