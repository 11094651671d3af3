"""`show`: print or draw any object, on screen or into files."""

from __future__ import annotations

import os
import sys

from choreo.files import write_text
from choreo.show.kinds import to_html, to_svg, to_text

__all__ = ["show"]


def show(
    thing: object,
    *,
    svg: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    width: int | None = None,
) -> None:
    """Print a schedule, a topology or any verb's result, or draw it into the given file(s) instead.

    `svg` is one still picture, `html` a page; `width` is that of the text, in columns.

    >>> from choreo import build, prove
    >>> show(prove(build("broadcast", "mst", 2)), width=80)  # doctest: +ELLIPSIS
    exactly: broadcast by mst over 2 ranks, 1 step, 1 transfer
    collective  ...
    """
    for file, draw in ((svg, to_svg), (html, to_html)):
        if file is not None:
            write_text(file, draw(thing))
    if svg is None and html is None:
        sys.stdout.write(to_text(thing, width=width, color=sys.stdout.isatty()))
