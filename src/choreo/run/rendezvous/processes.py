"""Check whether a process is alive, by its pid and start time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from choreo.run.transport.shortage import SHORT

__all__ = ["is_alive", "is_stopped", "start_time"]


def start_time(pid: int) -> int:
    """The start time of a process, in the kernel's ticks since boot; 0 if there is no such process.

    Pids are used again; a pid together with a start time is not. A zombie counts as gone. An OSError if this process
    has no descriptor to find out with.
    """
    state, *fields = _facts(pid)
    return 0 if state in ("Z", "X", "") else int(fields[18])


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP or a debugger."""
    with suppress(OSError):
        return _facts(pid)[0] in ("T", "t")
    return False


def _facts(pid: int) -> list[str]:
    """The fields of the kernel's line on a process, from its state on; one empty field if there is no such process."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError as error:
        if error.errno in SHORT:
            raise
        return [""]
    # The second field is the program's name in parentheses, which may itself contain blanks and parentheses.
    return facts[facts.rindex(b")") + 2 :].decode().split()


def is_alive(pid: int, started: int) -> bool:
    """Whether the process with this pid and start time still runs."""
    if start_time(os.getpid()) == 0:  # no /proc: only the pid can be checked
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    return started != 0 and start_time(pid) == started
