"""A schedule in a notebook: its picture if it is small enough, otherwise a line of text."""

from __future__ import annotations

from html import escape

from choreo.schedule import Schedule
from choreo.show.schedule.limits import fits
from choreo.show.schedule.svg.picture import to_svg
from choreo.show.schedule.words import facts, messages, title

__all__ = ["schedule_cell"]

NOTEBOOK_LIMITS = {"ranks": 16, "transfers": 512, "places": 1 << 12}
NOTEBOOK_STEPS = 32


def schedule_cell(schedule: Schedule) -> str:
    """The schedule as HTML for a notebook cell; the picture has its own background."""
    name, size = f"<b>{escape(title(schedule))}</b>", escape(facts(schedule))
    small = schedule.num_steps <= NOTEBOOK_STEPS and fits(schedule, **NOTEBOOK_LIMITS)
    if not small:
        return f"<div>{name}: {size}; {escape(schedule.contract.summary)}</div>"
    picture = to_svg(schedule).replace("<svg ", '<svg style="max-width:100%;height:auto;border-radius:6px" ', 1)
    sent = [len(messages(rows)) for rows in schedule.steps()]
    line = f"{size}, {sum(sent)} messages, at most {max(sent, default=0)} in a step; animated: <code>to_html</code>"
    return f"<div>{picture}<br><small>{line}</small></div>"
