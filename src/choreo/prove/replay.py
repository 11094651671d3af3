"""Replay a schedule step by step over the contributions of an algebra.

The replay is the ordering rule of the schedule in its plainest form: every transfer of a step reads what its source
held before the step; reducing into an empty place stores.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from choreo.schedule import Schedule, Transfers
from choreo.schedule.places import check_step_agreement, in_units, meetings

__all__ = ["AbsentError", "Algebra", "Counting", "Fingerprint", "replay"]

# In the algebra's own type: 8 bits for counts, 64 for sums modulo a prime.
Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class AbsentError(Exception):
    """A transfer sends data that its source does not have. The caller explains it."""

    def __init__(self, step: int, src: int, dst: int, chunk: int, from_input: bool) -> None:
        super().__init__(step, src, dst, chunk, from_input)
        self.step, self.src, self.dst, self.chunk, self.from_input = step, src, dst, chunk, from_input


class Algebra(Protocol):
    """The contents of places: `width` numbers each, all zero in an empty place."""

    name: str
    width: int
    contributions: Values  # what each member contributes, shape (members or 1, width); zero for a switch

    def add(self, left: Values, right: Values) -> Values:
        """The sum of two held values."""
        ...

    def right(self, places: Values) -> Mask:
        """A mask of the places, shape (members, chunks, width), that hold each contribution exactly once."""
        ...


class Counting:
    """Exact counts of each contribution in a place: 0, 1, or 2 for more than once.

    With width 1 contributions are not distinguished, which is exact where each chunk has only one.
    """

    name = "exact"

    def __init__(self, width: int, switches: int = 0) -> None:
        self.width = width
        self.contributions: Values = np.eye(width + switches, width, dtype=np.uint8)

    def add(self, left: Values, right: Values) -> Values:
        """Counts saturate at 2: that is already one too many."""
        summed: Values = np.minimum(left + right, 2)
        return summed

    def right(self, places: Values) -> Mask:
        """A mask of the places that hold every contribution once."""
        return np.asarray((places == 1).all(axis=2))


class Fingerprint:
    """The sum of the contributions modulo a random prime, each rank's contribution being a random number."""

    name = "fingerprint"
    width = 1

    def __init__(self, ranks: int, switches: int = 0) -> None:
        prime = _random_prime(random.SystemRandom())
        self.prime = np.uint64(prime)
        numbers = np.random.default_rng(secrets.randbits(128))
        of_ranks = numbers.integers(1, prime, (ranks, 1), np.uint64)
        self.contributions: Values = np.concatenate((of_ranks, np.zeros((switches, 1), np.uint64)))
        self.total = np.uint64(int(of_ranks.sum(dtype=object)) % prime)

    def add(self, left: Values, right: Values) -> Values:
        """Below the prime the subtraction wraps to a huge number, and the minimum keeps the sum."""
        total = left + right
        summed: Values = np.minimum(total, total - self.prime)
        return summed

    def right(self, places: Values) -> Mask:
        """The sum is that of all ranks."""
        return np.asarray(places[:, :, 0] == self.total)


def replay(schedule: Schedule, algebra: Algebra, low: int, high: int) -> tuple[Values, int]:
    """The contents of chunks low to high - 1 at every member at the end, and the number of all transfers."""
    given = schedule.held_before(low, high)
    work: Values = np.zeros((*given.shape, algebra.width), algebra.contributions.dtype)
    np.copyto(work, algebra.contributions[:, None, :], where=given[:, :, None])
    whole = (low, high) == (0, schedule.num_chunks)
    transfers = 0
    for block in schedule.blocks():
        transfers += len(block)
        # Places that only receive sums of inputs may be replayed in any order, so join many small steps.
        free = block.reduce.all() and block.from_input.all()
        for rows in [block] if free else block.each_step():
            inside = rows if whole else _clipped(rows, low, high)
            if len(inside):
                _replay_step(inside, work, algebra, given, low, name=schedule.member_name)
    return work, transfers


def _replay_step(
    rows: Transfers, work: Values, algebra: Algebra, given: Mask, low: int, *, name: Callable[[int], str]
) -> None:
    units, unit = in_units(rows, work.shape[1])
    units_a_rank = work.shape[1] // unit
    places = work.reshape(work.shape[0] * units_a_rank, -1)
    flat = places.reshape(-1) if places.shape[1] == 1 else places
    source, target = units.src * units_a_rank + units.chunk, units.dst * units_a_rank + units.chunk
    values = flat[source]
    if units.from_input.any():
        own = _input_values(units, algebra, given, unit)
        pick = units.from_input if values.ndim == 1 else units.from_input[:, None]
        values = np.where(pick, own.reshape(values.shape), values)
    _check_present(units, values, algebra.width, unit, low)
    met = meetings(units)
    if met is None:
        _write(flat, target, values, units.reduce, algebra)
        return
    check_step_agreement(rows, first_chunk=low, name=name)  # so transfers that share a place are all reductions
    _write(flat, *_summed(target[met], values[met], units.reduce[met], algebra), algebra)


def _summed(target: Ints, values: Values, reduce: Mask, algebra: Algebra) -> tuple[Ints, Values, Mask]:
    """One row per place. Rows of the same place are neighbours, and are added up pairwise in rounds."""
    while True:
        row = np.arange(len(target))
        first = np.concatenate(([True], target[1:] != target[:-1]))
        if first.all():
            return target, values, reduce
        second = (row - np.maximum.accumulate(np.where(first, row, 0))) % 2 == 1
        taken = np.flatnonzero(second)
        values[taken - 1] = algebra.add(values[taken - 1], values[taken])
        target, values, reduce = target[~second], values[~second], reduce[~second]


def _write(flat: Values, target: Ints, values: Values, reduce: Mask, algebra: Algebra) -> None:
    if reduce.all():
        flat[target] = algebra.add(flat[target], values)
    elif not reduce.any():
        flat[target] = values
    else:
        adds = reduce if values.ndim == 1 else reduce[:, None]
        flat[target] = np.where(adds, algebra.add(flat[target], values), values)


def _input_values(units: Transfers, algebra: Algebra, given: Mask, unit: int) -> Values:
    """The inputs of the sources, zero where they have none."""
    has = given.reshape(given.shape[0], -1, unit)[units.src, units.chunk]
    contributed = np.broadcast_to(algebra.contributions, (given.shape[0], algebra.width))[units.src]
    return np.where(has[:, :, None], contributed[:, None, :], contributed.dtype.type(0))


def _check_present(units: Transfers, values: Values, width: int, unit: int, low: int) -> None:
    """Refuse to send data that is absent."""
    if values.ndim == 1:
        if values.all():
            return
        absent = values == 0
    else:
        absent = ~values.reshape(len(units), unit, width).any(axis=2)
        if not absent.any():
            return
    row, inside = np.argwhere(absent.reshape(len(units), -1))[0]
    chunk = low + int(units.chunk[row]) * unit + int(inside)
    raise AbsentError(
        int(units.step[row]), int(units.src[row]), int(units.dst[row]), chunk, bool(units.from_input[row])
    )


def _clipped(rows: Transfers, low: int, high: int) -> Transfers:
    """The part of the rows inside chunks low to high - 1, numbered from low."""
    first, last = np.maximum(rows.chunk, low), np.minimum(rows.chunk + rows.count, high)
    clipped = replace(rows, chunk=first - low, count=last - first)
    return clipped.take(clipped.count > 0)


def _random_prime(source: random.Random) -> int:
    """A prime between 2**60 and 2**61, by Miller and Rabin's test, whose first 12 prime bases are exact there."""
    while True:
        candidate = source.randrange(2**60 + 1, 2**61, 2)
        if all(_passes(candidate, base) for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)):
            return candidate


def _passes(candidate: int, base: int) -> bool:
    twos = ((candidate - 1) & -(candidate - 1)).bit_length() - 1
    value = pow(base, (candidate - 1) >> twos, candidate)
    if value in (1, candidate - 1):
        return True
    for _ in range(twos - 1):
        value = value * value % candidate
        if value == candidate - 1:
            return True
    return False
