"""Tasks in time: the compiled loop is its twin, and what is planned is what the simulation finds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import choreo
from choreo.compiled import import_compiled
from choreo.synthesize.generators.packed import packed
from choreo.synthesize.network import hops_of
from choreo.synthesize.problem import read_problem
from choreo.synthesize.timeline import CORE, Tasks, in_time
from tests.synthesize.networks import two_levels

NETWORKS = {
    text: choreo.get_topology(text)
    for text in (
        "dgx-1:2",
        "mesh(3x3, 50GB/s, 1us)",
        "switch(4, 300GB/s, 300ns, reduces, overhead=100ns) x switch(2, 25GB/s, 1us)",
        "fat_tree(4x2, 50GB/s, 1us, overhead=100ns)",
    )
} | {"two levels": two_levels()}


def random_tasks(seed: int, hops: int, *, adds: bool) -> Tasks:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 200))
    second = np.arange(1, count)
    pairs = np.stack((rng.integers(0, second), second), axis=1).reshape(-1, 2)
    return Tasks(
        rng.integers(0, hops, count),
        rng.integers(0, 3, count) if adds else np.arange(count),
        rng.choice([0.0, 1e3, 1e5], count),
        rng.random(count) < (0.7 if adds else 0.0),
        pairs[rng.random(count - 1) < 0.6],
        rng.choice([0.0, 1e-6, 1e-5], count),
    )


@pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("seed", range(8))
def test_the_compiled_loop_finds_what_its_twin_finds(network: str, seed: int) -> None:
    hops = hops_of(NETWORKS[network], through_switches=seed % 2 == 0)
    tasks = random_tasks(seed, len(hops), adds=seed % 4 < 2)
    for busiest, together in product((False, True), repeat=2):
        found, twin = (
            in_time(
                tasks,
                hops,
                busiest_first=busiest,
                together=together,
                compiled=compiled,
            )
            for compiled in (True, False)
        )
        assert found[1] == twin[1] and np.array_equal(found[0], twin[0])


def test_messages_share_a_link_that_has_room_and_take_turns_at_ports() -> None:
    hops = hops_of(two_levels())
    hop = {(int(src), int(dst)): number for number, (src, dst) in enumerate(zip(hops.src, hops.dst, strict=True))}

    def starts_us(*pairs: tuple[int, int]) -> list[float]:
        """When messages of 100 us at 50 GB/s start, in this order."""
        count = len(pairs)
        chosen = np.array([hop[pair] for pair in pairs])
        alike = np.zeros(count, np.bool_), np.zeros((0, 2), np.int64), np.zeros(count)
        tasks = Tasks(chosen, np.arange(count), np.full(count, 5e6), *alike)
        found, _ = in_time(tasks, hops, planned_s=np.arange(float(count)))
        return [start * 1e6 for start in found.tolist()]

    # Devices 2 and 3 have 50 GB/s, 0 and 4 have 25, 1 and 5 have 100. Leaves have 100 GB/s to the spine.
    assert starts_us((2, 3), (0, 1)) == [0, 0]  # 50 and 25 GB/s over one link between the switches
    assert starts_us((2, 1), (0, 5), (4, 3)) == [0, 0, 0]
    assert starts_us((1, 0), (1, 4)) == [0, 0]  # they leave together
    assert starts_us((1, 2), (1, 3), (1, 0)) == pytest.approx([0, 0, 100])  # the third when both are out
    assert starts_us((1, 2), (1, 0), (1, 3)) == pytest.approx([0, 0, 200])  # also if only one of them leaves no room
    assert starts_us((0, 1), (2, 1)) == [0, 0]
    assert starts_us((0, 1), (2, 5), (2, 1)) == pytest.approx([0, 0, 200])


@pytest.mark.skipif(import_compiled(CORE) is None, reason="nothing is compiled")
def test_columns_that_do_not_fit_are_refused() -> None:
    core = import_compiled(CORE)
    assert core is not None
    none, numbers = np.zeros(0), np.zeros(0, np.int64)
    one, offsets = np.zeros(1), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="do not fit"):
        core.start_times(
            offsets, one, one, offsets, offsets, offsets, numbers, offsets, numbers, 1, none, numbers, none, False, 0.0
        )
    with pytest.raises(ValueError, match="do not fit"):
        hop = np.array([7])
        ends = np.zeros(2, np.int64)
        core.start_times(
            hop, one, one, offsets, offsets, ends, numbers, ends, numbers, 1, one, ends, np.zeros(4), False, 0.0
        )
    with pytest.raises(ValueError, match="do not fit"):
        nowhere = np.array([-2])
        core.start_times(
            offsets,
            one,
            one,
            offsets,
            nowhere,
            ends,
            numbers,
            ends,
            numbers,
            1,
            one,
            np.zeros(2, np.int64),
            np.zeros(4),
            False,
            0.0,
        )


def test_what_is_added_at_one_place_is_added_in_the_order_of_starts() -> None:
    hops = hops_of(choreo.get_topology("mesh(3, 1GB/s, 1us)"))
    into = [int(np.flatnonzero((hops.src == one) & (hops.dst == 1))[0]) for one in (0, 2)]
    ends_s = []
    for add in (False, True):
        # Both start at once, the long one is planned earlier; the third waits for the short one.
        tasks = Tasks(
            np.array([*into, into[1]]),
            np.array([0, 0, 1]),
            np.array([9e3, 1e3, 1e3]),
            np.array([add, add, False]),
            np.array([[1, 2]]),
            np.zeros(3),
        )
        ends_s.append(in_time(tasks, hops, planned_s=np.arange(3.0))[1])
    assert ends_s == pytest.approx([10e-6, 12e-6])


@pytest.mark.parametrize("collective", ["all_gather", "broadcast", "all_reduce"])
def test_with_what_messages_cost_the_plan_holds(collective: str) -> None:
    network = choreo.get_topology("dgx-1:2")
    problem = read_problem(collective, network, "64MiB", ranks=None, root=None, effort="medium")
    runs = [choreo.simulate(made.schedule, network, "64MiB") for made in packed(problem)]
    assert max(run.efficiency for run in runs) > 0.93


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
def test_switches_that_multicast_are_members_of_the_trees(collective: str) -> None:
    network = choreo.get_topology("hgx-h100:2")
    problem = read_problem(collective, network, "64MiB", ranks=None, root=None, effort="low")
    timed = [(choreo.simulate(made.schedule, network, "64MiB").efficiency, made.schedule) for made in packed(problem)]
    efficiency, schedule = max(timed, key=lambda one: one[0])
    assert efficiency > 0.9
    assert schedule.switches == 2
    choreo.prove(schedule)
