// The page: a moment in time, and everything that shows it. `#time=12.5` opens it at 12.5 µs.

import { counted, element, formatRate, formatTime, shape } from "../base.js";
import { Diagram, underWay } from "./diagram.js";
import { Busy, Path, Queues, figures } from "./lists.js";
import { Network, binAt } from "./network.js";

window.addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });

const data = JSON.parse(document.getElementById("simulation").textContent);
const find = (name) => document.getElementById(name);
const total = data.figures.time_us;
// Seconds that the whole run takes on the page.
const WHOLE = 10;
const ticks = Number(find("scrubber").max);
let time = 0, playing = false, began = 0, from = 0, frame = 0, touched = false;

const network = new Network(data, find("links"));
const diagram = new Diagram(data, find("diagram"), (to) => go(to));
const busy = new Busy(data, find("busy"), (wires) => network.choose(wires));
const queues = new Queues(data, find("queues"));
const path = new Path(data, (at) => go(data.path.legs[at].start_us, at));

function show(to, leg) {
  time = Math.max(0, Math.min(total, to));
  const at = leg ?? path.legAt(time), now = data.path.legs[at];
  network.show(time, now ? [now.src, now.dst] : []);
  diagram.show(time);
  busy.show(time);
  queues.show(time);
  path.show(at, true);
  caption(now);
  find("scrubber").value = total > 0 ? Math.round((time / total) * ticks) : 0;
  find("scrubber").setAttribute("aria-valuetext", formatTime(time));
  find("played").setAttribute("width", total > 0 ? (time / total) * data.sent.length : 0);
  find("first").disabled = time <= 0;
  find("last").disabled = time >= total;
}

function caption(leg) {
  const holder = find("caption");
  holder.textContent = formatTime(time);
  const words = [];
  // Where not all messages are known here, only their rate is.
  const known = data.messages.src.length === data.messages.all;
  if (time >= total) words.push(data.messages.all ? `done, ${counted(data.messages.all, "message")} delivered` : "there was nothing to do");
  else {
    const flying = known ? [`${counted(underWay(data, time).length, "message")} in flight`] : [];
    words.push([...flying, ...(rate() ? [`${formatRate(rate())} in total`] : known ? [] : ["nothing is being sent"])].join(", "));
  }
  if (leg) words.push(`critical path: step ${leg.step}, ${data.rows[leg.src].name} → ${data.rows[leg.dst].name}`);
  element("span", {}, holder, `: ${words.join("; ")}`);
}

function rate() {
  const at = binAt(total, data.sent.length, time);
  return at < 0 ? 0 : data.sent[at];
}

function go(to, leg) {
  touched = true;
  pause();
  show(to, leg);
  remember();
}

function remember() {
  if (window.location.protocol === "about:") return;
  window.history.replaceState(null, "", `#time=${Number(time.toPrecision(7))}`);
}

function follow() {
  const asked = Number(new URLSearchParams(window.location.hash.slice(1)).get("time") ?? NaN);
  pause();
  touched = Number.isFinite(asked);
  show(touched ? asked : data.opens_us);
}

function play() {
  if (!(total > 0)) return;
  // Before anyone has moved it, play shows it all.
  if (time >= total || !touched) show(0);
  touched = true;
  playing = true;
  from = time;
  began = performance.now();
  find("caption").setAttribute("aria-live", "off");
  find("play").textContent = "Pause";
  find("play").setAttribute("aria-label", "pause");
  frame = requestAnimationFrame(tick);
}

function pause() {
  if (!playing) return;
  playing = false;
  cancelAnimationFrame(frame);
  find("caption").setAttribute("aria-live", "polite");
  find("play").textContent = "Play";
  find("play").setAttribute("aria-label", "play");
  remember();
}

function tick(now) {
  const to = from + (Math.max(0, now - began) / 1000 / WHOLE) * Number(find("speed").value) * total;
  show(to);
  if (to >= total) pause();
  else frame = requestAnimationFrame(tick);
}

function pace() {
  const slower = (WHOLE * 1e6) / (total * Number(find("speed").value));
  const times = (factor) => Number(factor.toPrecision(2)).toLocaleString("en");
  find("pace").textContent = !(total > 0) ? "" : slower >= 1 ? `slowed down ${times(slower)}×` : `sped up ${times(1 / slower)}×`;
}

// How much is being sent over time, behind the scrubber.
function sparkline() {
  // A short burst must not flatten everything else.
  const sorted = data.sent.filter((value) => value > 0).sort((a, b) => a - b);
  const svg = find("sent"), most = sorted[Math.floor(0.95 * sorted.length)] || 1;
  svg.setAttribute("viewBox", `0 0 ${data.sent.length} 22`);
  const steps = data.sent.map((value, at) => `L${at} ${(22 - 20 * Math.min(1, value / most)).toFixed(2)}H${at + 1}`).join("");
  const way = `M0 22${steps}L${data.sent.length} 22z`;
  const clip = shape("clipPath", { id: "before" }, svg);
  shape("rect", { id: "played", x: 0, y: 0, width: 0, height: 22 }, clip);
  shape("path", { d: way }, svg);
  shape("path", { d: way, class: "played", "clip-path": "url(#before)" }, svg);
}

function legend(holder, items) {
  for (const [style, words] of items) {
    const item = element("span", {}, find(holder));
    if (style) Object.assign(element("i", style.class ? { class: style.class } : {}, item).style, style);
    item.append(words);
  }
}

function legends() {
  const { activity, messages, network: drawn } = data;
  legend("network-legend", [[{ class: "ramp" }, "link load, from idle to full bandwidth"]]);
  if (drawn.wires.some(({ slow }) => slow)) legend("network-legend", [[{ class: "dashes" }, "degraded link"]]);
  if (activity) find("time-title").textContent = activity.ranks_per_line > 1 ? `What every ${activity.ranks_per_line} ranks send` : "What each rank sends";
  const kinds = [[{ background: "var(--copy)" }, "copied"], [{ background: "var(--add)" }, "added"]];
  legend("time-legend", kinds.filter((_, adds) => messages.reduce.some((reduce) => reduce === adds)));
  if (data.path.legs.length) legend("time-legend", [[{ background: "var(--ink)" }, "critical path"]]);
  if (activity) legend("time-legend", [[null, `stronger: faster, up to ${formatRate(activity.highest_bytes_per_s)}`]]);
  else if (messages.src.length < messages.all) legend("time-legend", [[null, `${messages.src.length} of ${messages.all} messages are drawn`]]);
  find("queues-head").hidden = !data.queues.length;
  if (data.queues.length) legend("queues-note", [[null, "packets waiting at a port over time, and the most at once"]]);
  find("busy-head").hidden = !data.busiest.length;
  const more = data.busiest.some(({ alike }) => alike);
  if (data.busiest.length) legend("busy-note", [[null, `load over time, and its average${more ? "; +n: n more links with the same load" : ""}`]]);
}

function fit() {
  network.fit();
  diagram.fit();
  busy.fit();
  queues.fit();
  show(time);
}

figures(data, find("figures"));
legends();
sparkline();
pace();
find("scrubber").addEventListener("input", (event) => go((Number(event.target.value) / ticks) * total));
find("first").addEventListener("click", () => go(0));
find("last").addEventListener("click", () => go(total));
find("play").addEventListener("click", () => (playing ? pause() : play()));
find("speed").addEventListener("change", () => { pace(); if (playing) { from = time; began = performance.now(); } });
window.addEventListener("hashchange", follow);
window.addEventListener("resize", fit);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", fit);
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select, input")) return;
  const { legs } = data.path, step = total / data.bins;
  const moves = { ArrowLeft: time - step, ArrowRight: time + step, Home: 0, End: total };
  const leap = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (event.key in moves) go(moves[event.key]);
  else if (leap && legs.length) {
    const at = Math.max(0, Math.min(legs.length - 1, (path.now < 0 ? legs.length : path.now) + leap));
    go(legs[at].start_us, at);
  } else if (event.key === " " && !event.target.matches("button")) (playing ? pause : play)();
  else return;
  event.preventDefault();
});
fit();
follow();
