"""A schedule's data: everything a picture shows, as plain JSON values."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from choreo.collectives import Layout
from choreo.schedule import Schedule, Transfers
from choreo.show.schedule.grid import grid_of
from choreo.show.schedule.holdings import Mask
from choreo.show.schedule.limits import check_size
from choreo.show.schedule.outcome import outcome_of
from choreo.show.schedule.phases import phases_of
from choreo.show.schedule.words import describe, messages

__all__ = ["PAGE_LIMITS", "Data", "Heading", "TransferData", "heading", "to_data"]

PAGE_LIMITS = {"ranks": 64, "transfers": 20_000, "places": 1 << 18}

# The widest matrix a page has room for beside the ranks, and how many cells it may have in all.
PAGE_COLUMNS, PAGE_ROWS, PAGE_CELLS = 64, 16, 4096


class TransferData(TypedDict):
    """One transfer: a row of the schedule without its step."""

    src: int
    dst: int
    chunk: int
    count: int
    reduce: bool
    from_input: bool


class MessageData(TypedDict):
    """Everything one member sends another in one step: its runs [first, last] of chunks, and whether any is added."""

    src: int
    dst: int
    spans: list[list[int]]
    chunks: int
    reduce: bool


class Cell(TypedDict):
    """One cell of a rank's row in the matrix: a run of chunks that the picture does not distinguish."""

    first: int
    count: int


class GridData(TypedDict):
    """How the cells of a rank are laid out."""

    columns: int
    square: bool
    cells: list[Cell]


class ProofData(TypedDict):
    """Whether the schedule does what the collective promises; if not, why, and where it first goes wrong."""

    holds: bool
    story: str
    step: int | None
    rank: int | None
    chunk: int | None


class PhaseData(TypedDict):
    """A run of steps that is a collective of its own."""

    collective: str
    first: int
    num_steps: int


class Heading(TypedDict):
    """What every page says of a schedule, however large it is."""

    collective: str
    algorithm: str
    ranks: int
    relays: int
    switches: int
    root: int | None
    chunks: int
    chunks_a_block: int
    num_steps: int
    phases: list[PhaseData]
    summary: str
    reduces: bool
    size_per: str
    proof: ProofData


class Data(Heading):
    """A schedule as a picture needs it.

    `chunk_shares` are sizes in units of the collective's size n. `before` and `after` give for each rank the runs
    [first, count] of chunks that the contract lets it start with and asks it to end with. A transfer of a step reads
    what its source held before the step, or with `from_input` what the rank started with; it replaces what is at its
    destination, or with `reduce` adds to it. Senders and receivers from `ranks` on are the `relays`, and after
    them the `switches` that reduce; `before` and `after` have nothing for them.
    """

    chunk_shares: list[float]
    before: list[list[list[int]]]
    after: list[list[list[int]]]
    steps: list[list[TransferData]]
    messages: list[list[MessageData]]
    words: list[str]
    grid: GridData


def to_data(schedule: Schedule) -> Data:
    """The schedule as plain JSON values, which the page replays; see `Data`."""
    check_size(schedule, "JSON document", **PAGE_LIMITS)
    contract, chunks = schedule.contract, schedule.num_chunks
    steps = list(schedule.steps())
    square = contract.before is Layout.PAIR_SOURCE
    rows = PAGE_ROWS if square else max(1, min(PAGE_ROWS, PAGE_CELLS // (PAGE_COLUMNS * schedule.members)))
    grid = grid_of(schedule, PAGE_COLUMNS, rows)
    sizes = (np.ones(chunks) if schedule.weights is None else schedule.weights) / schedule.total_weight
    return {
        **heading(schedule),
        "chunk_shares": (sizes * contract.total_bytes(1.0, schedule.ranks)).tolist(),
        "before": _runs(schedule.held_before()),
        "after": _runs(schedule.held_after()),
        "steps": [_transfers(rows) for rows in steps],
        "messages": [_messages(rows) for rows in steps],
        "words": [describe(schedule, rows) for rows in steps],
        "grid": {
            "columns": grid.columns,
            "square": grid.square,
            "cells": [{"first": f, "count": n} for f, n in zip(grid.first, grid.count, strict=True)],
        },
    }


def heading(schedule: Schedule) -> Heading:
    """The schedule's name and size, its phases, and what the proof says."""
    contract, outcome = schedule.contract, outcome_of(schedule)
    return {
        "collective": schedule.collective,
        "algorithm": schedule.algorithm,
        "ranks": schedule.ranks,
        "relays": schedule.relays,
        "switches": schedule.switches,
        "root": schedule.root,
        "chunks": schedule.num_chunks,
        "chunks_a_block": schedule.chunks_a_block,
        "num_steps": schedule.num_steps,
        "phases": [
            {"collective": name, "first": first, "num_steps": last + 1 - first}
            for name, first, last in phases_of(schedule)
        ],
        "summary": contract.summary,
        "reduces": contract.reduces,
        "size_per": contract.size_per,
        "proof": {
            "holds": outcome.holds,
            "story": outcome.story,
            "step": outcome.step,
            "rank": outcome.rank,
            "chunk": outcome.chunk,
        },
    }


def _transfers(rows: Transfers) -> list[TransferData]:
    columns = (rows.src, rows.dst, rows.chunk, rows.count, rows.reduce, rows.from_input)
    return [
        {"src": src, "dst": dst, "chunk": chunk, "count": count, "reduce": reduce, "from_input": from_input}
        for src, dst, chunk, count, reduce, from_input in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _messages(rows: Transfers) -> list[MessageData]:
    return [
        {
            "src": message.src,
            "dst": message.dst,
            "spans": [list(s) for s in message.spans],
            "chunks": message.chunks,
            "reduce": message.reduce,
        }
        for message in messages(rows)
    ]


def _runs(held: Mask) -> list[list[list[int]]]:
    """For each rank the runs [first, count] of chunks that are held."""
    runs = []
    for row in held:
        edges = np.flatnonzero(np.diff(np.concatenate(([False], row, [False])).astype(np.int8)))
        runs.append([[int(first), int(last - first)] for first, last in edges.reshape(-1, 2)])
    return runs
