"""The most memory that a rank has held: the growth of its resident set since training began."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["available_bytes", "peak_bytes", "reset_peak"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_BEFORE = [0]


def _status(name: str, file: Path = STATUS) -> int:
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    """Reset the peak."""
    with suppress(OSError):
        CLEAR.write_text("5")
    _BEFORE[0] = _status("VmRSS")


def peak_bytes() -> int:
    """The most that was held since `reset_peak`, without what was there before (interpreter, libraries, torch)."""
    return max(0, _status("VmHWM") - _BEFORE[0])


def available_bytes() -> int:
    """What this machine can still give to programs."""
    with suppress(OSError):
        return _status("MemAvailable", Path("/proc/meminfo"))
    return 0
