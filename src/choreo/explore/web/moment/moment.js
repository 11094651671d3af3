// One moment, four linked views; with a second algorithm, eight on one clock.

import { element } from "/show/base.js";
import { Latest, ask, served } from "../ask.js";
import { Clock } from "./clock.js";
import { Form } from "../fields.js";
import { Pane } from "./pane.js";
import { Work } from "../work.js";
import { change, cutsOf, cutsText, slowOf, slowText, state } from "../state.js";

// What can be picked, by the key that does so.
const PICKED_BY = { r: "rank", l: "wire", c: "chunk", m: "message" };
const ASKED = ["collective", "algorithm", "versus", "ranks", "size", "topology", "alpha", "bandwidth", "gamma", "cuts", "slow", "packets", "document"];

// What the server is asked for a state; `name` is the algorithm.
export function fieldsOf(now, name) {
  const fields = {
    collective: now.collective, algorithm: name, ranks: Number.isNaN(Number(now.ranks)) ? now.ranks : Number(now.ranks), size: now.size, topology: now.topology,
    alpha: now.alpha, bandwidth: now.bandwidth, gamma: now.gamma, cuts: cutsOf(now.cuts), slow: slowOf(now.slow), packets: now.packets,
  };
  return now.document ? { ...fields, document: now.document } : fields;
}

// The times that stand on one scale.
function costs({ time_us: simulated, cost, calibrated }) {
  return [simulated, cost.total_us, calibrated ? calibrated.total_us : 0];
}

export class MomentView {
  constructor(holder) {
    this.holder = holder;
    this.form = new Form(holder, ["collective", "algorithm", "versus", "topology", "packets", "ranks", "size", "alpha", "bandwidth", "gamma"]);
    this.changes = element("p", { class: "changes" }, holder);
    this.work = new Work(holder);
    this.clock = new Clock(holder, (time, settled) => this.tick(time, settled));
    this.main = element("div", { class: "panes" }, holder);
    this.panes = [];
    this.latest = new Latest((now) => this.load(now));
    this.matrices = new Latest((now, panes) => this.fill(now, panes));
    this.found = [];
    this.took = [];
    this.update(state(), {});
  }

  update(now, before) {
    this.form.show();
    if (ASKED.some((name) => (now[name] ?? "") !== (before[name] ?? ""))) this.latest.ask(now);
    else if (this.found.length) {
      if (now.time !== before.time && !this.clock.playing) this.clock.set(this.clock.total, now.time === "" ? this.clock.time : Number(now.time));
      this.show();
    }
  }

  async load(now) {
    const began = performance.now(), names = now.versus ? [now.algorithm, now.versus] : [now.algorithm];
    let found;
    try {
      found = await this.work.during("Working on it …", (signal) => Promise.all(names.map((name) => ask("moment", fieldsOf(now, name), { signal }))));
      if (!found) {
        this.holder.classList.add("stale");
        return;
      }
    } catch (error) {
      if (error.field === "algorithm" && now.versus && error.message.includes(`'${now.versus}'`)) error.field = "versus";
      this.form.wrong(error);
      this.holder.classList.add("stale");
      return;
    }
    this.holder.classList.remove("stale");
    this.form.wrong(null);
    this.found = found;
    while (this.panes.length > found.length) this.panes.pop().holder.remove();
    while (this.panes.length < found.length) {
      this.panes.push(new Pane(this.main, {
        pick: (kind, value) => change({ pick: state().pick === `${kind}:${value}` ? "" : `${kind}:${value}` }, { step: false }),
        scrub: (time) => { this.clock.pause(); this.clock.go(time, true); },
        mend: (kind, what) => this.mend(kind, what),
      }));
    }
    this.main.classList.toggle("two", found.length > 1);
    const total = Math.max(...found.map(({ time_us }) => time_us)), scale = Math.max(...found.flatMap(costs));
    const opens = found[0].run ? found[0].run.opens_us : total / 2;
    this.clock.set(total, now.time === "" ? Math.min(opens, total) : Number(now.time));
    found.forEach((one, at) => this.panes[at].set(now.document ? { ...one, command: "" } : one, total, scale, this.clock.time));
    this.tell(now, found[0]);
    this.show();
    this.took.push(performance.now() - began);
    document.documentElement.dataset.shown = String(this.took.length);
    document.documentElement.dataset.took = String(Math.round(this.took[this.took.length - 1]));
    this.matrices.ask(now, this.panes.slice());
  }

  async fill(now, panes) {
    const names = now.versus ? [now.algorithm, now.versus] : [now.algorithm];
    await Promise.all(names.map(async (name, at) => {
      if (!panes[at] || !panes[at].found.run) return;
      const found = panes[at].found;
      try {
        const data = await ask("chunks", fieldsOf(now, name));
        if (panes[at].found === found) panes[at].chunks(data);
      } catch (error) {
        panes[at].matrix.say(error.message);
      }
    }));
    this.show();
    document.documentElement.dataset.filled = document.documentElement.dataset.shown;
  }

  tell(now) {
    this.changes.replaceChildren();
    const cuts = cutsOf(now.cuts), slow = slowOf(now.slow);
    for (const cut of cuts) this.chip(`${cut.here}–${cut.there} ${cut.factor ? `at ${cut.factor}×` : "cut"}`, () => this.mend("link", { ...cut, factor: 1 }));
    for (const one of slow) this.chip(`rank ${one.rank} ${one.times}× slower`, () => this.mend("rank", { ...one, times: 1 }));
    if (now.document) this.chip("your own schedule", () => change({ document: "" }));
  }

  chip(words, undo) {
    const chip = element("button", { type: "button", class: "chip", title: "undo this" }, this.changes, `${words} ×`);
    chip.disabled = !served;
    chip.addEventListener("click", undo);
  }

  mend(kind, what) {
    if (!served) return;
    const now = state();
    if (kind === "link") {
      const same = ({ here, there }) => (here === what.here && there === what.there) || (here === what.there && there === what.here);
      change({ cuts: cutsText([...cutsOf(now.cuts).filter((one) => !same(one)), ...(what.factor === 1 ? [] : [what])]), time: "" });
    } else {
      change({ slow: slowText([...slowOf(now.slow).filter(({ rank }) => rank !== what.rank), ...(what.times === 1 ? [] : [what])]), time: "" });
    }
  }

  tick(time, settled) {
    this.show();
    if (settled) change({ time: Number(time.toPrecision(7)) }, { step: false });
  }

  show() {
    for (const pane of this.panes) pane.show(this.clock.time, state().pick);
  }

  fit() {
    for (const pane of this.panes) pane.fit();
    this.show();
  }

  leave() {
    this.work.abort();
    this.clock.pause();
  }

  key(event) {
    if (event.key === "Escape" && state().pick) {
      change({ pick: "" }, { step: false });
      return true;
    }
    const step = { "]": 1, "[": -1 }[event.key], asked = PICKED_BY[event.key.toLowerCase()];
    if ((step || asked) && this.found[0] && this.found[0].run) {
      const [kind, value] = state().pick.split(":"), what = asked || kind || "rank", { most, every } = this.panes[0].pickable(what);
      const next = step && what === kind ? (Number(value) + step * every + most) % most : 0;
      if (most) change({ pick: `${what}:${next}` }, { step: false });
      return true;
    }
    return this.clock.key(event);
  }
}
