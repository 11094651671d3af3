// The space-time diagram, with what is picked drawn over it.

import { dot, line, Diagram } from "/show/simulation/diagram.js";

export class SpaceTime extends Diagram {
  constructor(data, holder, scrub, pick) {
    super(data, holder, scrub);
    this.picked = {};
    this.longest = this.total;
    this.live.addEventListener("click", (event) => {
      const box = this.live.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      const message = this.data.activity ? -1 : this.nearest(x, y), row = this.rowAt(y);
      if (x < this.left && row >= 0) pick("rank", row);
      else if (message >= 0) pick("message", message);
    });
  }

  // Two runs stand on one clock: both axes are as long as the longer run.
  x(time_us) {
    return this.left + (this.longest > 0 ? time_us / this.longest : 0) * (this.width - this.left - 46);
  }

  timeAt(x) {
    const share = (x - this.left) / (this.width - this.left - 46);
    return Math.max(0, Math.min(1, share)) * this.longest;
  }

  show(time_us) {
    super.show(time_us);
    const draw = this.live.getContext("2d"), { messages } = this.data, { rank, list } = this.picked;
    if (rank !== undefined) {
      draw.globalAlpha = 0.25;
      line(draw, this.left, this.y(rank), this.width - 46, this.y(rank), this.colors.wrong, Math.max(2, Math.min(12, (this.bottom - this.top) / this.data.rows.length)));
      draw.globalAlpha = 1;
    }
    if (!list || this.data.activity) return;
    for (const at of list) {
      const ends = [this.x(messages.start_us[at]), this.y(messages.src[at]), this.x(messages.arrived_us[at]), this.y(messages.dst[at])];
      line(draw, ...ends, this.colors.paper, 4.5);
      line(draw, ...ends, this.colors.wrong, 2.4);
      if (list.length < 60) dot(draw, ends[2], ends[3], 2.6, this.colors.wrong, this.colors.paper);
    }
  }
}
