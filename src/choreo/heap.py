"""The heap of a process that computes for long: what was freed stays, for the tensor that comes next.

glibc maps a block of 32 MiB or more again each time, and gives the end of the heap back to the kernel. A step then pays
for every page again: 13 % of the time of a small GPT whose logits were that large.
"""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["keep_freed_memory", "return_freed_memory"]

# Numbers of <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let malloc keep what is freed, for as long as this process runs; False where the C library has no such option."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(M_MMAP_THRESHOLD, NEVER)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
    return False


def return_freed_memory() -> bool:
    """Give the kernel what is free in the heap, so that later growth is what was asked for; False as above."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
        return True
    return False
