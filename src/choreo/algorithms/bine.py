"""Bine trees: binomial trees and butterflies whose partners lie 1, -1, 3, -5, 11, ... ranks away: negabinary numbers.

A message goes at most a third of the way around the ranks; in a binomial tree it goes up to half. So on a tree of
switches, up to a third less traffic crosses the top, in as few steps. The ranks of a subtree are contiguous. At p = 2^m
+ r ranks, r pairs of neighbours act as one member: the second of a pair gets its part from the first. At powers of two,
the butterflies are those of Swing.

Source: D. De Sensi et al., "Bine trees: enhancing collective operations by optimizing communication locality", SC 2025.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.algorithms import Cost, algorithm
from choreo.algorithms._ranges import present
from choreo.schedule import Move, Schedule, backwards, move, then

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """The members of the tree, 0 to 2^m - 1, each one rank or a pair of neighbours; `start` are their first ranks."""

    ranks: int
    steps: int
    start: Ints

    @staticmethod
    def among(ranks: int) -> _Members:
        steps = ranks.bit_length() - 1
        number = np.arange(1 << steps)
        return _Members(ranks, steps, np.minimum(2 * number, number + ranks - (1 << steps)))

    @property
    def size(self) -> int:
        return 1 << self.steps

    @property
    def width(self) -> Ints:
        """The number of ranks that each member stands for."""
        return np.diff(np.append(self.start, self.ranks))

    @property
    def pairs(self) -> Ints:
        """The first ranks of the pairs."""
        first: Ints = self.start[self.width == 2]
        return first

    def partner(self, member: Ints, step: int) -> Ints:
        """The partner of a member: the nearest in the last step, on one side for even members and the other for odd."""
        distance = sum((-2) ** k for k in range(self.steps - step))
        found: Ints = (member + np.where(member % 2 == 0, distance, -distance)) % self.size
        return found

    def below(self, member: Ints, step: int) -> Ints:
        """The members that each reaches in the steps from `step` on: a row for each."""
        found = member[:, None]
        for later in range(step, self.steps):
            found = np.concatenate((found, self.partner(found, later)), axis=1)
        return found

    def held(self, step: int) -> Ints:
        """For each member, a row with the owners of the blocks that it has before a step of the butterfly."""
        everybody = np.arange(self.size)
        found = everybody[:, None]
        for earlier in range(step):
            found = np.concatenate((found, found[self.partner(everybody, earlier)]), axis=1)
        return found


def _tree(members: _Members) -> Iterator[tuple[Ints, Ints]]:
    """The senders and receivers of each step, from member 0."""
    have = np.zeros(1, np.int64)
    for step in range(members.steps):
        others = members.partner(have, step)
        yield have, others
        have = np.concatenate((have, others))


def _blocks(members: _Members, src: Ints, dst: Ints, held: Ints, root: int = 0) -> Move:
    """The blocks of some members, a row of `held` for each message; ranks are counted from the root."""
    ends = (np.repeat((members.start[end] + root) % members.ranks, held.shape[1]) for end in (src, dst))
    start, width = members.start[held].reshape(-1), members.width[held].reshape(-1)
    here, there = ends
    # A pair may lie on both sides of the last rank.
    first = (start + root) % members.ranks
    second = (start + root + 1) % members.ranks
    pair = width == 2
    return move(
        np.concatenate((here, here[pair])),
        np.concatenate((there, there[pair])),
        np.concatenate((first, second[pair])),
    )


@algorithm("broadcast", cost=Cost(alpha="lg(p)", beta="lg(p)", at="powers of two"))
def broadcast(ranks: int, root: int) -> Schedule:
    """The whole vector goes down the tree, the farthest first."""
    members = _Members.among(ranks)
    steps = [
        move((members.start[src] + root) % ranks, (members.start[dst] + root) % ranks, 0) for src, dst in _tree(members)
    ]
    pairs = members.pairs + root
    if len(pairs):
        steps.append(move(pairs % ranks, (pairs + 1) % ranks, 0))
    return Schedule.from_list("broadcast", ranks, steps, root=root)


@algorithm("scatter", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", at="powers of two"))
def scatter(ranks: int, root: int) -> Schedule:
    """Each gets the blocks of those below it."""
    members = _Members.among(ranks)
    steps = [
        _blocks(members, src, dst, members.below(dst, step + 1), root) for step, (src, dst) in enumerate(_tree(members))
    ]
    pairs = members.pairs + root
    if len(pairs):
        steps.append(move(pairs % ranks, (pairs + 1) % ranks, (pairs + 1) % ranks))
    return Schedule.from_list("scatter", ranks, steps, root=root)


@algorithm("reduce", cost=Cost(alpha="lg(p)", beta="lg(p)", gamma="lg(p)", at="powers of two"))
def reduce(ranks: int, root: int) -> Schedule:
    """A broadcast backwards."""
    return backwards(broadcast(ranks, root))


@algorithm("gather", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", at="powers of two"))
def gather(ranks: int, root: int) -> Schedule:
    """A scatter backwards."""
    return backwards(scatter(ranks, root))


@algorithm("all_gather", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", at="powers of two"))
def all_gather(ranks: int) -> Schedule:
    """Partners exchange all they have; they come nearer while what they exchange grows."""
    members = _Members.among(ranks)
    everybody = np.arange(members.size)
    first = members.pairs
    second = first + 1
    paired = bool(len(first))

    def step(number: int) -> Move | list[Move]:
        if paired and number == 0:
            return move(second, first, second)
        if number - paired == members.steps:
            return [move(first, second, 0, second), present(first, second, second + 1, ranks - second - 1)]
        inside = number - paired
        return _blocks(members, everybody, members.partner(everybody, inside), members.held(inside))

    return Schedule.from_function("all_gather", ranks, members.steps + 2 * paired, step)


@algorithm("reduce_scatter", cost=Cost(alpha="lg(p)", beta="(p - 1) / p", gamma="(p - 1) / p", at="powers of two"))
def reduce_scatter(ranks: int) -> Schedule:
    """An all_gather backwards."""
    return backwards(all_gather(ranks))


@algorithm(
    "all_reduce",
    cost=Cost(alpha="2 * lg(p)", beta="2 * (p - 1) / p", gamma="(p - 1) / p", at="powers of two"),
)
def all_reduce(ranks: int) -> Schedule:
    """Reduce_scatter, then all_gather."""
    return then(reduce_scatter(ranks), all_gather(ranks))
