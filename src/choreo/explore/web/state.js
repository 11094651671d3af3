// What the page shows, as one flat object of texts that lives in the address: a link shows what you see, and back works.

export const DEFAULTS = {
  view: "moment", collective: "all_reduce", algorithm: "ring", versus: "", ranks: "8", size: "1MiB", topology: "ring",
  alpha: "1us", bandwidth: "50GB/s", gamma: "0", cuts: "", slow: "", packets: "", time: "", pick: "",
};

// A file that needs no server has the state that it shows.
const written = document.getElementById("answers");
if (written) Object.assign(DEFAULTS, JSON.parse(written.textContent).state);

const listeners = new Set();
let current = read();

// The state of the address. Names that are not known here are kept for the view that knows them.
function read() {
  const given = Object.fromEntries(new URLSearchParams(window.location.hash.slice(1)));
  return { ...DEFAULTS, ...given };
}

function address(state) {
  const kept = Object.entries(state).filter(([name, value]) => value !== (DEFAULTS[name] ?? ""));
  return `#${new URLSearchParams(kept)}`;
}

export function state() {
  return current;
}

// Change some of it. `step` makes a place to come back to; moving along a slider or the time does not.
export function change(changes, { step = true } = {}) {
  const before = current;
  current = { ...current, ...Object.fromEntries(Object.entries(changes).map(([name, value]) => [name, String(value)])) };
  const to = address(current);
  if (to === address(before)) return;
  const kept = window.location.protocol !== "about:";
  if (kept && step) window.history.pushState(null, "", to);
  tell(before);
  // After the page has asked for what it needs, as the browser takes some milliseconds for it.
  if (kept && !step) window.history.replaceState(null, "", address(current));
}

export function onChange(listener) {
  listeners.add(listener);
}

function tell(before) {
  for (const listener of listeners) listener(current, before);
}

function moved() {
  const before = current;
  current = read();
  if (address(before) !== address(current)) tell(before);
}
window.addEventListener("popstate", moved);
window.addEventListener("hashchange", moved);

// A list of changes to the network, as it stands in the address: "3~4*0.25,7~8*0".
export function cutsOf(text) {
  return text ? text.split(",").map((part) => {
    const [, here, there, factor] = /^(.*)~(.*)\*(.*)$/.exec(part) || [];
    return { here, there, factor: Number(factor) };
  }).filter(({ here, factor }) => here !== undefined && factor >= 0) : [];
}

export function cutsText(cuts) {
  return cuts.map(({ here, there, factor }) => `${here}~${there}*${factor}`).join(",");
}

export function slowOf(text) {
  return text ? text.split(",").map((part) => ({ rank: Number(part.split("*")[0]), times: Number(part.split("*")[1]) }))
    .filter(({ rank, times }) => rank >= 0 && times > 0) : [];
}

export function slowText(slow) {
  return slow.map(({ rank, times }) => `${rank}*${times}`).join(",");
}
