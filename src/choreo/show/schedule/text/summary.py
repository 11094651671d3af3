"""A long schedule in a few lines: its phases, and their steps in words, with one line for consecutive equal steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from choreo.schedule import Schedule, Transfers
from choreo.show.schedule.outcome import ProofOutcome
from choreo.show.schedule.phases import Span, phases_of
from choreo.show.schedule.words import describe
from choreo.show.terminal import WRONG_STYLE, Line

__all__ = ["step_line", "summary"]

# Looking at this many rows or steps takes about a second; of a longer schedule, only some steps are looked at.
MAX_ROWS, MAX_STEPS, SOME_STEPS = 1 << 21, 4000, 9
MAX_LINES, LAST_LINES = 60, 10


def summary(schedule: Schedule, outcome: ProofOutcome | None) -> list[Line]:
    """The schedule in words, phase by phase."""
    spans = phases_of(schedule)
    if not spans:
        return _spoken(schedule, Span("", 0, schedule.num_steps - 1), outcome, 1)
    lines: list[Line] = []
    for span in spans:
        lines.append([(span.heading, "bold")])
        lines.extend([("  ", ""), *line] for line in _spoken(schedule, span, outcome, len(spans)))
    return lines


def step_line(first: int, last: int, words: str) -> Line:
    """What a step does, or several that do the same."""
    return [(f"step {first}" if first == last else f"steps {first}–{last}", "bold"), (f"  {words}", "")]


def _spoken(schedule: Schedule, span: Span, outcome: ProofOutcome | None, phases: int) -> list[Line]:
    """The steps of a phase in words. Steps between two equal ones that were looked at are taken to be equal, too."""
    steps = span.last + 1 - span.first
    if steps == 0:
        return []
    first = _rows(schedule, span.first)
    looked = _looked_at(span, len(first), phases)
    said = [describe(schedule, first)]
    said += [describe(schedule, _rows(schedule, step)) for step in looked[1:]]
    lines: list[Line] = []
    begun = span.first
    for (at, words), (after, words_after) in pairwise([*zip(looked, said, strict=True), (steps + span.first, "")]):
        if words == words_after:
            continue
        lines.append(step_line(begun, at, words))
        if outcome is not None and outcome.step in range(begun, at + 1):
            lines[-1].append((f"  ✗ wrong in step {outcome.step}", WRONG_STYLE))
        if after > at + 1:
            lines.append([(f"… {after - at - 1} more steps …", "dim")])
        begun = after
    most = max(LAST_LINES + 2, MAX_LINES // phases)
    if len(lines) > most:
        hidden = [(f"… {len(lines) - most} more lines …", "dim")]
        lines = [*lines[: most - LAST_LINES], hidden, *lines[-LAST_LINES:]]
    if len(looked) < steps:
        lines.append([(f"({len(looked)} of these {steps} steps were looked at)", "dim")])
    return lines


def _looked_at(span: Span, rows: int, phases: int) -> list[int]:
    """All steps of a phase; of too many, the first ones, the last, and some between."""
    steps = span.last + 1 - span.first
    if steps * phases <= MAX_STEPS and steps * phases * rows <= MAX_ROWS:
        return list(range(span.first, span.last + 1))
    shown_steps = max(2, min(SOME_STEPS, MAX_ROWS // (rows * phases)))
    spread = {span.first + k * (steps - 1) // (shown_steps - 1) for k in range(shown_steps)}
    return sorted(spread | ({span.first + 1} if steps > 1 and shown_steps > 2 else set()))


def _rows(schedule: Schedule, step: int) -> Transfers:
    rows = schedule.body.rows(step, step + 1)
    ends = np.concatenate((rows.src, rows.dst))
    if len(rows) == 0 or ends.min() < 0 or ends.max() >= schedule.members:
        # Going through the schedule from its start says what is wrong with it, and where.
        for _ in schedule.blocks():
            pass
    return rows
