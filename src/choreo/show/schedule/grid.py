"""The layout of one rank's chunks in a picture.

A picture has room for a few cells per rank, but a schedule may have many chunks. Chunks that always travel together
share a cell. If there are still too many, equal runs of chunks share a cell. For all_to_all the cells form a square of
sources by destinations: a rank starts with a row and ends with a column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.collectives import Layout
from choreo.schedule import Schedule
from choreo.show.schedule.holdings import Counts, Mask, Moment, State

__all__ = ["Cells", "Grid", "grid_of"]


@dataclass(frozen=True, slots=True)
class Cells:
    """A moment seen through a grid: one number for each rank and cell.

    `have` of `given` contributions are there, summed over the chunks of the cell. `each` is how many every chunk of the
    cell has where a collective sums (-1 if they differ), and how many chunks are there where it does not.
    """

    have: Counts
    each: Counts
    given: Counts
    state: Counts
    action: Counts


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of one rank, row by row: cell i is chunks `first[i]` to `first[i] + count[i]` - 1."""

    columns: int
    first: tuple[int, ...]
    count: tuple[int, ...]
    square: bool

    @property
    def rows(self) -> int:
        """How many rows of cells a rank has."""
        return len(self.first) // self.columns

    def see(self, moment: Moment) -> Cells:
        """The moment, cell by cell."""
        order = np.argsort(self.first)
        back = np.argsort(order)
        edges = np.asarray(self.first)[order]
        have = np.add.reduceat(moment.have, edges, axis=1)[:, back]
        low, high = (f.reduceat(moment.have, edges, axis=1)[:, back] for f in (np.minimum, np.maximum))
        sums = moment.held.shape[2] > 1
        each = np.where(low == high, low, -1) if sums else have
        given = np.add.reduceat(moment.given, edges)[back]
        worst = np.maximum.reduceat(moment.state, edges, axis=1)[:, back]
        state = np.where(have == 0, State.EMPTY, np.where(have < given, State.PARTIAL, State.COMPLETE))
        state = np.where(worst == State.DOUBLED, State.DOUBLED, state)
        action = np.maximum.reduceat(moment.action, edges, axis=1)[:, back]
        return Cells(have, each, given, state.astype(np.int64), action.astype(np.int64))

    def covers(self, chunks: Mask) -> list[list[bool]]:
        """Whether all chunks of each cell are marked, for each rank of a (ranks, chunks) mask."""
        spans = list(zip(self.first, self.count, strict=True))
        return [[bool(rank[first : first + count].all()) for first, count in spans] for rank in chunks]

    def touches(self, chunks: Mask) -> list[list[bool]]:
        """Whether some chunk of each cell is marked, for each rank of a (ranks, chunks) mask."""
        spans = list(zip(self.first, self.count, strict=True))
        return [[bool(rank[first : first + count].any()) for first, count in spans] for rank in chunks]

    def label(self, cell: int) -> str:
        """The chunk numbers of a cell."""
        first, count = self.first[cell], self.count[cell]
        return str(first) if count == 1 else f"{first}–{first + count - 1}"


def grid_of(schedule: Schedule, max_columns: int, max_rows: int = 16) -> Grid:
    """A grid for the schedule of at most `max_columns` by `max_rows` cells."""
    blocks = schedule.contract.blocks(schedule.ranks)
    if schedule.contract.before is Layout.PAIR_SOURCE:
        return _square(schedule, max_columns, max_rows)
    edges = _edges(schedule, blocks)
    if len(edges) > max_columns and 1 < blocks <= max_columns:
        rows = len(edges) // blocks if len(edges) % blocks == 0 else max_rows + 1
        if rows <= max_rows:
            down = np.asarray(edges).reshape(blocks, rows).T.reshape(-1)
            return _grid(schedule, blocks, down.tolist(), edges, square=False)
    columns = _columns(len(edges), schedule.ranks, max_columns)
    if blocks == 1 and columns < len(edges) <= columns * max_rows:
        return _grid(schedule, columns, edges, edges, square=False)
    if len(edges) > max_columns:
        edges = _spread(schedule.num_chunks, max_columns)
    return _grid(schedule, len(edges), edges, edges, square=False)


def _square(schedule: Schedule, max_columns: int, max_rows: int) -> Grid:
    ranks, a_block = schedule.ranks, schedule.chunks_a_block
    if ranks <= min(max_columns, max_rows):
        edges = list(range(0, schedule.num_chunks, a_block))
        return _grid(schedule, ranks, edges, edges, square=ranks > 1)
    # Too many for a square: a cell for the blocks of each source, as far as there is room.
    sources = list(range(0, schedule.num_chunks, ranks * a_block))
    edges = sources if ranks <= max_columns else _spread(schedule.num_chunks, max_columns)
    return _grid(schedule, len(edges), edges, edges, square=False)


def _edges(schedule: Schedule, blocks: int) -> list[int]:
    """Where cells begin: at every block, and wherever a transfer begins or ends."""
    begins = np.zeros(schedule.num_chunks + 1, np.bool_)
    begins[:: schedule.num_chunks // blocks] = True
    for rows in schedule.steps():
        begins[rows.chunk] = True
        begins[rows.chunk + rows.count] = True
    begins[0] = True
    return [int(edge) for edge in np.flatnonzero(begins[:-1])]


def _columns(cells: int, ranks: int, max_columns: int) -> int:
    """How many cells of a long vector stand in a row: as many as there are ranks, if that divides them."""
    if cells <= max_columns:
        return cells
    if 1 < ranks <= max_columns and cells % ranks == 0:
        return ranks
    return max(columns for columns in range(1, max_columns + 1) if cells % columns == 0)


def _spread(chunks: int, cells: int) -> list[int]:
    return sorted({cell * chunks // cells for cell in range(cells)})


def _grid(schedule: Schedule, columns: int, order: list[int], edges: list[int], *, square: bool) -> Grid:
    ends = dict(zip(edges, [*edges[1:], schedule.num_chunks], strict=True))
    return Grid(columns, tuple(order), tuple(ends[first] - first for first in order), square)
