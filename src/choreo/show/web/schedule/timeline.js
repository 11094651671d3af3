// A step in words, and the line of steps over the scrubber, with its phases and the step that breaks.

import { element } from "../base.js";

export function ordinal(number) {
  const ten = number % 10, teen = Math.floor(number / 10) % 10 === 1;
  return `${number}${teen || ten > 3 || ten === 0 ? "th" : ["st", "nd", "rd"][ten - 1]}`;
}

export function phaseOf(data, step) {
  return data.phases.find(({ first, num_steps }) => first <= step && step < first + num_steps);
}

// The last of six steps is "step 5 (6th of 6, the last)": steps are numbered from 0, and counted from 1.
export function caption(data, position) {
  const steps = data.num_steps, step = Math.max(0, position - 1);
  if (steps === 0) return `start: nothing to do${data.ranks === 1 ? ": a single rank already has everything" : ""}`;
  const phase = phaseOf(data, step);
  if (position === 0) {
    const first = phase ? `${phase.collective}: ${data.words[0]}` : data.words[0];
    return `start: ${steps} ${steps === 1 ? "step" : "steps"} to go; first ${first}`;
  }
  const where = steps === 1 ? "the only one" : `${ordinal(position)} of ${steps}${position === steps ? ", the last" : ""}`;
  return `step ${step} (${where})${phase ? `, ${phase.collective}` : ""}: ${data.words[step]}`;
}

export function bracket(data, holder) {
  for (const { collective, num_steps } of data.phases) {
    element("span", { title: collective }, holder, collective).style.flexGrow = num_steps;
  }
}

export function timeline(data, brackets, segments) {
  bracket(data, brackets);
  segments.classList.toggle("dense", data.num_steps > 100);
  data.steps.forEach((transfers, step) => {
    const kind = transfers.some(({ reduce }) => reduce) ? "add" : "copy";
    element("i", { class: step === data.proof.step ? `${kind} failing` : kind }, segments);
  });
}

// How much each rank has sent after each number of steps, in units of n.
export function sentByRank(data) {
  const rows = [new Array(data.ranks).fill(0)];
  for (const transfers of data.steps) {
    const row = rows[rows.length - 1].slice();
    for (const { src, chunk, count } of transfers.filter((one) => one.src < data.ranks)) {
      for (let at = chunk; at < chunk + count; at++) row[src] += data.chunk_shares[at];
    }
    rows.push(row);
  }
  return rows;
}

// How much each step carries, as bars: in full colour what is done, and red the step that breaks.
export function drawTraffic(data, canvas, colors, position) {
  const scale = window.devicePixelRatio || 1, wide = canvas.clientWidth, high = canvas.clientHeight;
  canvas.width = Math.round(wide * scale);
  canvas.height = Math.round(high * scale);
  const pen = canvas.getContext("2d"), steps = data.num_steps;
  const most = data.sent.reduce((most, one) => Math.max(most, one), 0) || 1, bar = wide / steps;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  // A step may be much thinner than a pixel, so each bar is as wide as it takes to be seen.
  const thick = Math.max(1 / scale, bar > 3 ? bar - 1 : bar);
  for (let step = 0; step < steps; step++) {
    const tall = Math.max(2, ((data.size_per === "nothing" ? 1 : data.sent[step]) / most) * (high - 1));
    pen.globalAlpha = step < position ? 1 : 0.35;
    pen.fillStyle = data.adds[step] ? colors.add : colors.copy;
    pen.fillRect(step * bar, high - tall, thick, tall);
  }
  pen.globalAlpha = 1;
  if (data.proof.step === null) return;
  pen.fillStyle = colors.wrong;
  pen.fillRect(data.proof.step * bar - 1, 0, Math.max(3, thick), high);
}

// All ranks together if they send the same, else the one that sends most.
export function sentByEach(sent, position) {
  const now = sent[position], all = sent[sent.length - 1];
  const most = Math.max(...all), busiest = all.indexOf(most);
  const same = (row) => row.every((amount) => Math.abs(amount - row[0]) < 1e-9);
  const amount = `${now[busiest].toFixed(2)} n of ${most.toFixed(2)} n`;
  return same(now) && same(all) ? `each rank has sent ${amount}` : `rank ${busiest}, the busiest, has sent ${amount}`;
}

// Members beyond the ranks are devices that relay, and after them switches that reduce.
export function memberName(data, member) {
  const { ranks, relays } = data;
  if (member < ranks) return `rank ${member}`;
  return member < ranks + relays ? `relay ${member - ranks}` : `switch ${member - ranks - relays}`;
}
