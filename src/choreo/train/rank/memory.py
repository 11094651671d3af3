"""The most memory that a rank has held: the growth of its resident set since training began, without libraries' code.

Code is read from files as it is first run, and how much of it is resident depends on what else ran on the machine.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from choreo.heap import return_freed_memory

__all__ = ["available_bytes", "peak_bytes", "reset_peak"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_BEFORE = {"VmRSS": 0, "RssFile": 0}


def _status(name: str, file: Path = STATUS) -> int:
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    """Reset the peak, and return freed memory to the system first."""
    return_freed_memory()
    with suppress(OSError):
        CLEAR.write_text("5")
    for name in _BEFORE:
        _BEFORE[name] = _status(name)


def peak_bytes() -> int:
    """The most that was held since `reset_peak`, without what was there then: interpreter, libraries, torch itself."""
    code = max(0, _status("RssFile") - _BEFORE["RssFile"])
    return max(0, _status("VmHWM") - _BEFORE["VmRSS"] - code)


def available_bytes() -> int:
    """The memory that this machine can still give to programs."""
    with suppress(OSError):
        return _status("MemAvailable", Path("/proc/meminfo"))
    return 0
