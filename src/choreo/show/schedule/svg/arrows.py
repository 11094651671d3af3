"""The arrows of one step, with the content of each message under its sender or over its receiver."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from choreo.schedule import Schedule
from choreo.show.drawing import ADD, COPY, HALO, WRONG, arrow, line, text
from choreo.show.schedule.words import Message, chunk_label

__all__ = ["LABEL_HEIGHT", "arrows", "label_side"]

LABEL_HEIGHT = 14.0


class Ranks(Protocol):
    """Where the ranks stand."""

    @property
    def pitch(self) -> float:
        """How far apart they are."""
        ...

    def x(self, rank: float) -> float:
        """The middle of a rank."""
        ...


def label_side(sent: list[Message], ranks: int) -> str:
    """Where labels stand without overlapping: "above" at the senders, "below" at the receivers, or "" for none."""
    if len(sent) > 2 * ranks:
        return ""
    shifts = _shifts(sent, ranks)
    directions = [(message, shift > 0) for message, shift in zip(sent, shifts, strict=True)]
    if max(Counter((message.src, right) for message, right in directions).values()) == 1:
        return "above"
    if max(Counter((message.dst, right) for message, right in directions).values()) == 1:
        return "below"
    return ""


def arrows(
    schedule: Schedule, layout: Ranks, sent: list[Message], top: float, bottom: float, *, failing: int | None
) -> str:
    """An arrow for each message, from the sender above to the receiver below; those at rank `failing` on red."""
    ranks = schedule.members
    dense = len(sent) > 2 * ranks
    width = 0.7 if dense and ranks > 8 else 0.9 if dense else 1.4
    opacity = max(0.25, min(0.7, 60 / len(sent))) if dense else 1.0
    side = label_side(sent, ranks)
    first = top + (LABEL_HEIGHT if side == "above" else 3)
    last = bottom - (LABEL_HEIGHT if side == "below" else 3)
    crowd = Counter(message.src if side == "above" else message.dst for message in sent)
    shapes = []
    for message, shift in zip(sent, _shifts(sent, ranks), strict=True):
        color = ADD if message.reduce else COPY
        start, end = (message.src, first), (message.src + shift, last)
        if failing in (message.src, message.dst):
            shapes.extend(_strokes(layout, ranks, start, end, stroke=WRONG, width=6, opacity=0.3))
        shapes.extend(_strokes(layout, ranks, start, end, stroke=color, width=width, opacity=opacity))
        label = chunk_label(schedule, message)
        if side and len(label) * 5.4 > layout.pitch / crowd[message.src if side == "above" else message.dst] - 4:
            label = f"{'+' if message.reduce else ''}×{message.chunks}"
        if side == "above":
            x = layout.x(_beside(message.src, crowd[message.src], right=shift > 0))
            shapes.append(text(x, top + 11, label, size=10, fill=color, anchor="middle", **HALO))
        elif side == "below":
            x = layout.x(_beside(message.dst, crowd[message.dst], right=shift < 0))
            shapes.append(text(x, bottom - 4, label, size=10, fill=color, anchor="middle", **HALO))
    return "".join(shapes)


def _beside(rank: int, crowd: int, *, right: bool) -> float:
    """Where to put the two labels of a rank: side by side, each towards its arrow."""
    return rank if crowd == 1 else rank + 0.25 if right else rank - 0.25


def _shifts(sent: list[Message], ranks: int) -> list[int]:
    """How far right each arrow goes; where all ranks send equally far round, the short way round the end."""
    plain = [message.dst - message.src for message in sent]
    if len(sent) > 2 * ranks:
        return plain
    members = Counter(shift % ranks for shift in plain)
    shifts = []
    for shift in plain:
        turn = shift % ranks
        if members[turn] != ranks or 2 * turn == ranks:
            shifts.append(shift)
        else:
            shifts.append(turn if 2 * turn < ranks else turn - ranks)
    return shifts


def _strokes(
    layout: Ranks,
    ranks: int,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    stroke: str,
    width: float,
    opacity: float,
) -> list[str]:
    """The arrow, in two pieces where it leaves at one end of the row and comes in at the other."""
    x1, y1, x2, y2 = layout.x(start[0]), start[1], layout.x(end[0]), end[1]
    if 0 <= end[0] <= ranks - 1:
        return [arrow(x1, y1, x2, y2, stroke=stroke, width=width, opacity=opacity)]
    edge, other = (ranks - 0.5, -0.5) if end[0] > ranks - 1 else (-0.5, ranks - 0.5)
    cut = (edge - start[0]) / (end[0] - start[0])
    y = y1 + cut * (y2 - y1)
    return [
        line(x1, y1, layout.x(edge), y, stroke=stroke, width=width, opacity=opacity),
        arrow(layout.x(other), y, layout.x(end[0] % ranks), y2, stroke=stroke, width=width, opacity=opacity),
    ]
