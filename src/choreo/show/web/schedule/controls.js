// The buttons, the scrubber and the keys of the page, which all move one player.

export function control(player, steps) {
  const find = (name) => document.getElementById(name);
  find("scrubber").max = steps;
  find("scrubber").addEventListener("input", (event) => player.go(Number(event.target.value)));
  find("first").addEventListener("click", () => player.go(0));
  find("back").addEventListener("click", () => player.go(player.position() - 1));
  find("next").addEventListener("click", () => player.go(player.position() + 1));
  find("last").addEventListener("click", () => player.go(steps));
  find("play").addEventListener("click", player.toggle);
  if (find("failure")) find("failure").addEventListener("click", player.failure);
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select, input")) return;
    const position = player.position();
    const moves = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: steps };
    if (event.key in moves) player.go(moves[event.key]);
    else if (event.key === "Escape") player.release();
    else if (event.key === " " && !event.target.matches("button")) player.toggle();
    else return;
    event.preventDefault();
  });
}

// Which buttons can be used at a position, and where the scrubber stands.
export function showPosition(position, steps) {
  const find = (name) => document.getElementById(name);
  find("scrubber").value = position;
  find("scrubber").setAttribute("aria-valuetext", position ? `step ${position - 1}` : "start");
  for (const name of ["first", "back"]) find(name).disabled = position === 0;
  for (const name of ["next", "last"]) find(name).disabled = position === steps;
}

export function showPlaying(playing) {
  const button = document.getElementById("play");
  button.textContent = playing ? "Pause" : "Play";
  button.setAttribute("aria-label", playing ? "pause" : "play");
}

// Of the steps of the first phase with many messages, the position after the one nearest to the middle.
export function busyStep(data, counts) {
  const steps = counts.slice(0, data.phases.length ? data.phases[0].num_steps : data.num_steps);
  const most = steps.reduce((most, count) => Math.max(most, count), 0), middle = (steps.length - 1) / 2;
  const busy = [...steps.keys()].filter((step) => 4 * steps[step] >= 3 * most);
  return busy.sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle) || a - b).map((step) => step + 1)[0] ?? 0;
}
