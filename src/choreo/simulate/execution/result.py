"""The result of simulating a workload."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from choreo.errors import shown
from choreo.results import Result, result
from choreo.simulate.execution.intervals import Covered, latest_before, sums_by_rank
from choreo.simulate.execution.loop import Times
from choreo.simulate.packets.report import PacketReport
from choreo.simulate.result import BusiestLink
from choreo.topology import Topology
from choreo.units import counted, format_time
from choreo.workload.execution import COLLECTIVES, ExecutionGraph, NodeKind

__all__ = ["CommunicationShare", "Leg", "WorkloadSimulation"]

Floats = npt.NDArray[np.float64]
MOST_RANKS = 64  # the JSON form gives at most this many one by one
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
    """An interval of the critical path: a node from when it began, or from when the node it waited for was done."""

    node: int
    rank: int
    name: str
    kind: str
    start_s: float
    end_s: float


@result(eq=False)
class WorkloadSimulation(Result):
    """The result of simulating a workload on a topology.

    The time of each rank is divided into compute, exposed communication, and idle time.
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
    # For each rank, the rank whose nodes stand for its own; None if each stands for itself.
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
        """The run in one line: workload, topology and time."""
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
        """The number of ranks."""
        return self.graph.ranks

    @property
    def nodes(self) -> int:
        """The number of nodes that ran."""
        return int(self.copies[self.graph.rank].sum())

    @cached_property
    def copies(self) -> npt.NDArray[np.int64]:
        """The number of ranks that each rank stands for: ranks that do the same at the same time are kept once."""
        if self.stands_in is None:
            return np.ones(self.ranks, np.int64)
        return np.bincount(self.stands_in, minlength=self.ranks)

    @cached_property
    def time_s(self) -> float:
        """The time at which everything was done."""
        return float(self.times.end_s.max(initial=0.0))

    @property
    def compute_s(self) -> float:
        """The time that an average rank computed."""
        return float(self.by_rank["compute_s"].mean())

    @property
    def communication_s(self) -> float:
        """The time that an average rank had communication in progress, hidden or exposed."""
        return float(self.by_rank["communication_s"].mean())

    @property
    def exposed_s(self) -> float:
        """The time that an average rank only communicated, or waited for others in a collective."""
        return float(self.by_rank["exposed_s"].mean())

    @property
    def idle_s(self) -> float:
        """The time that an average rank neither computed nor communicated."""
        return float(self.by_rank["idle_s"].mean())

    @cached_property
    def by_rank(self) -> dict[str, Floats]:
        """Those figures for each rank."""
        graph, times = self.graph, self.times
        talks = np.flatnonzero(graph.call >= 0)
        talking = Covered(graph.rank[talks], times.ready_s[talks], times.end_s[talks], self.ranks)
        found: dict[str, Floats] = {"compute_s": self._computing.total_s, "communication_s": talking.total_s}
        found["exposed_s"] = sums_by_rank(graph.rank, self.exposed_by_node, self.ranks)
        idle_s = self.time_s - found["compute_s"] - found["exposed_s"]
        found["idle_s"] = np.where(idle_s > self.time_s * ROUNDING, idle_s, 0.0)
        return found if self.stands_in is None else {name: column[self.stands_in] for name, column in found.items()}

    @cached_property
    def exposed(self) -> list[CommunicationShare]:
        """Communication by collective and group size, most exposed first."""
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
        sums["waiting_s"][sums["waiting_s"] <= self.time_s * ROUNDING] = 0.0
        found = []
        for at, (number, ranks) in enumerate(keys.T.tolist()):
            label = COLLECTIVES[number] if number >= 0 else NodeKind(-number).name.lower()
            found.append(
                CommunicationShare(
                    label, ranks, round(calls[at]), **{name: float(column[at]) for name, column in sums.items()}
                )
            )
        return sorted(found, key=lambda share: -share.exposed_s)

    @property
    def packets(self) -> dict[str, Any] | None:
        """Packet statistics of the whole run, as for one collective; None if flows were simulated."""
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
        """The fraction of each link's capacity that was used."""
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
                # The call began when that rank arrived: continue with what delayed that rank.
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
    def _computing(self) -> Covered:
        works = np.flatnonzero((self.graph.kind == NodeKind.COMPUTE) | (self.graph.kind == NodeKind.MEMORY))
        return Covered(self.graph.rank[works], self.times.start_s[works], self.times.end_s[works], self.ranks)

    @cached_property
    def exposed_by_node(self) -> Floats:
        """The time that each communication node was what its rank waited for; of several at once the first counts."""
        graph, times = self.graph, self.times
        found = np.zeros(len(graph))
        talks = np.flatnonzero(graph.call >= 0)
        talks = talks[np.lexsort((talks, times.ready_s[talks], graph.rank[talks]))]
        rank, end_s = graph.rank[talks], times.end_s[talks]
        start_s = np.minimum(np.maximum(times.ready_s[talks], latest_before(rank, end_s)), end_s)
        found[talks] = end_s - start_s - self._computing.between(rank, start_s, end_s)
        return np.maximum(found, 0.0)
