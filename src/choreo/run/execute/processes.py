"""Watch processes through descriptors (pidfds)."""

from __future__ import annotations

import select
from collections.abc import Collection

__all__ = ["ended_processes"]

MOST_SELECTED = 1024  # select(2) knows no descriptors from here on


def ended_processes(pidfds: Collection[int]) -> set[int]:
    """Those of these descriptors whose process has ended.

    >>> import os
    >>> me = os.pidfd_open(os.getpid())
    >>> ended_processes([me])
    set()
    >>> os.close(me)
    """
    watch = select.poll()
    for pidfd in pidfds:
        watch.register(pidfd, select.POLLIN)
    try:
        return {descriptor for descriptor, _ in watch.poll(0)}
    except OSError:  # poll(2) takes no more descriptors than this process may open now; select(2) does
        return set(select.select([pidfd for pidfd in pidfds if pidfd < MOST_SELECTED], [], [], 0)[0])
