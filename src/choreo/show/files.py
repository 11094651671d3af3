"""Write a picture, a page or a trace into a file."""

from __future__ import annotations

import os
from pathlib import Path

from choreo.errors import UsageError, shown

__all__ = ["write_file"]


def write_file(path: str | os.PathLike[str], text: str) -> None:
    """Write the text; a file that cannot be written is the user's mistake."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{shown(path)}: cannot be written: {error.strerror}") from None
