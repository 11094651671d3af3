"""Prices: the rule against a slow twin, the formulas of the field, what the schedules move, and crossovers."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.algorithms import Algorithm, build, list_algorithms
from choreo.errors import UsageError
from choreo.price import CostModel, Price, compare, price, profile, winners
from choreo.price.price import slowest
from choreo.schedule import Schedule, Steps, move

LINK = CostModel(alpha_s=5e-6, bandwidth_bytes_per_s=50e9, gamma_s_per_byte=1e-11)
N = 1 << 20


def slow_price(
    schedule: Schedule, size: Fraction, link: CostModel, ports: str, cores: int | None = None
) -> tuple[Fraction, Fraction, Fraction]:
    """The rule read out loud: for every step, every rank, every message; a switch has a port a peer and no gamma."""
    alpha, gamma = Fraction(link.alpha_s), Fraction(link.gamma_s_per_byte)
    beta = 1 / Fraction(link.bandwidth_bytes_per_s)
    weights = np.ones(schedule.num_chunks, int) if schedule.weights is None else schedule.weights
    factor = Fraction(round(schedule.contract.total_bytes(1, schedule.ranks)), int(weights.sum()))
    bytes_of = [size * int(weight) * factor for weight in weights]
    total = [Fraction(0)] * 3
    for rows in schedule.steps():
        messages: dict[tuple[int, int], Fraction] = {}
        reduced = [Fraction(0)] * schedule.members
        for row in range(len(rows)):
            src, dst, chunk, count = (int(rows[name][row]) for name in ("src", "dst", "chunk", "count"))
            moved = sum(bytes_of[chunk : chunk + count], Fraction(0))
            messages[src, dst] = messages.get((src, dst), Fraction(0)) + moved
            reduced[dst] += moved if rows.reduce[row] and dst < schedule.ranks else 0
        candidates = []
        for rank in range(schedule.members):
            for end in (1,) if ports == "read" else (0, 1):
                sizes = [moved for pair, moved in messages.items() if pair[end] == rank]
                if (ports == "all" or rank >= schedule.ranks) and sizes:
                    sizes = [max(sizes)]
                waits = min(len(sizes), 1) if ports == "read" else len(sizes)
                candidates.append((waits * alpha, sum(sizes, Fraction(0)) * beta, reduced[rank] * gamma))
        if cores is not None:
            alphas, betas, gammas = (
                sum(term, Fraction(0)) / cores for term in zip(*candidates[: schedule.ranks], strict=True)
            )
            candidates.append((alphas, betas, gammas))
        worst = max(candidates, key=sum)
        total = [before + term for before, term in zip(total, worst, strict=True)]
    if ports == "read" and schedule.collective not in ("all_reduce", "reduce", "reduce_scatter", "broadcast"):
        own = schedule.held_before() & schedule.held_after()
        copied = [sum((size for size, keeps in zip(bytes_of, row, strict=True) if keeps), Fraction(0)) for row in own]
        total[1] += max(*copied, sum(copied, Fraction(0)) / (cores or schedule.ranks)) * beta
    return total[0], total[1], total[2]


@given(
    st.sampled_from([(a.collective, a.name) for a in list_algorithms()]),
    st.integers(1, 12),
    st.integers(1, 3),
    st.floats(0, 1e-3),
    st.floats(1e6, 1e12),
    st.floats(0, 1e-8),
    st.integers(0, 1 << 30),
    st.sampled_from([("one", None), ("all", None), ("read", None), ("read", 1), ("read", 2), ("read", 5)]),
)
@settings(max_examples=250)
def test_the_rule(
    which: tuple[str, str],
    ranks: int,
    segments: int,
    alpha: float,
    bandwidth: float,
    gamma: float,
    size: int,
    shares: tuple[str, int | None],
) -> None:
    schedule = build(*which, ranks, segments=segments)
    link, (ports, cores) = CostModel(alpha, bandwidth, gamma), shares
    fast = price(schedule, size, link, ports=ports, cores=cores)
    slow = slow_price(schedule, Fraction(size), link, ports, cores)
    assert fast.total_s == pytest.approx(float(sum(slow)), rel=1e-12)
    # Where two ranks are equally slow either may give the terms; elsewhere they are the slowest one's.
    if not any(len(kind.candidates) > 1 for kind in profile(schedule, ports, cores=cores).kinds):
        assert (fast.alpha_s, fast.beta_s, fast.gamma_s) == pytest.approx(tuple(map(float, slow)), rel=1e-12)


STATED = [a for a in list_algorithms() if a.cost is not None]


@pytest.mark.parametrize("found", STATED, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_closed_form_is_the_price_term_by_term(found: Algorithm) -> None:
    assert found.cost is not None
    checked = 0
    for ranks in (*range(2, 34), 64, 128, 256):
        if not found.cost.holds_at(ranks):
            continue
        for segments in (None, 1, 3, 8, 20) if "segments" in found.options else (None,):
            counted = profile(build(found.collective, found.name, ranks, segments=segments))
            for link in (LINK, CostModel(1e-7, 1e9), CostModel(0.0, 1e12, 1e-9)):
                terms = slowest(counted, N, link)
                shares = (Fraction(terms.messages), Fraction(terms.sent) / counted.units)
                assert shares == found.cost.terms(ranks, segments or 8)[:2], (ranks, segments)
                reduced = Fraction(terms.reduced) / counted.units
                assert reduced == found.cost.terms(ranks, segments or 8)[2] or link.gamma_s_per_byte == 0
            checked += 1
    assert checked >= 4


def formula(lg: int, p: int) -> dict[tuple[str, str], tuple[Fraction, Fraction, Fraction]]:
    """The tables of the field, as (alphas, n betas, n gammas), at p = 2**lg."""
    part = Fraction(p - 1, p)
    zero = Fraction(0)
    return {
        ("broadcast", "mst"): (Fraction(lg), Fraction(lg), zero),
        ("reduce", "mst"): (Fraction(lg), Fraction(lg), Fraction(lg)),
        ("scatter", "mst"): (Fraction(lg), part, zero),
        ("gather", "mst"): (Fraction(lg), part, zero),
        ("all_gather", "mst"): (Fraction(2 * lg), part + lg, zero),
        ("reduce_scatter", "mst"): (Fraction(2 * lg), part + lg, Fraction(lg)),
        ("all_reduce", "mst"): (Fraction(2 * lg), Fraction(2 * lg), Fraction(lg)),
        ("all_gather", "ring"): (Fraction(p - 1), part, zero),
        ("reduce_scatter", "ring"): (Fraction(p - 1), part, part),
        ("all_reduce", "ring"): (Fraction(2 * (p - 1)), 2 * part, part),
        ("reduce", "ring"): (Fraction(p - 1 + lg), 2 * part, part),
        ("broadcast", "ring"): (Fraction(lg + p - 1), 2 * part, zero),
    }


@pytest.mark.parametrize("lg", [1, 2, 3, 5, 7])
def test_the_formulas_of_trees_and_rings(lg: int) -> None:
    p = 2**lg
    for (collective, algorithm), (alphas, betas, gammas) in formula(lg, p).items():
        cost = price(build(collective, algorithm, p), N, LINK)
        assert cost.alpha_s == pytest.approx(float(alphas) * LINK.alpha_s, rel=1e-12)
        assert cost.beta_s == pytest.approx(float(betas) * N * LINK.beta_s_per_byte, rel=1e-12)
        assert cost.gamma_s == pytest.approx(float(gammas) * N * LINK.gamma_s_per_byte, rel=1e-12)


@pytest.mark.parametrize("p", [2, 3, 8, 25, 100])
def test_the_road_to_the_ring(p: int) -> None:
    """Rounds, most bytes at a node and fan-in of five ways to all-reduce, from the schedules alone."""
    table = {
        "parameter_server": (2, p - 1, p - 1),
        "naive": (p * (p - 1), p - 1, 1),
        "staggered": (p - 1, p - 1, 1),
        "partitioned": (2 * (p - 1), Fraction(2 * (p - 1), p), 1),
        "ring": (2 * (p - 1), Fraction(2 * (p - 1), p), 1),
    }
    for algorithm, (rounds, share, fan_in) in table.items():
        cost = price(build("all_reduce", algorithm, p), N, LINK)
        assert (cost.steps, cost.max_fan_in) == (rounds, fan_in), algorithm
        assert max(cost.max_bytes_sent, cost.max_bytes_received) == pytest.approx(float(share) * N)


def test_four_workers_through_one_of_them() -> None:
    """3 N cross the network to reduce and 6 N to all-reduce, 3 N each way through one; a ring 1.5 N a rank."""
    assert price(build("reduce", "linear", 4), N, LINK).total_bytes == 3 * N
    server = price(build("all_reduce", "parameter_server", 4), N, LINK)
    assert (server.total_bytes, server.max_bytes_sent, server.max_bytes_received) == (6 * N, 3 * N, 3 * N)
    assert server.busiest_rank == 0
    ring = price(build("all_reduce", "ring", 4), N, LINK)
    assert (ring.total_bytes, ring.max_bytes_sent, ring.max_bytes_received) == (6 * N, 1.5 * N, 1.5 * N)
    assert ring.bytes_sent == (1.5 * N,) * 4


def test_ports() -> None:
    direct = build("all_gather", "direct", 8)
    assert price(direct, 8.0, CostModel(1.0, 1.0)).total_s == 7 + 7
    assert price(direct, 8.0, CostModel(1.0, 1.0), ports="all").total_s == 1 + 1
    both_ways = build("all_gather", "ring_bidirectional", 8)
    assert price(both_ways, 16.0, CostModel(0.0, 1.0), ports="all").total_s == 14 / 2
    with pytest.raises(UsageError, match="ports must be one of one, all, read"):
        price(direct, 8.0, LINK, ports="two")


def test_rows_between_the_same_ranks_are_one_message() -> None:
    two_rows = Schedule.from_list("broadcast", 2, [[move(0, 1, 0), move(0, 1, 2)]], num_chunks=3)
    cost = price(two_rows, 3.0, CostModel(10.0, 1.0))
    assert (cost.alpha_s, cost.beta_s) == (10.0, 2.0)


def test_weights_are_sizes() -> None:
    body = Steps.from_list(2, 2, [move(0, 1, 0), move(0, 1, 1)])
    cost = price(Schedule("broadcast", body, weights=np.array([3, 1])), 8.0, CostModel(0.0, 1.0))
    assert cost.beta_s == 8.0
    assert (
        price(
            Schedule("broadcast", Steps.from_list(2, 2, [move(0, 1, 0)]), weights=np.array([3, 1])),
            8.0,
            CostModel(0.0, 1.0),
        ).beta_s
        == 6.0
    )


def test_the_slowest_rank_decides_and_may_change_with_size() -> None:
    """One rank sends two empty-handed messages, another one long one: which is slower depends on n."""
    body = Steps.from_list(5, 8, [[move(0, [1, 2], 0), move(3, 4, 0, 8)]])
    schedule = Schedule("broadcast", body)
    assert price(schedule, 8.0, CostModel(1.0, 1.0)).alpha_s == 1.0  # 1 + 8 beats 2 + 2
    assert price(schedule, 0.8, CostModel(1.0, 1.0)).alpha_s == 2.0  # 2 + 0.2 beats 1 + 0.8


def test_zero_bytes_and_bad_values() -> None:
    assert price(build("all_reduce", "ring", 4), 0, LINK).total_s == pytest.approx(6 * 5e-6)
    assert price(build("all_reduce", "ring", 1), N, LINK).total_s == 0
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="size_bytes must be a number of at least 0"):
            price(build("all_reduce", "ring", 4), wrong, LINK)
    for link in ((-1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, -1.0), (float("nan"), 1.0, 0.0)):
        with pytest.raises(UsageError, match="must be"):
            CostModel(*link)


@given(
    st.sampled_from(["all_reduce", "all_gather", "broadcast", "all_to_all"]),
    st.integers(2, 24),
    st.floats(1e-7, 1e-4),
    st.floats(1e8, 1e12),
    st.floats(0, 1e-9),
    st.data(),
)
@settings(max_examples=60)
def test_crossovers_are_exact(
    collective: str, ranks: int, alpha: float, bandwidth: float, gamma: float, data: st.DataObject
) -> None:
    counted = [profile(build(collective, a.name, ranks)) for a in list_algorithms(collective)]
    link = CostModel(alpha, bandwidth, gamma)
    ranges = winners(counted, 8, 1 << 30, link)
    assert (ranges[0].from_bytes, ranges[-1].to_bytes) == (8, 1 << 30)
    for before, later in pairwise(ranges):
        assert later.from_bytes == before.to_bytes + 1
        assert later.algorithm != before.algorithm
    for one in ranges:
        inside = data.draw(st.integers(one.from_bytes, one.to_bytes))
        for size in (one.from_bytes, inside, one.to_bytes):
            best = compare(counted, size, link)
            won = next(found for found in best if found.algorithm == one.algorithm)
            assert won.total_s <= best[0].total_s * (1 + 1e-12)


def test_a_crossover_by_hand() -> None:
    """Tree against ring broadcast at p = 8: 3 (a + n b) = 10 a + 14/8 n b where n = 5.6 a / b."""
    schedules = [build("broadcast", name, 8) for name in ("mst", "ring")]
    ranges = winners(schedules, 1, 10_000, CostModel(1.0, 1000.0))
    assert [(r.from_bytes, r.to_bytes, r.algorithm) for r in ranges] == [(1, 5600, "mst"), (5601, 10_000, "ring")]


def test_compare_orders_by_price_and_then_simplicity() -> None:
    names = [
        one.algorithm for one in compare([build("all_reduce", a, 8) for a in ("ring", "naive", "direct")], N, LINK)
    ]
    assert names == ["ring", "direct", "naive"]  # ring and direct cost the same here; ring has the smaller fan-in
    assert isinstance(compare([build("barrier", "bruck", 8)], 0, LINK)[0], Price)
    with pytest.raises(UsageError, match="no schedules to choose from"):
        winners([], 1, 2, LINK)


def test_only_like_is_compared_with_like() -> None:
    with pytest.raises(UsageError, match="only schedules of one collective and number of ranks compare, not"):
        compare([build("all_reduce", "ring", 4), build("all_gather", "ring", 4)], N, LINK)
    with pytest.raises(UsageError, match="give several schedules, in a list"):
        compare(build("all_reduce", "ring", 4), N, LINK)  # type: ignore[arg-type]  # the mistake is the test
    with pytest.raises(UsageError, match="alpha_s must be a time of at least 0 seconds, or text like '5us', not None"):
        CostModel(None, 1.0)  # type: ignore[arg-type]  # the mistake is the test


def test_a_price_needs_a_cost_model() -> None:
    ring = build("all_reduce", "ring", 4)
    for call in (
        lambda: price(ring, "1M", "5us"),  # type: ignore[arg-type]
        lambda: compare([ring], "1M", "5us"),  # type: ignore[arg-type]
        lambda: winners([ring], 1, "1M", "5us"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=r"a price needs a CostModel, like .* not '5us'"):
            call()
