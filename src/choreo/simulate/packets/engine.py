"""Drive the packet simulator's inner loops: give them columns, and turn theirs into loads, messages and a report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from choreo.errors import DeadlockError, UsageError
from choreo.simulate.flows.engine import Core as FlowsCore
from choreo.simulate.flows.engine import Loads, Messages, Progress, costs_of
from choreo.simulate.jobs import Placed
from choreo.simulate.packets.deadlock import deadlocked
from choreo.simulate.packets.graph import PICO, Feed, feed_all, feed_by_steps, picoseconds
from choreo.simulate.packets.report import PacketReport, PortReport
from choreo.simulate.packets.routes import Hops, hops_between
from choreo.simulate.packets.settings import Packets
from choreo.topology import Topology
from choreo.units import size_of, time_of

__all__ = ["NEVER", "begin", "deadlock_of", "run_packets"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Columns = dict[str, npt.NDArray[np.generic]]

MOST_PACKETS = 1 << 31
NO_WINDOW = (1 << 32) - 2
PARTS = 256
NEVER = 1 << 62


class Core(Protocol):
    """The interface of the inner loops, compiled or in Python."""

    def add(self, columns: Columns, /) -> None: ...
    def run(self, step: int, until: int, /) -> tuple[int, bool]: ...
    def found(self) -> dict[str, bytes]: ...
    def history(self, link: int, /) -> tuple[int, bytes] | None: ...
    def waiting(self) -> list[tuple[int, int]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A simulation that has not run yet: its inner loops, its messages, their paths, and what they cost ranks."""

    core: Core
    feed: Feed
    forth: Hops
    costs: list[Floats]


def run_packets(
    jobs: Sequence[Placed],
    topology: Topology,
    settings: Packets,
    *,
    flows_core: Callable[..., FlowsCore],
    make_core: Callable[..., Core],
    progress: Progress | None,
    keep: bool = True,
) -> tuple[Loads, Messages | None, PacketReport]:
    """Send the messages of jobs as packets. Unless messages are kept, a long schedule is never held whole."""
    whole = keep or len(jobs) > 1 or jobs[0].schedule.switches > 0
    begun = begin(jobs, topology, settings, flows_core=flows_core, make_core=make_core, progress=progress, whole=whole)
    core = begun.core
    block: Columns = {}
    for opens, block in begun.feed.blocks:
        core.run(opens, NEVER)
        core.add(block)
    _, finished = core.run(NEVER, NEVER)
    if not finished:
        raise deadlock_of(core, topology)
    found = {name: np.frombuffer(column, np.int64) for name, column in core.found().items()}
    messages = _messages(topology, begun, block, found) if whole else None
    loads = Loads(found["bytes"].astype(np.float64), found["busy"] / PICO, _finish(jobs, found["finish"]))
    return loads, messages, _report(core, topology, settings, found)


def begin(
    jobs: Sequence[Placed],
    topology: Topology,
    settings: Packets,
    *,
    flows_core: Callable[..., FlowsCore],
    make_core: Callable[..., Core],
    progress: Progress | None,
    whole: bool,
) -> Begun:
    """Give the inner loops everything but the messages; `whole` makes one block of these, and keeps them."""
    feed = feed_all(jobs, topology, flows_core) if whole else feed_by_steps(jobs[0], topology, flows_core)
    if feed.most_bytes / settings.mtu + feed.count >= MOST_PACKETS:
        raise UsageError(
            f"between two ranks there are more than {MOST_PACKETS} packets of {settings.mtu} bytes; use larger ones"
        )
    picoseconds(feed.most_bytes * _ps_per_byte(topology) / PICO)
    spray = settings.routing == "spray"
    flow = (feed.job * topology.num_nodes + feed.start) * topology.num_nodes + feed.end
    forth = hops_between(topology, feed.start, feed.end, flow, spray=spray, seed=settings.seed)
    back = None
    if settings.acknowledges or settings.control == "dcqcn":
        back = hops_between(topology, feed.end, feed.start, ~flow, spray=spray, seed=settings.seed)
    columns = _settings(settings, topology, feed.count, keep=whole) | _network(topology, settings)
    columns |= _connections(topology, settings, forth, back)
    columns["layer"] = _layers(np.concatenate([job.node for job in jobs]))
    costs = costs_of(topology, feed.start, feed.end)
    for name, cost in zip(("conn_send", "conn_send_busy", "conn_receive", "conn_receive_busy"), costs, strict=True):
        columns[name] = picoseconds(cost)
    core = make_core({name: np.ascontiguousarray(column) for name, column in columns.items()}, progress)
    return Begun(core, feed, forth, costs)


def deadlock_of(core: Core, topology: Topology) -> DeadlockError:
    """The error for a simulation in which nothing happens any more."""
    found = {name: np.frombuffer(column, np.int64) for name, column in core.found().items()}
    paused = set(np.flatnonzero(found["held_up"]).tolist())
    return deadlocked(topology, paused, core.waiting(), int(found["totals"][-1]))


def _finish(jobs: Sequence[Placed], finish: Ints) -> tuple[Floats, ...]:
    """The time at which each member of each job was done: its last message was sent or written."""
    first = np.cumsum([0, *(len(job.node) for job in jobs)])
    return tuple(
        np.maximum(finish[low:high] / PICO, job.start_s)
        for job, (low, high) in zip(jobs, itertools.pairwise(first.tolist()), strict=True)
    )


def _layers(node: Ints) -> Ints:
    """The number of members before each at the same node."""
    order = np.argsort(node, kind="stable")
    begins = np.flatnonzero(np.diff(node[order], prepend=-1))
    layer = np.zeros(len(node), np.int64)
    layer[order] = np.arange(len(node)) - np.repeat(begins, np.diff(np.append(begins, len(node))))
    return layer


def _settings(settings: Packets, topology: Topology, messages: int, *, keep: bool) -> Columns:
    """The settings that `core/setup.h` reads, in its order."""
    control = settings.dcqcn
    timers = (control.alpha_timer_s, control.rate_timer_s, control.notify_every_s)
    numbers = [
        topology.num_nodes,
        settings.mtu,
        settings.buffer,
        settings.lossless,
        settings.routing == "spray",
        settings.sends_again == "selective_repeat",
        settings.acknowledges,
        settings.control == "dcqcn",
        settings.seed,
        settings.resume_below_bytes,
        settings.reorder_packets if settings.routing == "spray" else 0,
        settings.answer_bytes,
        *(max(1, int(picoseconds(time_of(timer, "timer")))) for timer in timers),
        int(size_of(control.byte_counter_bytes, "byte_counter_bytes")),
        control.fast_stages,
        messages,
        keep,
    ]
    figures = [
        settings.threshold,
        control.mark_most,
        control.gain,
        control.additive,
        control.hyper,
        control.least_rate,
    ]
    return {"numbers": np.array(numbers, np.int64), "figures": np.array(figures, np.float64)}


def _network(topology: Topology, settings: Packets) -> Columns:
    links, control = topology.links, settings.dcqcn
    rate = links.bandwidth_bytes_per_s.astype(np.float64)
    return {
        "link_src": links.src.astype(np.int64),
        "link_dst": links.dst.astype(np.int64),
        "link_latency": picoseconds(links.latency_s),
        "link_ps_per_byte": _ps_per_byte(topology),
        "link_mark_from": rate * time_of(control.mark_from_s, "mark_from_s"),
        "link_mark_all": rate * time_of(control.mark_all_s, "mark_all_s"),
    }


def _ps_per_byte(topology: Topology) -> Floats:
    """A link that carries nothing takes no time: no route uses it."""
    rate = topology.links.bandwidth_bytes_per_s.astype(np.float64)
    return np.divide(PICO, rate, out=np.zeros(len(rate)), where=rate > 0)


def _connections(topology: Topology, settings: Packets, forth: Hops, back: Hops | None) -> Columns:
    """The hops of all connections, forth and then back, and each one's ports, rate, time there and back, and window."""
    conns = len(forth.ways)
    latency = topology.links.latency_s * PICO
    ps_per_byte = _ps_per_byte(topology)
    ports = np.repeat(forth.offsets[:-1] - _before(forth.ways), forth.ways) + np.arange(int(forth.ways.sum()))
    rates = topology.links.bandwidth_bytes_per_s[forth.link[ports]]
    line = np.bincount(np.repeat(np.arange(conns), forth.ways), rates, conns).astype(np.float64)
    there_and_back = forth.sums(latency + settings.mtu * ps_per_byte)
    parts = [forth]
    first_back = ways_back = np.zeros(conns, np.int64)
    if back is not None:
        there_and_back = there_and_back + back.sums(latency + settings.answer_bytes * ps_per_byte)
        first_back, ways_back = back.offsets[:-1] + len(forth.link), back.ways
        parts.append(back)
    if settings.window_bytes is not None:
        window = np.full(conns, size_of(settings.window_bytes, "window_bytes") / settings.mtu)
    else:
        window = 2 * there_and_back / PICO * line / settings.mtu + 2
    shift = np.repeat([0, len(forth.link)][: len(parts)], [len(part.link) for part in parts])
    after = np.concatenate([part.after for part in parts])
    return {
        "conn_source": _before(forth.ways),
        "conn_sources": forth.ways,
        "conn_back": first_back,
        "conn_back_ways": ways_back,
        "conn_window": np.clip(np.ceil(window), 1, NO_WINDOW).astype(np.int64)
        if settings.acknowledges
        else np.full(conns, NO_WINDOW, np.int64),
        "conn_rtt": np.clip(there_and_back, 1000, 2.0**42).astype(np.int64),
        "conn_line": line,
        "source_at": ports,
        "hop_link": np.concatenate([part.link for part in parts]),
        "hop_next": np.where(after < 0, after, after + shift),
        "hop_ways": np.concatenate([part.ways_after for part in parts]),
        "hop_until": np.concatenate([part.until for part in parts]),
    }


def _before(counts: Ints) -> Ints:
    return np.cumsum(counts) - counts


def _messages(topology: Topology, begun: Begun, block: Columns, found: dict[str, Ints]) -> Messages:
    """The history of all messages, which were one block."""
    feed, forth, costs = begun.feed, begun.forth, begun.costs
    conn = block["conn"].astype(np.int64)
    size = block["bytes"].astype(np.float64)
    rate = np.full(len(topology.links) + 1, np.inf)
    rate[:-1] = topology.links.bandwidth_bytes_per_s
    slowest = np.full(len(forth.ways), np.inf)
    crossed = np.repeat(np.arange(len(forth.ways)), np.diff(forth.offsets))
    np.minimum.at(slowest, crossed, rate[forth.link] / forth.share)
    times = {name: found[name] / PICO for name in ("start", "out", "arrived", "written")}
    return Messages(
        job=feed.job[conn],
        step=block["step"].astype(np.int32),
        src=block["src"].astype(np.int32),
        dst=block["dst"].astype(np.int32),
        bytes=size,
        start_s=times["start"],
        out_s=times["out"],
        arrived_s=times["arrived"],
        written_s=times["written"],
        ready_cause=found["ready_cause"],
        start_cause=found["start_cause"],
        write_cause=found["write_cause"],
        bottleneck=np.full(len(size), -1, np.int32),
        reduces=block["reduces"].astype(np.bool_),
        route=conn.astype(np.int32),
        offsets=forth.offsets,
        links=forth.link.astype(np.int32),
        share=forth.share,
        alone_bytes_per_s=slowest,
        route_send_s=costs[0],
        route_receive_s=costs[2],
    )


def _report(core: Core, topology: Topology, settings: Packets, found: dict[str, Ints]) -> PacketReport:
    totals = dict(
        zip(
            (
                "now", "events", "packets", "retransmissions", "timeouts", "go_backs", "notifications",
                "most_packets_in_flight", "sent_bytes", "delivered_bytes", "dropped_bytes", "discarded_bytes", "left",
            ),
            found["totals"].tolist(),
            strict=True,
        )
    )  # fmt: skip
    del totals["now"], totals["left"]
    links, name = topology.links, topology.node_name
    ports = tuple(
        PortReport(
            link=link,
            src=name(int(links.src[link])),
            dst=name(int(links.dst[link])),
            packets=int(found["packets"][link]),
            peak_queue_bytes=int(found["peak"][link]),
            marks=int(found["marks"][link]),
            drops=int(found["drops"][link]),
            pauses=int(found["pauses"][link]),
            paused_s=float(found["paused"][link]) / PICO,
        )
        for link in np.flatnonzero(found["packets"] + found["drops"]).tolist()
    )
    part, queues = _queues(core, np.flatnonzero(found["peak"]).tolist())
    return PacketReport(
        settings=settings,
        **totals,
        ports=ports,
        peak_buffer_bytes_by_node=found["memory"],
        peak_headroom_bytes_by_link=found["headroom"],
        part_s=part,
        queues=queues,
    )


def _queues(core: Core, links: list[int]) -> tuple[float, dict[int, Ints]]:
    """The queues of some ports over time, the most bytes in each part; all parts are as long as the longest."""
    raw = {link: core.history(link) for link in links}
    kept = {
        link: (history[0], np.frombuffer(history[1], np.int64)) for link, history in raw.items() if history is not None
    }
    longest = max((shift for shift, _ in kept.values()), default=0)
    queues = {}
    for link, (shift, values) in kept.items():
        together = np.zeros(PARTS, np.int64)
        np.maximum.at(together, np.arange(PARTS) >> (longest - shift), values)
        queues[link] = together
    used = max((int(np.flatnonzero(values)[-1]) + 1 for values in queues.values() if values.any()), default=0)
    return (1 << longest) / PICO, {link: values[:used] for link, values in queues.items()}
