// Who contributed to one place, and how each contribution got there.

import { element } from "../base.js";
import { spanOf } from "./matrix.js";
import { journey } from "./replay.js";
import { memberName } from "./timeline.js";

export function inspect(data, replay, holder, rank, index) {
  const span = data.grid.cells[index];
  const { have, given } = replay.cell(rank, span);
  const chunk = tellingChunk(data, replay, rank, span);
  const entries = replay.held[rank][chunk] || [];
  holder.replaceChildren();
  const name = data.chunks === 1 ? "the vector" : `${span.count === 1 ? "chunk" : "chunks"} ${blockName(data, span)}`;
  const counted = data.reduces
    ? `${have} of ${given} contributions`
    : have === given ? "held" : have ? `${have} of ${given} held` : "not held";
  element("p", { class: "place", "data-have": have, "data-given": given }, holder, `${memberName(data, rank)}, ${name}: ${counted}`);
  const squares = element("ol", { class: `squares${data.ranks > 20 ? " many" : ""}`, "aria-label": "contributors" }, holder);
  for (let who = 0; who < data.ranks; who++) {
    const entry = entries.find((one) => one.who === who);
    const fresh = entry && entry.step === replay.done - 1 && entry.step >= 0;
    const action = replay.actions.get(rank * data.chunks + chunk);
    const kind = !entry ? "" : entry.times > 1 ? "doubled" : fresh ? action : "in";
    const words = entry ? `rank ${who}: there` : `rank ${who}: not there`;
    element("li", { class: kind, title: words, "data-who": who }, squares, who);
  }
  const list = element("ul", { class: "arrivals" }, holder);
  for (const line of arrivals(data, entries, rank)) element("li", {}, list, line);
}

// A cell of several chunks is described by one of them: one that the step changed, or else one that is there.
export function tellingChunk(data, replay, rank, { first, count }) {
  const chunks = Array.from({ length: count }, (_, index) => first + index);
  const changed = chunks.find((chunk) => replay.actions.has(rank * data.chunks + chunk));
  return changed ?? chunks.find((chunk) => replay.held[rank][chunk]) ?? first;
}

export function blockName(data, span) {
  if (data.collective !== "all_to_all" || span.count !== data.chunks_a_block) return spanOf(span);
  const block = span.first / data.chunks_a_block;
  return `${spanOf(span)} (from ${Math.floor(block / data.ranks)} for ${block % data.ranks})`;
}

// Contributions that arrived together are one line. Where nothing is reduced, each is followed from its start.
export function arrivals(data, entries, rank) {
  if (!entries.length) return ["nothing has arrived here yet"];
  if (!data.reduces) return entries.map((entry) => route(data, entry, rank));
  const groups = new Map();
  for (const entry of entries) {
    const key = `${entry.step} ${entry.src}`;
    groups.set(key, [...(groups.get(key) || []), entry]);
  }
  return [...groups.values()].sort((a, b) => a[0].step - b[0].step).map((group) => {
    const { step, src } = group[0];
    if (step < 0) return group[0].times > 1 ? `its own input, ${group[0].times} times` : "its own input";
    const names = listed(group.map((entry) => (entry.times > 1 ? `${entry.who} (${entry.times} times)` : `${entry.who}`)));
    return `step ${step}, from ${memberName(data, src)}: the contribution${group.length > 1 ? "s" : ""} of ${names}`;
  });
}

export function route(data, entry, rank) {
  const hops = journey(entry, rank);
  if (!hops.length) return "its own input";
  return memberName(data, hops[0].src) + hops.map(({ step, dst }) => ` → ${memberName(data, dst)} (step ${step})`).join("");
}

// 0, 1, 2 and 5 as "0–2, 5".
export function listed(names) {
  const runs = [];
  for (const name of names) {
    const last = runs[runs.length - 1];
    if (last && Number(name) === Number(last[last.length - 1]) + 1) last.push(name);
    else runs.push([name]);
  }
  return runs.map((run) => (run.length > 2 ? `${run[0]}–${run[run.length - 1]}` : run.join(", "))).join(", ");
}
