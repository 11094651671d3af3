"""The resharding rule, against arrays that really are cut: what the rule says is done, and the result must be right."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.workload.graph.sharding import (
    PARTIAL,
    WHOLE,
    Sharding,
    Tensor,
    Transition,
    cut_along,
    dual,
    propagate,
    reshard,
)

MESH = {"tp": 2, "cp": 3, "dp": 2}
DIMS = (("batch", 12.0), ("sequence", 12.0))
NAMES = [name for name, _ in DIMS]
Array = npt.NDArray[np.float64]
Coordinates = tuple[int, ...]
RANKS = list(itertools.product(*(range(size) for size in MESH.values())))


def sharding(**states: str) -> Sharding:
    return Sharding(tuple(sorted(states.items())))


def cut(whole: Array, how: Sharding, at: Coordinates) -> Array:
    """What a rank holds; a dim that several axes cut is cut by the outermost first."""
    part = whole
    for axis, here in reversed(list(zip(MESH, at, strict=True))):
        state = how.along(axis)
        if state == PARTIAL:
            part = part * (1.0 if here == 0 else 0.0) if MESH[axis] > 1 else part
        elif state is not None:
            part = np.array_split(part, MESH[axis], axis=NAMES.index(state))[here]
    return part


def bytes_through(held: dict[Coordinates, Array], move: Transition) -> dict[Coordinates, Array]:
    """The collective itself, group by group, on arrays. Gathers undo what the innermost of a dim's axes cut."""
    axes = [list(MESH).index(axis) for axis in move.axes]
    made: dict[Coordinates, Array] = {}
    for at in RANKS:
        group = [other for other in RANKS if all(other[i] == at[i] for i in range(len(at)) if i not in axes)]
        # The outermost axis varies slowest, as cut() cuts by it first.
        group.sort(key=lambda other: tuple(other[i] for i in reversed(axes)))
        mine = group.index(at)
        before = move.before.along(move.axes[0])
        after = move.after.along(move.axes[0])
        if move.kind == "all_reduce":
            made[at] = sum((held[other] for other in group), start=np.zeros(1))
        elif move.kind == "reduce_scatter":
            assert after is not None
            total = sum((held[other] for other in group), start=np.zeros(1))
            made[at] = np.array_split(total, len(group), axis=NAMES.index(after))[mine]
        elif move.kind == "all_gather":
            assert before is not None
            made[at] = np.concatenate([held[other] for other in group], axis=NAMES.index(before))
        elif move.kind == "all_to_all":
            assert before is not None
            assert after is not None
            parts = [np.array_split(held[other], len(group), axis=NAMES.index(after))[mine] for other in group]
            made[at] = np.concatenate(parts, axis=NAMES.index(before))
    return made


states = st.sampled_from([None, "batch", "sequence", PARTIAL])


@given(st.tuples(states, states, states), st.tuples(states, states, states))
@settings(max_examples=300, deadline=None)
def test_the_rule_moves_real_data(first: tuple[str | None, ...], last: tuple[str | None, ...]) -> None:
    before = sharding(**{axis: state for axis, state in zip(MESH, first, strict=True) if state})
    after = sharding(**{axis: state for axis, state in zip(MESH, last, strict=True) if state and state != PARTIAL})
    whole = np.arange(144.0).reshape(12, 12)
    held = {at: cut(whole, before, at) for at in RANKS}
    layout_now = before
    for move in reshard(before, after):
        assert move.before.states == _with_slices(layout_now, move.before, after).states
        held = {at: sliced(held[at], layout_now, move.before, at) for at in RANKS}
        held = bytes_through(held, move)
        layout_now = move.after
    held = {at: sliced(held[at], layout_now, after, at) for at in RANKS}
    tensor = Tensor("t", DIMS, after, 8)
    for at in RANKS:
        assert held[at].size == tensor.elements(MESH)
    # Each number is where it belongs often enough: as many copies as axes that keep it whole.
    found, counts = np.unique(np.concatenate([part.ravel() for part in held.values()]), return_counts=True)
    copies = math.prod(size for axis, size in MESH.items() if after.along(axis) is None)
    assert (found == whole.ravel()).all()
    assert (counts == copies).all()


def _with_slices(now: Sharding, wanted: Sharding, after: Sharding) -> Sharding:
    """A rank may cut what is whole without asking anybody."""
    free = {axis: wanted.along(axis) for axis in MESH if now.along(axis) is None and wanted.along(axis)}
    assert all(after.along(axis) == state for axis, state in free.items())
    return now.but(free)


def sliced(part: Array, now: Sharding, wanted: Sharding, at: Coordinates) -> Array:
    for axis, here in reversed(list(zip(MESH, at, strict=True))):
        state = wanted.along(axis)
        if now.along(axis) is None and state is not None:
            part = np.array_split(part, MESH[axis], axis=NAMES.index(state))[here]
    return part


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (sharding(tp="+"), WHOLE, ["all_reduce"]),
        (sharding(tp="+"), sharding(tp="sequence"), ["reduce_scatter"]),
        (sharding(tp="sequence"), WHOLE, ["all_gather"]),
        (sharding(tp="sequence"), sharding(tp="heads"), ["all_to_all"]),
        (WHOLE, sharding(tp="heads"), []),
        (sharding(tp="heads"), sharding(tp="heads"), []),
        (sharding(tp="+", ep="experts"), sharding(tp="tokens", ep="tokens"), ["reduce_scatter", "all_to_all"]),
        (sharding(tp="tokens", ep="tokens"), sharding(ep="experts"), ["all_to_all", "all_gather"]),
        (sharding(tp="sequence"), Sharding((("tp", "sequence"),), stage=1), ["send"]),
        (sharding(tp="+"), Sharding((), stage=1), ["all_reduce", "send"]),
        (sharding(tp="sequence"), Sharding((), stage=1), ["send", "all_gather"]),
    ],
)
def test_two_layouts_and_what_they_take(before: Sharding, after: Sharding, kinds: list[str]) -> None:
    moves = reshard(before, after)
    assert [move.kind for move in moves] == kinds
    for first, second in itertools.pairwise((before, *(move.after for move in moves))):
        assert first != second


def test_axes_that_change_alike_go_together() -> None:
    (move,) = reshard(sharding(dp="+", cp="+", tp="heads"), sharding(tp="heads"))
    assert (move.kind, move.axes) == ("all_reduce", ("cp", "dp"))
    moves = reshard(sharding(dp="+", tp="+"), sharding(dp="piece"))
    assert [(move.kind, move.axes) for move in moves] == [("all_reduce", ("tp",)), ("reduce_scatter", ("dp",))]


def test_layouts_propagate_through_a_product() -> None:
    tokens, by_columns, by_rows = sharding(dp="batch"), sharding(tp="ffn"), sharding(tp="ffn")
    up = propagate((tokens, by_columns), (("batch", 2), ("ffn", 4)))
    assert up == sharding(dp="batch", tp="ffn")
    down = propagate((up, by_rows), (("batch", 2), ("hidden", 1)))
    assert down == sharding(dp="batch", tp=PARTIAL)
    assert down.partial == ("tp",)


def test_gradients_lie_in_the_dual_layout() -> None:
    assert dual(sharding(tp=PARTIAL, dp="batch")) == sharding(dp="batch")
    assert dual(sharding(dp="batch"), frozenset({"tp", "dp"})) == sharding(dp="batch", tp=PARTIAL)


def test_layouts_in_words() -> None:
    assert str(WHOLE) == "whole"
    assert str(sharding(tp="+", dp="batch")) == "batch/dp, sum over tp"
    assert cut_along({"tp": 1, "dp": 2}, tp="heads", dp="batch") == sharding(dp="batch")


def test_sizes_at_one_rank() -> None:
    tensor = Tensor("t", (("batch", 8), ("hidden", 16)), sharding(dp="batch", tp=PARTIAL), 2)
    mesh = {"dp": 4, "tp": 8}
    assert tensor.elements(mesh) == 32
    assert tensor.bytes(mesh) == 64
    assert tensor.local("batch", mesh) == 2
    assert tensor.bytes(mesh, WHOLE) == 256
