"""A schedule as a JSON document that a person can write by hand.

    {
      "collective": "broadcast", "ranks": 3, "root": 0,
      "steps": [
        [{"src": 0, "dst": 2, "chunk": 0}],
        [{"src": 0, "dst": 1, "chunk": 0}]
      ]
    }

Defaults: `root` is 0, `chunks` is one per block, `count` is 1, `reduce` and `from_input` are false. `algorithm` names
the schedule. `axes` are the axes of a hierarchical schedule. `weights` gives the chunks' relative sizes. `relays`
counts the devices that are not ranks; they are numbered after the ranks. `switches` counts the switches that reduce;
they come last. With `receive_in_order` ranks also receive in order of steps.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from choreo.checks import MAX_RANKS
from choreo.collectives import get_collective
from choreo.errors import FormatError, ScheduleError, UsageError, short
from choreo.malformed import explained
from choreo.schedule.schedule import MAX_AXES, MAX_CHUNKS, MAX_NAME, Schedule
from choreo.schedule.steps import Steps
from choreo.schedule.transfers import IntColumn, Transfers

__all__ = ["from_document", "from_parts", "to_document"]

# Documents up to this size may have been written by hand, and are searched for duplicate fields.
WRITTEN_BY_HAND = 1 << 20

_Index = Annotated[int, Meta(ge=0, le=MAX_CHUNKS)]


class _Row(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    src: _Index
    dst: _Index
    chunk: _Index
    count: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)] = 1
    reduce: bool = False
    from_input: bool = False


class _Document(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    collective: str
    ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    steps: list[list[_Row]]
    root: _Index | None = None
    chunks: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)] | None = None
    weights: list[Annotated[int, Meta(ge=0, le=1 << 53)]] | None = None
    algorithm: Annotated[str, Meta(max_length=MAX_NAME)] = "unnamed"
    relays: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 0
    switches: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 0
    axes: Annotated[str, Meta(max_length=MAX_AXES)] | None = None
    receive_in_order: bool = False


def from_document(text: bytes | str) -> Schedule:
    """The schedule that a JSON document holds, checked field by field."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError) and _is_json(text):
            field, reason = explained(error, _Document, "the document")
            raise FormatError(reason, field=field) from None
        raise FormatError(f"the document is not JSON: {_place_of(text, error)}", field="the document") from None
    if len(text) <= WRITTEN_BY_HAND:
        json.loads(text, object_pairs_hook=_refuse_twice)
    columns = _columns(document)
    return from_parts(
        len(text),
        document.collective,
        document.ranks,
        len(document.steps),
        columns,
        root=document.root,
        num_chunks=document.chunks,
        weights=None if document.weights is None else np.asarray(document.weights, np.int64),
        algorithm=document.algorithm,
        relays=document.relays,
        switches=document.switches,
        axes=document.axes,
        receive_in_order=document.receive_in_order,
    )


def _is_json(text: bytes | str) -> bool:
    """Whether a document is JSON to its end; the first wrong field may stand before that."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _place_of(text: bytes | str, error: Exception) -> str:
    """The line and column at which a document stops being JSON."""
    if not text.strip():
        return "it is empty"
    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        return f"line {found.lineno}, column {found.colno}: {found.msg}"
    except (ValueError, RecursionError):
        pass
    return str(error)


def _refuse_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = short(next(name for name, times in Counter(names).items() if times > 1))
        raise FormatError(f"{twice}: the field is there twice; leave one out", field=twice)
    return dict(pairs)


def from_parts(
    file_bytes: int,
    collective: str,
    ranks: int,
    num_steps: int,
    columns: Transfers,
    *,
    root: int | None,
    num_chunks: int | None,
    weights: IntColumn | None,
    algorithm: str,
    relays: int,
    switches: int,
    axes: str | None,
    receive_in_order: bool,
) -> Schedule:
    """A schedule from a file's contents; an error names the field that is wrong."""
    try:
        contract = get_collective(collective)
    except UsageError as error:
        raise FormatError(f"collective: {error}", field="collective") from None
    if root is not None and not contract.rooted:
        raise FormatError(f"root: {collective} has no root; leave it out", field="root")
    if root is not None and root >= ranks:
        raise FormatError(f"root: {root} is not a rank; with {ranks} ranks it must be 0 to {ranks - 1}", field="root")
    chunks = contract.blocks(ranks) if num_chunks is None else num_chunks
    if not 1 <= chunks <= MAX_CHUNKS or chunks % contract.blocks(ranks):
        blocks = contract.blocks(ranks)
        raise FormatError(
            f"chunks: {collective} over {ranks} ranks has {blocks} blocks, so chunks must be a multiple of that, up to "
            f"{MAX_CHUNKS}, not {chunks}",
            field="chunks",
        )
    try:
        body = Steps.from_transfers(ranks + relays + switches, chunks, num_steps, columns)
        schedule = Schedule(
            collective,
            body,
            root,
            algorithm,
            weights,
            switches=switches,
            relays=relays,
            axes=axes,
            file_bytes=file_bytes,
            receive_in_order=receive_in_order,
        )
    except ScheduleError as error:
        raise FormatError(f"weights: {error}", field="weights") from None
    try:
        for _ in schedule.body.blocks(schedule.who):
            pass
    except ScheduleError as error:
        raise FormatError(f"{error.field}: {error}", field=error.field) from None
    return schedule


def to_document(schedule: Schedule) -> bytes:
    """The schedule as JSON, one line per step, with only the values that differ from the defaults."""
    head: dict[str, object] = {"collective": schedule.collective, "algorithm": schedule.algorithm}
    if schedule.axes is not None:
        head["axes"] = schedule.axes
    head["ranks"] = schedule.ranks
    if schedule.relays:
        head["relays"] = schedule.relays
    if schedule.switches:
        head["switches"] = schedule.switches
    if schedule.receive_in_order:
        head["receive_in_order"] = True
    if schedule.root is not None:
        head["root"] = schedule.root
    head["chunks"] = schedule.num_chunks
    if schedule.weights is not None:
        head["weights"] = schedule.weights.tolist()
    encode = msgspec.json.encode
    lines = [f'  "{key}": {encode(value).decode()}' for key, value in head.items()]
    ordered = (rows.take(np.lexsort((rows.chunk, rows.dst, rows.src))) for rows in schedule.steps())
    steps = [f"    {encode(_rows(rows)).decode()}" for rows in ordered]
    body = "[\n" + ",\n".join(steps) + "\n  ]" if steps else "[]"
    return ("{\n" + ",\n".join(lines) + f',\n  "steps": {body}\n' + "}\n").encode()


def _rows(rows: Transfers) -> list[dict[str, int | bool]]:
    written = []
    for index in range(len(rows)):
        row: dict[str, int | bool] = {name: int(rows[name][index]) for name in ("src", "dst", "chunk")}
        if rows.count[index] != 1:
            row["count"] = int(rows.count[index])
        row |= {name: True for name in ("reduce", "from_input") if rows[name][index]}
        written.append(row)
    return written


def _columns(document: _Document) -> Transfers:
    rows = [row for step in document.steps for row in step]
    lengths = [len(step) for step in document.steps]

    def numbers(name: str) -> IntColumn:
        return np.fromiter((getattr(row, name) for row in rows), np.int64, len(rows))

    return Transfers(
        np.repeat(np.arange(len(lengths), dtype=np.int64), lengths),
        numbers("src"),
        numbers("dst"),
        numbers("chunk"),
        numbers("count"),
        numbers("reduce").astype(np.bool_),
        numbers("from_input").astype(np.bool_),
    )
