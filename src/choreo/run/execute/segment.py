"""Shared memory: one segment a rank and communicator, written by its owner and only read by all others.

A segment is a file in /dev/shm named `choreo-<job>-<communicator>-<rank>-<namespace>-<pid>-<start>`. Namespace, pid and
start time say whether its owner is alive, so the next start removes what a crash has left. Memory is reserved before it
is used, so that a full /dev/shm is an error and not a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import re
import time
from pathlib import Path

from choreo.errors import UsageError
from choreo.run.execute.layout import PAGE, staging_at
from choreo.run.rendezvous.hosts import pid_namespace
from choreo.run.rendezvous.processes import is_alive, start_time
from choreo.run.transport.shortage import no_room, why

__all__ = ["Segment", "open_segment", "owned_name", "remove_stale", "reserve_ahead"]

SHARED = Path("/dev/shm")
# The file is sparse: memory that is not touched is not used.
HEAP_BYTES = 64 << 30
ALIGNED_BYTES = 64
# A name whose owner cannot be seen from here is stale after this time: segments have names only while ranks connect.
UNSEEN_S = 24 * 3600.0
_KEEP_SIZE = 1  # of fallocate(2)


class Segment:
    """A rank's own segment: header, channels, staging, and a heap for arrays that peers read in place."""

    def __init__(self, name: str, world_size: int, stage_bytes: int) -> None:
        self.heap_at = staging_at(world_size) + stage_bytes
        self.bytes = self.heap_at + HEAP_BYTES
        self.path = SHARED / owned_name(name)
        try:
            self._descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"no shared memory can be made: {self.path.parent}: {why(error)}") from None
        try:
            os.ftruncate(self._descriptor, self.bytes)
            self._reserve(0, self.heap_at)
            self.map = mmap.mmap(self._descriptor, self.bytes)
        except OSError as error:
            self.close()
            if error.errno in (errno.EMFILE, errno.ENFILE):  # Python opens the file once more to map it
                raise UsageError(f"no shared memory can be mapped: {why(error)}") from None
            raise UsageError(
                f"{self.bytes >> 30} GiB of address space for shared memory cannot be reserved ({error.strerror}); "
                "most of it is never used, but a limit (ulimit -v, ulimit -f) forbids it"
            ) from None
        except BaseException:
            self.close()
            raise
        self._free: list[tuple[int, int]] = [(self.heap_at, HEAP_BYTES)]

    def take(self, length: int) -> int:
        """Take memory from the heap; returns its offset in the segment."""
        wanted = max(ALIGNED_BYTES, -(-length // ALIGNED_BYTES) * ALIGNED_BYTES)
        for index, (at, room) in enumerate(self._free):
            if room >= wanted:
                self._reserve(at, wanted)
                self._free[index] = (at + wanted, room - wanted)
                return at
        raise UsageError(f"there is no room for {length} bytes in the shared heap of {HEAP_BYTES >> 30} GiB")

    def give_back(self, at: int, length: int) -> None:
        """Return memory to the heap and to the system."""
        wanted = max(ALIGNED_BYTES, -(-length // ALIGNED_BYTES) * ALIGNED_BYTES)
        self._free = _merged([*self._free, (at, wanted)])
        low, high = _pages(at), (at + wanted) // PAGE * PAGE
        if high > low:
            with contextlib.suppress(OSError, ValueError):
                self.map.madvise(mmap.MADV_REMOVE, low, high - low)

    def unlink(self) -> None:
        """Remove the name; the memory is freed when the last process closes it."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and remove its name; nothing more can be taken. May be called twice."""
        self.unlink()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _reserve(self, at: int, length: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, at, length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise UsageError(f"no more shared memory is available: {why(error)}") from None
            raise UsageError(no_room(length, SHARED)) from None


def reserve_ahead(descriptor: int, length: int) -> None:
    """Reserve memory for a file in shared memory beyond its end, where the system can do that."""
    with contextlib.suppress(AttributeError):
        _LIBC.fallocate(descriptor, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(length))


def owned_name(name: str) -> str:
    """A name that says which process owns it."""
    return f"{name}-{pid_namespace()}-{os.getpid()}-{start_time(os.getpid())}"


def open_segment(path: Path, length: int) -> mmap.mmap:
    """Map a peer's segment for reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_size != length or found.st_uid != os.getuid():
            raise UsageError(f"{path.name} is not a segment of this job")
        return mmap.mmap(descriptor, length, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def remove_stale() -> list[str]:
    """Remove segments whose owner is gone."""
    removed = []
    for path in SHARED.glob("choreo-*"):
        owner = re.fullmatch(r"choreo-.*-([0-9]+)-([0-9]+)-([0-9]+)", path.name)
        if owner is None:
            continue
        namespace, pid, started = map(int, owner.groups())
        with contextlib.suppress(OSError):
            if namespace != pid_namespace():
                gone = time.time() - path.lstat().st_mtime > UNSEEN_S
            else:
                gone = not is_alive(pid, started)
            if gone:
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


_LIBC = ctypes.CDLL(None)
