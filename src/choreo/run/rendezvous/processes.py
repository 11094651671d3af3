"""Whether a process that left its number somewhere is still the one that runs under it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_alive", "start_time"]


def start_time(pid: int) -> int:
    """When a process was started, in the kernel's ticks since the machine was; 0 if there is no such process.

    A number of a process is used again, a number and a start time are not. One that has ended and only waits to be
    reaped by its parent counts as gone.
    """
    try:
        facts = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The second field is the program's name in parentheses, which may itself hold blanks and parentheses.
    state, *fields = facts[facts.rindex(b")") + 2 :].split()
    return 0 if state in (b"Z", b"X") else int(fields[18])


def is_alive(pid: int, started: int) -> bool:
    """Whether the process of that number and start time still runs."""
    if start_time(os.getpid()) == 0:  # no /proc: all that can be asked is whether the number is in use
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    return started != 0 and start_time(pid) == started
