"""A schedule of many ranks as compressed columns, which its page replays.

All transfers are included. Each number is stored as the difference to the previous one, and blocks of whole steps are
compressed. The schedules of the library are regular, so a million transfers take some kilobytes.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import TypedDict

import numpy as np

from choreo.schedule import Schedule, Transfers, first_rows, message_of
from choreo.show.schedule.data import Heading, heading
from choreo.show.schedule.limits import check_size
from choreo.show.schedule.words import describe

__all__ = ["LARGE_LIMITS", "PackedData", "to_packed"]

# The page replays every place; where nothing is summed, a place is one bit.
LARGE_LIMITS = {"ranks": 4096, "transfers": 1 << 22, "steps": 1 << 14}
SUMMED_PLACES, HELD_PLACES = 1 << 24, 1 << 30
BLOCK_ROWS = 1 << 16


class Block(TypedDict):
    """The transfers of some steps, each step's by sender.

    `packed` is base64 of zlib of the little-endian int32 columns src, dst - src, chunk, count and flags (1: reduce,
    2: from_input), one after the other, each as differences.
    """

    first: int
    rows: list[int]
    packed: str


class PackedData(Heading):
    """A schedule as the page of many ranks needs it.

    `before` and `after` name the contract's layouts. `num_messages`, `sent` (in units of n) and `adds` have an entry
    for each step. `said` has for each step the place of its words in `words`.
    """

    before: str
    after: str
    num_messages: list[int]
    sent: list[float]
    adds: list[bool]
    words: list[str]
    said: list[int]
    blocks: list[Block]


def to_packed(schedule: Schedule) -> PackedData:
    """The schedule with all transfers as packed columns; see `PackedData`."""
    contract = schedule.contract
    check_size(schedule, "page", places=SUMMED_PLACES if contract.reduces else HELD_PLACES, **LARGE_LIMITS)
    unit = contract.total_bytes(1.0, schedule.ranks) / schedule.total_weight
    words: dict[str, int] = {}
    num_messages, sent, adds, said, blocks = [], [], [], [], []
    for first, steps in _runs_of_steps(schedule):
        for rows in steps:
            num_messages.append(len(first_rows(message_of(rows))))
            sent.append(float(schedule.weights_of(rows).sum()) * unit)
            adds.append(bool(rows.reduce.any()))
            said.append(words.setdefault(describe(schedule, rows), len(words)))
        blocks.append(Block(first=first, rows=[len(rows) for rows in steps], packed=_packed(steps)))
    return {
        **heading(schedule),
        "before": contract.before.name,
        "after": contract.after.name,
        "num_messages": num_messages,
        "sent": sent,
        "adds": adds,
        "words": list(words),
        "said": said,
        "blocks": blocks,
    }


def _runs_of_steps(schedule: Schedule) -> Iterator[tuple[int, list[Transfers]]]:
    """Runs of steps with about `BLOCK_ROWS` transfers together, each with the number of its first step."""
    first, held, size = 0, list[Transfers](), 0
    for step, rows in enumerate(schedule.steps()):
        if held and size + len(rows) > BLOCK_ROWS:
            yield first, held
            first, held, size = step, [], 0
        held.append(rows)
        size += len(rows)
    if held:
        yield first, held


def _packed(steps: list[Transfers]) -> str:
    rows = Transfers.join([rows.take(np.argsort(rows.src, kind="stable")) for rows in steps])
    flags = rows.reduce + 2 * rows.from_input
    columns = (rows.src, rows.dst - rows.src, rows.chunk, rows.count, flags)
    differences = np.stack([np.diff(column, prepend=0) for column in columns]).astype("<i4")
    return base64.b64encode(zlib.compress(differences.tobytes(), 6)).decode("ascii")
