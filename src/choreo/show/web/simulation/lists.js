// The figures, the busiest links and the longest queues over time, and the critical path as a list.

import { counted, element, formatBytes, formatRate, formatTime, loadColor, palette, threeDigits } from "../base.js";
import { RIGHT, gutter } from "./diagram.js";

export const PARTS = { overhead: "add", sending: "copy", "sharing links": "wrong", latency: "part", "further hops": "part", "reducing, writing": "add", waiting: "line" };

export function figures(data, holder) {
  const { time_us, algbw_bytes_per_s, busbw_bytes_per_s, bound_us, efficiency, no_bound } = data.figures;
  const add = (name, value, hint) => {
    const block = element("div", { title: hint }, holder);
    element("dt", {}, block, name);
    const [number, unit] = value.split(" ");
    const told = element("dd", {}, block, number);
    if (unit) element("small", {}, told, unit);
    return block;
  };
  add("time", formatTime(time_us), "from the first byte sent to the last byte written");
  add("algbw", formatRate(algbw_bytes_per_s), "size over time, as nccl-tests defines it");
  add("busbw", formatRate(busbw_bytes_per_s), "what a link must carry, as nccl-tests defines it");
  if (bound_us === null) {
    add("bound", "none", no_bound);
    return;
  }
  add("bound", formatTime(bound_us), "no schedule can be faster on this network");
  const block = add("of the best possible", `${threeDigits(100 * efficiency)}%`, "the bound over the time");
  const bar = element("div", { class: "bar" }, block);
  element("i", {}, bar).style.width = `${Math.min(100, 100 * efficiency)}%`;
}

export function percent(share) {
  return share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`;
}

export class Busy {
  constructor(data, holder, choose, rows = data.busiest) {
    this.data = data;
    this.holder = holder;
    this.strips = rows.map((link) => {
      const row = element("li", {}, holder);
      const name = element("span", { class: "name", title: this.words(link) }, row, link.name);
      if (link.alike) element("small", {}, name, ` +${link.alike}${link.or_more ? " or more" : ""}`);
      const strip = element("canvas", {}, row);
      element("span", { class: link.utilisation === undefined ? "share bytes" : "share" }, row, this.told(link));
      row.addEventListener("pointerenter", () => { row.classList.add("chosen"); choose(link.wires ?? []); });
      row.addEventListener("pointerleave", () => { row.classList.remove("chosen"); choose([]); });
      return { strip, link };
    });
  }

  told({ utilisation }) {
    return percent(utilisation);
  }

  words({ name, alike, or_more: more, bytes, bandwidth_bytes_per_s: bandwidth, utilisation }) {
    const others = alike ? ` and ${alike}${more ? " or more" : ""} like it` : "";
    return `${name}${others}: ${formatBytes(bytes)} over ${formatRate(bandwidth)}, ${percent(utilisation)} of what it could carry`;
  }

  fit() {
    this.holder.style.setProperty("--gutter", `${gutter()}px`);
    this.holder.style.setProperty("--right", `${RIGHT}px`);
    this.colors = palette();
    const ratio = window.devicePixelRatio || 1;
    for (const { strip } of this.strips) {
      strip.width = Math.round(strip.clientWidth * ratio);
      strip.height = Math.round(14 * ratio);
    }
  }

  // Each link's load as a strip of colour; as in the diagram, the future is pale.
  show(time_us) {
    const total = this.data.figures.time_us;
    for (const { strip, link } of this.strips) {
      const draw = strip.getContext("2d"), values = link.values ?? this.data.series[link.series];
      const wide = strip.width / values.length;
      draw.clearRect(0, 0, strip.width, strip.height);
      for (let at = 0, next; at < values.length; at = next) {
        for (next = at + 1; next < values.length && values[next] === values[at];) next += 1;
        draw.fillStyle = loadColor(this.colors, values[at]);
        draw.fillRect(at * wide, 0, (next - at) * wide + 0.5, strip.height);
      }
      const now = total > 0 ? (time_us / total) * strip.width : 0;
      draw.globalAlpha = 0.6;
      draw.fillStyle = this.colors.paper;
      draw.fillRect(now, 0, strip.width - now, strip.height);
      draw.globalAlpha = 1;
      draw.fillStyle = this.colors.ink;
      draw.fillRect(now - 1, 0, 2, strip.height);
    }
  }
}

// The longest queues of packets, as strips: darker is longer, up to the longest of all.
export class Queues extends Busy {
  constructor(data, holder) {
    const most = Math.max(1, ...data.queues.map(({ peak_bytes: peak }) => peak));
    const rows = data.queues.map((port) => ({ ...port, values: port.bytes.map((held) => (100 * held) / most) }));
    super(data, holder, () => {}, rows);
  }

  words({ name, peak_bytes: peak, drops, marks, pauses }) {
    const also = [[drops, "dropped"], [marks, "marked"]].filter(([count]) => count).map(([count, what]) => `, ${counted(count, "packet")} ${what}`);
    return `${name}: at most ${formatBytes(peak)} queued${also.join("")}${pauses ? `, ${counted(pauses, "pause")} kept` : ""}`;
  }

  told({ peak_bytes: peak }) {
    return formatBytes(peak);
  }
}

export class Path {
  constructor(data, choose) {
    this.data = data;
    this.holder = document.getElementById("legs");
    this.parts(document.getElementById("parts"), document.getElementById("parts-legend"));
    const { all, legs } = data.path;
    const left = all - legs.length;
    const note = left ? `the first ${legs.length} of ${all} messages` : counted(all, "message");
    document.getElementById("path-note").textContent = all ? `${note}, each waiting for the one before` : "nothing was sent";
    this.rows = legs.map((leg, at) => {
      const row = element("li", {}, this.holder);
      const button = element("button", { type: "button", "data-leg": at }, row);
      element("span", {}, button, `step ${leg.step}`);
      element("span", {}, button, `${data.rows[leg.src].short} → ${data.rows[leg.dst].short}`);
      element("span", { class: "size" }, button, formatBytes(leg.bytes));
      const why = element("span", { class: "why" }, button, leg.waited);
      if (leg.shared_us > 0) {
        why.textContent = "";
        element("b", {}, why, `${formatTime(leg.shared_us)} lost to sharing ${leg.link}`);
      }
      button.title = `${leg.waited}${leg.shared_us > 0 ? `; lost ${formatTime(leg.shared_us)} to sharing ${leg.link}` : ""}`;
      element("span", { class: "took" }, button, formatTime(leg.until_us - leg.start_us));
      button.addEventListener("click", () => choose(at));
      return row;
    });
    this.now = -1;
  }

  // Where the time went, as one bar.
  parts(bar, legend) {
    const { parts } = this.data.path, sum = parts.reduce((total, { time_us }) => total + time_us, 0);
    for (const { name, time_us } of parts) {
      const color = `var(--${PARTS[name]})`;
      const part = element("i", { title: `${name}: ${formatTime(time_us)}` }, bar);
      part.style.flexGrow = time_us / sum;
      part.style.background = color;
      const item = element("span", {}, legend);
      element("i", {}, item).style.background = color;
      item.append(`${name} ${formatTime(time_us)}`);
    }
    bar.setAttribute("aria-label", parts.map(({ name, time_us }) => `${name} ${formatTime(time_us)}`).join(", "));
    bar.hidden = !parts.length;
  }

  // The leg that a moment belongs to: the last one that had begun.
  legAt(time_us) {
    const { legs } = this.data.path;
    let found = -1;
    for (let at = 0; at < legs.length && legs[at].start_us <= time_us + 1e-9 * this.data.figures.time_us; at++) {
      if (time_us < legs[at].until_us || at === legs.length - 1 || found < 0 || legs[at + 1].start_us > time_us) found = at;
    }
    return time_us >= this.data.figures.time_us ? -1 : found;
  }

  show(at, follow) {
    if (at === this.now) return;
    if (this.rows[this.now]) this.rows[this.now].classList.remove("now");
    this.now = at;
    const row = this.rows[at];
    if (!row) return;
    row.classList.add("now");
    // Only the list scrolls, not the page.
    const top = row.offsetTop - this.holder.offsetTop;
    if (follow && (top < this.holder.scrollTop || top + row.offsetHeight > this.holder.scrollTop + this.holder.clientHeight)) {
      this.holder.scrollTop = top - row.offsetHeight * Math.floor(this.holder.clientHeight / row.offsetHeight / 3);
    }
  }
}
