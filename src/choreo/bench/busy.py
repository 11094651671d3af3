"""Count the cores that other programs keep busy. Predictions do not account for them."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["busy_cores"]

IDLE = (3, 4)  # the columns of /proc/stat in which nothing runs: idle, and waiting for a disk


def busy_cores(over_s: float = 0.1) -> float:
    """The cores' worth of work that is done now, while this process waits; 0 where the kernel does not say.

    >>> 0 <= busy_cores() <= os.cpu_count()
    True
    """
    before, began_s = _worked_s(), time.monotonic()
    time.sleep(over_s)
    cores = (_worked_s() - before) / (time.monotonic() - began_s)
    return min(max(cores, 0.0), float(os.cpu_count() or 1))


def _worked_s() -> float:
    """CPU seconds that this machine has worked since it was started."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    except OSError:
        return 0.0
    return (sum(ticks) - sum(ticks[column] for column in IDLE)) / os.sysconf("SC_CLK_TCK")
