"""Shardings of a tensor over a mesh of devices, and the rule that turns two shardings into a collective.

Along each axis a tensor is whole (every rank has all of it), cut along one of its dims (each rank has a part), or a
partial sum (each rank has a term). Where the two ends of an edge differ, something must move:

    partial sum -> whole      all_reduce
    partial sum -> cut        reduce_scatter
    cut -> whole              all_gather
    cut i -> cut j            all_to_all
    whole -> cut              nothing: each rank keeps its part
    stage i -> stage j        send

Nothing else in this folder names a collective. The rule is that of GSPMD (Xu et al. 2021) and Alpa (Zheng et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from choreo.workload.mesh import AXES

__all__ = ["PARTIAL", "WHOLE", "Sharding", "Tensor", "Transition", "cut_along", "dual", "propagate", "reshard"]

PARTIAL = "+"
_ORDER = {"all_reduce": 0, "reduce_scatter": 1, "slice": 2, "all_to_all": 3, "all_gather": 5}


@dataclass(frozen=True, slots=True)
class Sharding:
    """A tensor's layout on a mesh: for each axis the dim it cuts, or "+" for a partial sum. Other axes keep it whole.

    >>> print(Sharding((("dp", "batch"), ("tp", "+"))))
    batch/dp, sum over tp
    """

    states: tuple[tuple[str, str], ...] = ()
    stage: int = 0

    def along(self, axis: str) -> str | None:
        """The dim that an axis cuts, "+" if it holds terms of a sum, None if the tensor is whole along it."""
        for name, state in self.states:
            if name == axis:
                return state
        return None

    def but(self, changes: Mapping[str, str | None]) -> Sharding:
        """The same with some axes changed; None makes it whole along one."""
        if not changes:
            return self
        states = dict(self.states)
        for axis, state in changes.items():
            if state is None:
                states.pop(axis, None)
            else:
                states[axis] = state
        return Sharding(tuple(sorted(states.items())), self.stage)

    @property
    def partial(self) -> tuple[str, ...]:
        """Axes along which it is a partial sum."""
        return tuple(axis for axis, state in self.states if state == PARTIAL)

    def __str__(self) -> str:
        parts = [f"sum over {axis}" if state == PARTIAL else f"{state}/{axis}" for axis, state in self.states]
        return ", ".join(parts) or "whole"


WHOLE = Sharding()


@dataclass(frozen=True, slots=True)
class Transition:
    """One step from a sharding to another: a collective along some axes, or a send."""

    kind: str
    axes: tuple[str, ...]
    before: Sharding
    after: Sharding


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor: the sizes of its dims before it is cut, the bytes of one number, and its sharding.

    `role` is "activation", "weight", "tied" (a weight counted elsewhere), "data" (needs no gradient), "mask" or
    "state" (neither is on an edge).
    """

    name: str
    dims: tuple[tuple[str, float], ...]
    sharding: Sharding
    item_bytes: float
    role: str = "activation"

    def has(self, dim: str) -> bool:
        """Whether it has a dim of that name."""
        return any(name == dim for name, _ in self.dims)

    def elements(self, mesh: Mapping[str, int], sharding: Sharding | None = None) -> float:
        """Numbers that one rank holds, in this sharding or its own."""
        total = 1.0
        for _, size in self.dims:
            total *= size
        for axis, state in (sharding or self.sharding).states:
            if state != PARTIAL:
                total /= mesh[axis]
        return total

    def bytes(self, mesh: Mapping[str, int], sharding: Sharding | None = None) -> float:
        """Bytes that one rank holds."""
        return self.elements(mesh, sharding) * self.item_bytes

    def local(self, dim: str, mesh: Mapping[str, int], sharding: Sharding | None = None) -> float:
        """The size of a dim at one rank."""
        size = next(size for name, size in self.dims if name == dim)
        for axis, state in (sharding or self.sharding).states:
            if state == dim:
                size /= mesh[axis]
        return size


def cut_along(mesh: Mapping[str, int], **dims: str) -> Sharding:
    """A sharding by axis (`tp="heads"`); axes of one rank cut nothing."""
    return Sharding(tuple(sorted((axis, dim) for axis, dim in dims.items() if mesh[axis] > 1)))


def _kind(before: str | None, after: str | None) -> str:
    if before == PARTIAL:
        return "all_reduce" if after is None else "reduce_scatter"
    if before is None:
        return "slice"
    return "all_gather" if after is None else "all_to_all"


@lru_cache(maxsize=4096)
def reshard(before: Sharding, after: Sharding) -> tuple[Transition, ...]:
    """The collectives that bring a tensor from one sharding to another: sums first, which shrink it, gathers last.

    Axes that change in the same way go together, as one collective over their product.

    >>> [(move.kind, move.axes) for move in reshard(Sharding((("tp", "+"),)), Sharding((("tp", "sequence"),)))]
    [('reduce_scatter', ('tp',))]
    """
    if before == after:
        return ()
    groups: dict[tuple[int, str, str, str], list[str]] = {}
    for axis in AXES:
        old, new = before.along(axis), after.along(axis)
        if new not in (old, PARTIAL):
            kind = _kind(old, new)
            key = (_ORDER[kind], kind, "" if kind == "all_reduce" else new or "", old or "")
            groups.setdefault(key, []).append(axis)
    moves: list[Transition] = []
    sharding = before
    sending = before.stage != after.stage
    for (order, kind, new, _), axes in sorted(groups.items()):
        if sending and order > _ORDER["all_to_all"]:
            sharding = _send(moves, sharding, after.stage)
            sending = False
        step = sharding.but(dict.fromkeys(axes, new or None))
        if kind != "slice":
            moves.append(Transition(kind, tuple(axes), sharding, step))
        sharding = step
    if sending:
        _send(moves, sharding, after.stage)
    return tuple(moves)


def _send(moves: list[Transition], sharding: Sharding, stage: int) -> Sharding:
    sent = Sharding(sharding.states, stage)
    moves.append(Transition("send", ("pp",), sharding, sent))
    return sent


def propagate(sources: tuple[Sharding, ...], dims: tuple[tuple[str, float], ...], stage: int = 0) -> Sharding:
    """The sharding of an operator's output: a cut dim stays cut; one that is summed over leaves a partial sum."""
    names = [name for name, _ in dims]
    states: dict[str, str] = {}
    for source in sources:
        for axis, state in source.states:
            if state in names:
                states[axis] = state
            else:
                states.setdefault(axis, PARTIAL)
    return Sharding(tuple(sorted(states.items())), stage)


@lru_cache(maxsize=4096)
def dual(sharding: Sharding, divided: frozenset[str] = frozenset()) -> Sharding:
    """The sharding of the gradient of a tensor that is used in this sharding, by work divided over some axes.

    A cut tensor has its gradient cut the same way. A term of a sum has the gradient of the sum. Of a whole tensor, each
    rank that did a part of the work has a term of the gradient.
    """
    states = {axis: state for axis, state in sharding.states if state != PARTIAL}
    for axis in divided:
        if sharding.along(axis) is None:
            states[axis] = PARTIAL
    return Sharding(tuple(sorted(states.items())), sharding.stage)
