"""A run of packets that is given up when it is late."""

from __future__ import annotations

import pytest

from choreo.algorithms import build
from choreo.errors import DeadlockError, UsageError
from choreo.simulate import Job, Packets, simulate
from choreo.simulate.jobs import placed
from choreo.simulate.packets.limited import packet_time_within
from choreo.topology import get_topology

TREE = get_topology("fat_tree(4x2, 50GB/s, 500ns, spines=2)")
NETWORKS = [Packets(), Packets(lossless=False, buffer_bytes="64KiB"), Packets(routing="spray", control="dcqcn")]


@pytest.mark.parametrize("packets", NETWORKS, ids=str)
@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving_doubling"])
def test_it_is_the_time_of_the_whole_run_or_a_lesser_one_beyond_the_limit(algorithm: str, packets: Packets) -> None:
    schedule = build("all_reduce", algorithm, 8)
    whole_s = simulate(schedule, TREE, "1MiB", packets=packets).time_s
    job = placed(Job(schedule, "1MiB"), TREE, 0.0)
    assert packet_time_within(job, TREE, packets) == whole_s
    assert packet_time_within(job, TREE, packets, whole_s) == whole_s
    for part in (0.0, 0.3, 0.99):
        assert part * whole_s < packet_time_within(job, TREE, packets, part * whole_s) <= whole_s


def test_a_deadlock_is_reported() -> None:
    ring = get_topology("ring(6, 50GB/s, 500ns)")
    job = placed(Job(build("all_to_all", "direct", 6), "4MiB"), ring, 0.0)
    with pytest.raises(DeadlockError):
        packet_time_within(job, ring, Packets(buffer_bytes="16KiB"), 1.0)


@pytest.mark.parametrize("link", ["50GB/s, 9e9s", "50GB/s, 1e20s", "1e-20GB/s, 1us", "1e-10GB/s, 1us"])
def test_times_that_the_clock_cannot_count_are_refused(link: str) -> None:
    """They were an error in a conversion, or 0 s."""
    with pytest.raises(UsageError, match=r"takes .* s here, and the clock of packets goes to 100000 s; use a faster"):
        simulate(build("all_reduce", "ring", 4), f"ring(4, {link})", "1MiB", packets=Packets())
