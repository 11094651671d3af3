"""The time that a rank was ready to run while other threads had the cores, as Linux counts it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["core_wait_s"]

COUNTS = Path("/proc/thread-self/schedstat")  # nanoseconds that the thread ran, and that it waited for a core


def core_wait_s() -> float:
    """Seconds that this thread has waited for a core; 0 where the system does not count them.

    >>> core_wait_s() >= 0
    True
    """
    try:
        return int(COUNTS.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
