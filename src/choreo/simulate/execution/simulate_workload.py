"""Simulate a workload: its nodes, its collectives, and the network below them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.hardware import Device, get_device
from choreo.simulate.execution.call import Call
from choreo.simulate.execution.loop import run_graph
from choreo.simulate.execution.network import Network
from choreo.simulate.execution.result import WorkloadSimulation
from choreo.simulate.execution.rules import Rule, parse_rules
from choreo.topology import Topology, devices_of, get_topology
from choreo.units import counted, gamma_of
from choreo.workload.execution import COLLECTIVES, ExecutionGraph, NodeKind

__all__ = ["replay", "simulate_workload"]

ORDERS = ("fifo", "lifo")


def simulate_workload(
    graph: ExecutionGraph,
    topology: Topology | str | Path,
    *,
    algorithm: str = "suggested",
    placement: Sequence[int | str] | None = None,
    device: Device | str | None = None,
    gamma_s_per_byte: float | str = 0.0,
    order: str = "fifo",
    at_once: int = 1,
    progress: Callable[[int, int], None] | None = None,
    compiled: bool | None = None,
) -> WorkloadSimulation:
    """Run an execution graph on a topology: its step time, and what communication nothing hides.

    A collective begins when the last rank of its group has called it, and runs by an algorithm: one that `algorithm`
    names, for all or by collective (`all_reduce=ring,all_gather=direct`), the one that suits the network ("suggested"),
    the lowest price ("cheapest") or the shortest simulation ("fastest"). A group runs `at_once` collectives at a time,
    in `order` "fifo" or "lifo". A message leaves when it is sent. Computation takes its recorded time, or that of a
    `device` where the work is known.

    >>> from choreo.workload.execution import GraphBuilder
    >>> graph = GraphBuilder(4)
    >>> for rank in range(4):
    ...     backward = graph.compute(rank, "backward", 1e-3)
    ...     _ = graph.collective(rank, "all_reduce", "1MiB", range(4), after=[backward])
    >>> found = simulate_workload(graph.finish(), "ring(4, 50GB/s, 1us)")
    >>> f"{found.time_s * 1e3:.3f} ms, of which {found.exposed_s * 1e3:.3f} exposed"
    '1.037 ms, of which 0.037 exposed'
    """
    network = get_topology(topology)
    if order not in ORDERS:
        raise UsageError(f"order must be fifo or lifo, not {order!r:.40}")
    if at_once < 1:
        raise UsageError(f"a group runs at least one collective at a time, not {at_once}")
    devices = _devices(graph, network, placement)
    gamma = float(gamma_of(gamma_s_per_byte))
    graph.order  # noqa: B018 - a circle is refused before anything runs
    rule = Rule(network, *parse_rules(algorithm), gamma)
    calls = _Calls(graph, devices, rule)
    durations = durations_of(graph, get_device(device) if isinstance(device, str) else device)
    wire = Network(network, gamma, compiled)
    times = run_graph(
        graph, durations, wire, calls.call, newest_first=order == "lifo", at_once=at_once, progress=progress
    )
    return WorkloadSimulation(graph, network, times, wire.link_bytes, wire.link_busy_s)


def replay(graph: ExecutionGraph) -> WorkloadSimulation:
    """Run a graph with the recorded times of its collectives: what the program did where it was traced."""
    graph.order  # noqa: B018 - a circle is refused before anything runs
    recorded = np.zeros(graph.num_calls)
    nodes = np.flatnonzero((graph.call >= 0) & np.isfinite(graph.duration_s))
    np.maximum.at(recorded, graph.call[nodes], graph.duration_s[nodes])
    network = get_topology(f"switch({max(graph.ranks, 2)}, 1GB/s, 0s)")
    wire = _Recorded(network, recorded.tolist())
    calls = _Calls(graph, np.arange(graph.ranks), Rule(network))
    times = run_graph(graph, np.nan_to_num(durations_of(graph, None, known=False)), wire, calls.bare)
    return WorkloadSimulation(graph, network, times, wire.link_bytes, wire.link_busy_s)


class _Recorded(Network):
    """A network on which every call takes its recorded time."""

    def __init__(self, topology: Topology, recorded_s: Sequence[float]) -> None:
        super().__init__(topology)
        self._recorded_s = recorded_s

    def begin(
        self, calls: Sequence[Call], now_s: float, sent: Sequence[int] = ()
    ) -> list[tuple[Call, npt.NDArray[np.float64]]]:
        """Each call ends at all members at once."""
        return [(call, np.full(len(call.devices), now_s + self._recorded_s[call.number])) for call in calls]


def durations_of(graph: ExecutionGraph, device: Device | None, *, known: bool = True) -> npt.NDArray[np.float64]:
    """How long each node computes. A device's time is the roofline's: the longer of its work and of its bytes.

    If it is `known`, a node that has no time is refused.
    """
    found = graph.duration_s.copy()
    works = graph.kind <= NodeKind.MEMORY
    if device is not None:
        told = works & ((graph.flops > 0) | (graph.memory_bytes > 0))
        roofline = np.maximum(graph.flops / device.peak(), graph.memory_bytes / device.memory_bandwidth_bytes_per_s)
        found[told] = roofline[told]
    unknown = np.flatnonzero(works & ~np.isfinite(found))
    if len(unknown) and known:
        first = graph.described(int(unknown[0]))
        what = "name a device whose roofline gives it" if device is None else "its work is not known either"
        raise UsageError(f"nobody knows how long {first} takes ({counted(len(unknown), 'node')} in all); {what}")
    return np.where(works, found, 0.0)


def _devices(graph: ExecutionGraph, topology: Topology, placement: Sequence[int | str] | None) -> npt.NDArray[np.int64]:
    if placement is None:
        if graph.ranks > topology.num_devices:
            raise UsageError(
                f"the workload has {counted(graph.ranks, 'rank')}, and {topology.name} "
                f"{counted(topology.num_devices, 'device')}; take a larger topology"
            )
        return np.arange(graph.ranks)
    given = devices_of(topology, placement)
    if len(given) != graph.ranks or len(np.unique(given)) != len(given):
        raise UsageError(f"the placement must give each of the {counted(graph.ranks, 'rank')} a device of its own")
    return given


class _Calls:
    """Makes the calls of a graph: each a schedule, a size and its devices."""

    def __init__(self, graph: ExecutionGraph, devices: npt.NDArray[np.int64], rule: Rule) -> None:
        self._graph, self._rule = graph, rule
        first = np.full(graph.num_calls, -1, np.int64)
        nodes = np.flatnonzero((graph.call >= 0) & (graph.kind != NodeKind.RECV))
        first[graph.call[nodes[::-1]]] = nodes[::-1]
        self._first = first.tolist()
        self._devices = devices.tolist()
        self._groups = [tuple(self._devices[rank] for rank in group) for group in graph.groups]
        self._message = build("broadcast", "linear", 2)
        self._alone = build("broadcast", "linear", 1)

    def bare(self, number: int) -> Call:
        """The call of this number, without an algorithm."""
        node = self._first[number]
        if self._graph.kind[node] == NodeKind.SEND:
            return Call(number, self._message, 0.0, (0, 1))
        return Call(number, self._alone, 0.0, self._groups[int(self._graph.group[node])])

    def call(self, number: int) -> Call:
        """The call of this number."""
        graph, node = self._graph, self._first[number]
        size_bytes = float(graph.size_bytes[node])
        if graph.kind[node] == NodeKind.SEND:
            ends = self._devices[graph.rank[node]], self._devices[graph.peer[node]]
            return Call(number, self._message, size_bytes, ends, is_message=True)
        group = int(graph.group[node])
        devices = self._groups[group]
        if len(devices) == 1:
            return Call(number, self._alone, size_bytes, devices)
        collective = COLLECTIVES[graph.collective[node]]
        root = int(graph.peer[node])
        rooted = graph.groups[group].index(root) if root >= 0 else None
        return Call(number, self._rule.schedule(collective, devices, size_bytes, rooted), size_bytes, devices)
