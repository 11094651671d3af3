"""Run the same steps in many groups of ranks at once: on a subset of ranks, or along one axis of a mesh."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from choreo.checks import whole_number
from choreo.errors import UsageError
from choreo.schedule.schedule import Schedule
from choreo.schedule.steps import Steps
from choreo.schedule.transfers import IntColumn, Transfers

__all__ = ["along_axis", "in_groups", "mesh_groups", "on_ranks"]


def in_groups(steps: Steps, members: IntColumn, chunks: IntColumn, count: int, *, ranks: int, num_chunks: int) -> Steps:
    """Run `steps` in several groups at once, each on its own ranks and its own part of a larger vector.

    `members[g, i]` is the rank that takes the place of rank i in group g. `chunks[g, c]` gives the position of chunk c
    of group g in the larger vector: the first chunk of one or more runs of `count` chunks each. So its shape is
    (groups, chunks, runs).
    """
    if members.shape[1] != steps.ranks or chunks.shape[:2] != (members.shape[0], steps.num_chunks):
        raise UsageError(
            f"steps among {steps.ranks} ranks with {steps.num_chunks} chunks do not fit members {members.shape} and "
            f"chunks {chunks.shape}; they must be (groups, ranks) and (groups, chunks, runs)"
        )
    # A range of chunks stays one row if its chunks stay neighbours.
    contiguous = chunks.shape[2] == 1 and bool((np.diff(chunks[:, :, 0], axis=1) == count).all())
    rank_of, chunk_of = members.T, chunks.transpose(1, 0, 2)

    def rows(first: int, last: int) -> Transfers:
        inner = steps.rows(first, last)
        if not contiguous:
            inner = inner.expanded()
        shape = (len(inner), members.shape[0], chunks.shape[2])

        def spread(column: IntColumn) -> IntColumn:
            return np.broadcast_to(column.reshape(len(inner), -1, 1), shape).reshape(-1)

        return Transfers(
            step=spread(inner.step),
            src=spread(rank_of[inner.src]),
            dst=spread(rank_of[inner.dst]),
            chunk=chunk_of[inner.chunk].reshape(-1),
            count=spread(inner.count * count),
            reduce=np.broadcast_to(inner.reduce[:, None, None], shape).reshape(-1),
            from_input=np.broadcast_to(inner.from_input[:, None, None], shape).reshape(-1),
        )

    return Steps(ranks, num_chunks, steps.num_steps, rows)


def on_ranks(steps: Steps | Schedule, members: Sequence[int], *, ranks: int) -> Steps:
    """Run steps on a subset of `ranks` ranks: rank i of the steps becomes rank members[i].

    >>> from choreo import build
    >>> on_ranks(build("broadcast", "mst", 2), [5, 3], ranks=8).ranks
    8
    """
    steps = steps.body if isinstance(steps, Schedule) else steps
    inside = all(whole_number("a member", member, 0) < ranks for member in members)
    if len(set(members)) != len(members) or len(members) != steps.ranks or not inside:
        raise UsageError(f"members {list(members)} must be {steps.ranks} different ranks of 0 to {ranks - 1}")
    column = np.asarray(members, np.int64)
    chunks = np.arange(steps.num_chunks, dtype=np.int64).reshape(1, -1, 1)
    return in_groups(steps, column[None, :], chunks, 1, ranks=ranks, num_chunks=steps.num_chunks)


def mesh_groups(shape: Sequence[int], axis: int) -> IntColumn:
    """The groups of ranks along one axis of a mesh, one per row; the first axis varies fastest in rank order.

    >>> mesh_groups((2, 3), axis=0).tolist()
    [[0, 1], [2, 3], [4, 5]]
    """
    grid = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(tuple(reversed(shape)))
    return np.moveaxis(grid, len(shape) - 1 - axis, -1).reshape(-1, shape[axis])


def along_axis(steps: Steps | Schedule, shape: Sequence[int], axis: int) -> Steps:
    """Run steps along one axis of a mesh, in every group there, all on the same chunks.

    >>> from choreo import build
    >>> along_axis(build("all_reduce", "ring", 4), shape=(4, 2), axis=0).ranks
    8
    """
    steps = steps.body if isinstance(steps, Schedule) else steps
    shape = [whole_number("the size of an axis", size) for size in shape]
    if not 0 <= axis < len(shape) or shape[axis] != steps.ranks:
        raise UsageError(
            f"steps among {steps.ranks} ranks do not fit axis {axis} of the mesh {'x'.join(map(str, shape))}"
        )
    members = mesh_groups(shape, axis)
    chunks = np.broadcast_to(
        np.arange(steps.num_chunks, dtype=np.int64)[None, :, None], (len(members), steps.num_chunks, 1)
    )
    return in_groups(steps, members, chunks, 1, ranks=members.size, num_chunks=steps.num_chunks)
