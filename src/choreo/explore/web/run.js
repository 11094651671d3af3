// Press run: the collective between real processes of this machine, every sample beside what was predicted, and one call
// message by message.

import { counted, element, formatBytes, formatRate, formatTime, palette } from "/show/base.js";
import { served } from "./ask.js";
import { Form } from "./fields.js";
import { SpaceTime } from "./moment/spacetime.js";
import { change, state } from "./state.js";
import { Work, sharp } from "./work.js";

const RUN_SIZES = ["64", "1KiB", "16KiB", "256KiB", "1MiB", "4MiB"];

export class RunView {
  constructor(holder) {
    this.form = new Form(holder, ["collective", "algorithm", "ranks", "size"]);
    const bar = element("p", { class: "tools" }, holder);
    this.button = element("button", { type: "button", class: "go" }, bar, "Run it here");
    this.button.disabled = !served;
    this.button.addEventListener("click", () => this.run());
    element("span", { class: "legend" }, bar, "starts real processes on this machine, checks every element, and measures");
    this.work = new Work(holder);
    const box = element("div", { class: "chart" }, holder);
    this.canvas = element("canvas", { role: "img", "aria-label": "measured and predicted time by size" }, box);
    this.table = element("div", { class: "table" }, holder);
    this.calls = element("section", { class: "calls", "aria-label": "one call, message by message" }, holder);
    this.found = this.call = null;
    this.update(state(), {});
  }

  update() {
    this.form.show();
    if (Number(state().ranks) > 16) change({ ranks: 4 }, { step: false });
    this.draw();
  }

  async run() {
    const now = state();
    try {
      const found = await this.work.run(`Running ${now.collective} between ${now.ranks} processes …`, "measure", { collective: now.collective, algorithm: now.algorithm, ranks: Number(now.ranks), sizes: RUN_SIZES, rounds: 9 }, () => {});
      this.form.wrong(null);
      if (found) this.found = found;
      this.draw();
      const call = found && await this.work.run("Following one call, message by message …", "timeline", { collective: now.collective, algorithm: now.algorithm, ranks: Number(now.ranks), size: now.size }, () => {});
      if (call) this.call = call;
    } catch (error) {
      this.form.wrong(error);
    }
    this.draw();
    document.documentElement.dataset.ran = String(this.found ? this.found.rows.length : 0);
  }

  draw() {
    const { draw, width, height } = sharp(this.canvas), colors = palette();
    this.table.replaceChildren();
    if (!this.found) {
      draw.fillStyle = colors.muted;
      draw.fillText("Nothing has run yet.", 10, 20);
      return;
    }
    const { rows, ranks, cores } = this.found, left = 70, bottom = height - 28, right = width - 16;
    const times = rows.flatMap(({ samples_us: samples, predicted_us: predicted }) => [...samples, predicted]).filter((time) => time > 0);
    const [low, high] = [Math.log(Math.min(...times)) - 0.2, Math.log(Math.max(...times)) + 0.2];
    const x = (at) => left + ((at + 0.5) / rows.length) * (right - left), y = (time) => bottom - ((Math.log(time) - low) / (high - low)) * (bottom - 12);
    draw.textAlign = "right";
    for (let power = Math.floor(low / Math.LN10); power <= high / Math.LN10; power++) {
      const at = y(10 ** power);
      if (at < 8 || at > bottom) continue;
      draw.fillStyle = colors.muted;
      draw.fillText(formatTime(10 ** power), left - 8, at + 4);
      draw.fillStyle = colors.line;
      draw.fillRect(left, at, right - left, 1);
    }
    draw.textAlign = "center";
    const half = Math.min(30, (0.42 * (right - left)) / rows.length);
    rows.forEach((row, at) => {
      draw.fillStyle = colors.muted;
      draw.fillText(formatBytes(row.size_bytes), x(at), height - 8);
      draw.fillStyle = colors.copy;
      draw.globalAlpha = 0.45;
      for (const [nth, sample] of row.samples_us.entries()) {
        draw.beginPath();
        draw.arc(x(at) + (nth - row.samples_us.length / 2) * Math.min(3, half / 8), y(sample), 3.2, 0, 7);
        draw.fill();
      }
      draw.globalAlpha = 1;
      draw.fillRect(x(at) - 0.73 * half, y(row.time_us) - 1.5, 1.46 * half, 3);
      draw.strokeStyle = colors.add;
      draw.lineWidth = 2.5;
      draw.setLineDash([5, 4]);
      draw.beginPath();
      draw.moveTo(x(at) - half, y(row.predicted_us));
      draw.lineTo(x(at) + half, y(row.predicted_us));
      draw.stroke();
      draw.setLineDash([]);
    });
    const legend = element("p", { class: "legend" }, this.table);
    for (const [color, words] of [["copy", "measured: every round, and the median"], ["add", "predicted by the formula, with the constants of choreo calibrate where there are any"]]) {
      const item = element("span", {}, legend);
      element("i", {}, item).style.background = `var(--${color})`;
      item.append(words);
    }
    const table = element("table", {}, this.table), head = element("tr", {}, element("thead", {}, table));
    for (const name of ["size", "algorithm", "measured", "predicted", "predicted / measured", "busbw", "wrong"]) element("th", { scope: "col" }, head, name);
    const body = element("tbody", {}, table);
    for (const row of rows) {
      const line = element("tr", {}, body);
      for (const words of [formatBytes(row.size_bytes), row.algorithm, formatTime(row.time_us), formatTime(row.predicted_us), (row.predicted_us / row.time_us).toFixed(2), formatRate(row.busbw_bytes_per_s), String(row.wrong)]) element("td", {}, line, words);
    }
    this.follow();
    element("p", { class: "legend" }, this.table, `${ranks} processes on ${cores} cores${ranks > cores ? ": they take turns, which the formula does not count" : ""}`);
  }

  // The call twice on one clock: as it was measured, and as it was predicted.
  follow() {
    this.calls.replaceChildren();
    if (!this.call) return;
    const { algorithm, ranks, size_bytes: size, parts, measured, predicted, word } = this.call;
    element("h3", {}, this.calls, `One ${algorithm} call of ${formatBytes(size)}, message by message`);
    if (word) element("p", { class: "word" }, this.calls, word);
    const longest = Math.max(measured ? this.call.measured_us : 0, this.call.predicted_us);
    const cut = parts > 1 ? `, cut into ${parts} parts` : "";
    for (const [name, messages, total] of [["measured", measured, this.call.measured_us], ["predicted", predicted, this.call.predicted_us]]) {
      if (!messages) continue;
      element("p", { class: "legend" }, this.calls, `${name}: ${formatTime(total)}, ${counted(messages.src.length, "message")}${name === "measured" ? cut : ""}`);
      const box = element("div", { class: "box part-time" }, this.calls);
      for (const kind of ["drawn", "live"]) element("canvas", { class: kind }, box);
      element("p", { class: "tip", hidden: "" }, box);
      const rows = Array.from({ length: ranks }, (_, rank) => ({ name: `rank ${rank}`, short: String(rank), job: 0, done_us: total }));
      const data = { figures: { time_us: total }, rows, messages: { ...messages, all: messages.src.length, out_us: messages.start_us, written_us: messages.arrived_us }, activity: null, path: { all: 0, legs: [], parts: [] } };
      const diagram = new SpaceTime(data, box, () => {}, () => {});
      diagram.longest = longest;
      diagram.fit();
      diagram.show(total);
    }
    document.documentElement.dataset.followed = String(measured ? measured.src.length : 0);
  }

  fit() {
    this.draw();
  }

  leave() {
    this.work.abort();
  }
}
