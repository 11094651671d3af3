"""Bine trees: near partners, neighbours below a rank, less over the top of a tree network."""

from __future__ import annotations

import numpy as np
import pytest

from choreo.algorithms import build
from choreo.prove import prove
from choreo.simulate import simulate

TREES = ("broadcast", "reduce", "scatter", "gather")


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 13, 16, 33])
@pytest.mark.parametrize("collective", TREES)
def test_any_root(collective: str, ranks: int) -> None:
    for root in {0, 1, ranks // 2, ranks - 1}:
        prove(build(collective, "bine", ranks, root=root))


@pytest.mark.parametrize("steps", range(1, 11))
def test_no_message_goes_farther_than_a_third_of_the_way_round(steps: int) -> None:
    ranks = 1 << steps
    rows = build("broadcast", "bine", ranks, root=5 % ranks).columns()
    away = np.abs(rows.src - rows.dst)
    # The distances are 1, 1, 3, 5, 11, ...: the nearest whole number to a third of a power of two.
    assert np.minimum(away, ranks - away).max() == max(1, round(ranks / 3))


def test_the_partners_of_the_root() -> None:
    rows = build("broadcast", "bine", 16, root=0).columns()
    assert rows.dst[rows.src == 0].tolist() == [11, 3, 15, 1]  # -5, 3, -1, 1


@pytest.mark.parametrize("root", [0, 3])
def test_what_is_below_a_rank_lies_side_by_side(root: int) -> None:
    rows = build("scatter", "bine", 32, root=root).columns()
    for src, dst in set(zip(rows.src.tolist(), rows.dst.tolist(), strict=True)):
        sent = np.sort(rows.chunk[(rows.src == src) & (rows.dst == dst)])
        gaps = np.diff(np.append(sent, sent[0] + 32))
        assert np.sort(gaps)[:-1].max(initial=1) == 1


def test_at_powers_of_two_the_butterfly_is_that_of_swing() -> None:
    ours, theirs = (build("all_gather", name, 16).columns() for name in ("bine", "swing"))
    names = ("step", "src", "dst", "chunk")
    assert {*zip(*(getattr(ours, n).tolist() for n in names), strict=True)} == {
        *zip(*(getattr(theirs, n).tolist() for n in names), strict=True)
    }


@pytest.mark.parametrize(
    ("collective", "other"),
    [("all_gather", "recursive_doubling"), ("all_gather", "bruck"), ("all_reduce", "halving_doubling")],
)
def test_less_crosses_the_top_of_a_tree(collective: str, other: str) -> None:
    """The links above the leaves carry less."""

    def over_the_top(name: str) -> float:
        found = simulate(build(collective, name, 128), "fat_tree(32x4, 50GB/s, 1us)", 1 << 20)
        return float(found.loads.link_bytes[256:].sum())

    assert over_the_top("bine") <= over_the_top(other)
