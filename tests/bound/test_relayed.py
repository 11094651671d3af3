"""What comes over a network is taken in message by message, and then passed on inside."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import choreo
from choreo.bound import bound
from choreo.bound.relays.relayed import KINDS
from choreo.bound.relays.sides import turns
from choreo.synthesize.generators.greedy import greedy
from choreo.synthesize.generators.layered import layered
from choreo.synthesize.problem import read_problem

TWO = "switch(8, 300GB/s, 200ns, overhead=100ns) x switch(2, 25GB/s, 350ns, overhead={overhead})"


@st.composite
def costly_servers(draw: st.DrawFn) -> str:
    """Servers behind a switch, where messages cost something."""
    inner = draw(st.sampled_from(["switch", "fully_connected", "ring"]))
    adds = ", reduces" if inner == "switch" and draw(st.booleans()) else ""
    overhead = draw(st.sampled_from([0, 50, 100, 1000]))
    inside = f"{inner}({draw(st.integers(2, 4))}, {draw(st.integers(25, 400))}GB/s, 200ns, overhead={overhead}ns{adds})"
    cost = draw(st.sampled_from(["overhead=1us", "overhead=300ns", "overhead=300ns, message_rate=1M/s"]))
    if not adds and draw(st.integers(0, 3)) == 0:
        return inside
    outside = f"switch({draw(st.integers(2, 3))}, {draw(st.integers(10, 100))}GB/s, 350ns, {cost})"
    return f"{outside} x {inside}" if draw(st.booleans()) and not adds else f"{inside} x {outside}"


@settings(max_examples=40)
@given(costly_servers(), st.sampled_from(KINDS), st.integers(1, 1 << 21), st.data())
def test_no_schedule_is_faster(topology: str, collective: str, size: int, data: st.DataObject) -> None:
    problem = read_problem(collective, topology, size, ranks=None, root=None, effort="medium")
    least = problem.bound().bound_s
    schedules = [one.schedule for generator in (layered, greedy) for one in generator(problem)][-6:]
    names = [one.name for one in choreo.list_algorithms(collective) if one.in_library]
    for name in data.draw(st.lists(st.sampled_from(names), max_size=2)):
        try:
            schedules.append(choreo.build(collective, name, problem.ranks))
        except choreo.RefusedError:
            continue
    for schedule in schedules:
        try:
            found = choreo.simulate(schedule, topology, size)
        except choreo.RefusedError:  # it needs a switch that adds
            continue
        assert found.time_s >= least * (1 - 1e-9)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast", "reduce", "all_reduce"])
def test_messages_that_cost_more_take_longer_by_more_than_a_first_and_a_last_one(collective: str) -> None:
    """The overhead of the first message and the last is in the bound anyway: twice the difference."""
    cheap, dear = (bound(collective, TWO.format(overhead=overhead), "1MiB").bound_s for overhead in ("1us", "2us"))
    assert dear - cheap > 2.1e-6


def test_backwards_in_time_nothing_changes() -> None:
    """A reduce_scatter is an all_gather backwards, and messages cost both ends the same."""
    for inner in ("switch", "fully_connected"):
        network = f"{inner}(8, 300GB/s, 200ns, overhead=100ns) x switch(2, 25GB/s, 350ns, overhead=1us)"
        there, back = (bound(collective, network, "1MiB").bound_s for collective in ("all_gather", "reduce_scatter"))
        assert there == pytest.approx(back)


def test_whoever_sends_to_many_takes_its_time() -> None:
    """Every message of a broadcast costs its root an overhead, and so do those that others pass on."""
    cheap, dear = (
        bound("broadcast", f"fully_connected(8, 50GB/s, 500ns, overhead={overhead}ns)", "1MiB").bound_s
        for overhead in (100, 200)
    )
    assert dear - cheap > 0.6e-6


def test_turns_are_those_of_the_postal_model() -> None:
    """With a sixth of a hop between messages, whoever received one starts to help at the eighth."""
    assert turns(1.0, 7.0, 10).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 8.0, 9.0]
    assert turns(0.0, 7.0, 10).tolist() == [0.0]


def test_sizes_scale_what_is_passed_on() -> None:
    """Long messages hide it: what is left is less than a tenth."""
    short, long = (bound("all_gather", TWO.format(overhead="1us"), size) for size in ("1MiB", "1GiB"))
    assert short.crossing_latency_s > 0.4 * short.bound_s
    assert long.crossing_latency_s < 0.1 * long.bound_s


def test_a_group_in_one_server_and_a_device_elsewhere_has_a_bound_too() -> None:
    network = TWO.format(overhead="1us")
    for collective in KINDS:
        least = bound(collective, network, "1MiB", devices=[0, 1, 2, 9])
        schedule = choreo.synthesize(collective, network, "1MiB", ranks=[0, 1, 2, 9], effort="low")
        simulated = choreo.simulate(schedule, network, "1MiB", placement=[0, 1, 2, 9])
        assert simulated.time_s >= least.bound_s * (1 - 1e-9)


@pytest.mark.parametrize("ranks", [5, 8])
def test_links_of_unequal_prices_count_by_their_prices(ranks: int) -> None:
    """A rank that sends to the next alone sends one message."""
    network = f"fully_connected({ranks}, 50GB/s, 500ns, overhead=100ns)"
    found = bound("send_recv", network, 100)
    straight = choreo.simulate(choreo.build("send_recv", "direct", ranks), network, 100)
    assert found.proof == "prices" and found.bound_s <= straight.time_s * (1 + 1e-9)
