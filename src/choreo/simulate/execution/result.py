"""What the simulation of a workload found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from choreo.errors import shown
from choreo.results import Result, result
from choreo.simulate.execution.loop import Times
from choreo.simulate.packets.report import PacketReport
from choreo.simulate.result import BusiestLink
from choreo.topology import Topology
from choreo.units import counted, format_time
from choreo.workload.execution import COLLECTIVES, ExecutionGraph, NodeKind

__all__ = ["CommunicationShare", "Leg", "WorkloadSimulation"]

Floats = npt.NDArray[np.float64]
MOST_RANKS = 64  # of which the JSON form gives the figures one by one
MOST_LEGS = 200
ROUNDING = 1e-9
PACKET_SETTINGS = ("mtu_bytes", "buffer_bytes", "lossless", "routing", "control", "recovery", "seed")


@dataclass(frozen=True, slots=True)
class CommunicationShare:
    """The calls of one collective in groups of one size; seconds and bytes are those of an average rank."""

    collective: str
    ranks: int
    calls: int
    size_bytes: float
    time_s: float
    waiting_s: float  # for the other ranks of the group
    exposed_s: float


@dataclass(frozen=True, slots=True)
class Leg:
    """A stretch of the critical path: a node from when it began, or from when what it waited for was done."""

    node: int
    rank: int
    name: str
    kind: str
    start_s: float
    end_s: float


@result(eq=False)
class WorkloadSimulation(Result):
    """One run of a workload on a topology.

    At each rank the time is divided into computing, communication that no computation hides, and idling.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "topology",
        "ranks",
        "nodes",
        "time_s",
        "compute_s",
        "communication_s",
        "exposed_s",
        "idle_s",
        "exposed",
    )

    graph: ExecutionGraph
    network: Topology
    times: Times
    link_bytes: Floats
    link_busy_s: Floats
    # By rank, the one whose nodes stand for its own; None if each stands for itself.
    stands_in: npt.NDArray[np.int64] | None = None
    packet_reports: tuple[PacketReport, ...] = ()  # of the calls that ran together, in order of their end

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """The figures of an average rank; with `details` those of each rank, link and leg of the critical path too."""
        found: dict[str, Any] = {name: self._plain(name) for name in self.columns if name != "exposed"}
        found["exposed"] = [
            {name: getattr(share, name) for name in CommunicationShare.__dataclass_fields__} for share in self.exposed
        ]
        if self.packet_reports:
            found["packets"] = self.packets
        if not details:
            return found
        by_rank = zip(*(column.tolist() for column in self.by_rank.values()), strict=True)
        rows = [dict(zip(("rank", *self.by_rank), (rank, *row), strict=True)) for rank, row in enumerate(by_rank)]
        legs = [{name: getattr(leg, name) for name in Leg.__dataclass_fields__} for leg in self.critical_path]
        found |= {
            "by_rank": rows[:MOST_RANKS],
            "critical_path": legs[-MOST_LEGS:],
            "links": self.busiest_links(MOST_LEGS),
        }
        left_out = {"by_rank": len(rows) - MOST_RANKS, "critical_path": len(legs) - MOST_LEGS}
        return found | {"left_out": {name: count for name, count in left_out.items() if count > 0}}

    def summary(self) -> str:
        """What ran where, and how long it took."""
        return (
            f"a workload of {counted(self.nodes, 'node')} over {counted(self.ranks, 'rank')} on "
            f"{shown(self.topology)}: {format_time(self.time_s)}"
        )

    @property
    def topology(self) -> str:
        """The name of the topology."""
        return self.network.name

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.graph.ranks

    @property
    def nodes(self) -> int:
        """How many nodes ran."""
        return int(self.copies[self.graph.rank].sum())

    @cached_property
    def copies(self) -> npt.NDArray[np.int64]:
        """How many ranks each rank stands for: those that do the same at the same time are kept once."""
        if self.stands_in is None:
            return np.ones(self.ranks, np.int64)
        return np.bincount(self.stands_in, minlength=self.ranks)

    @cached_property
    def time_s(self) -> float:
        """When everything was done."""
        return float(self.times.end_s.max(initial=0.0))

    @property
    def compute_s(self) -> float:
        """How long an average rank computed."""
        return float(self.by_rank["compute_s"].mean())

    @property
    def communication_s(self) -> float:
        """How long an average rank had communication in progress, hidden or not."""
        return float(self.by_rank["communication_s"].mean())

    @property
    def exposed_s(self) -> float:
        """How long an average rank did nothing but communicate, or wait for others in a collective."""
        return float(self.by_rank["exposed_s"].mean())

    @property
    def idle_s(self) -> float:
        """How long an average rank did neither."""
        return float(self.by_rank["idle_s"].mean())

    @cached_property
    def by_rank(self) -> dict[str, Floats]:
        """Those figures for each rank."""
        found = {name: np.zeros(self.ranks) for name in ("compute_s", "communication_s", "exposed_s", "idle_s")}
        for rank, nodes in self._nodes_by_rank.items():
            works, talks = self._intervals(nodes)
            found["compute_s"][rank] = _Covered(*works).total
            found["communication_s"][rank] = _Covered(*talks).total
        np.add.at(found["exposed_s"], self.graph.rank, self.exposed_by_node)
        idle_s = self.time_s - found["compute_s"] - found["exposed_s"]
        found["idle_s"][:] = np.where(idle_s > self.time_s * ROUNDING, idle_s, 0.0)
        return found if self.stands_in is None else {name: one[self.stands_in] for name, one in found.items()}

    @cached_property
    def exposed(self) -> list[CommunicationShare]:
        """What communication there was, by collective and size of group, the most exposed first."""
        graph, times = self.graph, self.times
        nodes = np.flatnonzero(graph.call >= 0)
        sizes = np.array([len(group) for group in graph.groups] or [0])
        messages = graph.kind[nodes] != NodeKind.COLLECTIVE
        name = np.where(messages, -graph.kind[nodes].astype(np.int64), graph.collective[nodes])
        members = np.where(messages, 2, sizes[np.maximum(graph.group[nodes], 0)])
        keys, key = np.unique(np.stack((name, members)), axis=1, return_inverse=True)
        key = np.ravel(key)
        columns = {
            "size_bytes": graph.size_bytes[nodes],
            "time_s": (times.end_s - np.maximum(times.start_s, times.ready_s))[nodes],
            "waiting_s": np.maximum(0.0, times.start_s - times.ready_s)[nodes],
            "exposed_s": self.exposed_by_node[nodes],
        }
        copies = self.copies[graph.rank[nodes]]
        calls = np.bincount(key, copies / np.where(messages, 1, members), minlength=keys.shape[1])
        sums = {
            name: np.bincount(key, values * copies, minlength=keys.shape[1]) / max(self.ranks, 1)
            for name, values in columns.items()
        }
        found = []
        for at, (number, ranks) in enumerate(keys.T.tolist()):
            label = COLLECTIVES[number] if number >= 0 else NodeKind(-number).name.lower()
            found.append(
                CommunicationShare(
                    label, ranks, round(calls[at]), **{name: float(one[at]) for name, one in sums.items()}
                )
            )
        return sorted(found, key=lambda share: -share.exposed_s)

    @property
    def packets(self) -> dict[str, Any] | None:
        """What happened to packets in all, as in the report of one collective; None if flows were simulated."""
        if not self.packet_reports:
            return None
        found = dict(self.packet_reports[0].to_dict())
        for report in self.packet_reports[1:]:
            for name, value in report.to_dict().items():
                if name in PACKET_SETTINGS:
                    continue
                most = name.startswith(("peak", "most"))
                found[name] = max(found[name], value) if most else found[name] + value
        return found

    @cached_property
    def utilisation(self) -> Floats:
        """The part of each link's capacity that was used."""
        most = self.network.links.bandwidth_bytes_per_s * self.time_s
        return np.divide(self.link_bytes, most, out=np.zeros_like(most), where=most > 0)

    @property
    def busiest_link(self) -> BusiestLink | None:
        """The link with the highest utilisation; None if nothing was sent."""
        if not self.link_bytes.any():
            return None
        link = int(np.argmax(self.utilisation))
        here, there = (
            self.network.node_name(int(ends[link])) for ends in (self.network.links.src, self.network.links.dst)
        )
        return BusiestLink(link, here, there, float(self.utilisation[link]), float(self.link_bytes[link]))

    @cached_property
    def critical_path(self) -> list[Leg]:
        """The chain of nodes that determined the finish time, in order of time."""
        times, graph = self.times, self.graph
        if not len(graph):
            return []
        node, until_s = int(np.argmax(times.end_s)), self.time_s
        legs: list[Leg] = []
        while node >= 0 and len(legs) <= len(graph):
            late = graph.kind[node] == NodeKind.RECV and times.end_s[node] <= times.ready_s[node]
            start_s = min(until_s, float(times.ready_s[node] if late else times.start_s[node]))
            kind = NodeKind(graph.kind[node]).name.lower()
            legs.append(Leg(node, int(graph.rank[node]), graph.name_of(node), kind, start_s, until_s))
            cause = int(times.cause[node])
            if cause >= 0 and graph.call[cause] == graph.call[node] >= 0:
                # The call began when that rank came to it: go on with what kept that rank.
                cause = int(times.cause[cause])
            node, until_s = cause, start_s
        return legs[::-1]

    def busiest_links(self, most: int) -> list[dict[str, Any]]:
        """The links with the highest utilisation, and what they carried."""
        links = self.network.links
        used = np.flatnonzero(self.link_bytes > 0)
        busiest = used[np.argsort(-self.utilisation[used], kind="stable")][:most]
        return [
            {
                "from": self.network.node_name(int(links.src[link])),
                "to": self.network.node_name(int(links.dst[link])),
                "bytes": float(self.link_bytes[link]),
                "busy_s": float(self.link_busy_s[link]),
                "utilisation": float(self.utilisation[link]),
            }
            for link in busiest.tolist()
        ]

    @cached_property
    def _nodes_by_rank(self) -> dict[int, npt.NDArray[np.int64]]:
        order = np.argsort(self.graph.rank, kind="stable")
        ranks, first = np.unique(self.graph.rank[order], return_index=True)
        return dict(zip(ranks.tolist(), np.split(order, first[1:]), strict=True)) if len(ranks) else {}

    def _intervals(self, nodes: npt.NDArray[np.int64]) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """Begin and end of what a rank computes, and of what it communicates."""
        kind, times = self.graph.kind[nodes], self.times
        works = nodes[(kind == NodeKind.COMPUTE) | (kind == NodeKind.MEMORY)]
        talks = nodes[self.graph.call[nodes] >= 0]
        return (times.start_s[works], times.end_s[works]), (times.ready_s[talks], times.end_s[talks])

    @cached_property
    def exposed_by_node(self) -> Floats:
        """How long each communication node was what its rank waited for. Of several at once the first is."""
        found = np.zeros(len(self.graph))
        for nodes in self._nodes_by_rank.values():
            works, (start, end) = self._intervals(nodes)
            talks = nodes[self.graph.call[nodes] >= 0]
            covered = _Covered(*works)
            order = np.lexsort((talks, start))
            start, end = start[order], end[order]
            before = np.concatenate((np.zeros(min(1, len(end))), np.maximum.accumulate(end)[:-1]))
            start = np.minimum(np.maximum(start, before), end)
            found[talks[order]] = end - start - (covered.until(end) - covered.until(start))
        return np.maximum(found, 0.0)


class _Covered:
    """The union of intervals."""

    def __init__(self, start: Floats, end: Floats) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        first = np.concatenate((np.ones(min(1, len(start)), bool), start[1:] > end[:-1]))
        last = np.concatenate((first[1:], np.ones(min(1, len(start)), bool)))
        self._edges = np.stack((start[first], end[last]), axis=1).ravel()
        lengths = end[last] - start[first]
        self.total = float(lengths.sum())
        self._before = np.repeat(np.concatenate((np.zeros(1), np.cumsum(lengths))), 2)[1:-1]

    def until(self, time_s: Floats) -> Floats:
        """How much of the time up to some moments is covered."""
        if not len(self._edges):
            return np.zeros_like(time_s)
        found: Floats = np.interp(time_s, self._edges, self._before)
        return found
