"""Drive the simulator's inner loops: feed them rows, routes and jobs, and collect the columns of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.files import check_work
from choreo.schedule import Schedule, Transfers, message_of
from choreo.simulate.jobs import Placed
from choreo.topology import Routes, Topology

__all__ = [
    "Loads",
    "Messages",
    "Progress",
    "begin_job",
    "columns_of",
    "costs_of",
    "figures_of",
    "row_columns",
    "run_alone",
    "run_shared",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

# With no more places than this, finding chunks that always travel together gains nothing.
FEW_PLACES = 1 << 21
# The size of a stored message is about 200 bytes.
MOST_KEPT = 1 << 23
# What a message takes while it is simulated.
MESSAGE_BYTES = 600
# With more places than this, the table that finds them would not fit into memory.
MOST_PLACES = 1 << 35


# Where the list of each message begins, and the concatenated lists.
Lists: TypeAlias = tuple[bytes, bytes]


class Core(Protocol):
    """The interface of the inner loops, compiled or in Python."""

    def begin_job(
        self, ranks: int, chunks: int, nodes: int, place: Ints, gamma: Floats, unit: float, start: float, mark: bool, /
    ) -> None: ...
    def mark(self, src: Ints, dst: Ints, chunk: Ints, count: Ints, /) -> None: ...
    def ready(self, alone: bool, keep: int = 0, /) -> int: ...
    def missing(self, src: Ints, dst: Ints, /) -> bytes: ...
    def add_routes(
        self,
        key: Ints,
        offsets: Ints,
        leaving: Ints,
        links: npt.NDArray[np.int32],
        share: Floats,
        latency: Floats,
        alone: Floats,
        send: Floats,
        send_busy: Floats,
        receive: Floats,
        receive_busy: Floats,
        /,
    ) -> None: ...
    def alone(self, *columns: npt.NDArray[np.generic]) -> bool: ...
    def gather(self, *columns: npt.NDArray[np.generic]) -> None: ...
    def graph(self, *columns: npt.NDArray[np.generic]) -> tuple[dict[str, bytes], Lists, Lists, Lists]: ...
    def reach(
        self, columns: tuple[npt.NDArray[np.generic], ...], in_port_order: bool, one_port: bool, /
    ) -> tuple[int, int]: ...
    def run(self) -> None: ...
    def advance(self, until: float, /) -> tuple[float, bytes, bytes]: ...
    def stop(self, now: float, /) -> tuple[bytes, bytes]: ...
    def links(self) -> tuple[bytes, bytes]: ...
    def finish(self) -> bytes: ...
    def messages(self) -> dict[str, bytes]: ...
    def routes(self) -> tuple[bytes, bytes, bytes, bytes, bytes]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """The results of a run by link and by member: bytes carried, seconds busy, and when each member was done."""

    link_bytes: Floats
    link_busy_s: Floats
    rank_finish_s: tuple[Floats, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The history of every message, as columns.

    `ready_cause`, `start_cause` and `write_cause` say what a message waited for last before it could be sent, started
    and written: 3 m if for message m to be written, 3 m + 1 if for it to leave its port, 3 m + 2 if for the sender that
    was busy with it, -1 for nothing (a write: for nothing but its own arrival). `bottleneck` is the link that limited
    it last. `reduces` says whether it is reduced at its destination, at least in part. Message i crossed
    links[offsets[route[i]] : offsets[route[i] + 1]], each with its share of the bytes, and would have been sent at
    alone_bytes_per_s[route[i]] without contention. `route_send_s` and `route_receive_s` are the costs of a message on
    each route to its sender and receiver.
    """

    job: Ints
    step: npt.NDArray[np.int32]
    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    bytes: Floats
    start_s: Floats
    out_s: Floats
    arrived_s: Floats
    written_s: Floats
    ready_cause: Ints | npt.NDArray[np.int32]
    start_cause: Ints | npt.NDArray[np.int32]
    write_cause: Ints | npt.NDArray[np.int32]
    bottleneck: npt.NDArray[np.int32]
    reduces: npt.NDArray[np.bool_]
    route: npt.NDArray[np.int32]
    offsets: Ints
    links: npt.NDArray[np.int32]
    share: Floats
    alone_bytes_per_s: Floats
    route_send_s: Floats
    route_receive_s: Floats

    def __len__(self) -> int:
        return len(self.step)

    def send_s(self, some: Ints | None = None) -> Floats:
        """The cost of messages, all or some, to their senders."""
        return self.route_send_s[self.route if some is None else self.route[some]]

    def receive_s(self, some: Ints | None = None) -> Floats:
        """The cost of messages, all or some, to their receivers."""
        return self.route_receive_s[self.route if some is None else self.route[some]]

    def alone_s(self, some: Ints | None = None) -> Floats:
        """The time that messages, all or some, would have taken to send without contention."""
        which = slice(None) if some is None else some
        with np.errstate(over="ignore"):  # a run that takes for ever is refused by its time
            found: Floats = self.bytes[which] / self.alone_bytes_per_s[self.route[which]]
        return found

    def links_of(self, message: int) -> npt.NDArray[np.int32]:
        """The links a message crossed."""
        route = self.route[message]
        return self.links[self.offsets[route] : self.offsets[route + 1]]


def run_alone(
    job: Placed,
    topology: Topology,
    make_core: Callable[..., Core],
    progress: Progress | None = None,
    *,
    keep: bool = False,
) -> tuple[Loads, Messages | None] | None:
    """One pass over the steps, as long as no two messages meet; None if they do. Messages are included if kept."""
    core = make_core(*figures_of(topology), False, None)
    begin_job(core, job, topology, alone=True, keep=keep)
    transfers = 0
    for rows in job.schedule.blocks():
        transfers += len(rows)
        if keep and transfers > MOST_KEPT:
            raise UsageError(
                f"times by message are kept for at most {MOST_KEPT} transfers, and {job.schedule.algorithm} over "
                f"{job.schedule.ranks} ranks has more; use fewer ranks"
            )
        _check_at_once(job.schedule, int(np.bincount(rows.step - rows.step[0]).max()), "messages")
        if not core.alone(*columns_of(core, job, topology, rows, in_order=job.schedule.receive_in_order)):
            return None
        if progress is not None:
            progress(int(rows.step[-1]) + 1, job.schedule.num_steps)
    sums = [np.frombuffer(values, np.float64) for values in core.links()]
    loads = Loads(sums[0], sums[1], (np.frombuffer(core.finish(), np.float64),))
    return loads, _messages(core, (job,), None) if keep else None


def run_shared(
    jobs: Sequence[Placed],
    topology: Topology,
    make_core: Callable[..., Core],
    *,
    store_and_forward: bool,
    progress: Progress | None,
) -> tuple[Loads, Messages]:
    """All messages at once, sharing links."""
    core = make_core(*figures_of(topology), store_and_forward, progress)
    # Routes are shared by all jobs, and a stored message reaches its receiver's port much later.
    in_order = not store_and_forward and all(job.schedule.receive_in_order for job in jobs)
    for job in jobs:
        begin_job(core, job, topology, alone=False, keep=True)
        transfers, steps = 0, job.schedule.num_steps
        for rows in job.schedule.blocks():
            transfers += len(rows)
            _check_at_once(job.schedule, transfers * steps // (int(rows.step[-1]) + 1), "messages")
            core.gather(*columns_of(core, job, topology, rows, in_order=in_order))
    core.run()
    messages = _messages(core, jobs, topology.links.bandwidth_bytes_per_s if store_and_forward else None)
    sums = [np.frombuffer(values, np.float64) for values in core.links()]
    finish = tuple(_finish(job, messages, number) for number, job in enumerate(jobs))
    return Loads(sums[0], sums[1], finish), messages


def _check_at_once(schedule: Schedule, many: int, what: str) -> None:
    """Refuse so many messages or chunks at once, if a file asks for them."""
    if schedule.file_bytes is not None:
        who = f"{schedule.collective} by {schedule.algorithm} over {schedule.ranks} ranks"
        check_work(f"{who}, {many} {what} at once,", many * MESSAGE_BYTES, schedule.file_bytes)


def figures_of(topology: Topology) -> tuple[Floats, Floats]:
    """Bandwidth and latency of the links as floats; a user may have given integers."""
    figures = topology.links.bandwidth_bytes_per_s, topology.links.latency_s
    return np.ascontiguousarray(figures[0], np.float64), np.ascontiguousarray(figures[1], np.float64)


def begin_job(core: Core, job: Placed, topology: Topology, *, alone: bool, keep: bool) -> None:
    """Tell the inner loops about a job, and where its rows cut the vector."""
    schedule = job.schedule
    members = len(job.node)
    _check_at_once(schedule, schedule.num_chunks, "chunks")
    mark = not _takes_every_place(schedule, members)
    if mark and members * schedule.num_chunks > MOST_PLACES:
        raise UsageError(
            f"{schedule.collective} over {schedule.ranks} ranks in {schedule.num_chunks} chunks is too large to "
            "simulate; use fewer ranks or chunks"
        )
    nodes = topology.num_nodes
    core.begin_job(
        members, schedule.num_chunks, nodes, job.node, job.gamma_s_per_byte, job.unit_bytes, job.start_s, mark
    )
    if mark:
        for rows in schedule.blocks():
            core.mark(*map(_ints, (rows.src, rows.dst, rows.chunk, rows.count)))
    core.ready(alone, schedule.num_steps if keep else 0)


def _takes_every_place(schedule: Schedule, members: int) -> bool:
    """Whether to track every chunk of every rank separately, without first finding those that always travel together.

    Few places are not worth the search; nor are schedules that move single chunks to most places.
    """
    places = members * schedule.num_chunks
    if places <= FEW_PLACES:
        return True
    first = next(iter(schedule.blocks()), None)
    if first is None or first.count.max() > 1:
        return False
    steps = int(first.step[-1] - first.step[0]) + 1
    return len(first) // steps * schedule.num_steps >= places // 4


def columns_of(
    core: Core, job: Placed, topology: Topology, rows: Transfers, *, in_order: bool
) -> tuple[npt.NDArray[np.generic], ...]:
    """The rows as the inner loops take them, after the routes that they need."""
    columns = row_columns(job, rows)
    missing = np.frombuffer(core.missing(*columns[1:3]), np.int64)
    if len(missing):
        start, end = np.divmod(missing, topology.num_nodes)
        routes = topology.routes(start, end)
        ports, order = _ports(topology, start, end, routes, in_order=in_order)
        ways = routes.offsets, ports, routes.links[order], routes.share[order]
        figures = routes.latency_s, routes.bandwidth_bytes_per_s
        core.add_routes(missing, *ways, *figures, *_costs(topology, start, end, routes))
    return columns


def row_columns(job: Placed, rows: Transfers) -> tuple[Any, ...]:
    """The columns of some rows, in the order of the inner loops."""
    ints = (rows.step, rows.src, rows.dst, rows.chunk, rows.count, job.schedule.weights_of(rows), message_of(rows))
    flags = (np.ascontiguousarray(column, np.bool_) for column in (rows.reduce, rows.from_input))
    return (*map(_ints, ints), *flags)


def _ports(topology: Topology, start: Ints, end: Ints, routes: Routes, *, in_order: bool) -> tuple[Ints, Ints]:
    """The number of links of each route that take messages in step order, and the route order in which these come
    first.

    They are the links that leave the first node, and with `in_order` those that enter the last as well.
    """
    route = np.repeat(np.arange(len(start)), np.diff(routes.offsets))
    is_port = topology.links.src[routes.links] == start[route]
    order = np.arange(len(route))
    if in_order:
        is_port |= topology.links.dst[routes.links] == end[route]
        order = np.lexsort((order, ~is_port, route))
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(is_port)))
    return np.diff(before[routes.offsets]), order


def costs_of(topology: Topology, start: Ints, end: Ints) -> list[Floats]:
    """The cost of a message between two nodes at its ends: see `_costs`."""
    if not (topology.links.overhead_s.any() or topology.links.gap_s.any()):
        return [np.zeros(len(start))] * 4
    return _costs(topology, start, end, topology.routes(start, end))


def _costs(topology: Topology, start: Ints, end: Ints, routes: Routes) -> list[Floats]:
    """The cost of a message to its sender and its receiver: until it is sent or received, and until the next may be.

    A slow device takes longer. A switch that adds or copies does so for free on its own links.
    """
    busy_s = np.maximum(routes.overhead_s, routes.gap_s)
    if not busy_s.any():
        return [busy_s] * 4
    slowdown = np.concatenate((topology.slowdown, np.ones(topology.num_switches)))
    hops = np.diff(routes.offsets)
    route = np.repeat(np.arange(len(start)), hops)
    leaves = topology.links.src[routes.links] == start[route]
    one_hop = np.bincount(route[leaves], minlength=len(start)) == hops
    costs = []
    for node in (start, end):
        times = np.where((node >= topology.num_devices) & one_hop, 0.0, slowdown[node])
        costs += [routes.overhead_s * times, busy_s * times]
    return costs


def _ints(column: Ints) -> Ints:
    return np.ascontiguousarray(column, np.int64)


def _messages(core: Core, jobs: Sequence[Placed], first_link: Floats | None) -> Messages:
    """The columns; where messages are stored, `first_link` has the bandwidths that let them out."""
    kinds = {"f": np.float64, "i": np.int32}
    columns = {
        "bytes": "f",
        "start": "f",
        "out": "f",
        "arrived": "f",
        "written": "f",
        "ready_cause": "i",
        "start_cause": "i",
        "write_cause": "i",
        "step": "i",
        "src": "i",
        "dst": "i",
        "route": "i",
        "bottleneck": "i",
        "reduces": "i",
    }
    raw = core.messages()
    found = {name: np.frombuffer(raw[name], kinds[kind]) for name, kind in columns.items()}
    routes = core.routes()
    offsets, links = np.frombuffer(routes[0], np.int64), np.frombuffer(routes[1], np.int32)
    share, alone, costs = (np.frombuffer(column, np.float64) for column in routes[2:])
    cost = costs.reshape(-1, 4)
    if first_link is not None:
        crosses = np.diff(offsets) > 0
        alone = np.full(len(alone), np.inf)
        alone[crosses] = first_link[links[offsets[:-1][crosses]]]
    count = len(found["bytes"])
    job: Ints = np.broadcast_to(0, count)
    if len(jobs) > 1:  # ranks are numbered across jobs: that tells whose message it was
        ends = np.cumsum([len(job.node) for job in jobs])
        job = np.searchsorted(ends, np.frombuffer(raw["engine"], np.int32), side="right")
    return Messages(
        job=job,
        step=found["step"],
        src=found["src"],
        dst=found["dst"],
        bytes=found["bytes"],
        start_s=found["start"],
        out_s=found["out"],
        arrived_s=found["arrived"],
        written_s=found["written"],
        ready_cause=found["ready_cause"],
        start_cause=found["start_cause"],
        write_cause=found["write_cause"],
        bottleneck=found["bottleneck"],
        reduces=found["reduces"].astype(np.bool_),
        route=found["route"],
        offsets=offsets,
        links=links,
        share=share,
        alone_bytes_per_s=alone,
        route_send_s=cost[:, 0],
        route_receive_s=cost[:, 2],
    )


def _finish(job: Placed, messages: Messages, number: int) -> Floats:
    """The time at which each member of a job was done: its last message was sent or written."""
    done = np.full(len(job.node), job.start_s)
    own = messages.job == number
    np.maximum.at(done, messages.src[own], messages.out_s[own])
    np.maximum.at(done, messages.dst[own], messages.written_s[own])
    return done
