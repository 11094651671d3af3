"""Set up a communicator: a slow all_gather of small blobs between its ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from choreo.errors import ChoreoError, RendezvousError
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.shortage import why

__all__ = ["Bootstrap", "WithDeadline", "exchange_made"]

# The first byte of a blob: what was made, or why it could not be. A rank that lost another is not to blame.
MADE, FAILED, LOST = b"+", b"!", b"?"
MAX_REASON_BYTES = 1000


class Bootstrap(Protocol):
    """Ranks that can exchange blobs before they have a communicator."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        ...

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of all ranks, by rank; every rank calls it."""
        ...


class WithDeadline:
    """A bootstrap whose exchanges, however many, have one deadline."""

    def __init__(self, bootstrap: Bootstrap, deadline: Deadline) -> None:
        self._bootstrap, self._deadline = bootstrap, deadline
        self.rank, self.world_size = bootstrap.rank, bootstrap.world_size

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of all ranks, by rank."""
        del timeout_s  # one deadline is for all exchanges
        return self._bootstrap.exchange(blob, max(self._deadline.left_s, 1e-3))


def exchange_made(
    exchange: Callable[[bytes, float], list[bytes]], make: Callable[[], bytes], timeout_s: float
) -> list[bytes]:
    """Exchange what each rank makes. If one cannot make it, no rank waits for it: all raise why.

    >>> exchange_made(lambda blob, _: [blob], lambda: b"mine", 1.0)
    [b'mine']
    """
    failed: ChoreoError | None = None
    try:
        blob = MADE + make()
    except ChoreoError as error:
        failed, reason = error, str(error)
    except (OSError, MemoryError) as error:
        reason = why(error)
        failed = RendezvousError(f"this rank could not connect: {reason}")
    if failed is not None:
        who = f"(pid {os.getpid()} on {os.uname().nodename})"
        kind = LOST if getattr(failed, "ranks", ()) else FAILED
        blob = kind + f"{who} could not connect: {reason}".encode()[:MAX_REASON_BYTES]
    blobs = exchange(blob, timeout_s)
    causes = [rank for kind in (FAILED, LOST) for rank, theirs in enumerate(blobs) if theirs.startswith(kind)]
    if not causes:
        return [theirs[1:] for theirs in blobs]
    if failed is None or (blob.startswith(LOST) and blobs[causes[0]].startswith(FAILED)):
        told = blobs[causes[0]][1:].decode(errors="replace")
        failed = RendezvousError(f"rank {causes[0]} {told}", ranks=causes[:1])
    try:
        raise failed
    finally:
        del failed  # it refers to this frame, and that to all that was made
