// One schedule on one network at one moment: four linked views. What is picked in one shows in all.

import { counted, element, formatBytes, formatTime } from "/show/base.js";
import { Queues } from "/show/simulation/lists.js";
import { Network } from "/show/simulation/network.js";
import { Formula } from "./formula.js";
import { ChunkMatrix } from "./matrix.js";
import { SpaceTime } from "./spacetime.js";

export class Pane {
  constructor(holder, { pick, scrub, mend }) {
    this.holder = element("article", { class: "pane" }, holder);
    this.pick = pick;
    this.scrub = scrub;
    this.mend = mend;
    this.title = element("h2", { class: "what" }, this.holder);
    const part = (name, words, told = []) => {
      const section = element("section", { class: name, "aria-label": words }, this.holder), head = element("div", { class: "head" }, section);
      element("h3", {}, head, words);
      const legend = element("p", { class: "legend" }, head);
      for (const [kind, what] of told) {
        const item = element("span", {}, legend);
        element("i", { class: kind }, item);
        item.append(what);
      }
      return section;
    };
    const network = part("part-network", "The network", [["loads", "links, idle to full"], ["ring", "on the critical path"]]);
    this.svg = null;
    this.netbox = element("div", { class: "box" }, network);
    this.note = element("p", { class: "picked", "aria-live": "polite" }, network);
    const time = part("part-time", "Every message, in space and time", [["adds", "reduced"], ["copies", "copied"], ["path", "critical path"]]);
    this.timehead = time.querySelector("h3");
    this.timebox = element("div", { class: "box" }, time);
    this.queuehead = element("h3", { hidden: "" }, time, "The longest queues of packets");
    this.queuebox = element("ol", { class: "strips" }, time);
    this.queues = null;
    const matrix = part("part-matrix", "Who holds which chunk", [["some", "in part"], ["all", "complete"]]);
    this.matrix = new ChunkMatrix(element("div", { class: "box" }, matrix), pick);
    const cost = part("part-cost", "What it costs");
    this.formula = new Formula(element("div", { class: "box" }, cost));
    this.found = null;
    this.last = null;
    // What stands beside them may make the boxes of canvases larger or smaller.
    const observer = new ResizeObserver(() => this.settle());
    for (const box of [this.netbox, this.timebox, this.matrix.holder]) observer.observe(box);
  }

  settle() {
    if (!this.timebox.clientWidth || !this.timebox.clientHeight) return;  // another view is shown
    if (this.network) this.network.labels.fit();
    const changed = ({ clientWidth, clientHeight }, drawn) => Math.abs(clientWidth - drawn.width) > 1 || Math.abs(clientHeight - drawn.height) > 1;
    const time = this.diagram && changed(this.timebox, this.diagram), matrix = this.matrix.size && changed(this.matrix.holder, this.matrix.size);
    if (time) this.diagram.fit();
    if (time && this.queues) this.queues.fit();
    if (matrix && !this.matrix.waiting) this.matrix.fit();
    if ((time || matrix) && this.last) this.show(...this.last);
  }

  // `longest` is the time that fills the width of the diagram, `scale` that of the bars of costs.
  set(found, longest, scale, time) {
    this.found = found;
    this.shown = null;  // what is picked means something else now
    this.longest = longest;
    const { run, proof } = found;
    this.title.replaceChildren();
    this.title.append(found.label, " ");
    element("small", {}, this.title, `on ${found.network}`);
    const mark = proof.known ? (proof.holds ? "✓ proved" : "✗ wrong") : "";
    if (mark) element("span", { class: proof.holds ? "proved" : "refuted", title: proof.story }, this.title, mark);
    if (proof.known && !proof.holds) element("p", { class: "story" }, this.title, proof.story);
    if (run) {
      if (!this.network || !this.network.renew(run)) this.drawNetwork(run);
      this.drawTime(run);
      this.matrix.wait();
    } else {
      this.network = this.diagram = this.queues = null;
      this.queuebox.replaceChildren();
      this.queuehead.hidden = true;
      this.holder.classList.remove("queued");
      this.netbox.replaceChildren();
      this.timebox.replaceChildren();
      element("p", { class: "word" }, this.netbox, `${found.undrawn} Only the total time is shown.`);
      element("p", { class: "word" }, this.timebox, `The run takes ${formatTime(found.time_us)}.`);
      this.matrix.say("Not drawn, for the same reason.");
    }
    this.formula.show(found, scale, time);
  }

  drawNetwork(run) {
    this.netbox.replaceChildren();
    this.svg = this.netbox.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    this.svg.setAttribute("class", "links");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", "the network");
    this.network = new Network(run, this.svg);
    this.network.wires.forEach(({ group }, at) => {
      group.setAttribute("tabindex", "-1");
      group.addEventListener("click", () => this.pick("wire", at));
    });
    for (const { group, row } of this.network.devices) {
      if (row >= 0) group.addEventListener("click", () => this.pick("rank", row));
    }
    requestAnimationFrame(() => this.network && this.network.labels.fit()); // when it is known how large it is
  }

  drawTime(run) {
    this.timehead.textContent = !run.activity ? "Every message, in space and time"
      : run.activity.ranks_per_line > 1 ? `What every ${run.activity.ranks_per_line} ranks send` : "What each rank sends";
    const drawn = this.diagram;
    if (drawn) drawn.renew(run);
    else {
      this.timebox.replaceChildren();
      for (const name of ["drawn", "live"]) element("canvas", { class: name }, this.timebox);
      element("p", { class: "tip", hidden: "" }, this.timebox);
      this.diagram = new SpaceTime(run, this.timebox, (to) => this.scrub(to), this.pick);
    }
    this.drawQueues(run);
    this.diagram.longest = this.longest;
    // A change of size is observed elsewhere: measuring it here would lay out the whole page.
    if (drawn) drawn.redraw();
    else this.diagram.fit();
  }

  // Queues stand below the diagram, on its axis; after the end of the run there are none.
  drawQueues({ figures, queues }) {
    this.queuebox.replaceChildren();
    this.queuehead.hidden = !queues.length;
    this.holder.classList.toggle("queued", queues.length > 0);
    const after = (count) => Array(Math.round(count * (this.longest / figures.time_us - 1))).fill(0);
    const data = { figures: { time_us: this.longest }, queues: queues.map((port) => ({ ...port, bytes: [...port.bytes, ...after(port.bytes.length)] })) };
    this.queues = queues.length ? new Queues(data, this.queuebox) : null;
    if (this.queues) this.queues.fit();
  }

  chunks(data) {
    this.matrix.set(data, this.found.time_us);
  }

  // What a pick means here: messages, wires, a rank, cells.
  meaning(pick) {
    const [kind, value] = pick ? [pick.split(":")[0], Number(pick.split(":")[1])] : ["", 0];
    const { run, ways, way } = this.found;
    if (!run || !kind || !(value >= 0)) return {};
    const { messages } = run, all = [...messages.src.keys()], every = messages.src.length === messages.all;
    if (kind === "rank" && value < run.rows.length) {
      return { rank: value, list: all.filter((at) => messages.src[at] === value || messages.dst[at] === value), wires: [] };
    }
    if (kind === "wire" && value < run.network.wires.length) {
      return { wire: value, list: way.length ? all.filter((at) => ways[way[at]].includes(value)) : [], wires: [value] };
    }
    if (kind === "chunk") {
      const carries = every && this.matrix.messagesOf(value);
      return { chunk: value, list: carries ? all.filter((at) => carries.has(at)) : [], wires: [] };
    }
    if (kind === "message" && value < all.length) {
      return { message: value, list: [value], wires: way.length ? ways[way[value]] : [], cells: every ? this.matrix.cellsOf(value) : [] };
    }
    return {};
  }

  // How many there are of what can be picked, and how many of them are drawn as one.
  pickable(kind) {
    const { run, ranks, chunks } = this.found, { matrix } = this;
    const most = { rank: ranks, wire: run.network.wires.length, chunk: chunks, message: run.activity ? 0 : run.messages.src.length }[kind];
    return { most, every: kind === "chunk" && matrix.data ? matrix.data.chunks_per_column : 1 };
  }

  show(time_us, pick) {
    if (!this.found) return;
    this.last = [time_us, pick];
    const time = Math.min(time_us, this.found.time_us), means = this.meaning(pick);
    this.matrix.show(time, means);
    this.formula.now(time);
    if (!this.network) return;
    const leg = this.legAt(time);
    this.network.show(time, leg ? [leg.src, leg.dst] : []);
    this.diagram.picked = means;
    this.diagram.show(time);
    if (this.queues) this.queues.show(time);
    if (this.shown !== pick) this.point(means);
    this.shown = pick;
  }

  legAt(time_us) {
    const { legs } = this.found.run.path;
    let found = null;
    for (const leg of legs) if (leg.start_us <= time_us) found = leg;
    return time_us >= this.found.time_us ? null : found;
  }

  point(means) {
    const { run, ends } = this.found;
    this.network.choose(means.wires || []);
    const { messages } = run, busy = new Set(means.message === undefined ? [] : [messages.src[means.message], messages.dst[means.message]]);
    if (means.rank !== undefined) busy.add(means.rank);
    for (const { group, row } of this.network.devices) group.classList.toggle("picked", busy.has(row));
    this.note.replaceChildren();
    if (means.wire !== undefined) {
      const [here, there] = ends[means.wire];
      this.note.append(`${run.network.wires[means.wire].words}${run.activity ? "" : `: ${counted(means.list.length, "message")} here`}. `);
      this.button("slow it 4×", () => this.mend("link", { here, there, factor: 0.25 }));
      this.button("cut it", () => this.mend("link", { here, there, factor: 0 }));
      this.button("mend it", () => this.mend("link", { here, there, factor: 1 }));
    } else if (means.rank !== undefined) {
      const sent = means.list.filter((at) => messages.src[at] === means.rank);
      const bytes = sent.reduce((sum, at) => sum + messages.bytes[at], 0), all = messages.src.length === messages.all;
      this.note.append(`${run.rows[means.rank].name}: ${all ? `sends ${counted(sent.length, "message")}, ${formatBytes(bytes)}, ` : ""}done at ${formatTime(run.rows[means.rank].done_us)}. `);
      this.button("slow it 2×", () => this.mend("rank", { rank: means.rank, times: 2 }));
      this.button("mend it", () => this.mend("rank", { rank: means.rank, times: 1 }));
    } else if (means.message !== undefined) {
      const at = means.message;
      this.note.append(`step ${messages.step[at]}: ${run.rows[messages.src[at]].name} → ${run.rows[messages.dst[at]].name}, ${formatBytes(messages.bytes[at])}, ${messages.reduce[at] ? "added" : "copied"}, ${formatTime(messages.start_us[at])} to ${formatTime(messages.arrived_us[at])}, written at ${formatTime(messages.written_us[at])}`);
    } else if (means.chunk !== undefined) this.note.append(`chunk ${means.chunk}: ${counted(means.list.length, "message")} carry it`);
  }

  button(words, act) {
    element("button", { type: "button", class: "small" }, this.note, words).addEventListener("click", act);
  }

  fit() {
    if (!this.found) return;
    this.matrix.fit();
    if (!this.network) return;
    this.network.fit();
    if (this.queues) this.queues.fit();
    this.diagram.fit();
  }
}
