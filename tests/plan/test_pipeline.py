"""Pipeline schedules against their closed forms, and what must hold for any costs."""

from __future__ import annotations

import tracemalloc
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.plan.pipeline import SCHEDULES, in_flight, orders, simulate_pipeline
from choreo.plan.pipeline.dual import DUAL, dual_ranks
from choreo.plan.pipeline.simulate import FEW
from choreo.plan.pipeline.split import balanced_split, cost_split
from choreo.workload import Model
from tests.oracles.plan_memory import most_in_flight


def equal(stages: int, chunks: int, cost: float) -> list[list[float]]:
    return [[cost / chunks] * chunks] * stages


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 2), (4, 8), (8, 64), (5, 7)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_is_stages_less_one(schedule: str, stages: int, micro_batches: int) -> None:
    found = simulate_pipeline(schedule, micro_batches, equal(stages, 1, 1.0), equal(stages, 1, 2.0))
    assert found.time_s == pytest.approx(3.0 * (micro_batches + stages - 1))
    assert found.bubble_s == pytest.approx(3.0 * (stages - 1))


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(4, 8, 2), (8, 64, 12), (35, 280, 3), (2, 2, 3)])
def test_interleaving_divides_the_bubble(stages: int, micro_batches: int, chunks: int) -> None:
    found = simulate_pipeline("interleaved", micro_batches, equal(stages, chunks, 1.0), equal(stages, chunks, 2.0))
    assert found.bubble_s == pytest.approx(3.0 * (stages - 1) / chunks)


def test_splitting_weight_gradients_fills_the_bubble() -> None:
    costs = equal(8, 1, 1.0), equal(8, 1, 2.0)
    whole = simulate_pipeline("1f1b", 32, *costs)
    split = simulate_pipeline("zero-bubble", 32, *costs, weight_s=equal(8, 1, 1.0))
    # ZB-H1: (p - 1)(F + B - W) is left.
    assert split.bubble_s <= whole.bubble_s / 3 + 1e-9
    assert split.busy_s == pytest.approx(whole.busy_s)


def test_the_slowest_stage_sets_the_pace() -> None:
    forward = [[1.0], [1.0], [1.5], [1.0]]
    backward = [[2.0], [2.0], [3.0], [2.0]]
    few = simulate_pipeline("1f1b", 40, forward, backward, timeline=True)
    more = simulate_pipeline("1f1b", 41, forward, backward, timeline=True)
    assert more.time_s - few.time_s == pytest.approx(4.5)
    assert few.busiest == 2


def test_messages_delay_and_hold_up() -> None:
    costs = equal(4, 1, 1.0), equal(4, 1, 2.0)
    free = simulate_pipeline("1f1b", 16, *costs)
    late = simulate_pipeline("1f1b", 16, *costs, message_s=0.1)
    held = simulate_pipeline("1f1b", 16, *costs, blocking_s=0.1)
    assert free.time_s < late.time_s
    # An inner stage waits for two messages a micro-batch.
    assert held.time_s >= free.time_s + 16 * 0.2 - 1e-9


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(12, 18, 8), (4, 7, 3), (5, 11, 2), (8, 9, 4)])
def test_interleaving_takes_micro_batches_that_stages_do_not_divide(
    stages: int, micro_batches: int, chunks: int
) -> None:
    forward, backward = [[1.0] * chunks] * stages, [[2.0] * chunks] * stages
    found = simulate_pipeline("interleaved", micro_batches, forward, backward)
    work = 3.0 * chunks * micro_batches
    assert work < found.time_s <= work + 3 * (stages - 1) * chunks


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SCHEDULES),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 40),
    st.data(),
)
def test_a_long_run_is_as_if_simulated_to_its_end(
    schedule: str, stages: int, chunks: int, micro_batches: int, data: st.DataObject
) -> None:
    if schedule in DUAL:
        # One direction has at least as many micro-batches as there are stages; DualPipeV has two for each device.
        stages, chunks = 2 * stages, 2
        micro_batches += dual_ranks(schedule, stages)
    else:
        chunks = chunks if schedule == "interleaved" else 1
    cost = st.floats(0.5, 2.0)
    forward = [[data.draw(cost) for _ in range(chunks)] for _ in range(stages)]
    backward = [[2 * value for value in row] for row in forward]
    quick = simulate_pipeline(schedule, micro_batches, forward, backward, weight_s=forward, message_s=0.05)
    full = simulate_pipeline(
        schedule, micro_batches, forward, backward, weight_s=forward, message_s=0.05, timeline=True
    )
    assert quick.time_s == pytest.approx(full.time_s, rel=0.02)
    assert full.busy_s == pytest.approx(
        [micro_batches * (sum(f) + sum(b)) for f, b in zip(forward, backward, strict=True)]
    )
    for stage in range(stages):
        mine = sorted((task.start_s, task.end_s) for task in full.tasks if task.stage == stage)
        assert all(first[1] <= second[0] + 1e-9 for first, second in pairwise(mine))


@pytest.mark.parametrize("weights", [0.3, 0.522, 0.8, 1.1])
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("zero-bubble", 1), ("zero-bubble", 2)])
def test_a_run_too_long_to_simulate_is_too(schedule: str, chunks: int, weights: float) -> None:
    micro_batches = 4 * FEW // (4 * chunks)
    forward = [[1.0] * chunks for _ in range(4)]
    forward[-1][-1] = 1.022
    backward, weight = ([[ratio * one for one in row] for row in forward] for ratio in (1.944, weights))
    quick, full = (
        simulate_pipeline(
            schedule, micro_batches, forward, backward, weight_s=weight, blocking_s=2e-6, timeline=timeline
        )
        for timeline in (False, True)
    )
    assert quick.time_s == pytest.approx(full.time_s, rel=2e-3)


@pytest.mark.parametrize(("schedule", "stages"), [("dualpipe", 2), ("dualpipe", 8), ("dualpipev", 1), ("dualpipev", 4)])
@pytest.mark.parametrize("costs", [(1.0, 2.0, 1.0), (1.0, 2.2, 0.9)])
def test_dualpipe_idles_and_keeps_as_its_authors_say(
    schedule: str, stages: int, costs: tuple[float, float, float]
) -> None:
    once, back, weights = costs
    way = dual_ranks(schedule, stages)
    each = [[[cost] * 2] * stages for cost in costs]
    for micro_batches in (way, way + 1, 3 * way):
        found = simulate_pipeline(schedule, micro_batches, *each[:2], weight_s=each[2], timeline=True)
        assert found.bubble_s == pytest.approx((way / 2 - 1) * (once + 2 * back - 3 * weights))
        assert in_flight(np.arange(stages), stages, micro_batches, 2, schedule).max() <= way + 1
        for stage in range(stages):
            mine = sorted((task for task in found.tasks if task.stage == stage), key=lambda task: task.start_s)
            kept, live, shortened = [0], 0, back - weights
            for task in mine:
                split = task.kind == "B" and task.end_s - task.start_s == pytest.approx(shortened)
                live += {"F": 1, "B": 0 if split else -1, "W": -1}[task.kind]
                kept.append(live)
            assert live == 0
            assert max(kept) == min(2 * micro_batches, way + 1)


def test_dualpipe_hides_a_slow_middle_and_waits_for_messages() -> None:
    each = [[[1.0] * 2] * 4, [[2.0] * 2] * 4]
    quick = simulate_pipeline("dualpipe", 8, *each, weight_s=each[0])
    late = simulate_pipeline("dualpipe", 8, *each, weight_s=each[0], message_s=0.1)
    held = simulate_pipeline("dualpipe", 8, *each, weight_s=each[0], blocking_s=0.1)
    assert quick.time_s < late.time_s < held.time_s


@pytest.mark.parametrize("micro_batches", [1, 3, 4, 12, 14, 18])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_what_is_kept_is_what_the_order_keeps(schedule: str, micro_batches: int) -> None:
    stages, chunks = 4, 3 if schedule == "interleaved" else 1
    held = in_flight(np.arange(stages), stages, micro_batches, chunks, gpipe=schedule == "gpipe")
    assert held.tolist() == [most_in_flight(schedule, stage, stages, micro_batches, chunks) for stage in range(stages)]
    for order in orders(schedule, stages, micro_batches, chunks):
        assert sum(1 if kind == "F" else -1 for kind, _, _ in order) == 0


@pytest.mark.parametrize("micro_batches", [30, 480])
def test_a_long_run_of_uneven_chunks_takes_no_less_than_its_busiest_stage(micro_batches: int) -> None:
    # Stages and chunks of DeepSeek-V3's 61 layers in 2 x 4, with its heads in the last.
    forward = [[0.0166, 0.0170, 0.0170, 0.0191], [0.0170, 0.0170, 0.0191, 0.0164]]
    backward = [[2 * one for one in chunks] for chunks in forward]
    short, whole = (
        simulate_pipeline("interleaved", micro_batches, forward, backward, timeline=way) for way in (False, True)
    )
    assert short.bubble_s >= 0
    assert short.time_s == pytest.approx(whole.time_s, rel=2e-3)


def _stage_costs(costs: tuple[float, ...], ends: tuple[int, ...]) -> list[float]:
    *layers, head = costs
    bounds = (0, *ends, len(layers))
    return [
        sum(layers[begin:end]) + (head if number == len(ends) else 0.0)
        for number, (begin, end) in enumerate(pairwise(bounds))
    ]


@given(
    st.lists(st.sampled_from([1.0, 1.5, 4.0]), min_size=1, max_size=9),
    st.sampled_from([0.1, 1.0, 6.0, 40.0]),
    st.data(),
)
def test_a_balanced_split_is_the_best_of_all_splits(layers: list[float], head: float, data: st.DataObject) -> None:
    """The costliest stage costs the least that it can and, of those splits, the sum of squares is the least."""
    costs, stages = (*layers, head), data.draw(st.integers(1, min(len(layers), 5) + 1))
    *ends, _ = np.cumsum(balanced_split(costs, stages)).tolist()
    found = _stage_costs(costs, tuple(ends))
    every = [_stage_costs(costs, one) for one in combinations_with_replacement(range(len(layers) + 1), stages - 1)]
    most = min(map(max, every))
    assert max(found) == pytest.approx(most)
    squares = min(sum(x * x for x in one) for one in every if max(one) <= most * (1 + 1e-9))
    assert sum(x * x for x in found) == pytest.approx(squares)


@pytest.mark.parametrize(("stages", "head"), [(512, 1.5), (512, 100.0), (64, 1000.0), (2, 3.0)])
def test_a_balanced_split_of_many_layers_is_in_proportion_to_them(stages: int, head: float) -> None:
    """Each stage is tried with few numbers of layers only: neither a table of all of them nor their square."""
    layers = 16384
    tracemalloc.start()
    try:
        counts = balanced_split((1.0,) * layers + (head,), stages)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(counts) == layers
    assert max(counts) - min(counts[:-1]) <= 1
    assert peak_bytes < 1024 * layers


@pytest.mark.parametrize(
    ("pp", "reached", "exceeded"),
    [(2, (10, 6), (11, 5)), (4, (5, 5, 5, 1), (6, 5, 5, 0)), (5, (4,) * 4 + (0,), (5, 4, 4, 3, 0))],
)
def test_a_stage_of_nanotron_ends_at_its_share(pp: int, reached: tuple[int, ...], exceeded: tuple[int, ...]) -> None:
    # The head is as large as four of the layers, so the stages' shares are whole layers.
    model = Model("1b", layers=16, hidden=2048, heads=32, ffn=8192, gated=True, vocab=131072)
    for past, layers in ((False, reached), (True, exceeded)):
        assert tuple(len(held) for held in cost_split(model, pp, past=past)) == layers
