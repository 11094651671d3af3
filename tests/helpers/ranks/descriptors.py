"""How many descriptors a process has open, and a limit just above that."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["descriptors", "few_descriptors", "open_descriptors"]


def descriptors() -> list[int]:
    """Those that are open, but for the one that finds this out."""
    found = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())
    return [one for one in found if os.path.lexists(f"/proc/self/fd/{one}")]


def open_descriptors() -> int:
    return len(descriptors())


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Only so many more than are open now; the numbers below them are taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = []
    while open_descriptors() <= descriptors()[-1]:
        filled.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in filled:
            os.close(one)
