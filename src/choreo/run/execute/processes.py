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
    for one in pidfds:
        watch.register(one, select.POLLIN)
    try:
        return {one for one, _ in watch.poll(0)}
    except OSError:  # poll(2) takes no more descriptors than this process may open now; select(2) does
        return set(select.select([one for one in pidfds if one < MOST_SELECTED], [], [], 0)[0])
