// The page: the position in the schedule, and everything that depends on it.
//
// A position is a number of steps done: 0 is the start, position k + 1 is after step k. Steps are numbered from 0, like
// ranks and chunks, so that "step 3" is the same step here, in a proof and in the file. `#step=3` opens the page after
// step 3, `#step=start` at the start, and `&rank=2&chunk=5` looks at a place. Without any of these it opens where there
// is something to see: at the step that breaks the schedule, or at a busy one near the middle of the first phase.

import { element } from "../base.js";
import { busyStep, control, showPlaying, showPosition } from "./controls.js";
import { inspect } from "./inspector.js";
import { Matrix } from "./matrix.js";
import { Replay } from "./replay.js";
import { Stage } from "./stage.js";
import { caption, sentByEach, sentByRank, timeline } from "./timeline.js";

window.addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });

const data = JSON.parse(document.getElementById("schedule").textContent);
const find = (name) => document.getElementById(name);
const replay = new Replay(data);
const stage = new Stage(data, find("ring"), find("stage-hint"));
const { messages } = data;
const sent = sentByRank(data);
const still = window.matchMedia("(prefers-reduced-motion: reduce)");
const opening = data.proof.holds ? busyStep(data, messages.map(({ length }) => length)) : data.proof.step + 1;
let position = 0, playing = false, began = 0, frame = 0, chosen = null, touched = false;
const matrix = new Matrix(data, find("matrix"), (rank, cell) => { chosen = { rank, cell }; look(); });

function show(to) {
  position = Math.max(0, Math.min(data.num_steps, to));
  replay.goTo(position);
  const before = position === 0;
  const now = before ? (messages[0] || []) : messages[position - 1];
  stage.show(now, before);
  redraw();
  find("caption").textContent = caption(data, position);
  showPosition(position, data.num_steps);
  [...find("phases").children].forEach((segment, step) => segment.classList.toggle("done", step < position));
  totals();
}

function redraw() {
  stage.fill(data.after.map((runs, rank) => complete(runs, rank)));
  matrix.show(replay, position === data.num_steps);
  look();
}

// Of the chunks a rank must end with, the share that is complete.
function complete(runs, rank) {
  let wanted = 0, have = 0;
  for (const [first, count] of runs) {
    for (let chunk = first; chunk < first + count; chunk++) {
      wanted += 1;
      have += replay.right(rank, chunk) ? 1 : 0;
    }
  }
  return wanted ? have / wanted : 1;
}

function totals() {
  const count = position ? messages[position - 1].length : 0;
  find("messages").textContent = count;
  find("messages-word").textContent = `${count === 1 ? "message" : "messages"} in this step`;
  const [all, done] = [sent.length - 1, position].map((at) => sent[at].reduce((sum, amount) => sum + amount, 0));
  const unit = { vector: "the size of the vector", rank: "what one rank sends", nothing: "" }[data.size_per];
  find("sent").textContent = unit
    ? `all ranks together ${done.toFixed(2)} n of ${all.toFixed(2)} n (${all ? Math.round((100 * done) / all) : 100}%), where n is ${unit}`
    : "a barrier's messages carry no data";
  find("each").textContent = unit && data.num_steps ? sentByEach(sent, position) : "";
}

// Look at the chosen cell, or else at the first one that the step changed. A chosen chunk is followed: its column is
// marked, and its route so far is drawn.
function look() {
  const { rank, cell } = chosen || firstChanged();
  matrix.choose(rank, cell, chosen !== null);
  const drawn = playing ? position : position - 1;
  const failing = drawn === data.proof.step ? data.proof.rank : null;
  stage.mark(chosen && data.grid.cells[cell], replay.done, failing, rank);
  inspect(data, replay, find("inspector"), rank, cell);
}

function firstChanged() {
  for (let rank = 0; rank < data.ranks + data.relays + data.switches; rank++) {
    const cell = data.grid.cells.findIndex((span) => replay.cell(rank, span).action);
    if (cell >= 0) return { rank, cell };
  }
  return { rank: data.root || 0, cell: 0 };
}

function go(to) {
  touched = true;
  pause();
  show(to);
  remember();
}

function remember() {
  if (window.location.protocol === "about:") return;
  const place = chosen ? `&rank=${chosen.rank}&chunk=${data.grid.cells[chosen.cell].first}` : "";
  window.history.replaceState(null, "", `#step=${position ? position - 1 : "start"}${place}`);
}

function choose(rank, chunk) {
  const cell = data.grid.cells.findIndex(({ first, count }) => first <= chunk && chunk < first + count);
  if (rank >= 0 && rank < data.ranks + data.relays + data.switches && cell >= 0) chosen = { rank: Math.floor(rank), cell };
}

function follow() {
  const asked = new URLSearchParams(window.location.hash.slice(1));
  const step = asked.get("step");
  if (asked.has("rank")) choose(Number(asked.get("rank")), Number(asked.get("chunk")));
  pause();
  touched = step !== null;
  show(/^\d+$/.test(step || "") ? Number(step) + 1 : step === null ? opening : 0);
}

function play() {
  if (data.num_steps === 0) return;
  // Before anyone has moved it, play shows it all.
  if (position === data.num_steps || !touched) show(0);
  touched = playing = true;
  showPlaying(true);
  depart(performance.now());
}

function pause() {
  if (!playing) return;
  playing = false;
  cancelAnimationFrame(frame);
  showPlaying(false);
  show(position);
}

// The messages of the next step set off; what the ranks hold changes when they arrive.
function depart(now) {
  began = now;
  stage.show(messages[position], false);
  look();
  stage.move(0);
  find("caption").textContent = caption(data, position + 1);
  frame = requestAnimationFrame(tick);
}

function tick(now) {
  const pace = (data.num_steps > 40 ? 700 : 1300) / Number(find("speed").value);
  const share = (now - began) / pace;
  const flight = still.matches ? 1 : Math.min(1, share / 0.72);
  stage.move(flight < 0.5 ? 2 * flight * flight : 1 - 2 * (1 - flight) * (1 - flight));
  if (share >= 0.72 && replay.done === position) arrive();
  if (share < 1) {
    frame = requestAnimationFrame(tick);
    return;
  }
  show(position + 1);
  remember();
  if (position === data.num_steps) pause();
  else depart(now);
}

function arrive() {
  replay.goTo(position + 1);
  redraw();
}

function legend() {
  find("legend").replaceChildren();
  const kinds = [["var(--whole)", data.reduces ? "complete" : "has it"]];
  const some = data.reduces ? "part of the sum" : data.grid.cells.some(({ count }) => count > 1) ? "part of it" : "";
  if (some) kinds.unshift(["linear-gradient(to right, var(--empty), var(--part))", some]);
  const steps = data.steps.flat();
  if (steps.some(({ reduce }) => reduce)) kinds.push(["var(--add)", "just added"]);
  if (steps.some(({ reduce }) => !reduce)) kinds.push(["var(--copy)", "just copied"]);
  if (!data.proof.holds) kinds.push(["var(--wrong)", "wrong at the end"]);
  for (const [fill, words] of kinds) {
    const item = element("span", {}, find("legend"));
    element("i", {}, item).style.background = fill;
    item.append(words);
  }
  const notes = [
    [matrix.numbers && data.grid.cells.some(({ count }) => count === 1), "number: contributions so far"],
    [data.grid.square, "row: from which rank, column: for which rank"],
    [matrix.partial && !data.grid.square, "underlined at the end: what the rank must have"],
    [doubled, "‼ contributed more than once"],
  ];
  for (const [, words] of notes.filter(([applies]) => applies)) element("span", {}, find("legend"), words);
}

function fit() {
  matrix.fit();
  legend();
  redraw();
}

function doubles() {
  const trial = new Replay(data);
  const some = () => trial.held.some((row) => row.some((place) => place && place.some(({ times }) => times > 1)));
  return data.steps.some((_, step) => { trial.goTo(step + 1); return some(); });
}

const doubled = !data.proof.holds && doubles();
timeline(data, find("brackets"), find("phases"));
control({
  position: () => position,
  go,
  toggle: () => (playing ? pause() : play()),
  release: () => { chosen = null; look(); remember(); },
  failure: () => {
    choose(data.proof.rank, data.proof.chunk);
    go(data.proof.step + 1);
  },
}, data.num_steps);
window.addEventListener("hashchange", follow);
window.addEventListener("resize", fit);
legend();
if (!data.proof.holds) choose(data.proof.rank, data.proof.chunk);
follow();
fit();  // again, now that all words are there
