"""The places one step writes: which transfers meet in one place, and whether they contradict each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from choreo.errors import ContradictionError
from choreo.schedule.schedule import Schedule
from choreo.schedule.transfers import IntColumn, Transfers

__all__ = ["check_agreement", "check_step_agreement", "in_units", "meetings"]


def in_units(rows: Transfers, num_chunks: int) -> tuple[Transfers, int]:
    """The rows of a step one unit a row, and how many chunks a unit is: the most that divides all of its ranges."""
    if rows.count.min() == 1:
        return rows.expanded(), 1
    unit = int(np.gcd.reduce([np.gcd.reduce(rows.count), np.gcd.reduce(rows.chunk), num_chunks]))
    return replace(rows, chunk=rows.chunk // unit, count=rows.count // unit).expanded(), unit


def meetings(units: Transfers) -> tuple[IntColumn, npt.NDArray[np.bool_]] | None:
    """The rows ordered by place and src, and which of them is the first at its place; None if no two meet."""
    if np.bincount(units.dst).max() == 1:
        return None
    place = units.dst * (int(units.chunk.max()) + 1) + units.chunk
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    return None if first.all() else (np.lexsort((units.src, place)), first)


def check_step_agreement(
    units: Transfers, unit: int, order: IntColumn, first: npt.NDArray[np.bool_], first_chunk: int = 0
) -> None:
    """Refuse a store into a place that another transfer of the step writes too; chunks count from `first_chunk`."""
    shared = ~first
    shared[:-1] |= shared[1:]
    reduce = units.reduce[order]
    stores = np.flatnonzero(shared & ~reduce)
    if not len(stores):
        return
    store, place = int(stores[0]), np.cumsum(first)
    other = next(row for row in np.flatnonzero(place == place[store]).tolist() if row != store)
    at, met = order[store], order[other]
    chunk, sources = first_chunk + int(units.chunk[at]) * unit, (int(units.src[at]), int(units.src[met]))
    raise ContradictionError(int(units.step[at]), int(units.dst[at]), chunk, sources, both_store=not reduce[other])


def check_agreement(schedule: Schedule) -> None:
    """Refuse a schedule in which two transfers of one step store into one place, or store and reduce into it."""
    for rows in schedule.steps():
        if np.bincount(rows.dst).max() == 1 or rows.reduce.all():
            continue
        units, unit = in_units(rows, schedule.num_chunks)
        met = meetings(units)
        if met is not None:
            check_step_agreement(units, unit, *met)
