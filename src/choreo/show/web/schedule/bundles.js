// A step with far more messages than can be told apart: ribbons between groups of neighbouring ranks, as wide as the
// number of messages between the two groups.

import { shape } from "../base.js";
import { CENTER, xy } from "./stage.js";

export const GROUPS = 8;

export function drawBundles(stage, messages) {
  const { ranks } = stage.data, size = Math.ceil(ranks / GROUPS), groups = Math.ceil(ranks / size);
  const counts = Array.from({ length: groups }, () => new Array(groups).fill(0));
  for (const { src, dst } of messages) counts[Math.floor(src / size)][Math.floor(dst / size)] += 1;
  const kind = messages.some(({ reduce }) => reduce) ? " reduces" : "";
  const inner = stage.radius - stage.size - 10;
  const angle = (rank) => (2 * Math.PI * rank) / ranks - Math.PI / 2;
  const at = (turn, radius) => ({ x: CENTER.x + radius * Math.cos(turn), y: CENTER.y + radius * Math.sin(turn) });
  const ends = counts.map((_, group) => {
    const first = angle(group * size - 0.4), last = angle(Math.min(ranks, (group + 1) * size) - 0.6);
    shape("path", { class: `arc${kind}`, d: sector(at, first, last, inner, inner + 6) }, stage.bundles);
    return shares(counts, group, first, last);
  });
  for (let one = 0; one < groups; one++) {
    for (let other = one; other < groups; other++) {
      if (!ends[one][other]) continue;
      const way = ribbon(at, inner - 2, ends[one][other], ends[other][one]);
      const ribbonShape = shape("path", { class: `bundle${kind}`, d: way }, stage.bundles);
      const both = counts[one][other] + (one === other ? 0 : counts[other][one]);
      shape("title", {}, ribbonShape, `${groupName(stage.data, one, size)} and ${groupName(stage.data, other, size)}: ${both} messages`);
    }
  }
}

export function groupName({ ranks }, group, size) {
  return `ranks ${group * size}–${Math.min(ranks, (group + 1) * size) - 1}`;
}

// A group's arc is divided among the groups it talks with, in an order in which ribbons cross as little as they can.
export function shares(counts, group, first, last) {
  const groups = counts.length, order = Array.from({ length: groups - 1 }, (_, turn) => (group - 1 - turn + groups) % groups);
  order.splice(Math.floor(order.length / 2), 0, group);
  const amount = (other) => counts[group][other] + (other === group ? 0 : counts[other][group]);
  const all = order.reduce((sum, other) => sum + amount(other), 0);
  const found = [];
  let from = first;
  for (const other of order) {
    const to = from + ((last - first) * amount(other)) / (all || 1);
    if (amount(other)) found[other] = [from, to];
    from = to;
  }
  return found;
}

export function ribbon(at, radius, [a, b], [c, d]) {
  const arc = (turn) => `A${radius} ${radius} 0 0 1 ${xy(at(turn, radius))}`;
  const middle = xy(CENTER), begin = `M${xy(at(a, radius))}${arc(b)}`;
  if (a === c) return `${begin}Q${xy(at((a + b) / 2, radius * 0.7))} ${xy(at(a, radius))}z`;
  return `${begin}Q${middle} ${xy(at(c, radius))}${arc(d)}Q${middle} ${xy(at(a, radius))}z`;
}

export function sector(at, first, last, inner, outer) {
  const wide = last - first > Math.PI ? 1 : 0;
  return `M${xy(at(first, outer))}A${outer} ${outer} 0 ${wide} 1 ${xy(at(last, outer))}`
    + `L${xy(at(last, inner))}A${inner} ${inner} 0 ${wide} 0 ${xy(at(first, inner))}z`;
}
