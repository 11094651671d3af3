"""Conflicts within a step: transfers that write the same place, and whether they contradict each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from choreo.errors import ContradictionError
from choreo.schedule.schedule import Schedule
from choreo.schedule.transfers import IntColumn, Transfers

__all__ = ["check_agreement", "check_step_agreement", "in_units", "meetings"]


def in_units(rows: Transfers, num_chunks: int) -> tuple[Transfers, int]:
    """The rows of a step, one unit per row, and the chunks per unit: the largest number that divides all ranges."""
    if rows.count.min() == 1:
        return rows.expanded(), 1
    unit = int(np.gcd.reduce([np.gcd.reduce(rows.count), np.gcd.reduce(rows.chunk), num_chunks]))
    return replace(rows, chunk=rows.chunk // unit, count=rows.count // unit).expanded(), unit


def meetings(units: Transfers) -> IntColumn | None:
    """The rows ordered by place; None if no two meet."""
    if np.bincount(units.dst).max() == 1:
        return None
    place = units.dst * (int(units.chunk.max()) + 1) + units.chunk
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    return order if (ordered[1:] == ordered[:-1]).any() else None


def check_step_agreement(rows: Transfers, first_chunk: int = 0, name: Callable[[int], str] = "rank {}".format) -> None:
    """Refuse a store into a place that another transfer of the step writes too.

    Chunks are numbered from `first_chunk`; `name` names a member, for schedules in which not all are ranks.
    """
    if np.bincount(rows.dst).max() == 1 or rows.reduce.all():
        return
    order = np.lexsort((rows.chunk, rows.dst))
    # Put all ranks' places on one line, far enough apart that ranges at different ranks cannot overlap.
    base = rows.dst[order] * int((rows.chunk + rows.count).max() + 1)
    start, end = base + rows.chunk[order], base + (rows.chunk + rows.count)[order]
    store = ~rows.reduce[order]
    after_any = start[1:] < np.maximum.accumulate(end)[:-1]
    after_store = start[1:] < np.maximum.accumulate(np.where(store, end, -1))[:-1]
    met = np.flatnonzero((after_any & store[1:]) | after_store) + 1
    if not len(met):
        return
    second = int(met[0])
    overlapping = np.flatnonzero((end[:second] > start[second]) & (store[:second] | store[second]))
    first = int(overlapping[0])
    one, other = order[first], order[second]
    raise ContradictionError(
        int(rows.step[other]),
        int(rows.dst[other]),
        first_chunk + int(rows.chunk[other]),
        (int(rows.src[one]), int(rows.src[other])),
        both_store=bool(store[first] and store[second]),
        name=name,
    )


def check_agreement(schedule: Schedule) -> None:
    """Refuse a schedule in which two transfers of one step store into one place, or store and reduce into it."""
    for rows in schedule.steps():
        check_step_agreement(rows, name=schedule.member_name)
