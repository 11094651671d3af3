"""Simulations that the pictures of simulations are tested with, each of a kind of its own."""

from __future__ import annotations

from collections.abc import Callable

from choreo.algorithms import build
from choreo.simulate import Job, Simulation, simulate, simulate_together, suggested_schedule
from choreo.topology import get_topology

__all__ = ["HOSTILE", "MIB", "SIMULATIONS", "composed_run", "ring_run", "slow_run", "two_jobs_run"]

MIB = 1 << 20
HOSTILE = "</script><b onload=x>'\"&@DATA@ ]]>\x1b[31m\x00"


def ring_run() -> Simulation:
    """Nothing is shared; every link does the same."""
    return simulate(build("all_reduce", "ring", 8), "ring(8, 50GB/s, 500ns)", MIB)


def slow_run() -> Simulation:
    """One link is to blame."""
    topology = get_topology("ring(8, 50GB/s, 500ns)").with_slow_link(3, 4, 0.25)
    return simulate(build("all_reduce", "ring", 8), topology, MIB)


def composed_run() -> Simulation:
    """Three dimensions, and reductions that take time."""
    topology = get_topology("ring(4, 200GB/s, 50ns) x fully_connected(4, 100GB/s, 500ns) x switch(4, 50GB/s, 2us)")
    return simulate(suggested_schedule("all_reduce", topology, 64), topology, 64 * MIB, gamma_s_per_byte=1e-12)


def two_jobs_run() -> Simulation:
    """Two collectives that meet, one of them later and elsewhere."""
    jobs = [
        Job(build("all_reduce", "ring", 4), MIB, [0, 1, 2, 3]),
        Job(build("all_gather", "ring", 4), MIB / 2, [2, 3, 4, 5], 5e-6),
    ]
    return simulate_together(jobs, "switch(8, 50GB/s, 1us)")


SIMULATIONS: dict[str, Callable[[], Simulation]] = {
    "ring": ring_run,
    "slow": slow_run,
    "composed": composed_run,
    "contended": lambda: simulate(build("all_reduce", "direct", 8), "switch(8, 50GB/s, 1us)", 16 * MIB),
    "several hops": lambda: simulate(
        build("all_reduce", "double_binary_tree", 16), "torus(4x4, 50GB/s, 500ns)", MIB, gamma_s_per_byte=1e-11
    ),
    "spread": lambda: simulate(
        build("all_to_all", "pairwise", 16), "fat_tree(4x4, 50GB/s, 1us, spines=2, oversubscribed=2)", MIB
    ),
    "stored": lambda: simulate(
        build("reduce_scatter", "ring", 6), "switch(6, 50GB/s, 1us)", MIB, store_and_forward=True
    ),
    "in the network": lambda: simulate(
        build("all_reduce", "in_network", 8, segments=4), "switch(8, 50GB/s, 1us, reduces)", MIB
    ),
    "machine": lambda: simulate(build("all_reduce", "ring", 8), "dgx-1", MIB),
    "two jobs": two_jobs_run,
    "no bytes": lambda: simulate(build("barrier", "recursive_doubling", 8), "ring(8, 50GB/s, 500ns)", 0),
    "below a nanosecond": lambda: simulate(build("all_reduce", "ring", 8), "ring(8, 100GB/s, 0ns)", 64),
    "one rank": lambda: simulate(build("all_reduce", "ring", 1), "ring(8, 50GB/s, 500ns)", MIB),
    "a thousand": lambda: simulate(build("all_reduce", "halving_doubling", 1024), "hgx-h100:128", 64 * MIB),
}
