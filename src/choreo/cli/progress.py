"""Progress on stderr, for work that takes more than a moment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import click

__all__ = ["Progress", "waiting"]

QUIET_S = 1.5
EVERY_S = 0.5


class Progress:
    """Called with how much is done of how much; prints that now and then, and wipes its line at the end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.said_at = time.monotonic() + QUIET_S - EVERY_S
        self.said = False
        self.width = 0
        self.terminal = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, done: int, total: int, left_s: float | None = None) -> None:
        """Print the progress and the seconds left, where they are known, unless it was done a moment ago."""
        now = time.monotonic()
        if now - self.said_at < (EVERY_S if self.terminal else 10 * EVERY_S):
            return
        self.said_at, self.said = now, True
        line = f"{self.what}: {100 * done // max(total, 1)} %"
        if left_s is not None:
            line = f"{self.what}: {done} of {total}, {_duration(left_s)} left"
        self.width = max(self.width, len(line))
        click.echo(f"\r{line.ljust(self.width)}" if self.terminal else line, err=True, nl=not self.terminal)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.said and self.terminal:
            click.echo(f"\r{' ' * self.width}\r", err=True, nl=False)


@contextmanager
def waiting(what: str, progress: Progress | None = None) -> Iterator[None]:
    """Say on a terminal for how long `what` has been going on, until its `progress` says how much of it is done."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    began, width = time.monotonic(), 0

    def say() -> None:
        nonlocal width
        pause = QUIET_S
        while not done.wait(pause) and not (progress is not None and progress.said):
            line = f"{what}: {time.monotonic() - began:.0f} s"
            width = max(width, len(line))
            click.echo(f"\r{line.ljust(width)}", err=True, nl=False)
            pause = 1.0

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        done.set()
        speaker.join()
        if width:
            click.echo(f"\r{' ' * width}\r", err=True, nl=False)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
