// The page of many ranks: the position in the schedule, and everything that depends on it.
//
// A position is a number of steps done, as on the page of few ranks, and `#step=3&rank=2&chunk=5` opens it in the same
// way. Without that it opens at the step that breaks the schedule, or at a busy one.

import { element, palette, threeDigits } from "../base.js";
import { busyStep, control, showPlaying, showPosition } from "./controls.js";
import { Groups, groupName } from "./groups.js";
import { HeatMap, tally } from "./heatmap.js";
import { Messages, listMessages, plural } from "./messages.js";
import { Replay, Transfers } from "./packed.js";
import { bracket, caption, drawTraffic, memberName } from "./timeline.js";

window.addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });
window.addEventListener("unhandledrejection", (event) => { document.documentElement.dataset.error = `${event.reason}`; });

const data = JSON.parse(document.getElementById("schedule").textContent);
data.words = data.said.map((at) => data.words[at]);
const find = (name) => document.getElementById(name);
const members = data.ranks + data.relays + data.switches;
furnish();
const groups = new Groups(data.ranks, data.relays + data.switches);
const pairs = new Messages(data, groups, find("stage-drawing"), (rank) => choose(rank, null));
const map = new HeatMap(data, groups, find("matrix"), choose);
const transfers = new Transfers(data);
const replay = new Replay(data, transfers, map);
const traffic = element("canvas", {}, find("phases"));
const opening = data.proof.holds ? busyStep(data, data.num_messages) : data.proof.step + 1;
const asked = askedPlaces();
let position = 0, playing = false, drawn = null, wanted = 0, touched = false;
let chosen = { rank: data.proof.rank ?? data.root ?? 0, chunk: data.proof.chunk, group: false };

// The page of few ranks has a circle of ranks and one place's contributors where this one has drawings and a rank's messages.
function furnish() {
  document.body.classList.add("large");
  const drawing = element("div", { id: "stage-drawing" });
  find("ring").replaceWith(drawing);
  find("who-title").textContent = "What one rank sends and receives";
  const line = element("p", { class: "chooser" }, find("inspector"));
  const number = element("label", {}, line, "rank ");
  element("input", { id: "rank", type: "number", min: 0, max: members - 1 }, number);
  const group = element("label", {}, line);
  element("input", { id: "group", type: "checkbox" }, group);
  element("span", { id: "group-word" }, group);
  element("p", { id: "place", class: "place" }, find("inspector"));
  element("div", { id: "own" }, find("inspector"));
  find("phases").classList.add("traffic");
  find("phases").title = "how much each step carries";
  bracket(data, find("brackets"));
}

async function show(to) {
  position = Math.max(0, Math.min(data.num_steps, to));
  const asked = ++wanted;
  await transfers.unpack(Math.max(position, Math.min(1, data.num_steps)));
  if (asked !== wanted) return;  // somewhere else by now
  await replay.goTo(position);
  if (asked !== wanted) return;
  map.mark(replay, position === data.num_steps);
  pairs.show(rowsNow(), position === 0);
  find("caption").textContent = caption(data, position);
  showPosition(position, data.num_steps);
  totals();
  const first = drawn === null;
  drawn = position;
  if (first) fit();  // now that all words are there
  else draw();
}

// The transfers of the last step done; at the start, those of the first to come.
function rowsNow() {
  return data.num_steps ? transfers.of(Math.max(0, position - 1)) : null;
}

function draw() {
  if (drawn === null) return;
  const colors = palette();
  pairs.draw(colors, chosen);
  map.draw(colors, chosen);
  drawTraffic(data, traffic, colors, position);
  look();
}

// The chosen rank, or its whole group: what it holds, and every message of the step it has to do with.
function look() {
  const group = groups.of[chosen.rank], alone = groups.size(group) === 1;
  const whole = chosen.group && !alone;
  const span = whole ? [groups.first[group], groups.first[group + 1]] : [chosen.rank, chosen.rank + 1];
  find("rank").value = chosen.rank;
  find("group").checked = whole;
  find("group-word").textContent = `all of ${groupName(data, groups, group)}`;
  find("group").parentElement.hidden = alone;
  find("place").textContent = whole ? "" : holding(chosen.rank);
  const rows = rowsNow();
  if (rows) listMessages(data, rows, position === 0, span, find("own"));
}

function holding(rank) {
  const { whole, part, twice } = tally(data, replay, rank), name = memberName(data, rank);
  const of = `${whole.toLocaleString("en")} of ${plural(data.chunks, "chunk")}`;
  if (!data.reduces) return `${name} holds ${of}`;
  const more = [[part, "in part"], [twice, "with something twice"]].filter(([count]) => count);
  return [`${name}: ${of} complete`, ...more.map(([count, how]) => `${count.toLocaleString("en")} ${how}`)].join(", ") + followed(rank);
}

// How far the chosen chunk is, if one is chosen.
function followed(rank) {
  if (chosen.chunk === null || data.chunks === 1) return "";
  return `; chunk ${chosen.chunk} has ${replay.have(rank, chosen.chunk)} of ${data.ranks} contributions`;
}

function askedPlaces() {
  let all = 0;
  for (let rank = 0; rank < data.ranks; rank++) for (const [, count] of replay.after.runs(rank)) all += count;
  return all;
}

function totals() {
  const step = position - 1, count = position ? data.num_messages[step] : 0;
  find("messages").textContent = count.toLocaleString("en");
  find("messages-word").textContent = `${count === 1 ? "message" : "messages"} in this step`;
  const sum = (list) => list.reduce((all, one) => all + one, 0);
  const done = sum(data.sent.slice(0, position)), all = sum(data.sent);
  const unit = { vector: "the size of the vector", rank: "what one rank sends", nothing: "" }[data.size_per];
  find("each").textContent = unit && position ? `${threeDigits(data.sent[step])} n in this step` : "";
  find("sent").textContent = unit
    ? `all ranks together ${done.toFixed(2)} n of ${all.toFixed(2)} n (${all ? Math.round((100 * done) / all) : 100}%), where n is ${unit}`
    : "a barrier's messages carry no data";
  const share = asked ? (100 * replay.ready) / asked : 100;
  const percent = share === 100 || share === 0 ? share : share.toFixed(share < 1 ? 2 : 1);
  find("held-title").textContent = `What the ranks hold: ${percent} % of what they must end with`;
}

function choose(rank, chunk) {
  chosen = { ...chosen, rank: Math.max(0, Math.min(members - 1, Math.floor(rank) || 0)), chunk };
  draw();
  remember();
}

function go(to) {
  touched = true;
  pause();
  show(to);
  remember();
}

function remember() {
  if (window.location.protocol === "about:" || !touched) return;
  const chunk = chosen.chunk === null ? "" : `&chunk=${chosen.chunk}`;
  window.history.replaceState(null, "", `#step=${position ? position - 1 : "start"}&rank=${chosen.rank}${chunk}`);
}

function follow() {
  const asked = new URLSearchParams(window.location.hash.slice(1));
  const step = asked.get("step"), rank = Number(asked.get("rank")), chunk = Number(asked.get("chunk"));
  if (asked.has("rank") && rank >= 0 && rank < members) chosen = { ...chosen, rank: Math.floor(rank) };
  if (asked.has("chunk") && chunk >= 0 && chunk < data.chunks) chosen = { ...chosen, chunk: Math.floor(chunk) };
  pause();
  touched = step !== null;
  show(/^\d+$/.test(step || "") ? Number(step) + 1 : step === null ? opening : 0);
}

// The whole schedule takes about half a minute; of very many steps some are passed over.
async function play() {
  if (data.num_steps === 0) return;
  playing = true;
  showPlaying(true);
  if (position === data.num_steps || !touched) await show(0);
  touched = true;
  const pace = () => Math.min(1000, Math.max(10, 30000 / data.num_steps)) / Number(find("speed").value);
  let last = performance.now(), owed = 0;
  const tick = async (now) => {
    if (!playing) return;
    owed += (now - last) / pace();
    last = now;
    if (owed >= 1) {
      await show(position + Math.floor(owed));
      owed %= 1;
    }
    if (!playing) return;
    if (position < data.num_steps) requestAnimationFrame(tick);
    else pause();
  };
  requestAnimationFrame(tick);
}

function pause() {
  if (!playing) return;
  playing = false;
  showPlaying(false);
  remember();
}

function legend() {
  const kinds = [["var(--whole)", data.reduces ? "complete" : "has it"]];
  const part = data.reduces ? "part of the sum" : map.pairs ? "blocks for others" : "part of it";
  kinds.unshift(["linear-gradient(to right, var(--empty), color-mix(in srgb, var(--part), var(--whole) 40%))", part]);
  if (data.adds.some(Boolean)) kinds.push(["var(--add)", "just added"]);
  if (!data.adds.every(Boolean)) kinds.push(["var(--copy)", "just copied"]);
  if (!data.proof.holds) kinds.push(["var(--wrong)", "wrong"]);
  for (const [fill, words] of kinds) {
    const item = element("span", {}, find("legend"));
    element("i", {}, item).style.background = fill;
    item.append(words);
  }
}

function hint() {
  const kinds = [...(data.relays ? ["relays"] : []), ...(data.switches ? [data.switches === 1 ? "switch" : "switches"] : [])];
  const last = kinds.length ? `; last: the ${kinds.join(" and ")}` : "";
  const size = groups.size(0), cell = size === 1 ? "a rank" : `${size} ranks`;
  return `each row is ${cell} that send${size === 1 ? "s" : ""}, each column ${cell} that receive${size === 1 ? "s" : ""}; stronger colour: more chunks${last}`;
}

function fit() {
  const wide = window.innerWidth > 900, stage = find("stage-drawing"), matrix = find("matrix");
  // Measured without the drawings, which would hold their own room open.
  for (const canvas of [pairs.raster.canvas, map.raster.canvas]) canvas.style.height = "0";
  pairs.raster.fit(stage.clientWidth, wide ? stage.clientHeight : stage.clientWidth, true);
  map.raster.fit(matrix.clientWidth, wide ? matrix.clientHeight : 300, false);
  draw();
}

find("rank").addEventListener("change", (event) => { touched = true; choose(Number(event.target.value), chosen.chunk); });
find("group").addEventListener("change", (event) => { chosen.group = event.target.checked; look(); });
control({
  position: () => position,
  go,
  toggle: () => (playing ? pause() : play()),
  release: () => { chosen = { ...chosen, chunk: null }; draw(); remember(); },
  failure: () => {
    chosen = { ...chosen, rank: data.proof.rank, chunk: data.proof.chunk };
    go(data.proof.step + 1);
  },
}, data.num_steps);
window.addEventListener("hashchange", follow);
window.addEventListener("resize", fit);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
legend();
find("stage-hint").textContent = hint();
follow();
