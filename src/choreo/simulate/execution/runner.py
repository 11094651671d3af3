"""Run a folded graph on a topology: place its members on devices, and choose a schedule for each call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.schedule import Schedule
from choreo.simulate.execution.classes import apart
from choreo.simulate.execution.folded import FoldedGraph
from choreo.simulate.execution.loop import Times, run_graph
from choreo.simulate.execution.network import Network, PacketNetwork
from choreo.simulate.execution.network.call import Asymmetry, Call, Members
from choreo.simulate.execution.rules import Rule
from choreo.simulate.packets.settings import Packets
from choreo.topology import Topology
from choreo.workload.execution import COLLECTIVES, NodeKind

__all__ = ["Calls", "Foldable", "Runner", "check_order"]

ORDERS = ("fifo", "lifo")

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def check_order(order: str, at_once: int) -> None:
    """Refuse an unknown order of collectives."""
    if order not in ORDERS:
        raise UsageError(f"order must be fifo or lifo, not {order!r:.40}")
    if at_once < 1:
        raise UsageError(f"a group runs at least one collective at a time, not {at_once}")


class Foldable(Protocol):
    """A workload whose ranks can be put into classes."""

    def classes(self, stands_in: Ints | None = None) -> Ints:
        """For each rank the first one that does the same, unless `stands_in` separates them."""

    def fold(self, stands_in: Ints) -> tuple[FoldedGraph, Floats] | None:
        """The graph of these classes and its nodes' durations; None if there are too many classes."""


@dataclass(slots=True)
class Runner:
    """The context of a workload's run: the device of each rank, the rule for algorithms, the order of calls."""

    topology: Topology
    devices: Ints
    rule: Rule
    newest_first: bool = False
    at_once: int = 1
    progress: Callable[[int, int], None] | None = None
    compiled: bool | None = None
    packets: Packets | None = None

    def run_folded(
        self, workload: Foldable, *, fold: bool = True
    ) -> tuple[FoldedGraph, Times, Network | PacketNetwork] | None:
        """Run a workload with the fewest exact classes of ranks; None if there are too many.

        Without `fold` each rank is a class.
        """
        stands_in = workload.classes() if fold else np.arange(len(self.devices))
        while (folded := workload.fold(stands_in)) is not None:
            try:
                return folded[0], *self.run(*folded)
            except Asymmetry as found:
                stands_in = workload.classes(apart(stands_in, *self._distinguish(found)))
        return None

    def run(self, folded: FoldedGraph, duration_s: Floats) -> tuple[Times, Network | PacketNetwork]:
        """Run all nodes. Raises Asymmetry if the ranks that one stands for finish a call at different times."""
        calls = Calls(folded, self.devices, self.rule)
        network: Network | PacketNetwork
        if self.packets is None:
            network = Network(self.topology, self.rule.gamma_s_per_byte, self.compiled, calls.messages)
        else:
            network = PacketNetwork(self.topology, self.packets, self.rule.gamma_s_per_byte, self.compiled)
        times = run_graph(
            folded,
            duration_s,
            network,
            calls.call,
            newest_first=self.newest_first,
            at_once=self.at_once,
            progress=self.progress,
        )
        return times, network

    def _distinguish(self, found: Asymmetry) -> tuple[Ints, Ints]:
        """The ranks that differ, and a label for each."""
        rank_of = np.full(self.topology.num_devices, -1, np.int64)
        rank_of[self.devices] = np.arange(len(self.devices))
        return rank_of[found.devices], found.labels


@dataclass(slots=True)
class Calls:
    """Makes the calls of a graph: each a schedule, a size and its members."""

    folded: FoldedGraph
    devices: Ints
    rule: Rule
    _placed: dict[Members, Members] = field(default_factory=dict)
    _schedules: dict[tuple[object, ...], Schedule] = field(default_factory=dict)
    _message: Schedule = field(default_factory=lambda: build("broadcast", "linear", 2))
    _alone: Schedule = field(default_factory=lambda: build("broadcast", "linear", 1))

    @property
    def messages(self) -> list[Members]:
        """The members of each message, repeated ones once."""
        calls = zip(self.folded.members, self.folded.channel, strict=True)
        sent = [members for members, channel in calls if channel < 0]
        return list(dict.fromkeys(map(self._on_devices, sent)))

    def bare(self, number: int) -> Call:
        """The call of this number, without an algorithm."""
        return Call(number, self._alone, 0.0, self._on_devices(self.folded.members[number]))

    def call(self, number: int) -> Call:
        """The call of this number."""
        graph, node = self.folded.graph, self.folded.first[number]
        size_bytes = float(graph.size_bytes[node])
        members = self._on_devices(self.folded.members[number])
        if graph.kind[node] == NodeKind.SEND:
            return Call(number, self._message, size_bytes, members, is_message=True)
        if members.devices.shape[1] == 1:
            return Call(number, self._alone, size_bytes, members)
        root = next(
            (at for at, node in enumerate(self.folded.nodes[number]) if graph.peer[node] == graph.rank[node]), -1
        )
        key = (members, COLLECTIVES[graph.collective[node]], size_bytes, root)
        if key not in self._schedules:
            self._schedules[key] = self._schedule(*key)
        return Call(number, self._schedules[key], size_bytes, members)

    def _schedule(self, members: Members, collective: str, size_bytes: float, root: int) -> Schedule:
        """The schedule of a collective, which must be the same in all groups."""
        places = (members.node == root).argmax(axis=1).tolist() if root >= 0 else [None] * len(members.devices)
        found = [
            self.rule.schedule(collective, group, size_bytes, place)
            for group, place in zip(members.groups, places, strict=True)
        ]
        differ = [one is not found[0] for one in found]
        if any(differ):
            raise Asymmetry(members.devices.ravel(), np.repeat(np.array(differ, np.int64), members.devices.shape[1]))
        return found[0]

    def _on_devices(self, members: Members) -> Members:
        if members not in self._placed:
            self._placed[members] = Members(self.devices[members.devices], members.node)
        return self._placed[members]
