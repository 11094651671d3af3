"""Packets through ports, slow and obvious, for tiny cases, written from docs/explanation/packets.md.

Flows are (start, path, bytes) with times in picoseconds and paths as lists of links; nothing waits for anything but its
start. What comes back is when each flow's last packet arrived, and the packets dropped and pauses kept at each port.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Wire:
    """A link: its ends, picoseconds a byte, and its latency."""

    src: int
    dst: int
    ps_per_byte: float
    latency: int


@dataclass
class Network:
    """Links, the memory of each node, and the rules."""

    wires: list[Wire]
    mtu: int
    buffer: int
    lossless: bool
    answer_bytes: int = 64
    resume_below: int = 3072
    way_back: list[list[int]] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    round_trip: list[int] = field(default_factory=list)


# In this order things happen at one time.
ARRIVES, PAUSED, RESUMED, TIMER, BEGINS, SENDS = 0, 1, 2, 4, 5, 8


class Oracle:
    """One run."""

    def __init__(self, network: Network, flows: list[tuple[int, list[int], int]]) -> None:
        self.net, self.flows = network, flows
        count = len(network.wires)
        self.agenda: list[tuple[int, int, int]] = [(start, BEGINS, i) for i, (start, _, _) in enumerate(flows)]
        self.urgent: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        self.queue: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        self.flying: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        self.turns: list[list[int]] = [[] for _ in range(count)]
        self.free_at, self.planned, self.own_next = [0] * count, [False] * count, [False] * count
        self.stopped, self.told_to_stop = [0] * count, [False] * count
        self.drops, self.pauses, self.peak = [0] * count, [0] * count, [0] * count
        self.sizes = [
            [*[network.mtu] * ((n - 1) // network.mtu), n - max(n - 1, 0) // network.mtu * network.mtu]
            for *_, n in flows
        ]
        self.begun = [False] * len(flows)
        self.next, self.sent, self.acked, self.got = ([0] * len(flows) for _ in range(4))
        self.complained = [False] * len(flows)
        self.alarm: list[int | None] = [None] * len(flows)
        self.ring, self.patience = [False] * len(flows), [0] * len(flows)
        self.measured: list[tuple[int, int] | None] = [None] * len(flows)
        self.rtt: list[tuple[int, int] | None] = [None] * len(flows)
        self.done: list[int | None] = [None] * len(flows)
        self.now = 0

    def run(self) -> list[int | None]:
        """Until everything has arrived, or nothing happens any more."""
        while self.agenda and None in self.done:
            self.agenda.sort()
            self.now, kind, who = self.agenda.pop(0)
            match kind:
                case 0:
                    self.arrives(who)
                case 1:
                    self.stopped[who] += 1
                    self.pauses[who] += self.stopped[who] == 1
                case 2:
                    self.stopped[who] -= 1
                    self.plan(who)
                case 4:
                    self.timer(who)
                case 5:
                    self.begun[who] = True
                    self.wake(who)
                case _:
                    self.sends(who)
        return self.done

    def takes(self, link: int, size: int) -> int:
        return int(size * self.net.wires[link].ps_per_byte + 0.5)

    def plan(self, link: int) -> None:
        has = self.urgent[link] or (not self.stopped[link] and (self.queue[link] or self.turns[link]))
        if has and not self.planned[link]:
            self.planned[link] = True
            self.agenda.append((max(self.now, self.free_at[link]), SENDS, link))

    def may_send(self, flow: int) -> bool:
        window = self.net.window[flow] if self.net.window else 1 << 60
        return (
            self.begun[flow] and self.next[flow] < len(self.sizes[flow]) and self.next[flow] - self.acked[flow] < window
        )

    def wake(self, flow: int) -> None:
        if self.may_send(flow):
            first = self.flows[flow][1][0]
            if flow not in self.turns[first]:
                self.turns[first].append(flow)
            self.plan(first)

    def timeout(self, flow: int) -> int:
        least = 4 * self.net.round_trip[flow]
        known = self.rtt[flow]
        return max(least, known[0] + 4 * known[1] if known else 2 * least) << self.patience[flow]

    def inject(self, link: int) -> dict[str, Any] | None:
        while self.turns[link]:
            flow = self.turns[link].pop(0)
            if not self.may_send(flow):
                continue
            number = self.next[flow]
            self.next[flow] += 1
            if not self.net.lossless:
                if self.acked[flow] == number == self.sent[flow] or not self.ring[flow]:
                    self.alarm[flow] = self.now + self.timeout(flow)
                if not self.ring[flow]:
                    self.ring[flow] = True
                    self.agenda.append((self.now + self.timeout(flow), TIMER, flow))
                if number == self.sent[flow] and self.measured[flow] is None:
                    self.measured[flow] = number, self.now
            self.sent[flow] = max(self.sent[flow], number + 1)
            if self.may_send(flow):
                self.turns[link].append(flow)
            return {
                "flow": flow,
                "number": number,
                "size": self.sizes[flow][number],
                "path": self.flows[flow][1],
                "at": 0,
                "answer": "",
            }
        return None

    def sends(self, link: int) -> None:
        self.planned[link] = False
        packet = None
        if self.urgent[link]:
            packet = self.urgent[link].pop(0)
        elif not self.stopped[link]:
            if self.own_next[link] or not self.queue[link]:
                packet = self.inject(link)
            if packet is not None:
                self.own_next[link] = False
            elif self.queue[link]:
                packet = self.queue[link].pop(0)
                self.own_next[link] = True
                self.resume(packet, link)
        if packet is not None:
            self.free_at[link] = self.now + self.takes(link, packet["size"])
            packet["due"] = self.free_at[link] + self.net.wires[link].latency
            if not self.flying[link]:
                self.agenda.append((packet["due"], ARRIVES, link))
            self.flying[link].append(packet)
        self.plan(link)

    # Memory, counted anew each time from what is in the queues.

    def inside(self, node: int) -> list[dict[str, Any]]:
        return [one for link, wire in enumerate(self.net.wires) if wire.src == node for one in self.queue[link]]

    def room(self, node: int, taken: int, size: int) -> bool:
        left = self.net.buffer - sum(one["size"] for one in self.inside(node) if not one["spare"])
        return taken == 0 or (size <= left and taken + size <= left)

    def came_by(self, link: int) -> int:
        return sum(one["size"] for one in self.inside(self.net.wires[link].dst) if one["by"] == link)

    def tell(self, link: int, what: int) -> None:
        wire = self.net.wires[link]
        self.agenda.append((self.now + self.takes(link, self.net.answer_bytes) + wire.latency, what, link))

    def resume(self, packet: dict[str, Any], link: int) -> None:
        by = packet["by"]
        held = self.came_by(by)
        if self.told_to_stop[by] and (held == 0 or self.room(self.net.wires[link].src, held, self.net.resume_below)):
            self.told_to_stop[by] = False
            self.tell(by, RESUMED)

    def arrives(self, link: int) -> None:
        packet = self.flying[link].pop(0)
        if self.flying[link]:
            self.agenda.append((self.flying[link][0]["due"], ARRIVES, link))
        packet["at"] += 1
        if packet["at"] == len(packet["path"]):
            if packet["answer"]:
                self.hears(packet)
            else:
                self.receives(packet)
            return
        port, node = packet["path"][packet["at"]], self.net.wires[link].dst
        if packet["answer"]:
            self.urgent[port].append(packet)
            self.plan(port)
            return
        packet["by"], packet["spare"] = link, False
        queued = sum(one["size"] for one in self.queue[port])
        if self.net.lossless:
            if not self.room(node, self.came_by(link), packet["size"]):
                packet["spare"] = True
                if not self.told_to_stop[link]:
                    self.told_to_stop[link] = True
                    self.tell(link, PAUSED)
        elif not self.room(node, queued, packet["size"]):
            self.drops[port] += 1
            return
        self.queue[port].append(packet)
        self.peak[port] = max(self.peak[port], queued + packet["size"])
        self.plan(port)

    def answers(self, flow: int, what: str) -> None:
        back = self.net.way_back[flow]
        self.urgent[back[0]].append(
            {
                "flow": flow,
                "number": self.got[flow],
                "size": self.net.answer_bytes,
                "path": back,
                "at": 0,
                "answer": what,
            }
        )
        self.plan(back[0])

    def receives(self, packet: dict[str, Any]) -> None:
        flow = packet["flow"]
        if packet["number"] > self.got[flow]:
            if not self.complained[flow]:
                self.complained[flow] = True
                self.answers(flow, "go back")
            return
        if packet["number"] == self.got[flow]:
            self.got[flow] += 1
            self.complained[flow] = False
        if not self.net.lossless:
            self.answers(flow, "got it")
        if self.got[flow] == len(self.sizes[flow]) and self.done[flow] is None:
            self.done[flow] = self.now

    def hears(self, packet: dict[str, Any]) -> None:
        flow, number = packet["flow"], packet["number"]
        if number > self.acked[flow]:
            timed = self.measured[flow]
            if timed is not None and timed[0] < number:
                took = self.now - timed[1]
                known = self.rtt[flow]
                if known is None:
                    self.rtt[flow] = took, took // 2
                else:
                    off = took - known[0]
                    self.rtt[flow] = known[0] + int(off / 8), known[1] + int((abs(off) - known[1]) / 4)
                self.measured[flow] = None
            self.acked[flow], self.patience[flow] = number, 0
            self.alarm[flow] = self.now + self.timeout(flow)
            self.next[flow] = max(self.next[flow], number)
        if packet["answer"] == "go back":
            if number < self.acked[flow] or self.next[flow] <= number:
                return
            self.goes_back(flow)
        self.wake(flow)

    def goes_back(self, flow: int) -> None:
        self.measured[flow] = None
        self.next[flow] = self.acked[flow]

    def timer(self, flow: int) -> None:
        self.ring[flow] = False
        if self.acked[flow] == self.sent[flow]:
            return
        self.ring[flow] = True
        alarm = self.alarm[flow]
        assert alarm is not None
        if self.now >= alarm:
            self.patience[flow] = min(self.patience[flow] + 1, 10)
            self.goes_back(flow)
            self.alarm[flow] = alarm = self.now + self.timeout(flow)
        self.agenda.append((alarm, TIMER, flow))
        self.wake(flow)
