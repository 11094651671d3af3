"""What the tests of other tools' formats share."""

from __future__ import annotations

from collections.abc import Callable

from choreo.errors import RefusedError
from choreo.schedule import Schedule

NOT_ELSEWHERE = ("barrier", "send_recv")  # collectives that other tools have no word for


def in_effect(schedule: Schedule) -> set[tuple[int, int, int, int, bool, bool]]:
    """The transfers one chunk a row; `from_input` only where it makes a difference."""
    rows: set[tuple[int, int, int, int, bool, bool]] = set()
    written: set[tuple[int, int]] = set()
    for step in schedule.steps():
        one_by_one = list(step.expanded())
        for row in one_by_one:
            differs = row.from_input and (row.src, row.chunk) in written
            rows.add((row.step, row.src, row.dst, row.chunk, row.reduce, differs))
        written |= {(row.dst, row.chunk) for row in one_by_one}
    return rows


def written_or_refused(write: Callable[[Schedule], bytes], schedule: Schedule) -> bytes | None:
    """What a writer writes; nothing, where it refuses."""
    try:
        return write(schedule)
    except RefusedError:
        return None
