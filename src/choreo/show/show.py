"""The verb: a schedule to the screen, or its pictures to files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from choreo.errors import UsageError
from choreo.schedule import Schedule
from choreo.show.schedule.page import to_html
from choreo.show.schedule.svg.picture import to_svg
from choreo.show.schedule.text.text import to_text

__all__ = ["show"]


def show(
    schedule: Schedule,
    *,
    svg: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    width: int | None = None,
) -> None:
    """Print the schedule step by step, or draw it into the given file(s) instead.

    `svg` is one still picture, `html` a page that plays the schedule; `width` is that of the text, in columns.
    """
    for file, draw in ((svg, to_svg), (html, to_html)):
        if file is not None:
            _write(Path(file), draw(schedule))
    if svg is None and html is None:
        sys.stdout.write(to_text(schedule, width=width, color=sys.stdout.isatty()))


def _write(file: Path, content: str) -> None:
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from None
