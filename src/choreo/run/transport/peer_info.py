"""The address, host and process of a rank."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PeerInfo"]


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A rank, its host and its process."""

    rank: int
    host: str
    pid: int
    address: str = ""  # where ranks on other hosts reach it

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"
