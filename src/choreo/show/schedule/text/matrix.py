"""The chunks that every rank and switch holds after a step, in characters: numbers if they fit, otherwise bars.

The messages of the step are printed beside the matrix, or above it if the matrix needs the width. No information is in
colour alone: a mark shows what the step changed, and what ends up wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from choreo.collectives import Layout
from choreo.schedule import Schedule
from choreo.show.schedule.grid import Cells, Grid, grid_of
from choreo.show.schedule.holdings import Action, Moment, State, wrong_at_end
from choreo.show.schedule.words import chunk_label, messages
from choreo.show.terminal import ADD_STYLE, COPY_STYLE, WRONG_STYLE, Line, Piece, shortened

__all__ = ["Look", "legend", "look_of", "matrix"]

# "rank 12" and "switch 12", and the spaces around them.
RANK_NAME, SWITCH_NAME, AROUND_NAME = 7, 9, 4
LEVELS = "▁▂▃▄▅▆▇"
EMPTY, COMPLETE, DOUBLED, WRONG = "·", "■", "‼", "✗"
NEW_PART, NEW = "◇", "◆"
MARKS = {Action.NOTHING: " ", Action.ADDED: "+", Action.COPIED: "="}


@dataclass(frozen=True, slots=True)
class Look:
    """How the matrix is printed: what it shows of each rank, how wide a cell, the largest number in it and the name of
    a rank or switch are, the room at the left for the messages (0: they stand above), and the width of it all."""

    grid: Grid
    cell: int
    digits: int
    name: int
    left: int
    width: int

    @property
    def bracketed(self) -> bool:
        """Whether there is room for brackets round what is new; otherwise a mark stands before it."""
        return self.cell == self.digits + 2


def look_of(schedule: Schedule, width: int) -> Look:
    """The widest cells that fit, best with the messages beside them."""
    name = SWITCH_NAME if schedule.members > schedule.ranks else RANK_NAME
    above = width - name - AROUND_NAME
    beside = above - min(36, max(16, width // 3))
    grid = grid_of(schedule, schedule.ranks, schedule.ranks)
    across = schedule.ranks * (schedule.ranks + 1)
    if grid.square and across <= above:
        return Look(grid, 1, 1, name, above - across if across <= beside else 0, width)
    grid = grid_of(schedule, above, 1)
    most = schedule.ranks if schedule.contract.reduces else max(grid.count)
    digits = len(str(most - 1))
    cell = next(cell for cell in (digits + 2, digits + 1, 2, 1) if len(grid.first) * cell <= above)
    across = len(grid.first) * cell
    return Look(grid, cell, digits, name, above - across if across <= beside else 0, width)


def legend(schedule: Schedule, look: Look, lines: list[Line]) -> str:
    """What the signs mean, of those that the lines have."""
    shown = {sign for line in lines for text, _ in line for sign in text}
    adds = any(style == ADD_STYLE for line in lines for _, style in line)
    kinds = [f"{EMPTY} nothing"]
    if look.cell > look.digits and schedule.contract.reduces:
        kinds.append("2 sum of 2 ranks")
    elif look.cell > look.digits and max(look.grid.count) > 1:
        kinds.append("2 blocks of it" if schedule.contract.before is Layout.PAIR_SOURCE else "2 chunks of it")
    if shown & set(LEVELS):
        kinds.append(f"{LEVELS[1]}{LEVELS[4]} part of it")
    kinds.append(f"{COMPLETE} {'complete' if schedule.contract.reduces else 'has it'}")
    if look.bracketed:
        kinds.append("[ ] new in this step")
    elif look.cell > 1:
        kinds.extend((["+ just added"] if adds else []) + (["= just copied"] if "=" in shown else []))
    else:
        kinds.append(f"{NEW_PART}{NEW} new in this step" if NEW_PART in shown else f"{NEW} new in this step")
    if DOUBLED in shown:
        kinds.append(f"{DOUBLED} some of it more than once")
    if any(WRONG in text for line in lines for text, _ in line if "here" not in text):
        kinds.append(f"{WRONG} not what it must be at the end")
    return "   ".join(kind.replace(" ", "\N{NO-BREAK SPACE}") for kind in kinds)


def matrix(schedule: Schedule, look: Look, moment: Moment) -> Iterator[Line]:
    """The messages of a step and what every rank and switch holds after it."""
    cells, sent = look.grid.see(moment), _sends(schedule, moment)
    wrong = look.grid.touches(wrong_at_end(schedule, moment))
    left = min(look.left, max([24, *(len(text) + 2 for text in sent)]))
    if not look.left:
        yield from _flowing([text for text in sent if text], look.width)
    for kind, numbers in _numbers(schedule, look):
        yield [(f"{kind:>{left + look.name + AROUND_NAME - 2}}  {numbers}".rstrip(), "dim")]
    for member in range(schedule.members):
        text = shortened(sent[member], left - 1).ljust(left) if left else ""
        noun, number = schedule.member_name(member).split()
        name = f"{noun} {number:>{look.name - len(noun) - 1}}  "
        yield [("  " + text, _style(text)), (name, "dim"), *_row(look, cells, member, wrong[member])]


def _flowing(sent: list[str], width: int) -> Iterator[Line]:
    """The messages in columns, as many as there is room for."""
    column = min(width - 2, max(map(len, sent), default=0))
    abreast = max(1, (width - 2) // (column + 3))
    for first in range(0, len(sent), abreast):
        parts = [shortened(text, column).ljust(column) for text in sent[first : first + abreast]]
        yield [piece for part in parts for piece in (("  " if part is parts[0] else "   ", ""), (part, _style(part)))]


def _style(sent: str) -> str:
    return ADD_STYLE if "+" in sent else COPY_STYLE


def _numbers(schedule: Schedule, look: Look) -> list[tuple[str, str]]:
    """What stands over the matrix: the kind of number, and the numbers."""
    ranks, grid = range(schedule.ranks), look.grid
    if grid.square:
        each = "".join(str(target % 10) for target in ranks)
        return [
            ("from", "".join(str(source).ljust(schedule.ranks + 1) for source in ranks)),
            ("for", " ".join([each] * schedule.ranks)),
        ]
    if schedule.contract.before is Layout.PAIR_SOURCE and len(grid.first) == schedule.ranks:
        return [("from", _spaced(look, [str(source) for source in ranks]))]
    if len(grid.first) == 1:
        return []
    labels = [grid.label(cell) for cell in range(len(grid.first))]
    if max(map(len, labels)) >= look.cell:
        labels = [str(first) for first in grid.first]
    return [("chunk", _spaced(look, labels))]


def _spaced(look: Look, labels: list[str]) -> str:
    """Labels over their cells, or over every second, fourth, ... where they would meet."""
    widest = max(map(len, labels))
    every = next(n for n in (1, 2, 4, 5, 8, 10, 16, 20, 32, 64) if widest + 1 <= n * look.cell or n == 64)
    line = ""
    for cell in range(0, len(labels), every):
        at = cell * look.cell + look.cell - (2 if look.bracketed else 1)
        if every == 1:
            at -= len(labels[cell]) - 1
        line = line.ljust(at) + labels[cell]
    return line


def _row(look: Look, cells: Cells, rank: int, wrong: list[bool]) -> Iterator[Piece]:
    for index in range(len(look.grid.first)):
        state, action = State(int(cells.state[rank, index])), Action(int(cells.action[rank, index]))
        style = {Action.NOTHING: "", Action.ADDED: ADD_STYLE, Action.COPIED: COPY_STYLE}[action]
        if look.grid.square and index and index % look.grid.columns == 0:
            yield " ", ""
        glyph = _glyph(look, _amount(look, cells, rank, index), state, action, wrong[index])
        yield glyph.rjust(look.cell), WRONG_STYLE if wrong[index] or state is State.DOUBLED else style


def _glyph(look: Look, amount: str, state: State, action: Action, wrong: bool) -> str:
    if look.cell == 1:
        new = {State.PARTIAL: NEW_PART, State.COMPLETE: NEW}.get(state, amount)
        return WRONG if wrong else new if action is not Action.NOTHING else amount
    if not look.bracketed:
        return (WRONG if wrong else MARKS[action]) + amount
    if wrong:
        return f" {amount}{WRONG}"
    return f"[{amount}]" if action is not Action.NOTHING else f" {amount} "


def _amount(look: Look, cells: Cells, rank: int, index: int) -> str:
    """How much is there: a number if all chunks of the cell have the same amount and it fits, otherwise a bar."""
    state = State(int(cells.state[rank, index]))
    if state is not State.PARTIAL:
        return {State.EMPTY: EMPTY, State.COMPLETE: COMPLETE}.get(state, DOUBLED)
    number = str(int(cells.each[rank, index]))
    if look.cell > look.digits and cells.each[rank, index] > 0 and len(number) <= look.digits:
        return number
    return LEVELS[int(cells.have[rank, index]) * len(LEVELS) // int(cells.given[index])]


def _sends(schedule: Schedule, moment: Moment) -> list[str]:
    """What each member sends, on one line: `0 → 1: +3`."""
    by_sender: dict[int, dict[str, list[int]]] = {}
    for message in messages(moment.rows):
        label = chunk_label(schedule, message)
        by_sender.setdefault(message.src, {}).setdefault(label, []).append(message.dst)
    lines = []
    ranks = schedule.ranks

    def short(member: int) -> str:
        return f"{member:>2}" if member < ranks else schedule.member_name(member)

    for src in range(schedule.members):
        others = ranks - 1 if src < ranks else ranks
        parts = []
        for label, targets in by_sender.get(src, {}).items():
            everybody = ranks > 2 and len(targets) == others and max(targets) < ranks
            parts.append(f"{'all' if everybody else ','.join(short(target).strip() for target in targets)}: {label}")
        lines.append(f"{short(src)} → {'  '.join(parts)}" if parts else "")
    return lines
