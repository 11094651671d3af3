"""Shortages of the system: descriptors, threads, shared memory. Says so, and how to get more."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

from choreo.errors import ChoreoError

__all__ = ["SHORT", "check_room", "no_room", "start_thread", "why"]

# Why a call fails that would have succeeded with more resources.
SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})

DEFAULT_STACK_BYTES, SPARE_BYTES = 8 << 20, 4 << 20
START_S = 20.0  # in which a thread begins


class _Started(threading.Event):
    """The event that `Thread.start` waits for. It never comes if the new thread finds no memory when it begins."""

    given_up = False  # nobody waits any more: a thread that begins now must end at once
    never = False  # the thread has ended, and had not begun

    def wait(self, timeout: float | None = None) -> bool:
        if super().wait(START_S if timeout is None else timeout) and not self.never:
            return True
        self.given_up = timeout is None
        if self.given_up:
            raise RuntimeError("out of memory" if self.never else "it does not begin")
        return False


class _Beginning:
    """The first call of a new thread. Only the thread holds it: if it is dropped uncalled, the thread has ended."""

    def __init__(self, begin: Callable[[], None], started: _Started) -> None:
        self._begin, self._started = begin, started

    def __call__(self) -> None:
        self._begin()

    def __del__(self) -> None:
        if not self._started.is_set():
            self._started.never = True
            self._started.set()


class _Thread(threading.Thread):
    """A thread whose `start` ends if the thread ends before it has begun."""

    @property
    def _bootstrap(self) -> _Beginning:
        return _Beginning(super()._bootstrap, self._started)  # type: ignore[misc, attr-defined]


def why(error: OSError | MemoryError) -> str:
    """The system's reason; if it is short of something, also how to get more.

    >>> why(OSError(2, "No such file or directory"))
    'No such file or directory'
    >>> why(OSError(24, "Too many open files")).endswith("allow more with ulimit -n")
    True
    """
    if isinstance(error, MemoryError):
        error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    said = error.strerror or str(error) or type(error).__name__
    if error.errno == errno.EMFILE:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"{said}: this process may have {most}; allow more with ulimit -n"
    if error.errno == errno.ENFILE:
        return f"{said}: all processes together have too many; allow more with sysctl fs.file-max"
    if error.errno == errno.EFBIG:
        return f"{said}: allow larger files with ulimit -f"
    if error.errno == errno.ENOSPC:
        return f"{said}: remove what is in /dev/shm, or make it larger (mount -o remount,size=, docker run --shm-size=)"
    if error.errno == errno.ENOMEM:
        return f"{said}: allow more (ulimit -v, a container's limits)"
    return said


def no_room(length: int, folder: Path) -> str:
    """The sentence for shared memory that is full."""
    disk = os.statvfs(folder)
    return (
        f"there is no room for {_mib(length)} of shared memory: {_mib(disk.f_bavail * disk.f_frsize)} of "
        f"{_mib(disk.f_blocks * disk.f_frsize)} are left in {folder}; remove what is in it, or make it larger "
        "(mount -o remount,size=, docker run --shm-size=)"
    )


def check_room(descriptor: int, count: int) -> None:
    """Raise OSError unless this process may open this many more files; it has this one open."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.callback(os.close, os.dup(descriptor))


def start_thread(target: Callable[[], object], name: str, purpose: str) -> threading.Thread:
    """A thread that runs; a ChoreoError if the system has none, and then the next attempt may succeed.

    >>> start_thread(lambda: None, "example", "an example").join()
    """
    started = _Started()
    thread = _Thread(target=lambda: None if started.given_up else target(), name=name, daemon=True)
    thread._started = started  # type: ignore[attr-defined]
    try:
        # There must be more than a stack, or the thread ends as it begins.
        mmap.mmap(-1, _stack_bytes() + SPARE_BYTES).close()
        thread.start()
    except (RuntimeError, MemoryError, OSError) as error:
        if started.never:
            threading._limbo.pop(thread, None)  # type: ignore[attr-defined]  # where it would stay, with all it refers to
        reason = getattr(error, "strerror", None) or str(error) or "out of memory"
        raise ChoreoError(
            f"the thread for {purpose} cannot be started: {reason}; allow more (ulimit -u, ulimit -v, a container's "
            "limits)"
        ) from None
    return thread


def _stack_bytes() -> int:
    most, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return threading.stack_size() or (DEFAULT_STACK_BYTES if most == resource.RLIM_INFINITY else most)


def _mib(length: int) -> str:
    return f"{length / 2**20:.3g} MiB" if length >= 1 << 12 or not length else f"{length} bytes"
