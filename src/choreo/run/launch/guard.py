"""Outlives a launcher that is killed, and stops its ranks. Run as a program of its own, with nothing but Python.

    python guard.py GRACE_S < pipe

On the pipe come the process groups of the ranks, one number a line. While the launcher lives the pipe stays open. When
it ends in order it says "done" first; when it does not, the groups are told to stop, and killed if they do not.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

POLL_S = 0.02


def main() -> None:
    """Wait for the launcher to end, and see to its ranks if it could not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    groups = []
    for line in sys.stdin:
        if line == "done\n":
            return
        if line.endswith("\n"):
            groups.append(int(line))
    deadline_s = time.monotonic() + float(sys.argv[1])
    groups = [group for group in groups if tell(group, signal.SIGTERM) and tell(group, signal.SIGCONT)]
    while groups and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        groups = [group for group in groups if tell(group, 0)]
    for group in groups:
        tell(group, signal.SIGKILL)


def tell(group: int, number: int) -> bool:
    """Send a signal to a group of processes; whether there still is one."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main()
