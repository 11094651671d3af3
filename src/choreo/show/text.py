"""The schedule step by step in a terminal: who sends what on the left, what every rank then holds on the right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from choreo.collectives import Layout
from choreo.schedule import Schedule
from choreo.show.data import proof_story
from choreo.show.grid import Cells, Grid, grid_of
from choreo.show.holdings import Action, Moment, State, moments
from choreo.show.limits import fits
from choreo.show.words import chunk_label, describe, facts, messages, title

__all__ = ["to_text"]

# A schedule beyond these gets one line a step instead of a matrix, and of more than MAX_LINES such lines the middle
# is left out.
MATRICES = {"ranks": 32, "transfers": 20_000, "places": 1 << 16}
MATRIX_LINES, MAX_LINES, LAST_LINES = 700, 60, 10
MAX_STEPS, LAST_STEPS = 500, 20
PROVED = {"ranks": 256, "transfers": 1 << 16, "places": 1 << 20}

# "  rank 12  "
RANK_WIDTH = 11
LEVELS = "▁▂▃▄▅▆▇"
EMPTY, COMPLETE, ARRIVED, DOUBLED = "·", "■", "◆", "‼"
ADD_STYLE, COPY_STYLE, WRONG_STYLE = "bold dark_orange", "bold dodger_blue1", "bold red"

# Text and the style it has where there is colour.
Piece = tuple[str, str]
Line = list[Piece]


@dataclass(frozen=True, slots=True)
class _Look:
    """How the matrix is printed: what it shows of each rank, and how wide a cell is."""

    grid: Grid
    cell: int
    left: int


def to_text(schedule: Schedule, *, width: int | None = None, color: bool = False) -> str:
    """The schedule as text, at most `width` columns wide (the terminal's, unless told).

    `color` adds terminal colours: orange for what a step adds, blue for what it copies.
    """
    width = max(40, width or shutil.get_terminal_size((120, 40)).columns)
    lines = _heading(schedule)
    if fits(schedule, **MATRICES):
        lines.extend(_steps(schedule, width))
    else:
        lines.extend([[], *_one_line_each(schedule)])
    return _printed(lines, width, color)


def _heading(schedule: Schedule) -> list[Line]:
    lines: list[Line] = [
        [(title(schedule), "bold"), (f": {facts(schedule)}", "")],
        [(schedule.contract.summary, "")],
    ]
    if fits(schedule, **PROVED):
        story = proof_story(schedule)
        lines.append([("proved", "green")] if story is None else [(f"wrong: {story}", WRONG_STYLE)])
    return lines


def _one_line_each(schedule: Schedule) -> Iterator[Line]:
    """The steps in words, equal ones in a row as one line; of very many only the first and the last are made."""
    steps, last = schedule.num_steps, schedule.num_steps - 1
    shown = [*range(MAX_STEPS - LAST_STEPS), *range(steps - LAST_STEPS, steps)] if steps > MAX_STEPS else range(steps)
    lines: list[Line] = []
    begun, said = 0, ""
    for step in shown:
        words = describe(schedule, schedule.body.rows(step, step + 1))
        gap = step - 1 not in shown and step > 0
        if said and (words != said or gap):
            lines.append(_line(begun, step - 1 if not gap else MAX_STEPS - LAST_STEPS - 1, said))
        if gap:
            lines.append([(f"… {steps - MAX_STEPS} more steps …", "dim")])
        if words != said or gap:
            begun, said = step, words
    if said:
        lines.append(_line(begun, last, said))
    if len(lines) > MAX_LINES:
        hidden = [(f"… {len(lines) - MAX_LINES} more lines …", "dim")]
        lines = [*lines[: MAX_LINES - LAST_LINES], hidden, *lines[-LAST_LINES:]]
    yield from lines


def _line(first: int, last: int, words: str) -> Line:
    return [(f"step {first}" if first == last else f"steps {first}–{last}", "bold"), (f"  {words}", "")]


def _step_heading(schedule: Schedule, step: int) -> Line:
    return _line(step, step, describe(schedule, schedule.body.rows(step, step + 1)))


def _steps(schedule: Schedule, width: int) -> Iterator[Line]:
    """Every step with its matrix, or where that would flood the screen the first and the last matrix only."""
    flood = (schedule.num_steps + 1) * (schedule.ranks + 3) > MATRIX_LINES
    look = _look(schedule, width)
    yield _legend(schedule, look)
    for moment in moments(schedule):
        if flood and moment.step not in (None, schedule.num_steps - 1):
            continue
        yield []
        yield [("start", "bold")] if moment.step is None else _step_heading(schedule, moment.step)
        yield from _matrix(schedule, look, moment)
        if flood and moment.step is None:
            yield []
            yield from _one_line_each(schedule)


def _look(schedule: Schedule, width: int) -> _Look:
    left = min(36, max(16, width // 3))
    room = width - left - RANK_WIDTH
    square = grid_of(schedule, schedule.ranks, schedule.ranks)
    if square.square and schedule.ranks * (schedule.ranks + 1) <= room:
        return _Look(square, 1, width - RANK_WIDTH - schedule.ranks * (schedule.ranks + 1))
    grid = grid_of(schedule, room, 1)
    wide = len(str(schedule.ranks)) + 2 if schedule.contract.reduces else 3
    cell = wide if len(grid.first) * wide <= room else 1
    return _Look(grid, cell, width - RANK_WIDTH - len(grid.first) * cell)


def _legend(schedule: Schedule, look: _Look) -> Line:
    counts = all(count == 1 for count in look.grid.count) and look.cell > 1
    kinds = [f"{EMPTY} nothing"]
    if schedule.contract.reduces and counts:
        kinds.append("2 contributions of 2 ranks")
    elif schedule.contract.reduces or any(count > 1 for count in look.grid.count):
        kinds.append(f"{LEVELS[1]}{LEVELS[4]} part of it")
    kinds.append(f"{COMPLETE} {'complete' if schedule.contract.reduces else 'has it'}")
    kinds.append("[ ] new in this step" if look.cell > 1 else f"{ARRIVED} new in this step")
    return [("   ".join(kinds), "dim")]


def _matrix(schedule: Schedule, look: _Look, moment: Moment) -> Iterator[Line]:
    cells = look.grid.see(moment)
    sent = _sends(schedule, moment)
    left = min(look.left, max([24, *(len(text) + 2 for text in sent)]))
    numbers = _numbers(schedule, look)
    if numbers:
        yield [(f"{numbers[0]:>{left + RANK_WIDTH - 2}}  {numbers[1]}".rstrip(), "dim")]
    for rank in range(schedule.ranks):
        text = _shortened(sent[rank], left - 1).ljust(left)
        style = ADD_STYLE if "+" in text else COPY_STYLE
        yield [("  " + text, style), (f"rank {rank:>2}  ", "dim"), *_row(look, cells, rank)]


def _numbers(schedule: Schedule, look: _Look) -> tuple[str, str] | None:
    """What stands over the matrix: the kind of number, and the numbers."""
    cells = range(len(look.grid.first))
    if look.grid.square:
        return "from", "".join(str(source).ljust(schedule.ranks + 1) for source in range(schedule.ranks))
    if look.cell == 1:
        return None
    if schedule.contract.before is Layout.PAIR_SOURCE and len(cells) == schedule.ranks:
        return "from", "".join(str(source).center(look.cell) for source in cells)
    labels = [look.grid.label(cell) for cell in cells]
    fitting = [label if len(label) <= look.cell else str(look.grid.first[cell]) for cell, label in enumerate(labels)]
    return "chunk", "".join(label.rjust(look.cell - 1).ljust(look.cell) for label in fitting)


def _row(look: _Look, cells: Cells, rank: int) -> Iterator[Piece]:
    for index in range(len(look.grid.first)):
        have, given = int(cells.have[rank, index]), int(cells.given[index])
        state, action = State(int(cells.state[rank, index])), Action(int(cells.action[rank, index]))
        style = {Action.NOTHING: "", Action.ADDED: ADD_STYLE, Action.COPIED: COPY_STYLE}[action]
        glyph = {State.EMPTY: EMPTY, State.COMPLETE: COMPLETE, State.DOUBLED: DOUBLED}.get(state, "")
        if look.cell == 1:
            glyph = glyph or LEVELS[have * len(LEVELS) // given]
            glyph = ARRIVED if action is not Action.NOTHING and glyph == COMPLETE else glyph
        else:
            # A cell of several chunks counts them; a cell of one counts contributions.
            glyph = glyph or (str(have) if look.grid.count[index] == 1 else LEVELS[have * len(LEVELS) // given])
            glyph = f"[{glyph}]" if action is not Action.NOTHING else f" {glyph} "
        if look.grid.square and index and index % look.grid.columns == 0:
            yield " ", ""
        yield glyph.rjust(look.cell), WRONG_STYLE if state is State.DOUBLED else style


def _sends(schedule: Schedule, moment: Moment) -> list[str]:
    """What each rank sends, on one line: `0 → 1: +3`."""
    by_sender: dict[int, dict[str, list[int]]] = {}
    for message in messages(moment.rows):
        label = chunk_label(schedule, message)
        by_sender.setdefault(message.src, {}).setdefault(label, []).append(message.dst)
    made = []
    for src in range(schedule.ranks):
        parts = []
        for label, targets in by_sender.get(src, {}).items():
            everybody = schedule.ranks > 2 and len(targets) == schedule.ranks - 1
            parts.append(f"{'all' if everybody else ','.join(map(str, targets))}: {label}")
        made.append(f"{src:>2} → {'  '.join(parts)}" if parts else "")
    return made


def _printed(lines: list[Line], width: int, color: bool) -> str:
    if not color:
        plain = ("".join(text for text, _ in line).rstrip() for line in lines)
        return "".join(f"{_shortened(line, width)}\n" for line in plain)
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    out = StringIO()
    console = Console(file=out, force_terminal=True, color_system="256", width=width, legacy_windows=False)
    for line in lines:
        text = Text.assemble(*line, no_wrap=True, overflow="ellipsis")
        text.rstrip()
        console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
    return out.getvalue()


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
