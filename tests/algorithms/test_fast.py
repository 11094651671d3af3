"""FAST: uneven all_to_all between servers, in rounds in which every server sends to one other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from choreo import UsageError, build, prove, simulate
from choreo.algorithms.fast import Servers, turns_of

SERVERS = "switch(4, 400GB/s, 200ns) x switch(4, 25GB/s, 1us)"


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, str, np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    ranks = draw(st.integers(2, 16))
    gpus = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    amounts = st.sampled_from([0.0, 0.0, 1.0, 2.5, 1e3, 1e-7])
    traffic = draw(arrays(np.float64, (ranks, ranks), elements=amounts))
    traffic[0, -1] += 1.0
    return ranks, f"{gpus}x{ranks // gpus}", traffic


@settings(max_examples=60)
@given(cases())
def test_any_traffic_between_any_servers_proves(
    case: tuple[int, str, np.ndarray[tuple[int, int], np.dtype[np.float64]]],
) -> None:
    ranks, axes, traffic = case
    prove(build("all_to_all", "fast", ranks, axes=axes, traffic=traffic))


def test_equal_blocks_go_to_the_twin_at_once_and_are_not_spread_before() -> None:
    rows = build("all_to_all", "fast", 12, axes="4x3").columns()
    across = rows.src // 4 != rows.dst // 4
    assert (rows.src[across] % 4 == rows.dst[across] % 4).all()
    assert rows.count[across].sum() == 12 * 8  # every block that leaves its server does so once
    assert set(rows.src[rows.step == 0] // 4 - rows.dst[rows.step == 0] // 4) == {0}


def test_a_server_sends_to_one_other_in_a_round() -> None:
    traffic = np.random.default_rng(1).integers(0, 50, (16, 16)).astype(float)
    rows = build("all_to_all", "fast", 16, axes="4x4", traffic=traffic).columns()
    across = rows.src // 4 != rows.dst // 4
    pairs = {
        (int(step), int(src), int(dst))
        for step, src, dst in zip(rows.step[across], rows.src[across] // 4, rows.dst[across] // 4, strict=True)
    }
    for column in (1, 2):
        ends = [(pair[0], pair[column]) for pair in pairs]
        assert len(ends) == len(set(ends))


def test_what_a_server_has_for_another_is_spread_evenly_over_its_gpus() -> None:
    traffic = np.zeros((8, 8))
    traffic[0, 4] = 1.0  # one rank has something for one other, four GPUs carry it
    pieces = Servers(4, traffic).across((0, 1), np.zeros(1))
    assert pieces.stops[:, 1].tolist() == [0, 1, 2, 3]
    assert pieces.part.tolist() == pytest.approx([0.25] * 4)


def test_a_pair_of_servers_has_its_turn_as_long_as_it_has_something() -> None:
    between = np.array([[0.0, 3.0, 1.0], [1.0, 0.0, 3.0], [3.0, 1.0, 0.0]])
    turns = turns_of(between)
    assert {pair: [number for number, *_ in found] for pair, found in turns.items()} == {
        (0, 1): [0], (1, 2): [0], (2, 0): [0], (0, 2): [1], (1, 0): [1], (2, 1): [1],
    }  # fmt: skip


def test_one_rank_with_most_of_the_traffic_no_longer_waits_for_its_own_adapter() -> None:
    """Its server's four adapters carry what it has, where pairwise has it send everything over its own."""
    traffic = np.ones((16, 16))
    traffic[0, 4:] = 100.0
    fast = build("all_to_all", "fast", 16, axes="4x4", traffic=traffic)
    weights = fast.weights
    assert weights is not None
    a_block = fast.chunks_a_block
    pairwise = build("all_to_all", "pairwise", 16)
    uneven = replace(pairwise, weights=weights.reshape(-1, a_block).sum(axis=1))
    slow, quick = (simulate(one, SERVERS, "1GiB").time_s for one in (uneven, fast))
    assert quick < slow / 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"axes": "4x3"}, "axes 4 x 3 make 12 ranks, not 8"),
        ({"traffic": [[1, 2], [3, 4]]}, "traffic must be 8 x 8 numbers"),
        ({"traffic": np.zeros((8, 8))}, "a number above 0"),
        ({"traffic": np.full((8, 8), -1.0)}, "at least 0"),
        ({"traffic": "zipf"}, "traffic must be 8 x 8 numbers"),
    ],
)
def test_mistakes_are_said_in_a_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build("all_to_all", "fast", 8, **options)
