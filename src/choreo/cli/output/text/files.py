"""Pictures and pages in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from choreo.cli.recording import keep_file
from choreo.errors import UsageError, shown
from choreo.files import write_text

__all__ = ["afterwards", "check_picture", "check_stdout", "on_stdout", "write_page", "write_picture"]


@contextmanager
def afterwards(write: Callable[[], None]) -> Iterator[None]:
    """Write files after the answer, even if its reader stops early, as `head` does."""
    try:
        yield
    except BrokenPipeError:
        write()
        raise
    write()


def check_picture(file: Path | None, suffix: str) -> None:
    """Refuse a file whose name does not say what is in it."""
    if file is not None and not on_stdout(file) and file.suffix != suffix:
        raise UsageError(f"{shown(file)}: that picture goes to a file that ends in {suffix}, or to - for stdout")


def on_stdout(file: object) -> bool:
    """Whether what is written to this file goes to stdout, in place of an answer in words."""
    return str(file) == "-"


def check_stdout(*, as_json: bool, **files: object) -> None:
    """Refuse two documents on stdout, of --json and of options for files."""
    there = ["--json"] if as_json else []
    there += [f"--{name} -" for name, file in files.items() if on_stdout(file)]
    if len(there) > 1:
        raise UsageError(f"{there[0]} and {there[1]} both want stdout; give the picture a file")


def write_picture(file: Path, content: str) -> None:
    """Write a picture to a file, or to stdout where that is -."""
    if on_stdout(file):
        click.echo(content, nl=not content.endswith("\n"))
        return
    write_text(file, content)
    keep_file(file)


def write_page(file: Path, content: str) -> None:
    """Write a page to a file, and say what to do with it."""
    write_picture(file, content)
    if not on_stdout(file):
        click.echo(f"wrote {shown(file)}: open it in a browser", err=True)
