// A step in words, and the line of steps over the scrubber, with its phases and the step that breaks.

function ordinal(number) {
  const ten = number % 10, teen = Math.floor(number / 10) % 10 === 1;
  return `${number}${teen || ten > 3 || ten === 0 ? "th" : ["st", "nd", "rd"][ten - 1]}`;
}

function phaseOf(data, step) {
  return data.phases.find(({ first, num_steps }) => first <= step && step < first + num_steps);
}

// The last of six steps is "step 5 (6th of 6, the last)": steps are numbered from 0, and counted from 1.
function caption(data, position) {
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

function timeline(data, brackets, segments) {
  for (const { collective, num_steps } of data.phases) {
    const bracket = element("span", { title: collective }, brackets, collective);
    bracket.style.flexGrow = num_steps;
  }
  segments.classList.toggle("dense", data.num_steps > 100);
  data.steps.forEach((transfers, step) => {
    const kind = transfers.some(({ reduce }) => reduce) ? "add" : "copy";
    element("i", { class: step === data.proof.step ? `${kind} failing` : kind }, segments);
  });
}

// How much each rank has sent after each number of steps, in units of n.
function sentByRank(data) {
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

// All ranks together if they send the same, else the one that sends most.
function sentByEach(sent, position) {
  const now = sent[position], all = sent[sent.length - 1];
  const most = Math.max(...all), busiest = all.indexOf(most);
  const same = (row) => row.every((amount) => Math.abs(amount - row[0]) < 1e-9);
  const amount = `${now[busiest].toFixed(2)} n of ${most.toFixed(2)} n`;
  return same(now) && same(all) ? `each rank has sent ${amount}` : `rank ${busiest}, the busiest, has sent ${amount}`;
}
