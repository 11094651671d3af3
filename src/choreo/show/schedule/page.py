"""The animated page of a schedule: one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape

from choreo.schedule import Schedule
from choreo.show.schedule.data import Data, to_data
from choreo.show.schedule.words import facts, printable, title
from choreo.show.web.page import assemble

__all__ = ["to_html"]

SCRIPTS = ("replay", "stage", "bundles", "matrix", "inspector", "timeline", "page")


def to_html(schedule: Schedule) -> str:
    """A page that plays the schedule: messages between the ranks, what each holds, and who contributed to it."""
    data = to_data(schedule)
    parts = {
        "TITLE": escape(f"{title(schedule)}, {facts(schedule)}"),
        "HEADING": f'{escape(schedule.collective)} <span class="by">by</span> {escape(printable(schedule.algorithm))}',
        "FACTS": f"{escape(facts(schedule))}: {escape(schedule.contract.summary)} {_outcome(data)}",
    }
    return assemble("schedule", SCRIPTS, data, parts)


def _outcome(data: Data) -> str:
    if data["proof"]["holds"]:
        return '<span class="proved">✓ proved</span>'
    button = '<button id="failure" type="button">show it</button>'
    return f'<br><span class="refuted">✗ wrong: {escape(data["proof"]["story"])}</span> {button}'
