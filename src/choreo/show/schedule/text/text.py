"""A schedule step by step in a terminal: the messages, and the chunks that every rank then holds."""

from __future__ import annotations

import shutil

from choreo.schedule import Schedule
from choreo.show.schedule.holdings import moments
from choreo.show.schedule.limits import fits
from choreo.show.schedule.outcome import ProofOutcome, outcome_of
from choreo.show.schedule.phases import phases_of
from choreo.show.schedule.text.matrix import legend, look_of, matrix
from choreo.show.schedule.text.summary import step_line, summary
from choreo.show.schedule.words import describe, facts, title
from choreo.show.terminal import WRONG_STYLE, Line, printed, wrapped_line

__all__ = ["to_text"]

# A schedule beyond these gets one line per step instead of a matrix.
MATRICES = {"ranks": 32, "transfers": 20_000, "places": 1 << 16}
# Where the matrices of all steps would take more lines than this, only the first and the last are printed.
MATRIX_LINES = 700
# A schedule within these is proved in about a second.
PROVED = {"ranks": 2048, "transfers": 1 << 22, "places": 1 << 22}


def to_text(schedule: Schedule, *, width: int | None = None, color: bool = False) -> str:
    """The schedule as text, at most `width` columns wide (the terminal's by default).

    `color` adds terminal colours: orange for what a step adds, blue for what it copies, red for what is wrong.
    """
    width = max(40, width or shutil.get_terminal_size((120, 40)).columns)
    outcome = outcome_of(schedule) if fits(schedule, **PROVED) else None
    lines = _heading(schedule, outcome, width)
    if fits(schedule, **MATRICES):
        lines.extend(_steps(schedule, outcome or ProofOutcome(True), width))
    else:
        lines.extend([[], *summary(schedule, outcome)])
    return printed(lines, width, color)


def _heading(schedule: Schedule, outcome: ProofOutcome | None, width: int) -> list[Line]:
    lines: list[Line] = [
        [(title(schedule), "bold"), (f": {facts(schedule)}", "")],
        [(schedule.contract.summary, "")],
    ]
    if outcome is None:
        return [*lines, [("not proved: too large to check in passing; choreo prove does it", "dim")]]
    if outcome.holds:
        return [*lines, [("proved", "green")]]
    return [*lines, *wrapped_line(f"wrong: {outcome.story}", WRONG_STYLE, width, 7)]


def _steps(schedule: Schedule, outcome: ProofOutcome, width: int) -> list[Line]:
    """Every step with its matrix; where that would flood the screen, only the first and the last matrix."""
    flood = (schedule.num_steps + 1) * (schedule.members + 3) > MATRIX_LINES
    look = look_of(schedule, width)
    begins = {span.first: span for span in phases_of(schedule)}
    lines: list[Line] = []
    for moment in moments(schedule):
        step = moment.step
        if flood and step not in (None, schedule.num_steps - 1):
            continue
        if step in begins and not flood:
            lines.extend([[], [(begins[step].heading, "bold underline")]])
        lines.append([])
        lines.append([("start", "bold")] if step is None else step_line(step, step, describe(schedule, moment.rows)))
        if step is not None and step == outcome.step:
            lines[-1].append(("  ✗ wrong here", WRONG_STYLE))
        lines.extend(matrix(schedule, look, moment))
        if flood and step is None:
            lines.extend([[], *summary(schedule, outcome)])
    return [*wrapped_line(legend(schedule, look, lines), "dim", width), *lines]
