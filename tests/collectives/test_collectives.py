"""The contracts, held to the sentences of their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from choreo.collectives import COLLECTIVES, Layout, collective_between, get_collective
from choreo.errors import UnknownNameError, UsageError

RANKS, ROOT = 3, 1

# For each collective, as text: who holds which block before and after; rows are ranks, columns blocks.
HELD = {
    "broadcast": ("0 1 0", "1 1 1"),
    "reduce": ("1 1 1", "0 1 0"),
    "scatter": ("000 111 000", "100 010 001"),
    "gather": ("100 010 001", "000 111 000"),
    "all_gather": ("100 010 001", "111 111 111"),
    "reduce_scatter": ("111 111 111", "100 010 001"),
    "all_reduce": ("1 1 1", "1 1 1"),
    "all_to_all": ("111000000 000111000 000000111", "100100100 010010010 001001001"),
    "barrier": ("100 010 001", "111 111 111"),
    "send_recv": ("100 010 001", "001 100 010"),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_ranks_hold(name: str) -> None:
    contract = COLLECTIVES[name]
    blocks = np.arange(contract.blocks(RANKS))[None, :]
    for layout, text in zip((contract.before, contract.after), HELD[name], strict=True):
        held = layout.holds(np.arange(RANKS)[:, None], blocks, RANKS, ROOT)
        assert " ".join("".join(str(int(h)) for h in row) for row in held) == text


def test_seven_collectives_are_the_arrows_between_three_layouts() -> None:
    three = (Layout.EVERYWHERE, Layout.ROOT, Layout.BLOCK)
    arrows = {(a, b): collective_between(a, b) for a in three for b in three}
    names = {pair: found.name for pair, found in arrows.items() if found}
    assert len(names) == 7
    assert (Layout.ROOT, Layout.ROOT) not in names
    assert names[Layout.BLOCK, Layout.EVERYWHERE] == "all_gather"  # not the barrier of the same shape


def test_what_a_size_means() -> None:
    assert COLLECTIVES["all_gather"].total_bytes(1000, 4) == 1000
    assert COLLECTIVES["all_to_all"].total_bytes(1000, 4) == 4000
    assert COLLECTIVES["barrier"].total_bytes(1000, 4) == 0


def test_roots() -> None:
    assert get_collective("reduce").check_root(None, 4) == 0
    assert get_collective("all_reduce").check_root(None, 4) is None
    with pytest.raises(UsageError, match="root 4 is not a rank: with 4 ranks it must be 0 to 3"):
        get_collective("reduce").check_root(4, 4)
    with pytest.raises(UsageError, match="all_reduce has no root"):
        get_collective("all_reduce").check_root(0, 4)
    with pytest.raises(UsageError, match="all_reduce has no root, but root=a value of type int was given"):
        get_collective("all_reduce").check_root(10**5000, 4)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'all_reduce'") as caught:
        get_collective("allreduce")
    assert caught.value.suggestions[0] == "all_reduce"
