"""List scheduling by events, in Python: the twin of `core/list_scheduling.h`, and the fallback without a compiler.

A task is ready when the tasks before it are written. Its sender prepares one task at a time: of those that are ready,
the one with the earliest planned start. A task starts when the links of its hop have room and arrives one latency after
its last byte left. Its receiver takes in one at a time, in order of arrival; but what is added at one place is taken in
in the order of starts, as the simulator does. Ties go to the task with the earlier
planned start, then to the lower number. Tasks that wait for the same hop may be combined into one message.
"""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np

from choreo.topology.graph import Floats, Ints

__all__ = ["start_times"]

# Events of a task, in the order in which simultaneous ones are handled.
SENT, OUT, ARRIVED, WRITTEN = range(4)
# Parts of a link add up to a little more or less than the whole.
ROUNDING = 1e-9


def start_times(  # noqa: PLR0917 - the compiled loop takes columns as they are, and so does its twin
    hop: Ints,
    takes_s: Floats,
    latest_s: Floats,
    missing: Ints,
    place: Ints,
    after_offsets: Ints,
    after: Ints,
    link_offsets: Ints,
    links: Ints,
    num_links: int,
    latency_s: Floats,
    payers: Ints,
    costs_s: Floats,
    busiest_first: bool,
    most_s: float,
    taken: Floats | None = None,
    is_port: Ints | None = None,
) -> tuple[Floats, float]:
    """When each task starts, and when the last is written.

    The first five columns are by task: its hop, how long it occupies its links, its planned start, how many tasks come
    before it, and the place where it is added to what is there, -1 where it is only copied. Task t releases those in
    after[after_offsets[t] : after_offsets[t + 1]]; hop h takes such a range of links. The rest is by hop: latency;
    sender and receiver (`payers`, two rows); and four rows of costs: until a message is sent, until the next may be,
    and the same for receiving. A message of several tasks occupies its links no longer than `most_s`.

    `taken` is the part of each of `links` that a message takes. Messages share a link as long as they fit; but what
    enters a port (`is_port`, by link) starts together or one after another. Without these, a message takes all of a
    link.
    """
    by_task = hop, takes_s, latest_s, missing, place
    loop = _Loop(by_task, num_links, len(link_offsets) - 1, int(payers.max(initial=-1)) + 1)
    loop.after = [after[a:b].tolist() for a, b in pairwise(after_offsets.tolist())]
    loop.links = [links[a:b].tolist() for a, b in pairwise(link_offsets.tolist())]
    loop.latency, loop.payers, loop.costs = latency_s.tolist(), payers.tolist(), costs_s.tolist()
    shares = np.ones(len(links)) if taken is None else taken
    loop.taken = [shares[a:b].tolist() for a, b in pairwise(link_offsets.tolist())]
    loop.is_port = [1] * num_links if is_port is None else is_port.tolist()
    return loop.run(busiest_first=busiest_first, most_s=most_s)


class _Payer:
    """One member's sends, or its receives: one at a time."""

    __slots__ = ("busy", "free_at", "waiting")

    def __init__(self) -> None:
        self.busy, self.free_at = False, 0.0
        self.waiting: list[tuple[float, float, int]] = []  # order of events, planned start, task


class _Loop:
    after: list[list[int]]
    links: list[list[int]]
    latency: list[float]
    payers: list[list[int]]
    costs: list[list[float]]
    taken: list[list[float]]
    is_port: list[int]

    def __init__(self, by_task: tuple[Floats | Ints, ...], num_links: int, num_hops: int, num_payers: int) -> None:
        self.hop: list[int]
        self.hop, self.takes, self.latest, self.missing, self.place = (column.tolist() for column in by_task)
        self.start = [0.0] * len(self.hop)
        self.flows, self.room, self.opened = [0] * num_links, [1.0] * num_links, [0.0] * num_links
        self.waiting: list[list[tuple[float, int]]] = [[] for _ in range(num_hops)]
        self.members = [[_Payer() for _ in range(num_payers)] for _ in range(2)]
        self.touched_members: set[tuple[int, int]] = set()
        self.touched: set[int] = set()
        self.events: list[tuple[float, int, int]] = []
        self.now = self.end = 0.0

    def run(self, *, busiest_first: bool, most_s: float) -> tuple[Floats, float]:
        self.most_s = most_s
        self.joined = [False] * len(self.hop)
        self.unsent: list[list[tuple[float, float, int]]] = [[] for _ in self.links]  # by hop: waiting for a sender
        self.message = [[task] for task in range(len(self.hop))]  # by its first task
        self.first = list(range(len(self.hop)))  # the first task of each one's message
        self.held = [1] * len(
            self.hop
        )  # what a message waits for to be taken in: its arrival, and what is added before
        self.last_at: dict[int, int] = {}  # the last task that adds at a place
        self.next_at: dict[int, int] = {}  # the one that adds after a task
        self.is_written = [False] * len(self.hop)
        self.hops_at: list[list[int]] = [[] for _ in self.flows]
        self.left_s = [0.0] * len(self.flows)
        for number, links in enumerate(self.links):
            for link in links:
                self.hops_at[link].append(number)
        for hop, takes_s in zip(self.hop, self.takes, strict=True):
            for link, taken in zip(self.links[hop], self.taken[hop], strict=True):
                self.left_s[link] += takes_s * taken
        for task, count in enumerate(self.missing):
            if not count:
                self._ready(task)
        while True:
            self._begin_messages()
            if not (self.events and self.events[0][0] == self.now):
                self._begin_flows(busiest_first)
                if not self.events:
                    return np.array(self.start), self.end
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, kind, task = heapq.heappop(self.events)
                (self._sent, self._out, self._arrived, self._written)[kind](task)

    def _ready(self, task: int) -> None:
        self._wait_for(0, task)

    def _wait_for(self, side: int, task: int) -> None:
        """Wait for the sender or the receiver, if the message costs it anything."""
        hop = self.hop[task]
        if self.costs[2 * side + 1][hop] <= 0:
            (self._offer, self._written)[side](task)
            return
        member = self.payers[side][hop]
        entry = self.now if side else self.latest[task], self.latest[task], task
        heapq.heappush(self.members[side][member].waiting, entry)
        if not side and self.most_s > 0:
            heapq.heappush(self.unsent[hop], entry)
        self.touched_members.add((side, member))

    def _begin_messages(self) -> None:
        for side, member in self.touched_members:
            payer = self.members[side][member]
            while not side and payer.waiting and self.joined[payer.waiting[0][2]]:
                heapq.heappop(payer.waiting)
            if payer.busy or not payer.waiting:
                continue
            *_, task = heapq.heappop(payer.waiting)
            hop, begin = self.hop[task], max(self.now, payer.free_at)
            others = self.unsent[hop]
            while not side and others and (others[0][2] == task or self._joins(others[0][2], task)):
                heapq.heappop(others)
            done = begin + self.costs[2 * side][hop]
            payer.busy, payer.free_at = True, begin + self.costs[2 * side + 1][hop]
            heapq.heappush(self.events, (done, WRITTEN if side else SENT, task))
        self.touched_members.clear()

    def _joins(self, task: int, first: int) -> bool:
        """Whether a task is added to the message of another."""
        if self.hop[task] != self.hop[first] or self.takes[first] + self.takes[task] > self.most_s:
            return False
        self.message[first].append(task)
        self.first[task] = first
        self.joined[task] = True
        self.takes[first] += self.takes[task]
        return True

    def _next(self, side: int, task: int) -> None:
        member = self.payers[side][self.hop[task]]
        self.members[side][member].busy = False
        self.touched_members.add((side, member))

    def _sent(self, task: int) -> None:
        self._next(0, task)
        self._offer(task)

    def _offer(self, task: int) -> None:
        heapq.heappush(self.waiting[self.hop[task]], (self.latest[task], task))
        self.touched.add(self.hop[task])

    def _begin_flows(self, busiest_first: bool) -> None:
        """Start what can start on hops where something has changed, the most urgent first."""
        urgent = []
        for hop in self.touched:
            if self.waiting[hop]:
                busiest = -max(self.left_s[link] for link in self.links[hop]) if busiest_first else 0.0
                urgent.append((busiest, *self.waiting[hop][0], hop))
        for *_, task, hop in sorted(urgent):
            links = list(zip(self.links[hop], self.taken[hop], strict=True))
            if not all(self._has_room(*link) for link in links):
                continue
            waiting = self.waiting[hop]
            heapq.heappop(waiting)
            while self.costs[1][hop] <= 0 and waiting and self._joins(waiting[0][1], task):
                heapq.heappop(waiting)
            for link in links:
                self._enter(*link, self.takes[task])
            for part in self.message[task]:
                self.start[part] = self.now
            self._add_in_turn(task)
            out = self.now + self.takes[task]
            heapq.heappush(self.events, (out, OUT, task))
            heapq.heappush(self.events, (out + self.latency[hop], ARRIVED, task))
        self.touched.clear()

    def _has_room(self, link: int, taken: float) -> bool:
        """Whether one more may start on a link."""
        if not self.flows[link]:
            return True
        late = bool(self.is_port[link]) and self.opened[link] != self.now
        return not late and taken <= self.room[link] + ROUNDING

    def _enter(self, link: int, taken: float, takes_s: float) -> None:
        if not self.flows[link]:
            self.opened[link], self.room[link] = self.now, 1.0
        self.flows[link] += 1
        self.room[link] -= taken
        self.left_s[link] -= takes_s * taken

    def _out(self, task: int) -> None:
        hop = self.hop[task]
        for link, taken in zip(self.links[hop], self.taken[hop], strict=True):
            self.flows[link] -= 1
            self.room[link] += taken
            self.touched.update(self.hops_at[link])

    def _add_in_turn(self, first: int) -> None:
        """What a message adds goes after what started before it and adds at the same places."""
        for task in self.message[first]:
            place = self.place[task]
            if place < 0:
                continue
            last = self.last_at.get(place, -1)
            if last >= 0 and not self.is_written[last] and self.first[last] != first:
                self.next_at[last] = task
                self.held[first] += 1
            self.last_at[place] = task

    def _arrived(self, first: int) -> None:
        """One thing less to wait for: the message's arrival, or what is added before it where it adds."""
        self.held[first] -= 1
        if not self.held[first]:
            self._wait_for(1, first)

    def _written(self, task: int) -> None:
        if self.costs[3][self.hop[task]] > 0:
            self._next(1, task)
        self.end = max(self.end, self.now)
        for part in self.message[task]:
            self.is_written[part] = True
            if part in self.next_at:
                self._arrived(self.first[self.next_at[part]])
            for later in self.after[part]:
                self.missing[later] -= 1
                if not self.missing[later]:
                    self._ready(later)
