"""Running the packet simulator's two cores, and the oracle, on the same flows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from choreo.algorithms import build
from choreo.compiled import import_compiled
from choreo.errors import DeadlockError
from choreo.simulate import Job, Packets, Simulation, simulate_together
from choreo.topology import Topology
from tests.oracles.packets import Network, Oracle, Wire

__all__ = ["CORES", "Flow", "as_oracle", "assert_same", "run_flows"]

# Whether to use the compiled core; where there is no compiler the twin is held to the oracle on its own.
CORES = [False] if import_compiled("choreo.simulate.packets._core") is None else [True, False]

# From a device to a device, bytes, and when it starts, in nanoseconds.
Flow = tuple[int, int, int, int]


def run_flows(topology: Topology, flows: list[Flow], packets: Packets, compiled: bool | None = None) -> Simulation:
    """One message for each flow."""
    pair = build("broadcast", "linear", 2)
    jobs = [Job(pair, size, [src, dst], start * 1e-9) for src, dst, size, start in flows]
    return simulate_together(jobs, topology, packets=packets, compiled=compiled)


def as_oracle(topology: Topology, flows: list[Flow], packets: Packets) -> tuple[Oracle, list[int | None]]:
    """The same by the oracle, on the paths that the simulator takes."""
    free = replace(packets, buffer_bytes=1 << 50, lossless=True, recovery=None)
    paths = run_flows(topology, flows, free).messages
    links = topology.links
    ps_per_byte = 1e12 / links.bandwidth_bytes_per_s
    latency = np.round(links.latency_s * 1e12).astype(np.int64)
    wires = [
        Wire(int(links.src[i]), int(links.dst[i]), float(ps_per_byte[i]), int(latency[i])) for i in range(len(links))
    ]
    network = Network(wires, packets.mtu, packets.buffer, packets.lossless)
    ways = [paths.links_of(number).tolist() for number in range(len(flows))]
    if not packets.lossless:
        back = [(dst, src, size, start) for src, dst, size, start in flows]
        way_back = run_flows(topology, back, free).messages
        network.way_back = [way_back.links_of(number).tolist() for number in range(len(flows))]
        for way, other in zip(ways, network.way_back, strict=True):
            forth = sum(float(latency[link]) + packets.mtu * float(ps_per_byte[link]) for link in way)
            there_and_back = forth + sum(float(latency[link]) + 64 * float(ps_per_byte[link]) for link in other)
            line = float(links.bandwidth_bytes_per_s[way[0]])
            network.round_trip.append(int(max(1000.0, there_and_back)))
            network.window.append(int(np.ceil(2 * there_and_back / 1e12 * line / packets.mtu + 2)))
    oracle = Oracle(network, [(start * 1000, way, size) for way, (_, _, size, start) in zip(ways, flows, strict=True)])
    return oracle, oracle.run()


def assert_same(one: Simulation | DeadlockError, other: Simulation | DeadlockError) -> None:
    """Two runs are the same, bit for bit."""
    if isinstance(one, DeadlockError) or isinstance(other, DeadlockError):
        assert str(one) == str(other)
        return
    assert one.packets is not None and other.packets is not None
    assert one.packets.to_dict(details=True) == other.packets.to_dict(details=True)
    for name in ("start_s", "out_s", "arrived_s", "written_s", "ready_cause", "start_cause", "write_cause"):
        assert np.array_equal(getattr(one.messages, name), getattr(other.messages, name)), name
    assert np.array_equal(one.loads.link_bytes, other.loads.link_bytes)
    assert np.array_equal(one.loads.link_busy_s, other.loads.link_busy_s)
