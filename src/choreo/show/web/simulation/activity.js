// What each rank sends over time as a map of tints, where there are too many ranks to draw every message.

import { formatRate, formatTime } from "../base.js";
import { binAt } from "./network.js";

export function paintActivity(diagram, draw) {
  const { activity, rows } = diagram.data, { series, added, copied, ranks_per_line: size } = activity;
  const edgeOf = (at) => snap(diagram, diagram.x((at / diagram.data.bins) * diagram.data.figures.time_us));
  added.forEach((_, line) => {
    const last = Math.min(rows.length, (line + 1) * size) - 1;
    const top = edge(diagram, line * size), tall = edge(diagram, last + 1) - top;
    if (!tall) return;  // more lines than pixels
    for (const [values, color] of [[series[copied[line]], diagram.colors.copy], [series[added[line]], diagram.colors.add]]) {
      draw.fillStyle = color;
      for (let at = 0, next; at < values.length; at = next) {
        for (next = at + 1; next < values.length && values[next] === values[at];) next += 1;
        if (!values[at]) continue;
        draw.globalAlpha = 0.9 * Math.sqrt(values[at] / 100);
        draw.fillRect(edgeOf(at), top, edgeOf(next) - edgeOf(at), tall);
      }
    }
  });
  draw.globalAlpha = 1;
}

export function snap({ ratio }, value) {
  return Math.round(value * ratio) / ratio;
}

// Half-way between a row and the one above it, at a whole pixel so that no seam shows between lines.
export function edge(diagram, row) {
  return snap(diagram, (diagram.y(row - 1) + diagram.y(row)) / 2);
}

// What a line of the map says at a moment.
export function activityAt({ activity, rows, bins, figures }, row, time_us) {
  const { series, added, copied, ranks_per_line: size, highest_bytes_per_s: highest } = activity;
  const line = Math.floor(row / size), at = Math.max(0, binAt(figures.time_us, bins, time_us));
  const rate = ((series[added[line]][at] + series[copied[line]][at]) * highest) / 100;
  const first = rows[line * size].name, last = rows[Math.min(rows.length, (line + 1) * size) - 1].name;
  return `${first === last ? first : `${first} to ${last}`}, ${formatTime(time_us)}: ${rate ? `sending ${formatRate(rate)}` : "sending nothing"}`;
}
