"""Schedules out of schedules, each proved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.algorithms import Algorithm, build, list_algorithms
from choreo.errors import ProofError, ScheduleError, UsageError
from choreo.price import CostModel, price, profile
from choreo.prove import prove
from choreo.schedule import (
    Schedule,
    along_axis,
    as_collective,
    backwards,
    move,
    on_ranks,
    pipelined,
    refined,
    then,
    together,
)

LINK = CostModel(1.0, 1.0)

COMPOSITES = {
    ("reduce_scatter", "all_gather"): "all_reduce",
    ("reduce", "broadcast"): "all_reduce",
    ("scatter", "all_gather"): "broadcast",
    ("reduce_scatter", "gather"): "reduce",
    ("gather", "broadcast"): "all_gather",
    ("reduce", "scatter"): "reduce_scatter",
}


@pytest.mark.parametrize(("pair", "made"), COMPOSITES.items(), ids="-".join)
def test_arrows_that_meet_compose(pair: tuple[str, str], made: str) -> None:
    for first in list_algorithms(pair[0]):
        for second in list_algorithms(pair[1]):
            parts = build(pair[0], first.name, 6), build(pair[1], second.name, 6)
            if parts[0].switches != parts[1].switches:
                with pytest.raises(UsageError, match="differ in ranks, relays, switches or root and cannot follow"):
                    then(*parts)
                continue
            whole = then(*parts)
            assert whole.collective == made
            prove(whole)


def test_arrows_that_do_not_meet_are_refused() -> None:
    with pytest.raises(UsageError, match="broadcast then scatter is no collective: after the first every rank holds"):
        then(build("broadcast", "mst", 4), build("scatter", "mst", 4))
    with pytest.raises(UsageError, match="all_reduce then all_reduce"):
        then(build("all_reduce", "ring", 4), build("all_reduce", "ring", 4))
    with pytest.raises(UsageError, match="differ in ranks, relays, switches or root"):
        then(build("reduce", "mst", 4, root=1), build("broadcast", "mst", 4, root=2))


def test_a_second_schedule_may_not_send_from_its_input() -> None:
    late = Schedule.from_list("broadcast", 2, [move(0, 1, 0, from_input=True)])
    with pytest.raises(ScheduleError, match="send from the work place instead"):
        prove(then(build("reduce", "mst", 2), late))


DUALS = {"broadcast": "reduce", "scatter": "gather", "all_gather": "reduce_scatter"}
DUALS |= {dual: one for one, dual in DUALS.items()}
# In these a rank is sent what it already has, so backwards it would be counted twice.
SENT_TWICE = {("broadcast", "ring"), ("broadcast", "hierarchical"), ("all_gather", "mst")}


@pytest.mark.parametrize("found", list_algorithms(), ids=lambda a: f"{a.collective}-{a.name}")
def test_backwards_gives_the_dual(found: Algorithm) -> None:
    schedule = build(found.collective, found.name, 5)
    if found.collective not in DUALS:
        with pytest.raises(UsageError, match="run backwards is no collective"):
            backwards(schedule)
        return
    turned = backwards(schedule)
    assert turned.collective == DUALS[found.collective]
    if (found.collective, found.name) in SENT_TWICE:
        with pytest.raises(ProofError, match="counted twice"):
            prove(turned)
    else:
        prove(turned)


@given(
    st.sampled_from([(a.collective, a.name) for a in list_algorithms()]),
    st.integers(1, 9),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 12)),
)
@settings(max_examples=150)
def test_any_schedule_can_be_pipelined(which: tuple[str, str], ranks: int, segments: int, stride: int | None) -> None:
    whole = pipelined(build(*which, ranks), segments, stride)
    prove(whole)
    plain = profile(build(*which, ranks))
    cut = profile(whole)
    assert (cut.sent * plain.units == plain.sent * cut.units).all()  # no byte more or less


def test_a_pipelined_chain_overlaps() -> None:
    chain = Schedule.from_list("broadcast", 5, [move(k, k + 1, 0) for k in range(4)])
    cut = pipelined(chain, 10)
    assert cut.num_steps == 4 + 9
    assert price(cut, 10.0, LINK).total_s == pytest.approx(13 * (1 + 1))
    ring = build("all_gather", "ring", 4)  # every port is busy in every step, so segments follow one another
    assert pipelined(ring, 3).num_steps == 9


def test_pipelined_refuses_nonsense() -> None:
    with pytest.raises(UsageError, match="segments must be a whole number of at least 1, not 0"):
        pipelined(build("broadcast", "mst", 4), 0)
    with pytest.raises(UsageError, match="stride must be a whole number of at least 1, not 0"):
        pipelined(build("broadcast", "mst", 4), 2, stride=0)


def test_weights_survive_composition() -> None:
    weights = np.array([5, 1, 1, 1])
    scatter = Schedule("scatter", build("scatter", "mst", 4).body, weights=weights)
    gather = Schedule("all_gather", build("all_gather", "ring", 4).body, weights=weights)
    whole = then(scatter, gather)
    assert whole.weights is not None
    prove(pipelined(refined(whole, 2), 3))
    cut = pipelined(whole, 2)
    assert cut.weights is not None
    assert cut.weights.tolist() == [5, 1, 1, 1, 5, 1, 1, 1]
    with pytest.raises(UsageError, match="cut the vector differently"):
        then(scatter, build("all_gather", "ring", 4))


def test_side_by_side() -> None:
    both = together(build("all_gather", "ring", 5), build("all_gather", "bruck", 5))
    prove(both)
    assert both.num_steps == 4
    with pytest.raises(UsageError, match="only unweighted schedules of one collective"):
        together(build("all_gather", "ring", 5), build("all_gather", "ring", 4))


def test_on_a_subset_of_ranks() -> None:
    inner = build("broadcast", "mst", 3, root=1).body
    outer = on_ranks(inner, [6, 2, 4], ranks=8)
    assert (outer.ranks, set(outer.all().src.tolist()) | set(outer.all().dst.tolist())) == (8, {2, 4, 6})
    with pytest.raises(UsageError, match="must be 3 different ranks"):
        on_ranks(inner, [6, 6, 4], ranks=8)


def test_along_an_axis() -> None:
    """A broadcast along each axis in turn reaches everybody."""
    shape = (3, 2)
    rows = along_axis(build("broadcast", "linear", 3).body, shape, 0).all()
    assert sorted(zip(rows.src.tolist(), rows.dst.tolist(), strict=True)) == [(0, 1), (0, 2), (3, 4), (3, 5)]
    with pytest.raises(UsageError, match="do not fit axis 1 of the mesh 3x2"):
        along_axis(build("broadcast", "linear", 3).body, shape, 1)


def test_a_barrier_is_an_all_gather_of_nothing() -> None:
    barrier = as_collective(build("all_gather", "pat", 7), "barrier")
    prove(barrier)
    assert price(barrier, 1 << 20, LINK).beta_s == 0
    with pytest.raises(UsageError, match="does not do what broadcast promises"):
        as_collective(barrier, "broadcast")
