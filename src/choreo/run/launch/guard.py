"""A guard process that outlives a killed launcher, and stops its ranks. It runs as a separate program, without Choreo.

    python guard.py GRACE_S < pipe

The launcher writes the process group of each rank to the pipe, one number per line, and "done" when it ends normally.
If the pipe ends without that, the launcher was killed. Then the guard sends SIGTERM to the groups, and SIGKILL after
the grace period.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

POLL_S = 0.02


def main() -> None:
    """Wait for the launcher to end, and stop its ranks if it was killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    groups = []
    for line in sys.stdin:
        if line == "done\n":
            return
        if line.endswith("\n"):
            groups.append(int(line))
    deadline_s = time.monotonic() + float(sys.argv[1])
    groups = [group for group in groups if send_signal(group, signal.SIGTERM) and send_signal(group, signal.SIGCONT)]
    while groups and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        groups = [group for group in groups if send_signal(group, 0)]
    for group in groups:
        send_signal(group, signal.SIGKILL)


def send_signal(group: int, number: int) -> bool:
    """Send a signal to a process group; False if it does not exist any more."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main()
