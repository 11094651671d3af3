"""The simulator's inner loops in Python: what the compiled core does, slowly and in the open.

It runs where there is no compiler, and the tests hold the compiled loops to it. There is no alone pass here: everything
is simulated with links shared, which comes to the same.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from choreo.simulate.flows.fair_shares import NONE, Flow, SharedLinks

__all__ = ["Core"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SAME_MOMENT = 1e-12
BY_WRITE, BY_OUT, BY_SENDER = 0, 1, 2
# After this much work `progress` is called. An action is one unit of work, a moment a few.
LONG_WORK, WORK_OF_MOMENT = 4096, 16


@dataclass(slots=True, eq=False)
class _Route:
    number: int
    leaving: int  # how many of its links take messages in order of steps, as the sender's port does: they come first
    links: list[int]
    share: list[float]
    latency: float
    alone: float
    send: float  # what a message costs the members at its ends: until it is sent or taken in, until the next may be
    send_busy: float
    receive: float
    receive_busy: float


@dataclass(slots=True, eq=False)
class _Message:
    number: int
    route: _Route
    step: int
    src: int
    dst: int
    engine: int
    ready: float
    start: float
    bytes: float = 0.0
    reduce_s: float = 0.0
    reduces: bool = False
    out: float = 0.0
    arrived: float = 0.0
    written: float = 0.0
    ready_cause: int = NONE
    start_cause: int = NONE
    write_cause: int = NONE
    bottleneck: int = NONE
    need_ready: int = 0
    need_start: int = 1  # to be ready, and sent
    need_write: int = 1  # its own arrival
    moment: int = 0
    groups: list[_Group] = field(default_factory=list)  # one for each of its ports
    lets_send: dict[int, _Message] = field(default_factory=dict)  # once this one is written
    lets_write: dict[int, _Message] = field(default_factory=dict)  # likewise
    lets_overwrite: dict[int, _Message] = field(default_factory=dict)  # once this one is out


@dataclass(slots=True, eq=False)
class _Group:
    """The messages of one step at one port; the next group may start when all of these are out."""

    step: int
    members: list[_Message] = field(default_factory=list)
    pending: int = 0
    after: _Group | None = None
    waits: bool = False
    last_out: tuple[float, int] = (0.0, NONE)


@dataclass(slots=True, eq=False)
class _Cell:
    writer: _Message | None = None
    readers: list[_Message] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Engine:
    """A rank's sends, or what it takes in and reduces: one at a time."""

    free_at: float = 0.0
    busy: bool = False
    last: _Message | None = None
    waiting: list[_Message] = field(default_factory=list)


class Core:
    """The state of one simulation."""

    def __init__(
        self,
        bandwidth: Floats,
        latency: Floats,
        store_and_forward: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.latency: list[float] = latency.tolist()
        self.store_and_forward = store_and_forward
        self.progress = progress
        self.route_of: dict[int, _Route] = {}
        self.all_messages: list[_Message] = []
        self.engines: list[_Engine] = []
        self.senders: list[_Engine] = []
        self.shared = SharedLinks(bandwidth.tolist())
        self.flows: dict[Flow, tuple[_Message, int]] = {}  # the message, and which hop of its route
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.actions: deque[tuple[Callable[[float], None], float]] = deque()
        self.touched_engines: dict[int, None] = {}
        self.touched_senders: dict[int, None] = {}
        self.moment = 0
        self.written = 0
        self.work = 0

    # What waits for what.

    def begin_job(
        self, ranks: int, chunks: int, nodes: int, place: Ints, gamma: Floats, unit: float, start: float, mark: bool
    ) -> None:
        """Begin a collective."""
        self.chunks, self.nodes, self.place = chunks, nodes, place.tolist()
        self.gamma, self.unit, self.job_start = gamma.tolist(), unit, start
        self.first_engine = len(self.engines)
        self.engines += [_Engine() for _ in range(ranks)]
        self.senders += [_Engine() for _ in range(ranks)]
        members: dict[int, int] = defaultdict(int)  # of several at one node, each has its own ports
        self.layer = []
        for node in self.place:
            self.layer.append(members[node])
            members[node] += 1
        self.ports: dict[tuple[int, int], _Group] = {}
        self.cells: dict[int, _Cell] = defaultdict(_Cell)
        self.cuts: list[Ints] | None = [np.arange(ranks) * (chunks + 1)] if mark else None

    def mark(self, src: Ints, dst: Ints, chunk: Ints, count: Ints) -> None:
        """Note where rows cut the vector."""
        assert self.cuts is not None
        for rank in (src, dst):
            self.cuts += [
                np.unique(rank * (self.chunks + 1) + chunk),
                np.unique(rank * (self.chunks + 1) + chunk + count),
            ]

    def ready(self, alone: bool, keep: int = 0) -> int:
        """Number the cells. An alone pass over `keep` steps keeps its messages."""
        if self.cuts is not None:
            self.begins = np.unique(np.concatenate(self.cuts))
            self.begins = self.begins[self.begins % (self.chunks + 1) < self.chunks]
        return 0

    def missing(self, src: Ints, dst: Ints) -> bytes:
        """Pairs of nodes without a route."""
        place = np.asarray(self.place, np.int64)
        keys = dict.fromkeys((place[src] * self.nodes + place[dst]).tolist())
        return np.array([key for key in keys if key not in self.route_of], np.int64).tobytes()

    def add_routes(
        self,
        key: Ints,
        offsets: Ints,
        leaving: Ints,
        links: npt.NDArray[np.int32],
        share: Floats,
        latency: Floats,
        alone: Floats,
        *cost: Floats,
    ) -> None:
        """Routes for pairs of nodes, with what a message costs its ends."""
        for at, one in enumerate(key.tolist()):
            crossed = slice(int(offsets[at]), int(offsets[at + 1]))
            crossing = links[crossed].tolist(), share[crossed].tolist()
            figures = (float(column[at]) for column in (latency, alone, *cost))
            self.route_of[one] = _Route(len(self.route_of), int(leaving[at]), *crossing, *figures)

    def alone(self, *columns: npt.NDArray[np.generic]) -> bool:
        """Nothing is done alone here."""
        return False

    def gather(self, *columns: npt.NDArray[np.generic]) -> None:
        """Take some whole steps."""
        step, src, dst, chunk, count = (np.asarray(column, np.int64) for column in columns[:5])
        reads, writes = self._cells(src, chunk, count), self._cells(dst, chunk, count)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        edges = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist(), len(rows)]
        for first, last in itertools.pairwise(edges):
            self._gather_step(rows[first:last], reads[first:last], writes[first:last])

    def _cells(self, rank: Ints, chunk: Ints, count: Ints) -> list[range]:
        base = rank * (self.chunks + 1) + chunk
        low, high = base, base + count
        if self.cuts is not None:
            low, high = np.searchsorted(self.begins, low), np.searchsorted(self.begins, high)
        return [range(*ends) for ends in zip(low.tolist(), high.tolist(), strict=True)]

    def _gather_step(self, rows: list[tuple[int, ...]], reads: list[range], writes: list[range]) -> None:
        made: dict[int, _Message] = {}
        written: dict[_Message, list[range]] = defaultdict(list)
        for row, read, write in zip(rows, reads, writes, strict=True):
            step, src, dst, _, _, weight, number, reduce, from_input = row
            message = made.get(number)
            if message is None:
                route = self.route_of[self.place[src] * self.nodes + self.place[dst]]
                engine, start = self.first_engine + dst, self.job_start
                message = _Message(len(self.all_messages), route, step, src, dst, engine, start, start)
                message.reduce_s = route.receive
                made[number] = message
                self.all_messages.append(message)
                self._join_ports(message)
            message.bytes += weight * self.unit
            message.reduce_s += weight * self.unit * self.gamma[dst] if reduce else 0.0
            message.reduces |= bool(reduce)
            for cell in () if from_input else read:
                writer = self.cells[cell].writer
                if writer is not None and message.number not in writer.lets_send:
                    writer.lets_send[message.number] = message
                    message.need_ready += 1
                self.cells[cell].readers.append(message)
            written[message].append(write)
        for message in sorted(made.values(), key=lambda one: one.src):
            for cell in (number for write in written[message] for number in write):
                self._overwrite(self.cells[cell], message)

    def _overwrite(self, cell: _Cell, message: _Message) -> None:
        writer = cell.writer
        if writer is not None and writer is not message and message.number not in writer.lets_write:
            writer.lets_write[message.number] = message
            message.need_write += 1
        for reader in cell.readers:
            if message.number not in reader.lets_overwrite:
                reader.lets_overwrite[message.number] = message
                message.need_write += 1
        cell.writer, cell.readers = message, []

    def _join_ports(self, message: _Message) -> None:
        for link in message.route.links[: message.route.leaving]:
            port = self.layer[message.src], link
            group = self.ports.get(port)
            if group is None or group.step != message.step:
                fresh = _Group(message.step, waits=group is not None)
                if group is not None:
                    group.after = fresh
                self.ports[port] = group = fresh
            message.need_start += group.waits
            message.groups.append(group)
            group.members.append(message)
            group.pending += 1

    def graph(self) -> tuple[dict[str, bytes], tuple[bytes, bytes], tuple[bytes, bytes]]:
        """What was gathered: messages, their edges once they are written, and those once they are out."""
        every = self.all_messages
        kinds = {"bytes": np.float64, "reduce_s": np.float64, "start": np.float64}
        names = (*kinds, "step", "src", "dst", "engine", "reduces", "need_ready", "need_write")
        found = {name: np.array([getattr(one, name) for one in every], kinds.get(name, np.int32)) for name in names}
        found["route"] = np.array([one.route.number for one in every], np.int32)
        written = [sorted(one.lets_send) + [~to for to in sorted(one.lets_write)] for one in every]
        out = [sorted(one.lets_overwrite) for one in every]
        return {name: column.tobytes() for name, column in found.items()}, _edges(written), _edges(out)

    # What happens.

    def run(self) -> None:
        """Run all that was gathered."""
        for message in self.all_messages:
            if not message.need_ready:
                self._later(message.start, message.number, lambda time, one=message: self._send(one, time))  # type: ignore[misc]
        while self.events or self.flows:
            self._one_moment()
            self.moment += 1
            self._worked(WORK_OF_MOMENT)
        assert self.written == len(self.all_messages)

    def _worked(self, work: int) -> None:
        self.work += work
        if self.work >= LONG_WORK:
            self.work = 0
            if self.progress is not None:
                self.progress(self.written, len(self.all_messages))

    def _one_moment(self) -> None:
        now = min([flow.finish for flow in self.flows] + [event[0] for event in self.events[:1]])
        limit = now + abs(now) * SAME_MOMENT
        while True:
            ended = sorted(
                (flow for flow in self.flows if flow.finish <= limit),
                key=lambda flow: (flow.finish, self.flows[flow][0].number),
            )
            for flow in ended:
                now = max(now, flow.finish)
                self._flow_ended(flow)
            more = bool(ended)
            while self.events and self.events[0][0] <= limit:
                time, _, happens = heapq.heappop(self.events)
                now, more = max(now, time), True
                self.actions.append((happens, time))
            while self.actions:
                happens, time = self.actions.popleft()
                happens(time)
                self._worked(1)
            if more:
                continue
            for number in self.touched_engines:
                self._begin_reduction(self.engines[number])
            self.touched_engines.clear()
            if self.events and self.events[0][0] <= limit:
                continue
            for number in self.touched_senders:
                self._begin_send(self.senders[number])
            self.touched_senders.clear()
            if not (self.events and self.events[0][0] <= limit):
                break
        self.shared.share(now)

    def _later(self, time: float, number: int, happens: Callable[[float], None]) -> None:
        heapq.heappush(self.events, _Event((time, number, happens)))

    def _send(self, message: _Message, time: float) -> None:
        if message.route.send_busy <= 0:
            self._may_start(message, time, message.ready_cause)
            return
        message.moment = self.moment
        number = self._sender_of(message)
        self.senders[number].waiting.append(message)
        self.touched_senders[number] = None

    def _sender_of(self, message: _Message) -> int:
        return message.engine - message.dst + message.src

    def _begin_send(self, sender: _Engine) -> None:
        message = _first_waiting(sender)
        if message is None:
            return
        if sender.free_at > message.ready and sender.last is not None:
            message.ready_cause = _cause(sender.last.number, BY_SENDER)
        begin = max(message.ready, sender.free_at)
        sender.busy, sender.last = True, message
        sender.free_at = begin + max(message.route.send, message.route.send_busy)
        self._later(begin + message.route.send, message.number, lambda at: self._sent(message, at))

    def _sent(self, message: _Message, time: float) -> None:
        number = self._sender_of(message)
        self.senders[number].busy = False
        self.touched_senders[number] = None
        self._may_start(message, time, message.ready_cause)

    def _started(self, message: _Message, time: float) -> None:
        if message.bytes > 0 and message.route.links:
            self._start_flow(message, 0, time)
            return
        self.actions.append((lambda at: self._out(message, at), time))
        self._later(time + message.route.latency, message.number, lambda at: self._arrived(message, at))

    def _out(self, message: _Message, time: float) -> None:
        message.out = time
        for other in message.lets_overwrite.values():
            self._may_write(other, time, _cause(message.number, BY_OUT))
        for group in message.groups:
            group.pending -= 1
            group.last_out = max(group.last_out, (time, message.number))
            if not group.pending and group.after is not None:
                for other in group.after.members:
                    self._may_start(other, group.last_out[0], _cause(group.last_out[1], BY_OUT))

    def _arrived(self, message: _Message, time: float) -> None:
        message.arrived = time
        self._may_write(message, time, NONE)

    def _may_send(self, message: _Message, time: float, cause: int) -> None:
        message.ready, message.ready_cause = max((message.ready, message.ready_cause), (time, cause))
        message.need_ready -= 1
        if not message.need_ready:
            if message.route.send_busy > 0:
                self.actions.append((lambda at: self._send(message, at), message.ready))
            else:
                self._may_start(message, message.ready, message.ready_cause)

    def _may_start(self, message: _Message, time: float, cause: int) -> None:
        """Of several causes at one time the highest is kept, so the result does not depend on their order."""
        message.start, message.start_cause = max((message.start, message.start_cause), (time, cause))
        message.need_start -= 1
        if not message.need_start:
            self.actions.append((lambda at: self._started(message, at), message.start))

    def _may_write(self, message: _Message, time: float, cause: int) -> None:
        """Likewise, but a message that arrives at that moment did not wait."""
        known = message.write_cause
        if time > message.written or (time == message.written and known != NONE and (cause == NONE or cause > known)):
            message.written, message.write_cause = time, cause
        message.need_write -= 1
        if not message.need_write:
            self.actions.append((lambda at: self._ready(message, at), message.written))

    def _ready(self, message: _Message, time: float) -> None:
        if message.reduce_s <= 0 and message.route.receive_busy <= 0:
            self._written(message, time)
            return
        message.moment = self.moment
        self.engines[message.engine].waiting.append(message)
        self.touched_engines[message.engine] = None

    def _begin_reduction(self, engine: _Engine) -> None:
        message = _first_waiting(engine)
        if message is None:
            return
        if engine.free_at > message.written and engine.last is not None:
            message.write_cause = _cause(engine.last.number, BY_WRITE)
        begin = max(message.written, engine.free_at)
        engine.busy, engine.last = True, message
        engine.free_at = begin + max(message.reduce_s, message.route.receive_busy)
        self._later(begin + message.reduce_s, message.number, lambda at: self._reduced(message, at))

    def _reduced(self, message: _Message, time: float) -> None:
        self.engines[message.engine].busy = False
        self.touched_engines[message.engine] = None
        self._written(message, time)

    def _written(self, message: _Message, time: float) -> None:
        message.written = time
        self.written += 1
        for other in message.lets_send.values():
            self._may_send(other, time, _cause(message.number, BY_WRITE))
        for other in message.lets_write.values():
            self._may_write(other, time, _cause(message.number, BY_WRITE))

    # Flows over links.

    def _start_flow(self, message: _Message, hop: int, time: float) -> None:
        route = message.route
        part = slice(hop, hop + 1) if self.store_and_forward else slice(None)
        flow = Flow(route.links[part], route.share[part], message.bytes, time)
        self.flows[flow] = message, hop
        self.shared.add(flow)

    def _flow_ended(self, flow: Flow) -> None:
        (message, hop), time = self.flows.pop(flow), flow.finish
        self.shared.remove(flow)
        message.bottleneck = flow.bottleneck
        if hop == 0:
            self.actions.append((lambda at: self._out(message, at), time))
        if not self.store_and_forward:
            self._later(time + message.route.latency, message.number, lambda at: self._arrived(message, at))
            return
        time += self.latency[message.route.links[hop]]
        if hop + 1 == len(message.route.links):
            self._later(time, message.number, lambda at: self._arrived(message, at))
        else:
            self._later(time, message.number, lambda at: self._start_flow(message, hop + 1, at))

    # What is left behind.

    def links(self) -> tuple[bytes, bytes]:
        """Bytes and busy seconds of each link."""
        return np.array(self.shared.bytes).tobytes(), np.array(self.shared.busy_s).tobytes()

    def finish(self) -> bytes:
        """When each rank was done, after an alone pass; here that is one without messages."""
        return np.full(len(self.place), self.job_start).tobytes()

    def messages(self) -> dict[str, bytes]:
        """What happened to each message."""
        numbers = ("step", "src", "dst", "engine", "bottleneck", "reduces")
        found = {name: np.array([getattr(one, name) for one in self.all_messages], np.int32) for name in numbers}
        found["route"] = np.array([one.route.number for one in self.all_messages], np.int32)
        times = ("bytes", "start", "out", "arrived", "written")
        found |= {name: np.array([getattr(one, name) for one in self.all_messages], np.float64) for name in times}
        causes = ("ready_cause", "start_cause", "write_cause")
        found |= {name: np.array([getattr(one, name) for one in self.all_messages], np.int64) for name in causes}
        return {name: column.tobytes() for name, column in found.items()}

    def routes(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The routes: offsets, links, lone bandwidths, costs."""
        routes = self.route_of.values()
        offsets = np.cumsum([0, *(len(route.links) for route in routes)])
        links = np.array([link for route in routes for link in route.links], np.int32)
        return (
            offsets.astype(np.int64).tobytes(),
            links.tobytes(),
            np.array([route.alone for route in routes]).tobytes(),
            np.array([(one.send, one.send_busy, one.receive, one.receive_busy) for one in routes]).tobytes(),
        )


def _cause(message: int, kind: int) -> int:
    return 3 * message + kind


def _first_waiting(engine: _Engine) -> _Message | None:
    """The message that an idle rank takes up: the one ready longest.

    Ties go by step, then by src; of what one rank sends, that to the next rank after it, around the end, is first.
    """
    if engine.busy or not engine.waiting:
        return None
    message = min(engine.waiting, key=lambda one: (one.moment, one.step, one.src, one.dst < one.src, one.dst))
    engine.waiting.remove(message)
    return message


def _edges(lists: list[list[int]]) -> tuple[bytes, bytes]:
    """Where each list begins, and what is in them all."""
    begins = np.cumsum([0, *(len(one) for one in lists)], dtype=np.int64)
    return begins.tobytes(), np.array([to for one in lists for to in one], np.int64).tobytes()


class _Event(tuple[float, int, Callable[[float], None]]):
    """Something that happens at a time; of two at the same time the one with the lower message number is first."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, tuple)
        return bool(self[:2] < other[:2])
