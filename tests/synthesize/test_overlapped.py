"""Segments of library schedules that overlap: both kinds of link at work, with few messages."""

from __future__ import annotations

import pytest

import choreo
from choreo.synthesize import search
from choreo.synthesize.generators.overlapped import overlapped
from choreo.synthesize.problem import read_problem

REDUCES = "switch(8, 450GB/s, 200ns, reduces, overhead=100ns) x switch(2, 50GB/s, 350ns, overhead=1us)"
PLAIN = "switch(8, 300GB/s, 200ns, overhead=100ns) x switch(2, 25GB/s, 350ns, overhead=1us)"


@pytest.mark.parametrize("network", [REDUCES, PLAIN])
@pytest.mark.parametrize("size", ["1MiB", "16MiB"])
def test_an_all_reduce_between_servers_is_proved_and_faster_than_the_library(network: str, size: str) -> None:
    problem = read_problem("all_reduce", network, size, ranks=None, root=None, effort="low")
    best = min(overlapped(problem), key=lambda one: choreo.simulate(one.schedule, network, size).time_s)
    choreo.prove(best.schedule)
    library = search("all_reduce", network, size, effort="low").library
    assert library is not None
    assert choreo.simulate(best.schedule, network, size).time_s < 0.75 * library["time_s"]


def test_a_rank_keeps_its_own_part_of_the_sum_that_only_it_gets() -> None:
    """7/8 of the vector goes up to be summed, and 1/8 to be spread: as much as comes down, not 9/8."""
    problem = read_problem("all_reduce", REDUCES, "1MiB", ranks=None, root=None, effort="low")
    segment = next(one.schedule for one in overlapped(problem) if "recursive_doubling" in one.generator)
    choreo.prove(segment)
    rows = segment.columns()
    up, down = (rows.count[(rows.src == src) & (rows.dst == dst)].sum() for src, dst in ((0, 16), (16, 0)))
    assert up == down == segment.num_chunks


def test_a_short_vector_over_many_ranks_is_not_cut() -> None:
    """Of 1 MiB over 144 ranks a block has 14 KiB: a rank that sends it twice pays more than it gains."""
    found = search("all_reduce", "gb200-nvl72:2", "1MiB", effort="low")
    assert found.generator.startswith("overlapped") and found.efficiency > 0.6
    assert found.schedule.num_chunks == 72


def test_without_dimensions_and_switches_that_reduce_there_is_nothing_to_overlap() -> None:
    for network in ("ring(8, 50GB/s, 1us)", "switch(8, 50GB/s, 1us)"):
        problem = read_problem("all_reduce", network, "1MiB", ranks=None, root=None, effort="low")
        assert not list(overlapped(problem))


def test_parts_of_a_vector_that_skip_a_step_are_left_out() -> None:
    """Halving and doubling among six GPUs sends only some chunks in a step, perhaps none of a quarter of the vector."""
    network = "switch(6, 1GB/s, overhead=3us) x switch(3, 1GB/s, 1us, reduces, overhead=3us)"
    problem = read_problem("all_reduce", network, "1MiB", ranks=None, root=None, effort="low")
    for candidate in overlapped(problem):
        assert candidate.schedule.num_transfers
