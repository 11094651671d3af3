"""What a group of ranks needs to set up a communicator: a slow all-gather of small blobs."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Bootstrap"]


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
