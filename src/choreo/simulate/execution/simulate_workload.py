"""Simulate a workload: its nodes, its collectives, and the network below them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from choreo.errors import TraceError, UsageError
from choreo.hardware import Device, get_device
from choreo.simulate.execution.durations import durations_of
from choreo.simulate.execution.folded import FoldedGraph, unfolded
from choreo.simulate.execution.folding import Folding
from choreo.simulate.execution.loop import Times, run_graph
from choreo.simulate.execution.network import Network
from choreo.simulate.execution.network.call import Call
from choreo.simulate.execution.network.network import Ends
from choreo.simulate.execution.result import WorkloadSimulation
from choreo.simulate.execution.rules import Rule, parse_rules
from choreo.simulate.execution.runner import Calls, Runner, check_order
from choreo.simulate.packets.settings import Packets
from choreo.topology import Topology, devices_of, get_topology
from choreo.units import counted, gamma_of
from choreo.workload.execution import ExecutionGraph

__all__ = ["replay", "simulate_workload"]


def simulate_workload(
    graph: ExecutionGraph,
    topology: Topology | str | Path,
    *,
    algorithm: str = "suggested",
    placement: Sequence[int | str] | None = None,
    device: Device | str | None = None,
    kernels: str = "roofline",
    gamma_s_per_byte: float | str = 0.0,
    order: str = "fifo",
    at_once: int = 1,
    packets: Packets | None = None,
    fold: bool = True,
    progress: Callable[[int, int], None] | None = None,
    compiled: bool | None = None,
) -> WorkloadSimulation:
    """Simulate an execution graph on a topology: its step time, and the communication that is exposed.

    A collective begins when the last rank of its group has called it. `algorithm` says which algorithm runs it: a name,
    for all or by collective (`all_reduce=ring,all_gather=direct`), the one that suits the network ("suggested"), the
    lowest price ("cheapest"), the shortest simulation ("fastest") or NCCL's choice ("nccl"). A group runs `at_once`
    collectives at a time, in `order` "fifo" or "lifo". A message leaves when it is sent.

    Computation takes its recorded time. If its work is known and a `device` is given, it takes the device's time
    instead: by its "roofline", or by the "curve" of what its kernels reach. Devices that the topology makes slower take
    that many times longer.

    With `packets`, every packet is simulated. Ranks that do the same at the same time are simulated once, unless `fold`
    is false. The result is the same.

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
    check_order(order, at_once)
    devices = _devices(graph, network, placement)
    gamma = float(gamma_of(gamma_s_per_byte))
    graph.order  # noqa: B018 - a cycle is refused before anything runs
    rule = Rule(network, *parse_rules(algorithm), gamma)
    durations = durations_of(graph, get_device(device) if isinstance(device, str) else device, kernels)
    durations = durations * network.slowdown[devices[graph.rank]]
    runner = Runner(network, devices, rule, order == "lifo", at_once, progress, compiled, packets)
    if fold and packets is None:  # randomly drawn paths make ranks differ
        folding = Folding(graph, durations)
        with contextlib.suppress(TraceError):  # unfolded, it says which rank waits for which
            found = runner.run_folded(folding)
            if found is not None:
                _, times, wire = found
                return WorkloadSimulation(graph, network, folding.expand(times), wire.link_bytes, wire.link_busy_s)
    times, wire = runner.run(unfolded(graph), durations)
    reports = tuple(wire.reports)
    return WorkloadSimulation(graph, network, times, wire.link_bytes, wire.link_busy_s, packet_reports=reports)


def replay(graph: ExecutionGraph) -> WorkloadSimulation:
    """Replay a graph with the recorded times of its collectives: what the program did when it was traced.

    A member that arrived early also recorded its waiting, so the time of a collective is that of the member that waited
    least.
    """
    graph.order  # noqa: B018 - a cycle is refused before anything runs
    recorded = np.full(graph.num_calls, np.inf)
    nodes = np.flatnonzero((graph.call >= 0) & np.isfinite(graph.duration_s))
    np.minimum.at(recorded, graph.call[nodes], graph.duration_s[nodes])
    recorded[np.isinf(recorded)] = 0.0
    durations = np.nan_to_num(durations_of(graph, None, known=False))
    durations[graph.call >= 0] = recorded[graph.call[graph.call >= 0]]
    network = get_topology(f"switch({max(graph.ranks, 2)}, 1GB/s, 0s)")
    unused = np.zeros(len(network.links))
    folding = Folding(graph, durations)
    with contextlib.suppress(TraceError):  # unfolded, it says which rank waits for which
        folded = folding.fold(folding.classes())
        if folded is not None:
            times = folding.expand(_replayed(*folded, network))
            return WorkloadSimulation(graph, network, times, unused, unused)
    return WorkloadSimulation(graph, network, _replayed(unfolded(graph), durations, network), unused, unused)


def _replayed(folded: FoldedGraph, duration_s: npt.NDArray[np.float64], network: Topology) -> Times:
    recorded_s = duration_s[np.array(folded.first, np.int64)]
    calls = Calls(folded, np.arange(folded.graph.ranks), Rule(network))
    return run_graph(folded, duration_s, _Recorded(network, recorded_s.tolist()), calls.bare)


class _Recorded(Network):
    """A network on which every call takes its recorded time."""

    def __init__(self, topology: Topology, recorded_s: Sequence[float]) -> None:
        super().__init__(topology)
        self._recorded_s = recorded_s

    def begin(self, calls: Sequence[Call], now_s: float, sent: Sequence[int] = ()) -> Ends:
        """Each call ends at all members at once."""
        return [(call, np.full(len(call.members.first), now_s + self._recorded_s[call.number])) for call in calls]


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
