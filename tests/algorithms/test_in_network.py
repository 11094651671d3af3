"""Switches that reduce and multicast: in schedules and what is composed of them, proofs, prices, files and pictures."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.algorithms import build, in_network, parse_axes
from choreo.collectives import get_collective
from choreo.errors import ContradictionError, ProofError, ScheduleError, UsageError
from choreo.price import CostModel, price
from choreo.prove import prove
from choreo.schedule import Schedule, Steps, backwards, load, move, pipelined, refined, save, then, together
from choreo.show import to_data, to_svg, to_text
from choreo.show.schedule.words import describe
from tests.helpers.files import SUFFIXES, Json, document, is_well_formed, refused, row, same
from tests.helpers.mutants import ALL_MUTATIONS, PROFILE, add, check_agreement, refusal, store
from tests.helpers.strategies import case_of, every_mutant, library_case, mutated
from tests.oracles.replay import Case, reason

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
AXES = (
    "8x4:in_network,ring",
    "4x3:ring,in_network",
    "3x2x2:in_network,direct,in_network",
    "2x2:in_network,in_network",
    "6:in_network",
    "1x5x1:ring,in_network,ring",
    "4x4:parameter_server,in_network",
    "4x4:in_network,parameter_server",
    "3x4:in_network,rabenseifner",
)
LINK = CostModel(alpha_s=1.0, bandwidth_bytes_per_s=1.0, gamma_s_per_byte=1.0)


def roots(collective: str, ranks: int) -> list[int | None]:
    return [*sorted({0, ranks // 2, ranks - 1})] if get_collective(collective).rooted else [None]


# The promise


@pytest.mark.parametrize("segments", [None, 2, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 33])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_switch_keeps_the_promise(collective: str, ranks: int, segments: int | None) -> None:
    for root in roots(collective, ranks):
        schedule = build(collective, "in_network", ranks, root=root, segments=segments)
        switches = int(ranks > 1)
        assert (schedule.ranks, schedule.switches, schedule.members) == (ranks, switches, ranks + switches)
        assert {prove(schedule, exact=exact).ranks for exact in (None, True, False)} == {ranks}
        assert reason(case_of(schedule)) is None


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_lone_rank_has_nothing_to_do(collective: str) -> None:
    builder = getattr(in_network, collective)
    schedule = builder(1, 0) if get_collective(collective).rooted else builder(1)
    assert (schedule.num_steps, schedule.switches) == (0, 0)
    prove(schedule)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_switch_is_given_and_promised_nothing(collective: str) -> None:
    schedule = build(collective, "in_network", 5)
    without = Schedule(collective, Steps.from_list(5, schedule.num_chunks, []))
    for held, of_ranks in (
        (schedule.held_before(), without.held_before()),
        (schedule.held_after(), without.held_after()),
    ):
        assert held[:5].tolist() == of_ranks.tolist()
        assert held[5:].tolist() == [[False] * schedule.num_chunks]
    assert schedule.held_after(0, 1).shape == (6, 1)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_an_axis_may_go_through_switches(collective: str, axes: str, rotate: bool) -> None:
    parsed = parse_axes(axes)
    try:
        schedule = build(collective, "hierarchical", parsed.ranks, axes=axes, rotate=rotate)
    except UsageError:
        assert {"parameter_server", "rabenseifner"} & set(parsed.algorithms)  # they cannot do it along an axis
        return
    along = [size for size, name in zip(parsed.sizes, parsed.algorithms, strict=True) if name == "in_network"]
    assert schedule.switches == sum(parsed.ranks // size for size in along)
    for exact in (True, False):
        prove(schedule, exact=exact)
    prove(build(collective, "hierarchical", parsed.ranks, axes=axes, rotate=rotate, segments=3))


def test_every_group_has_a_switch_of_its_own_there_and_back() -> None:
    rows = build("all_reduce", "hierarchical", 12, axes="4x3:in_network,in_network").columns()
    ranks: dict[int, set[int]] = {}
    steps: dict[int, set[int]] = {}
    for step, src, dst in zip(rows.step.tolist(), rows.src.tolist(), rows.dst.tolist(), strict=True):
        ranks.setdefault(max(src, dst), set()).add(min(src, dst))
        steps.setdefault(max(src, dst), set()).add(step)
    inner, outer = [set(range(4 * g, 4 * g + 4)) for g in range(3)], [set(range(g, 12, 4)) for g in range(4)]
    assert [ranks[switch] for switch in range(12, 19)] == inner + outer
    assert [steps[switch] for switch in range(12, 19)] == [{0, 1, 6, 7}] * 3 + [{2, 3, 4, 5}] * 4


# Mutants and their stories


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_mutant_is_judged_as_by_the_oracle(collective: str, ranks: int) -> None:
    mutants = list(every_mutant(library_case(collective, "in_network", ranks, root=roots(collective, ranks)[-1])))
    assert sum(reason(case) is not None for case in mutants) > len(mutants) // 4
    for case in mutants:
        check_agreement(case)


@settings(PROFILE, max_examples=100)
@given(mutated(st.just(library_case("all_reduce", "hierarchical", 4, axes="2x2:in_network,ring")), ALL_MUTATIONS, 2))
def test_mutants_of_an_axis_through_switches(case: Case) -> None:
    check_agreement(case)


STORIES = {
    "step 0: switch 0 sends chunk 0 to rank 1 before it has it: it arrives only in that same step": (
        *(add(0, 0, 2), add(0, 1, 2), store(0, 2, 1), store(1, 2, 0)),
    ),
    "step 0: switch 0 sends chunk 0 to rank 0 from its input, but all_reduce gives it no input there": (
        store(0, 2, 0, from_input=True),
    ),
    "step 1: switch 0 adds chunk 0 from rank 0, but both already have the contribution of rank 0": (
        *(add(0, 0, 2), add(1, 0, 2), add(1, 1, 2), store(2, 2, 0), store(2, 2, 1)),
    ),
    "step 1: switch 0 stores chunk 0 from rank 1 over what it has, and loses the contribution of rank 0": (
        *(store(0, 0, 2), store(1, 1, 2), store(2, 2, 0), store(2, 2, 1)),
    ),
    "step 0: switch 0 is sent chunk 0 by rank 0 and by rank 1, and both store into it": (
        *(store(0, 0, 2), store(0, 1, 2), store(1, 2, 0), store(1, 2, 1)),
    ),
    "step 0: the contribution of rank 0 to chunk 0 gets as far as switch 0 and no further": (
        *(add(0, 0, 2), add(0, 1, 2), store(1, 2, 0)),
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_stories_name_the_switch(story: str) -> None:
    error = refusal(Case("all_reduce", 2, None, 1, STORIES[story], switches=1), None)
    assert isinstance(error, ProofError)
    assert story in error.story
    assert "rank 2" not in error.story


# Schedules and what is composed of them


def test_schedules_written_by_hand_may_have_switches() -> None:
    rank = np.arange(3)
    steps = [move(rank, 3, 0, reduce=True), move(3, rank, 0)]
    by_list = Schedule.from_list("all_reduce", 3, steps, switches=1)
    by_function = Schedule.from_function("all_reduce", 3, 2, steps.__getitem__, switches=1)
    assert same(by_list, by_function)
    prove(by_list)
    there_and_back = Schedule.from_rule("broadcast", 2, 2, lambda k: move(2 * k, 2 - k, 0), switches=1)
    prove(there_and_back)
    assert repr(by_list) == "<Schedule all_reduce by unnamed: 3 ranks, 1 switch, 1 chunk, 2 steps>"
    assert [by_list.member_name(member) for member in range(4)] == ["rank 0", "rank 1", "rank 2", "switch 0"]


def test_switches_that_cannot_be() -> None:
    body = Steps.from_list(3, 1, [move(0, [1, 2], 0)])
    for wrong in (-1, 1.0, True, "1", None):
        with pytest.raises(UsageError, match="switches must be a whole number of at least 0"):
            Schedule("broadcast", body, switches=wrong)  # type: ignore[arg-type]  # the mistake is the test
    with pytest.raises(UsageError, match="the last 3 of 3 members cannot be switches; at least one must be a rank"):
        Schedule("broadcast", body, switches=3)
    with pytest.raises(UsageError, match="root 2 is not a rank: with 2 ranks it must be 0 to 1"):
        Schedule("broadcast", body, root=2, switches=1)
    outside = Schedule.from_list("broadcast", 2, [move(0, 3, 0)], switches=1)
    with pytest.raises(ScheduleError, match="dst 3 is out of range; with 2 ranks and 1 switch it must be 0 to 2"):
        prove(outside)


def test_what_is_composed_has_the_same_switches() -> None:
    up, down = build("reduce_scatter", "in_network", 4), build("all_gather", "in_network", 4)
    for made in (
        then(up, down),
        together(down, down),
        backwards(down),
        refined(up, 3),
        pipelined(down, 4),
        pickle.loads(pickle.dumps(up)),
    ):
        assert (made.ranks, made.switches) == (4, 1)
        prove(made)
    assert then(up, down).collective == "all_reduce"


def test_schedules_with_other_switches_do_not_go_together() -> None:
    plain, through = build("reduce_scatter", "ring", 4), build("all_gather", "in_network", 4)
    with pytest.raises(UsageError, match="differ in ranks, relays, switches or root and cannot follow one another"):
        then(plain, through)
    with pytest.raises(UsageError, match="one collective, ranks, relays, switches and root go together"):
        together(through, build("all_gather", "ring", 4))


def test_segments_follow_one_another_at_once() -> None:
    """Up and down are two ports, and a switch has a port to every peer."""
    for collective in COLLECTIVES:
        assert build(collective, "in_network", 8, segments=10).num_steps == 11


# Prices


@pytest.mark.parametrize("ports", ["one", "all"])
@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
def test_what_it_costs(ranks: int, ports: str) -> None:
    betas = {"all_reduce": 2.0, "reduce": 2.0, "broadcast": 2.0, "all_gather": 1.0, "reduce_scatter": 1 + 1 / ranks}
    for collective, beta in betas.items():
        cost = price(build(collective, "in_network", ranks), 1.0, LINK, ports=ports)
        assert (cost.alpha_s, cost.gamma_s) == (2.0, 0.0)
        assert cost.beta_s == pytest.approx(beta)
        assert cost.max_fan_in == 1


def test_bytes_are_those_of_the_ranks() -> None:
    cost = price(build("all_reduce", "in_network", 8), 10.0, LINK)
    assert cost.bytes_sent == cost.bytes_received == (10.0,) * 8
    assert cost.total_bytes == 80.0
    root = price(build("broadcast", "in_network", 8, root=3), 10.0, LINK)
    assert root.bytes_sent == (0.0, 0.0, 0.0, 10.0, 0.0, 0.0, 0.0, 0.0)
    assert root.bytes_received == (10.0, 10.0, 10.0, 0.0, 10.0, 10.0, 10.0, 10.0)


def test_ranks_have_one_port_still() -> None:
    """Two switches that send to one rank in one step: its messages follow one another, theirs do not."""
    steps = [move([0, 0], [2, 3], [0, 1]), move([2, 3], [1, 1], [0, 1])]
    schedule = Schedule.from_list("broadcast", 2, steps, num_chunks=2, switches=2)
    prove(schedule)
    assert price(schedule, 2.0, CostModel(10.0, 1.0)).total_s == 2 * (20 + 2)
    assert price(schedule, 2.0, CostModel(10.0, 1.0), ports="all").total_s == 2 * (10 + 1)


@pytest.mark.parametrize("segments", [1, 4, 64])
def test_the_price_of_segments(segments: int) -> None:
    cost = price(build("all_reduce", "in_network", 8, segments=segments), 1.0, LINK)
    assert cost.alpha_s == segments + 1
    assert cost.beta_s == pytest.approx(1 + 1 / segments)
    assert cost.gamma_s == 0


@pytest.mark.parametrize("ranks", [8, 64, 512])
def test_in_segments_it_takes_near_half_of_what_a_ring_does(ranks: int) -> None:
    large, link = 1e12, CostModel(1e-6, 450e9)
    ring = price(build("all_reduce", "ring", ranks), large, link).total_s
    whole, cut = (
        price(build("all_reduce", "in_network", ranks, segments=k), large, link).total_s for k in (None, 1000)
    )
    assert ring / whole == pytest.approx((ranks - 1) / ranks, rel=1e-2)
    assert ring / cut == pytest.approx(2 * (ranks - 1) / ranks, rel=1e-2)


# Files


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("axes", [None, "3x2:in_network,ring"])
def test_switches_come_back_from_a_file(suffix: str, axes: str | None, tmp_path: Path) -> None:
    name = "in_network" if axes is None else "hierarchical"
    schedule, file = build("all_reduce", name, 6, axes=axes, segments=2), tmp_path / f"s.{suffix}"
    save(schedule, file)
    back = load(file)
    assert same(schedule, back)
    assert back.switches == (1 if axes is None else 2)
    assert is_well_formed(back)
    prove(back)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_without_switches_does_not_mention_them(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"s.{suffix}"
    save(build("all_reduce", "ring", 3), file)
    header = file.read_bytes() if suffix == "json" else np.load(file)["header"].tobytes()
    assert b"switches" not in header
    save(build("all_reduce", "in_network", 3), file)
    header = file.read_bytes() if suffix == "json" else np.load(file)["header"].tobytes()
    assert b"switches" in header


def test_a_document_with_switches(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    steps: list[Json] = [[row(0, 3)], [row(3, 1), row(3, 2)]]
    file.write_bytes(document(switches=1, steps=steps))
    assert (load(file).ranks, load(file).switches, load(file).members) == (3, 1, 4)
    prove(load(file))
    assert "steps[0][0].dst: step 0: dst 3 is out of range; with 3 ranks it must be 0 to 2" in str(
        refused(file, document(steps=steps))
    )
    assert "dst 4 is out of range; with 3 ranks and 1 switch it must be 0 to 3" in str(
        refused(file, document(switches=1, steps=[[row(0, 4)]]))
    )


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1", [], 1 << 30])
def test_switches_of_a_document_that_cannot_be(wrong: object, tmp_path: Path) -> None:
    content = json.loads(document()) | {"switches": wrong}
    assert refused(tmp_path / "s.json", json.dumps(content).encode()).field == "switches"


def test_a_contradiction_at_a_switch_names_it(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_bytes(document(switches=1, steps=[[row(0, 3), row(1, 3)]]))
    with pytest.raises(ContradictionError, match="switch 0 is sent chunk 0 by rank 0 and by rank 1"):
        load(file)


# Pictures


def test_a_step_through_a_switch_in_words() -> None:
    def words(schedule: Schedule) -> list[str]:
        return [describe(schedule, rows) for rows in schedule.steps()]

    up, down = "every rank sends one chunk to switch 0, which adds it", "switch 0 sends one chunk to every rank"
    assert words(build("all_reduce", "in_network", 4, segments=2)) == [up, f"{up}; {down}", down]
    assert words(build("broadcast", "in_network", 4, root=1)) == [
        "rank 1 sends the whole vector to switch 0",
        "switch 0 sends the whole vector to 3 ranks",
    ]
    assert words(build("all_reduce", "hierarchical", 8, axes="4x2:in_network,ring"))[:3] == [
        "every rank sends the whole vector to a switch, which adds it",
        "2 switches send 2 chunks to every rank",
        "ranks swap one chunk with the rank 4 away, each adding it",
    ]


def test_pictures_have_a_lane_for_the_switch() -> None:
    schedule = build("all_reduce", "in_network", 4)
    lines = to_text(schedule, width=100).splitlines()
    assert lines[0] == "all_reduce by in_network: 4 ranks, 1 switch, 1 chunk, 2 steps"
    at = lines.index("step 0  every rank sends the whole vector to switch 0, which adds it")
    assert lines[at + 1].split() == ["0", "→", "switch", "0:", "+all", "rank", "0", "1"]
    assert lines[at + 5].split() == ["switch", "0", "[■]"]
    data = to_data(schedule)
    assert (data["ranks"], data["switches"], len(data["before"]), data["after"][4]) == (4, 1, 5, [])
    assert "a switch that reduces" in to_svg(schedule)
    assert "a switch that reduces" not in to_svg(build("all_reduce", "ring", 4))


def test_limits_count_switches() -> None:
    assert to_svg(build("all_reduce", "in_network", 31))
    with pytest.raises(UsageError, match="at most 32 ranks and switches, not 33; use fewer ranks"):
        to_svg(build("all_reduce", "in_network", 32))
