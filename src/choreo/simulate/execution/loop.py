"""The event loop of a workload: nodes become ready, run on their streams, and meet in calls.

All events of one moment are handled before anything begins, so the order of ranks does not matter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.errors import TraceError
from choreo.simulate.execution.folded import FoldedGraph
from choreo.simulate.execution.network import Network, PacketNetwork
from choreo.simulate.execution.network.call import Call
from choreo.simulate.execution.network.network import Ends
from choreo.simulate.execution.network.shared_calls import Done
from choreo.workload.execution import NodeKind

__all__ = ["Times", "run_graph"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Moments closer together than this fraction of the time are the same: they differ by rounding.
SAME_MOMENT = 1e-12
# A node of one rank is done; a member's part of a call is done; a whole call is done.
NODE, MEMBER, CALL = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """For each node, when it was ready, began and ended, and the node that it waited for last (-1 for none).

    The nodes of a call begin together, when the last of its ranks has arrived and the group is free.
    """

    ready_s: Floats
    start_s: Floats
    end_s: Floats
    cause: Ints


def run_graph(
    folded: FoldedGraph,
    duration_s: Floats,
    network: Network | PacketNetwork,
    call_of: Callable[[int], Call],
    *,
    newest_first: bool = False,
    at_once: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Times:
    """Run all nodes. `duration_s` is that of compute and memory nodes, `call_of` makes the call with a number.

    A group runs `at_once` calls at a time: the one that was complete first, or the newest.
    """
    loop = _Loop(folded, duration_s, network, call_of, progress)
    loop.newest_first, loop.at_once = newest_first, at_once
    return loop.run()


class _Loop:
    def __init__(
        self,
        folded: FoldedGraph,
        duration_s: Floats,
        network: Network | PacketNetwork,
        call_of: Callable[[int], Call],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.graph = graph = folded.graph
        self.network, self.call_of, self.progress = network, call_of, progress
        self.newest_first, self.at_once = False, 1
        count = len(graph)
        offsets, after = graph.dependents()
        self.offsets, self.after = offsets.tolist(), after.tolist()
        self.left = np.diff(graph.offsets).tolist()
        self.kind, self.call = graph.kind.tolist(), graph.call.tolist()
        self.duration_s = duration_s.tolist()
        self.ready_s, self.start_s, self.end_s = [-1.0] * count, [-1.0] * count, [-1.0] * count
        self.cause = [-1] * count
        streams = graph.rank * (int(graph.stream.max(initial=0)) + 2) + graph.stream + 1
        self.stream = streams.tolist()
        self.busy: dict[int, int] = {}  # by stream: the last node that ran
        self.running: set[int] = set()
        self.queues: dict[int, list[tuple[float, int]]] = {}
        self.touched: set[int] = set()
        # by call: its nodes, its channel, how many nodes have arrived, and how often its end has changed
        self.members, self.channel = folded.nodes, folded.channel
        self.there = [0] * graph.num_calls
        self.completed: list[int] = []  # calls that have been complete since this moment
        self.version = [0] * graph.num_calls
        self.last_member = [-1] * graph.num_calls
        self.running_calls: dict[int, int] = {}
        self.channels: dict[int, list[tuple[int, int, int]]] = {}
        self.touched_channels: set[int] = set()
        self.before_on_channel: dict[int, int] = {}
        self.messages: list[int] = []  # calls that begin at this moment
        self.sent: list[int] = []  # messages that have been sent at this moment
        self.arrived: dict[int, float] = {}  # when a message arrived whose receiver was not ready
        self.complete = 0
        self.events: list[tuple[float, int, int, int, int]] = []
        self.pushed = self.done = 0

    def run(self) -> Times:
        for node in np.flatnonzero(np.diff(self.graph.offsets) == 0).tolist():
            self._ready(node, 0.0, -1)
        self._begin_all(0.0)
        events, most = self.events, len(self.graph)
        while True:
            while done := self.network.advance(events[0][0] if events else float("inf")):
                self._hear(done)
            if not events:
                break
            now_s = events[0][0]
            limit = now_s + abs(now_s) * SAME_MOMENT
            while events and events[0][0] <= limit:
                time_s, _, what, which, version = heapq.heappop(events)
                now_s = max(now_s, time_s)
                if what == NODE:
                    self._node_done(which, time_s)
                elif what == MEMBER:
                    if self.version[self.call[which]] == version and self.end_s[which] < 0:
                        self._member_done(which, time_s)
                elif self.version[which] == version:
                    self._call_done(which)
                if not (events and events[0][0] <= limit):
                    self._begin_all(now_s)
                    limit = now_s + abs(now_s) * SAME_MOMENT
            if self.progress is not None and self.done % 1024 == 0:
                self.progress(self.done, most)
        self.network.finish()
        if self.done < most:
            raise TraceError(self._stuck())
        return Times(
            np.array(self.ready_s), np.array(self.start_s), np.array(self.end_s), np.array(self.cause, np.int64)
        )

    def _push(self, time_s: float, what: int, which: int, version: int = 0) -> None:
        self.pushed += 1
        heapq.heappush(self.events, (time_s, self.pushed, what, which, version))

    def _ready(self, node: int, now_s: float, cause: int) -> None:
        self.ready_s[node] = now_s
        self.cause[node] = cause
        kind = self.kind[node]
        if kind <= NodeKind.MEMORY:
            stream = self.stream[node]
            heapq.heappush(self.queues.setdefault(stream, []), (now_s, node))
            self.touched.add(stream)
            return
        call = self.call[node]
        if kind == NodeKind.RECV:
            arrived_s = self.arrived.get(call)
            if arrived_s is not None:
                self._push(max(arrived_s, now_s), MEMBER, node, self.version[call])
            return
        self.last_member[call] = node
        if kind == NodeKind.SEND:
            self.messages.append(call)
            return
        self.there[call] += 1
        if self.there[call] == len(self.members[call]):
            self.completed.append(call)

    def _begin_all(self, now_s: float) -> None:
        """Begin what can begin at this moment, once everything that ends at it has ended."""
        for stream in sorted(self.touched):
            self._next_on_stream(stream, now_s)
        self.touched.clear()
        starting = self.messages
        self.messages = []
        for call in sorted(self.completed):
            channel = self.channel[call]
            self.complete += 1
            turn = -self.complete if self.newest_first else self.complete
            urgency = int(self.graph.priority[self.members[call][0]])
            heapq.heappush(self.channels.setdefault(channel, []), (-urgency, turn, call))
            self.touched_channels.add(channel)
        self.completed.clear()
        for group in sorted(self.touched_channels):
            queue = self.channels[group]
            while queue and self.running_calls.get(group, 0) < self.at_once:
                call = heapq.heappop(queue)[2]
                self.running_calls[group] = self.running_calls.get(group, 0) + 1
                before = self.before_on_channel.get(group)
                if before is not None and self.ready_s[self.last_member[call]] < self.end_s[before]:
                    self.last_member[call] = before  # it waited for the group rather than for a rank
                starting.append(call)
        self.touched_channels.clear()
        if starting or self.sent:
            starting.sort()
            for call in starting:
                for node in self.members[call]:
                    self.start_s[node] = now_s
            sent, self.sent = self.sent, []
            self._follow(self.network.begin([self.call_of(call) for call in starting], now_s, sent))

    def _next_on_stream(self, stream: int, now_s: float) -> None:
        queue = self.queues[stream]
        if not queue or stream in self.running:
            return
        ready_s, node = heapq.heappop(queue)
        before = self.busy.get(stream)
        if before is not None and self.end_s[before] > ready_s:
            self.cause[node] = before
        self.start_s[node] = now_s
        self.running.add(stream)
        self.busy[stream] = node
        self._push(now_s + self.duration_s[node], NODE, node)

    def _follow(self, changed: Ends) -> None:
        """Record when the members of calls will be done, now that they share links with others."""
        for call, finish_s in changed:
            number = call.number
            self.version[number] += 1
            if finish_s is None:  # the network will say when
                self.arrived.pop(number, None)
                continue
            for node, end_s in zip(self.members[number], finish_s.tolist(), strict=True):
                self._will_be_done(number, node, end_s)
            self._push(float(finish_s.max(initial=0.0)), CALL, number, self.version[number])

    def _hear(self, done: list[Done]) -> None:
        """Record which members of calls are done."""
        for run in done:
            number, members = run.call.number, self.members[run.call.number]
            for at, end_s in zip(run.nodes, run.times_s, strict=True):
                self._will_be_done(number, members[at], end_s)
            if run.end_s is not None:
                self._push(run.end_s, CALL, number, self.version[number])

    def _will_be_done(self, call: int, node: int, end_s: float) -> None:
        if self.end_s[node] >= 0:
            return
        if self.kind[node] == NodeKind.RECV and self.ready_s[node] < 0:
            self.arrived[call] = end_s
        else:
            self._push(max(end_s, self.ready_s[node]), MEMBER, node, self.version[call])

    def _node_done(self, node: int, now_s: float) -> None:
        stream = self.stream[node]
        self.running.discard(stream)
        self.touched.add(stream)
        self._done(node, now_s)

    def _member_done(self, node: int, now_s: float) -> None:
        """A member waited for the last one to arrive. A receive that came after its message waited for nobody."""
        if self.kind[node] == NodeKind.SEND:
            self.sent.append(self.call[node])
        last = self.last_member[self.call[node]]
        late = self.kind[node] == NodeKind.RECV and now_s <= self.ready_s[node]
        if last not in (-1, node) and not late:
            self.cause[node] = last
        self._done(node, now_s)

    def _call_done(self, call: int) -> None:
        group = self.channel[call]
        if group < 0:
            return
        self.version[call] += 1
        self.running_calls[group] -= 1
        ends = self.members[call]
        self.before_on_channel[group] = max(ends, key=lambda node: self.end_s[node])
        self.touched_channels.add(group)

    def _done(self, node: int, now_s: float) -> None:
        self.end_s[node] = now_s
        self.done += 1
        left = self.left
        for other in self.after[self.offsets[node] : self.offsets[node + 1]]:
            left[other] -= 1
            if not left[other]:
                self._ready(other, now_s, node)

    def _stuck(self) -> str:
        graph = self.graph
        waiting = [node for node, ready_s in enumerate(self.ready_s) if ready_s >= 0 and self.end_s[node] < 0]
        unfinished = len(graph) - self.done
        if not waiting:
            return f"{unfinished} nodes never become ready"
        node = waiting[0]
        others = [member for member in self.members[self.call[node]] if self.ready_s[member] < 0]
        there = f", which waits for rank {graph.rank[others[0]]}" if others else ""
        return f"the workload stops with {unfinished} nodes to go: {graph.described(node)} is never done{there}"
