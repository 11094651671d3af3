"""Translated: every rank's block takes the same tree through a mesh of ranks, shifted to that rank.

In each step a rank sends one block along every port: both ways along a ring, to each of the others along a fully
connected axis, to any one of them through a switch. All ranks do the same, so no two messages share a link, and on a
torus no port is idle before the last step. Without `axes`, the mesh is as square as the number of ranks allows, with
rings along both axes; `choreo simulate` takes the network's dimensions. All ports count alike: where some are slower,
`choreo synthesize` plans with their bandwidths.

Source: L. Zhao et al., "Efficient direct-connect topologies for collective communications", NSDI 2025, for trees that
grow breadth first on graphs that look the same from every node. Which blocks the ports carry is a maximum matching in
each step, by augmenting paths (C. Berge, "Two theorems in graph theory", PNAS 1957).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.algorithms import AxesLike, Cost, algorithm, axes_for
from choreo.schedule import Move, Schedule, backwards, move, then

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

# The offset of a port that leads to any rank along its axis.
ANY = 0


@dataclass(frozen=True, slots=True)
class _Mesh:
    """The sizes of the axes, innermost first, and the ports of a rank, each an axis and the offset it leads to."""

    sizes: tuple[int, ...]
    ports: tuple[tuple[int, int], ...]

    def stride(self, axis: int) -> int:
        """The distance in rank order between neighbours along an axis."""
        return math.prod(self.sizes[:axis])

    def shifted(self, rank: Ints, by: Ints) -> Ints:
        """Ranks shifted by the coordinates of others."""
        found = np.zeros_like(rank + by)
        for axis, size in enumerate(self.sizes):
            stride = self.stride(axis)
            found += (rank // stride + by // stride) % size * stride
        return found

    def away(self) -> Ints:
        """How many hops along rings each rank is away from rank 0."""
        rank = np.arange(math.prod(self.sizes))
        found = np.zeros_like(rank)
        for axis, size in enumerate(self.sizes):
            at = rank // self.stride(axis) % size
            found += np.minimum(at, size - at)
        return found

    def reached(self, has: Bools) -> Bools:
        """For each port, the ranks that it leads to from ranks that have the block, and that do not have it yet."""
        grid = has.reshape(self.sizes[::-1])
        found = [
            np.roll(grid, offset, -1 - axis)
            if offset != ANY
            else np.broadcast_to(grid.any(axis=-1 - axis, keepdims=True), grid.shape)
            for axis, offset in self.ports
        ]
        new: Bools = np.reshape(found, (len(found), -1)) & ~has
        return new

    def sender(self, has: Bools, port: int, dst: int) -> int:
        """The first rank that has the block and reaches `dst` by this port."""
        axis, offset = self.ports[port]
        stride, size = self.stride(axis), self.sizes[axis]
        here = dst // stride % size
        others = range(size) if offset == ANY else [(here - offset) % size]
        return next(src for at in others if has[src := dst + (at - here) * stride])


@algorithm("all_gather", cost=Cost(alpha="p - 1", beta="(p - 1) / p"))
def all_gather(ranks: int, axes: AxesLike | None = None) -> Schedule:
    """Every block goes from its rank as rank 0's block does from rank 0."""
    parsed = axes_for(ranks, axes)
    names = zip(parsed.sizes, parsed.algorithms, strict=True)
    ports = ((axis, offset) for axis, (size, name) in enumerate(names) for offset in _offsets(size, name))
    mesh = _Mesh(parsed.sizes, tuple(ports))
    src, dst, ends = _tree(mesh)
    everyone = np.arange(ranks)

    def step(number: int) -> Move:
        now = slice(ends[number], ends[number + 1])
        here, there = mesh.shifted(src[now, None], everyone), mesh.shifted(dst[now, None], everyone)
        return move(here.ravel(), there.ravel(), np.broadcast_to(everyone, here.shape).ravel())

    return replace(Schedule.from_function("all_gather", ranks, len(ends) - 1, step), axes=str(parsed))


@algorithm("reduce_scatter", cost=Cost(alpha="p - 1", beta="(p - 1) / p", gamma="(p - 1) / p"))
def reduce_scatter(ranks: int, axes: AxesLike | None = None) -> Schedule:
    """An all_gather backwards."""
    return backwards(all_gather(ranks, axes))


@algorithm("all_reduce", cost=Cost(alpha="2 * (p - 1)", beta="2 * (p - 1) / p", gamma="(p - 1) / p"))
def all_reduce(ranks: int, axes: AxesLike | None = None) -> Schedule:
    """Reduce_scatter, then all_gather."""
    gather = all_gather(ranks, axes)
    return then(backwards(gather), gather)


def _offsets(size: int, name: str) -> list[int]:
    """Where each port of a rank leads along an axis."""
    if size == 1:
        return []
    if name == "ring":
        return [1] if size == 2 else [1, size - 1]
    return list(range(1, size)) if name == "direct" else [ANY]


def _tree(mesh: _Mesh) -> tuple[Ints, Ints, list[int]]:
    """Who passes rank 0's block to whom, and where each step begins and ends in that list."""
    away = mesh.away()
    has = away == 0
    src: list[int] = []
    dst: list[int] = []
    ends = [0]
    while not has.all():
        taken = _matching(mesh.reached(has), away)
        src += [mesh.sender(has, port, there) for port, there in taken]
        dst += [there for _, there in taken]
        has[dst[ends[-1] :]] = True
        ends.append(len(dst))
    return np.array(src, np.int64), np.array(dst, np.int64), ends


def _matching(reached: Bools, away: Ints) -> list[tuple[int, int]]:
    """A rank for as many ports as possible, of those that each reaches: near ones first, then those with few ports."""
    choices = reached.sum(axis=0)
    waiting = np.flatnonzero(choices)
    waiting = waiting[np.lexsort((choices[waiting], away[waiting]))]
    usable = int(reached.any(axis=1).sum())
    taken: dict[int, int] = {}

    def place(rank: int, tried: set[int]) -> bool:
        """Whether the rank gets a port; ranks that have one may change to another."""
        for port in np.flatnonzero(reached[:, rank]).tolist():
            if port not in tried:
                tried.add(port)
                if port not in taken or place(taken[port], tried):
                    taken[port] = rank
                    return True
        return False

    for rank in waiting.tolist():
        if len(taken) == usable:
            break
        place(rank, set())
    return sorted(taken.items())
