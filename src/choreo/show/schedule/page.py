"""The animated page of a schedule: one self-contained HTML file.

A small schedule is drawn message by message and place by place. A large one is drawn by groups of ranks: the messages
of a step as a matrix of senders and receivers, and what the ranks hold as a heat map.
"""

from __future__ import annotations

from html import escape

from choreo.schedule import Schedule
from choreo.show.schedule.data import PAGE_LIMITS, Heading, to_data
from choreo.show.schedule.limits import fits
from choreo.show.schedule.packed import to_packed
from choreo.show.schedule.words import facts, printable, title
from choreo.show.web.page import assemble

__all__ = ["to_html"]


def to_html(schedule: Schedule) -> str:
    """A page that plays the schedule: messages between the ranks, what each holds, and who contributed to it."""
    small = fits(schedule, **PAGE_LIMITS)
    data: Heading = to_data(schedule) if small else to_packed(schedule)
    parts = {
        "TITLE": escape(f"{title(schedule)}, {facts(schedule)}"),
        "HEADING": f'{escape(schedule.collective)} <span class="by">by</span> {escape(printable(schedule.algorithm))}',
        "FACTS": f"{escape(facts(schedule))}: {escape(schedule.contract.summary)} {_outcome(data)}",
    }
    return assemble("schedule", "page" if small else "large", data, parts)


def _outcome(data: Heading) -> str:
    if data["proof"]["holds"]:
        return '<span class="proved">✓ proved</span>'
    button = '<button id="failure" type="button">show it</button>'
    return f'<br><span class="refuted">✗ wrong: {escape(data["proof"]["story"])}</span> {button}'
