"""The animated page: one HTML file that needs nothing else.

The markup, the style and the scripts are plain files in the folder `page`; here they are put into one, with the data
of the schedule. The names in a schedule may come from anybody's file, so they are escaped for where they stand.
"""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files

from choreo.schedule import Schedule
from choreo.show.data import Data, to_data
from choreo.show.words import facts, printable, title

__all__ = ["to_html"]

SCRIPTS = ("replay.js", "stage.js", "matrix.js", "inspector.js", "timeline.js", "page.js")


def to_html(schedule: Schedule) -> str:
    """A page that plays the schedule: messages between the ranks, what each holds, and who contributed to it."""
    data = to_data(schedule)
    parts = {
        "TITLE": escape(f"{title(schedule)}, {facts(schedule)}"),
        "STYLE": _file("page.css"),
        "HEADING": f'{escape(schedule.collective)} <span class="by">by</span> {escape(printable(schedule.algorithm))}',
        "FACTS": f"{escape(facts(schedule))}: {escape(schedule.contract.summary)} {_verdict(data)}",
        "DATA": _embedded(data),
        "SCRIPT": "\n".join(_file(name) for name in SCRIPTS),
    }
    # One pass, so that a name that looks like a placeholder stays what it is.
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _file("page.html"))


def _verdict(data: Data) -> str:
    if data["proof"]["holds"]:
        return '<span class="proved">✓ proved</span>'
    button = '<button id="failure" type="button">show it</button>'
    return f'<br><span class="refuted">✗ wrong: {escape(data["proof"]["story"])}</span> {button}'


def _embedded(data: Data) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (files("choreo.show") / "page" / name).read_text(encoding="utf-8")
