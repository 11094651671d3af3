"""Lines for a terminal: pieces of text, each with its style."""

from __future__ import annotations

from textwrap import wrap

__all__ = [
    "ADD_STYLE",
    "COPY_STYLE",
    "WRONG_STYLE",
    "Line",
    "Piece",
    "printed",
    "shortened",
    "wrapped_line",
]

ADD_STYLE, COPY_STYLE, WRONG_STYLE = "bold dark_orange", "bold dodger_blue1", "bold red"

Piece = tuple[str, str]
Line = list[Piece]


def printed(lines: list[Line], width: int, color: bool) -> str:
    """The lines as one string, none of them wider than `width`."""
    if not color:
        plain = ("".join(text for text, _ in line).rstrip() for line in lines)
        return "".join(f"{shortened(line, width)}\n" for line in plain)
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


def wrapped_line(text: str, style: str, width: int, indent: int = 0) -> list[Line]:
    """Text wrapped to `width`, with a hanging indent; a no-break space keeps words together."""
    parts = wrap(text, width, subsequent_indent=" " * indent)
    return [[(part.replace("\N{NO-BREAK SPACE}", " "), style)] for part in parts]


def shortened(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is too long."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
