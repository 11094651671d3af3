"""Turn the rows of a schedule into messages, and find what each of them waits for."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt

from choreo.simulate.flows.fair_shares import Flow, SharedLinks
from choreo.simulate.flows.twin.records import Cell, Engine, Group, Message, Route

__all__ = ["MessageGraph"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Lists = tuple[bytes, bytes]
Reach = tuple[int, int]


class MessageGraph:
    """The messages of one simulation, and what each waits for."""

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
        self.route_of: dict[int, Route] = {}
        self.all_messages: list[Message] = []
        self.number_of: list[int] = []  # the number under which each message was given
        self.engines: list[Engine] = []
        self.senders: list[Engine] = []
        self.shared = SharedLinks(bandwidth.tolist())
        self.flows: dict[Flow, tuple[Message, int]] = {}  # the message, and which hop of its route
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.actions: deque[tuple[Callable[[float], None], float]] = deque()
        self.touched_engines: dict[int, None] = {}
        self.touched_senders: dict[int, None] = {}
        self.finished: list[int] = []  # engines of ranks that have done all, since it was last asked
        self.begun_messages = self.begun_engines = 0
        self.moment = 0
        self.written = 0
        self.work = 0

    def begin_job(
        self, ranks: int, chunks: int, nodes: int, place: Ints, gamma: Floats, unit: float, start: float, mark: bool
    ) -> None:
        """Begin a collective."""
        self.chunks, self.nodes, self.place = chunks, nodes, place.tolist()
        self.gamma, self.unit, self.job_start = gamma.tolist(), unit, start
        self.first_engine = len(self.engines)
        self.engines += [Engine(done=start) for _ in range(ranks)]
        self.senders += [Engine() for _ in range(ranks)]
        members: dict[int, int] = defaultdict(int)  # of several at one node, each has its own ports
        self.layer = []
        for node in self.place:
            self.layer.append(members[node])
            members[node] += 1
        self.ports: dict[tuple[int, int], Group] = {}
        self.cells: dict[int, Cell] = defaultdict(Cell)
        self.step_of: dict[int, int] = {}  # the step that wrote a cell last, where only steps are asked for
        self.sent: dict[Hashable, int] = {}  # the step in which a rank sent last, or sent to a peer
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
        for at, ends in enumerate(key.tolist()):
            crossed = slice(int(offsets[at]), int(offsets[at + 1]))
            crossing = links[crossed].tolist(), share[crossed].tolist()
            figures = (float(column[at]) for column in (latency, alone, *cost))
            self.route_of[ends] = Route(len(self.route_of), int(leaving[at]), *crossing, *figures)

    def alone(self, *columns: npt.NDArray[np.generic]) -> bool:
        """Nothing is simulated alone here."""
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
        messages: dict[int, Message] = {}
        written: dict[Message, list[range]] = defaultdict(list)
        for row, read, write in zip(rows, reads, writes, strict=True):
            step, src, dst, _, _, weight, number, reduce, from_input = row
            message = messages.get(number)
            if message is None:
                route = self.route_of[self.place[src] * self.nodes + self.place[dst]]
                engine, start = self.first_engine + dst, self.job_start
                message = Message(len(self.all_messages), route, step, src, dst, engine, start, start)
                message.reduce_s = route.receive
                messages[number] = message
                self.all_messages.append(message)
                for member in (src, dst):
                    self.engines[self.first_engine + member].left += 1
                self._join_ports(message)
            message.bytes += weight * self.unit
            message.reduce_s += weight * self.unit * self.gamma[dst] if reduce else 0.0
            message.reduces |= bool(reduce)
            for cell in () if from_input else read:
                writer = self.cells[cell].writer
                if writer is not None and message.number not in writer.lets_send:
                    writer.lets_send[message.number] = message
                    message.waits[0].append(writer.number)
                    message.need_ready += 1
                self.cells[cell].readers.append(message)
            written[message].append(write)
        for message in sorted(messages.values(), key=lambda message: message.src):
            for cell in (number for write in written[message] for number in write):
                self._overwrite(self.cells[cell], message)

    def _overwrite(self, cell: Cell, message: Message) -> None:
        writer = cell.writer
        if writer is not None and writer is not message and message.number not in writer.lets_write:
            writer.lets_write[message.number] = message
            message.waits[1].append(writer.number)
            message.need_write += 1
        for reader in cell.readers:
            if message.number not in reader.lets_overwrite:
                reader.lets_overwrite[message.number] = message
                message.waits[2].append(reader.number)
                message.need_write += 1
        cell.writer, cell.readers = message, []

    def _join_ports(self, message: Message) -> None:
        for link in message.route.links[: message.route.leaving]:
            port = self.layer[message.src], link
            group = self.ports.get(port)
            if group is None or group.step != message.step:
                fresh = Group(message.step, waits=group is not None)
                if group is not None:
                    group.after = fresh
                self.ports[port] = group = fresh
            message.need_start += group.waits
            message.groups.append(group)
            group.members.append(message)
            group.pending += 1

    def graph(self, *columns: npt.NDArray[np.generic]) -> tuple[dict[str, bytes], Lists, Lists, Lists]:
        """Some whole steps as columns: messages, and for each what it waits for: to be sent, written, overwrite."""
        before = len(self.all_messages)
        self.gather(*columns)
        # By sender, and of each sender's the one to the next rank after it first, around the end.
        every = sorted(
            self.all_messages[before:],
            key=lambda message: (message.step, message.src, message.dst < message.src, message.dst),
        )
        self.number_of += [0] * len(every)
        for number, sent in enumerate(every, before):
            self.number_of[sent.number] = number
        kinds = {"bytes": np.float64, "reduce_s": np.float64, "start": np.float64}
        names = (*kinds, "step", "src", "dst", "engine", "reduces")
        found = {
            name: np.array([getattr(message, name) for message in every], kinds.get(name, np.int32)) for name in names
        }
        found["route"] = np.array([message.route.number for message in every], np.int32)
        send, write, overwrite = (
            _lists([sorted(self.number_of[other] for other in message.waits[kind]) for message in every])
            for kind in range(3)
        )
        return {name: column.tobytes() for name, column in found.items()}, send, write, overwrite

    def reach(self, columns: tuple[npt.NDArray[np.generic], ...], in_port_order: bool, one_port: bool) -> Reach:
        """The number of messages in some steps, and a step of which one must have started before any of them can."""
        src, dst, chunk, count = (np.asarray(column, np.int64) for column in columns[1:5])
        reads, writes = self._cells(src, chunk, count), self._cells(dst, chunk, count)
        rows = list(zip(*(column.tolist() for column in columns), reads, writes, strict=True))
        messages, least = 0, sys.maxsize
        for now, of_step in itertools.groupby(rows, key=lambda row: row[0]):
            latest: dict[int, int] = {}
            wrote: list[range] = []
            sends: set[Hashable] = set()
            for _, a, b, _, _, _, number, _, from_input, read, write in of_step:
                port = a if one_port else (a, b)
                sent = self.sent.get(port, -1) if in_port_order else -1
                written = max((self.step_of.get(cell, -1) for cell in (() if from_input else read)), default=-1)
                latest[number] = max(latest.get(number, -1), sent, written)
                wrote.append(write)
                sends.add(port)
            self.step_of.update((cell, now) for write in wrote for cell in write)
            self.sent.update((port, now) for port in sends)
            messages, least = messages + len(latest), min(least, *latest.values())
        return messages, least


def _lists(lists: list[list[int]]) -> Lists:
    """The beginning of each list, and the content of all of them."""
    begins = np.cumsum([0, *(len(numbers) for numbers in lists)], dtype=np.int64)
    return begins.tobytes(), np.array([to for numbers in lists for to in numbers], np.int64).tobytes()
