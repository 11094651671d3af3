"""Short messages between servers: stars in a few pieces."""

from __future__ import annotations

import numpy as np
import pytest

import choreo
from choreo.synthesize.generators.layered import KINDS, layered
from choreo.synthesize.problem import Problem, read_problem

COSTLY = "switch(4, 300GB/s, 200ns, overhead=100ns) x switch({servers}, 25GB/s, 350ns, overhead=1us)"


def problem(collective: str, topology: str, size: str = "1MiB", root: int | None = None) -> Problem:
    return read_problem(collective, topology, size, ranks=None, root=root, effort="medium")


@pytest.mark.parametrize("collective", KINDS)
@pytest.mark.parametrize(
    "topology",
    [
        COSTLY.format(servers=2),
        COSTLY.format(servers=3),
        "fully_connected(5, 75GB/s, 1us, overhead=100ns)",
        "switch(3, 450GB/s, 200ns, overhead=100ns, reduces) x switch(2, 50GB/s, 350ns, overhead=1us)",
    ],
)
def test_the_best_that_is_made_proves_and_no_time_is_below_the_bound(collective: str, topology: str) -> None:
    asked = problem(collective, topology)
    for candidate in list(layered(asked))[-1:]:
        choreo.prove(candidate.schedule)
        reached = choreo.simulate(candidate.schedule, topology, "1MiB")
        assert reached.time_s >= asked.bound().bound_s * (1 - 1e-9)


RACKS = "switch(20, 900GB/s, 200ns, overhead=100ns, reduces) x switch(4, 50GB/s, 350ns, overhead=1us)"


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
def test_a_gpu_of_a_rack_sends_to_one_other_rack_only(collective: str) -> None:
    """Of twenty GPUs six serve each other rack, which is faster than a message from each GPU to each rack."""
    made = [one.schedule for one in layered(problem(collective, RACKS))]
    time_s: dict[int, float] = {}  # by how many messages a GPU sends
    for schedule in made:
        choreo.prove(schedule)
        rows = schedule.columns()
        devices = (rows.src < 80) & (rows.dst < 80)
        ends = np.unique(np.stack((rows.src, rows.dst))[:, devices], axis=1)
        each = int(np.bincount(ends[int(collective == "reduce")]).max())
        time_s[each] = min(time_s.get(each, np.inf), choreo.simulate(schedule, RACKS, "1MiB").time_s)
    assert time_s[1] < 0.9 * min(time for each, time in time_s.items() if each > 1)


@pytest.mark.parametrize("root", [1, 6])
def test_a_broadcast_may_start_anywhere(root: int) -> None:
    for collective in ("broadcast", "reduce"):
        made = list(layered(problem(collective, COSTLY.format(servers=2), root=root)))
        assert made and all(candidate.schedule.root == root for candidate in made)
        choreo.prove(made[-1].schedule)


def test_a_gpu_sends_its_twin_what_it_has_for_a_whole_server() -> None:
    """Each rank sends 3 messages inside and a few over the network, where direct sends 4 over it."""
    made = [one.schedule for one in layered(problem("all_to_all", COSTLY.format(servers=2), "4KiB"))]
    rows = made[0].columns()
    messages = {(step, src, dst) for step, src, dst in zip(rows.step, rows.src, rows.dst, strict=True)}
    assert len(messages) == 8 * (3 + 1)


def test_an_all_to_all_goes_through_a_switch_that_copies_in_few_messages() -> None:
    """Each rank sends a message up and gets one, where direct sends 7 and gets 7."""
    network = "switch(8, 450GB/s, 200ns, overhead=100ns, reduces)"
    made = [one.schedule for one in layered(problem("all_to_all", network, "64KiB"))]
    choreo.prove(made[-1])
    rows = made[0].columns()
    assert len({(step, src, dst) for step, src, dst in zip(rows.step, rows.src, rows.dst, strict=True)}) == 2 * 8
    reached = choreo.simulate(made[-1], network, "64KiB").time_s
    assert reached < 0.7 * choreo.simulate(choreo.build("all_to_all", "direct", 8), network, "64KiB").time_s


def test_shares_for_many_servers_cross_together() -> None:
    """A GPU has eight twins. It sends its share to four of them, and for another server what it carries there."""
    topology = COSTLY.format(servers=9)
    apart, together = list(layered(problem("all_gather", topology, "128KiB")))[:2]
    for candidate, messages in ((apart, 36 * 8), (together, 36 * 5)):
        choreo.prove(candidate.schedule)
        rows = candidate.schedule.columns()
        crossing = zip(rows.step, rows.src, rows.dst, strict=True)
        assert len({(step, src, dst) for step, src, dst in crossing if src // 4 != dst // 4}) == messages
    slow, fast = (choreo.simulate(one.schedule, topology, "128KiB").time_s for one in (apart, together))
    assert fast < 0.8 * slow


def test_between_many_servers_sums_are_scattered_and_then_gathered() -> None:
    topology = COSTLY.format(servers=6)
    time_s = {}
    for collective in ("reduce_scatter", "all_gather", "all_reduce"):
        made = [one.schedule for one in layered(problem(collective, topology))]
        choreo.prove(made[-1])
        time_s[collective] = min(choreo.simulate(one, topology, "1MiB").time_s for one in made)
    assert time_s["all_reduce"] <= 1.05 * (time_s["reduce_scatter"] + time_s["all_gather"])


def test_pieces_are_of_unequal_size_where_that_is_faster() -> None:
    schedules = [one.schedule for one in layered(problem("all_gather", COSTLY.format(servers=2)))]
    weights = schedules[-1].weights
    assert weights is not None and len(set(weights.tolist())) > 1


@pytest.mark.parametrize(
    ("collective", "topology", "size"),
    [
        ("all_gather", "ring(4, 50GB/s, 1us) x switch(2, 25GB/s, 1us)", "1MiB"),  # some are out of reach
        ("all_gather", COSTLY.format(servers=2), "64MiB"),
        ("scatter", COSTLY.format(servers=2), "1MiB"),
        ("all_gather", COSTLY.format(servers=2), "0"),
    ],
)
def test_what_is_not_of_its_kind_is_left_to_others(collective: str, topology: str, size: str) -> None:
    assert list(layered(problem(collective, topology, size))) == []
