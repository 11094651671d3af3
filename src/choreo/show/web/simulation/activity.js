// What each rank sends over time as a map of tints, where there are too many ranks to draw every message.

import { channels, formatRate, formatTime } from "../base.js";
import { binAt } from "./network.js";

// A pixel for each line and part of the time, stretched to its place: one picture, whatever the number of ranks.
export function paintActivity(diagram, draw) {
  const { activity, bins, figures, rows } = diagram.data, { series, added, copied, ranks_per_line: size } = activity;
  const small = document.createElement("canvas"), colors = [channels(diagram.colors.copy), channels(diagram.colors.add)];
  [small.width, small.height] = [bins, added.length];
  const image = small.getContext("2d").createImageData(bins, added.length), { data } = image, [under, over] = colors;
  const tint = Float64Array.from({ length: 101 }, (_, percent) => 0.9 * Math.sqrt(percent / 100));
  for (let line = 0, to = 0; line < added.length; line++) {
    const copies = series[copied[line]], adds = series[added[line]];
    for (let at = 0; at < bins; at++, to += 4) {
      const above = tint[adds[at]], opaque = above + tint[copies[at]] * (1 - above);
      if (!opaque) continue;
      for (let part = 0; part < 3; part++) data[to + part] = under[part] + ((over[part] - under[part]) * above) / opaque;
      data[to + 3] = 255 * opaque;
    }
  }
  small.getContext("2d").putImageData(image, 0, 0);
  const left = snap(diagram, diagram.x(0)), right = snap(diagram, diagram.x(figures.time_us)), top = edge(diagram, 0);
  draw.save();
  draw.beginPath();
  draw.rect(left, top, right - left, edge(diagram, rows.length) - top);  // the last line may stand for fewer ranks
  draw.clip();
  draw.imageSmoothingEnabled = false;
  draw.drawImage(small, left, top, right - left, edge(diagram, size * added.length) - top);
  draw.restore();
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
