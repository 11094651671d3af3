"""Shared memory: one segment a rank and communicator, written by its owner and only read by everybody else.

A segment is a file in /dev/shm named `choreo-<job>-<communicator>-<rank>-<pid>-<start>`; pid and the time it started
say whether its owner is alive, so that what a crash left behind is found and removed by the next start.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from pathlib import Path

from choreo.errors import UsageError

__all__ = ["Segment", "open_segment", "process_start", "remove_stale"]

SHARED = Path("/dev/shm")
PAGE = 4096
CHANNEL = 128
# Sparse: what nobody touches takes no memory.
HEAP_BYTES = 64 << 30
ALIGNED = 64


class Segment:
    """A rank's own: header, channels, two halves of staging, and a heap for arrays that peers may read in place."""

    def __init__(self, name: str, world_size: int, stage_bytes: int) -> None:
        self.heap_at = PAGE + _pages(CHANNEL * world_size) + 2 * stage_bytes
        self.bytes = self.heap_at + HEAP_BYTES
        self.path = SHARED / f"{name}-{os.getpid()}-{process_start(os.getpid())}"
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, self.bytes)
            self.map = mmap.mmap(descriptor, self.bytes)
        except BaseException:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._free: list[tuple[int, int]] = [(self.heap_at, HEAP_BYTES)]

    def take(self, length: int) -> int:
        """Room in the heap, as an offset in the segment."""
        wanted = max(ALIGNED, -(-length // ALIGNED) * ALIGNED)
        for index, (at, room) in enumerate(self._free):
            if room >= wanted:
                self._free[index] = (at + wanted, room - wanted)
                return at
        raise UsageError(f"there is no room for {length} bytes in the shared heap of {HEAP_BYTES >> 30} GiB")

    def give_back(self, at: int, length: int) -> None:
        """Return room to the heap, and its memory to the machine."""
        wanted = max(ALIGNED, -(-length // ALIGNED) * ALIGNED)
        self._free = _merged([*self._free, (at, wanted)])
        low, high = _pages(at), (at + wanted) // PAGE * PAGE
        if high > low:
            with contextlib.suppress(OSError, ValueError):
                self.map.madvise(mmap.MADV_REMOVE, low, high - low)

    def unlink(self) -> None:
        """Take the name away; the memory goes when the last process lets go of it."""
        self.path.unlink(missing_ok=True)


def open_segment(path: Path, length: int) -> mmap.mmap:
    """A peer's segment, to read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_size != length or found.st_uid != os.getuid():
            raise UsageError(f"{path.name} is not a segment of this job")
        return mmap.mmap(descriptor, length, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def process_start(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[19])


def remove_stale() -> list[str]:
    """Remove segments whose owner is gone."""
    removed = []
    for path in SHARED.glob("choreo-*"):
        owner = re.fullmatch(r"choreo-.*-([0-9]+)-([0-9]+)", path.name)
        if owner is not None and process_start(int(owner[1])) != int(owner[2]):
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path.name)
    return removed


def _pages(length: int) -> int:
    return -(-length // PAGE) * PAGE


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for at, room in sorted(ranges):
        if merged and sum(merged[-1]) == at:
            merged[-1] = (merged[-1][0], merged[-1][1] + room)
        else:
            merged.append((at, room))
    return merged
