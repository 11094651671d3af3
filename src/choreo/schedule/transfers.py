"""Transfers as NumPy columns, and the moves that algorithms write them with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from choreo.errors import ScheduleError
from choreo.units import counted

__all__ = ["BoolColumn", "IntColumn", "Move", "StepMoves", "Transfer", "Transfers", "move"]

IntColumn: TypeAlias = npt.NDArray[np.int64]
BoolColumn: TypeAlias = npt.NDArray[np.bool_]
Scalar = TypeVar("Scalar", np.int64, np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Transfers of one step, as six values or arrays that broadcast against each other.

    Rank `src` sends `count` consecutive chunks, the first of them `chunk`, from its work place (`from_input`: from
    its input) to the work place of rank `dst`, where they are stored or (`reduce`) added to what is there.
    """

    src: npt.ArrayLike
    dst: npt.ArrayLike
    chunk: npt.ArrayLike
    count: npt.ArrayLike = 1
    reduce: npt.ArrayLike = False
    from_input: npt.ArrayLike = False


def move(
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    chunk: npt.ArrayLike,
    count: npt.ArrayLike = 1,
    *,
    reduce: npt.ArrayLike = False,
    from_input: npt.ArrayLike = False,
) -> Move:
    """A `Move` of one step. Arguments are numbers or arrays: `move(rank, (rank + 1) % p, rank)` is one step of a ring.

    >>> import choreo
    >>> around = move([0, 1, 2], [1, 2, 0], [0, 1, 2])
    >>> choreo.Schedule.from_list("all_gather", 3, [around]).num_transfers
    3
    """
    return Move(src, dst, chunk, count, reduce, from_input)


StepMoves: TypeAlias = Move | Sequence[Move]


class Transfer(NamedTuple):
    """One row of `Transfers`."""

    step: int
    src: int
    dst: int
    chunk: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no table needs
    reduce: bool
    from_input: bool


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """A table of transfers, one NumPy column per field, all of the same length and ordered by step.

    Its columns are attributes. It has a length and gives its rows in turn, so `pandas.DataFrame(transfers)` works;
    `dict(transfers)` is faster where there are many.
    """

    step: IntColumn
    src: IntColumn
    dst: IntColumn
    chunk: IntColumn
    count: IntColumn
    reduce: BoolColumn
    from_input: BoolColumn

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        return f"<Transfers {counted(len(self), 'row')}: {', '.join(self.keys())}>"

    def __iter__(self) -> Iterator[Transfer]:
        return (Transfer(*row) for row in zip(*(self[name].tolist() for name in self.keys()), strict=True))

    def keys(self) -> Iterator[str]:
        """The column names, so that `dict(transfers)` works."""
        return (field.name for field in dataclasses.fields(self))

    def __getitem__(self, name: str) -> IntColumn | BoolColumn:
        column: IntColumn | BoolColumn = getattr(self, name)
        return column

    def take(self, index: slice | IntColumn | BoolColumn) -> Transfers:
        """The rows that `index` selects."""
        return _table([column[index] for column in self._numbers()], [column[index] for column in self._flags()])

    def expanded(self) -> Transfers:
        """The same transfers, one chunk per row."""
        if (self.count == 1).all():
            return self
        row = np.repeat(np.arange(len(self)), self.count)
        first = np.repeat(np.cumsum(self.count) - self.count, self.count)
        chunk = self.chunk[row] + (np.arange(len(row)) - first)
        return dataclasses.replace(self.take(row), chunk=chunk, count=np.ones(len(row), np.int64))

    def each_step(self) -> Iterator[Transfers]:
        """The rows of each step in turn."""
        edges = [0, *(np.flatnonzero(np.diff(self.step)) + 1).tolist(), len(self)]
        if len(edges) == 2:
            yield self
            return
        for start, end in pairwise(edges):
            yield self.take(slice(start, end))

    def by_step(self) -> Transfers:
        """The same rows in a stable order by step."""
        return self.take(np.argsort(self.step, kind="stable"))

    @staticmethod
    def none() -> Transfers:
        """No transfers."""
        return _table([np.zeros(0, np.int64)] * 5, [np.zeros(0, np.bool_)] * 2)

    @staticmethod
    def join(parts: Sequence[Transfers]) -> Transfers:
        """The rows of several tables one after another."""
        if len(parts) < 2:
            return parts[0] if parts else Transfers.none()
        numbers = zip(*(part._numbers() for part in parts), strict=True)
        flags = zip(*(part._flags() for part in parts), strict=True)
        return _table([np.concatenate(column) for column in numbers], [np.concatenate(column) for column in flags])

    @staticmethod
    def from_moves(step: IntColumn, moves: StepMoves) -> Transfers:
        """The rows that `moves` describe for each step of the column vector `step`, ordered by step.

        `step` has the shape (m, 1), so that moves written for one step number broadcast over many at once.
        """
        together = [moves] if isinstance(moves, Move) else moves
        if not isinstance(together, Sequence) or not all(isinstance(each, Move) for each in together):
            raise ScheduleError(f"a step must be a move(...) or a list of them, not {moves!r:.80}")
        parts = [_broadcast(step, each) for each in together]
        if not parts:
            return Transfers.none()
        # Side by side, not one after another, so that the rows stay ordered by step.
        numbers = zip(*(part[0] for part in parts), strict=True)
        flags = zip(*(part[1] for part in parts), strict=True)
        return _table(
            [_beside(column).reshape(-1) for column in numbers], [_beside(column).reshape(-1) for column in flags]
        )

    def _numbers(self) -> tuple[IntColumn, ...]:
        return (self.step, self.src, self.dst, self.chunk, self.count)

    def _flags(self) -> tuple[BoolColumn, ...]:
        return (self.reduce, self.from_input)


def _table(numbers: Sequence[IntColumn], flags: Sequence[BoolColumn]) -> Transfers:
    step, src, dst, chunk, count = numbers
    reduce, from_input = flags
    return Transfers(step, src, dst, chunk, count, reduce, from_input)


def _beside(parts: Sequence[npt.NDArray[Scalar]]) -> npt.NDArray[Scalar]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _broadcast(step: IntColumn, moves: Move) -> tuple[list[IntColumn], list[BoolColumn]]:
    """The step numbers and the values of a move as tables of one shape: a row per step, a column per transfer."""
    given = (_whole_numbers(name, getattr(moves, name)) for name in ("src", "dst", "chunk", "count"))
    # A list with an item for each transfer, each made of the column of step numbers, has a column for each item.
    numbers = [step, *(v[:, :, 0].T if v.ndim == 3 and v.shape[1:] == step.shape else v for v in given)]
    flags = [np.asarray(moves.reduce, np.bool_), np.asarray(moves.from_input, np.bool_)]
    try:
        shape = np.broadcast(*numbers, *flags).shape
    except ValueError:
        shapes = {field.name: np.shape(getattr(moves, field.name)) for field in dataclasses.fields(Move)}
        raise ScheduleError(f"the values of a move do not broadcast against each other: {shapes}") from None
    if len(shape) != 2 or shape[0] != step.shape[0]:
        raise ScheduleError(
            f"a move's values must be numbers or one-dimensional, but together have shape {shape}; the step number of "
            "a rule is a column of many, so calculate with it as with a number"
        )
    return [_filled(v, shape) for v in numbers], [_filled(v, shape) for v in flags]


def _filled(values: npt.NDArray[Scalar], shape: tuple[int, ...]) -> npt.NDArray[Scalar]:
    """Values as a table of this shape. A view by `np.broadcast_to` takes longer, and becomes a copy all the same."""
    if values.shape == shape:
        return values
    table = np.empty(shape, values.dtype)
    table[...] = values
    return table


def _whole_numbers(name: str, values: npt.ArrayLike) -> IntColumn:
    try:
        array = np.asarray(values)
    except ValueError:
        raise ScheduleError(
            f"a move's {name} mixes numbers with lists or columns; the step number of a rule is a column of many: add "
            "it to an array, or use from_function, where it is one number"
        ) from None
    if array.dtype.kind not in "iu" and array.size:
        raise ScheduleError(f"a move's {name} must be whole numbers, not {array.dtype}")
    return array.astype(np.int64, copy=False)
