"""What an executor says of a call that did not end well, and whom it is about."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Where"]

# In the order of `_core.c`.
TIMED_OUT, PEER_DIED, PEER_GAVE_UP, MISMATCHED, BROKEN, INTERRUPTED = 1, 2, 3, 4, 5, 6
# What a rank's segment says when it has closed its communicator, in the place of one of these.
LEFT = 7


@dataclass(frozen=True, slots=True)
class Where:
    """A rank as people find it: its host and its process."""

    rank: int
    host: str
    pid: int
    address: str = ""  # under which other machines reach it

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"
