"""Assign work and state to the live ranks. Every rank computes the same assignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["cut_into_shards", "dealt", "holders", "share_of"]

Sample = TypeVar("Sample")


def dealt(samples: Sequence[Sample], live: Sequence[int], rank: int) -> tuple[Sample, ...]:
    """The samples that a rank computes.

    >>> [dealt(range(5), (0, 2), rank) for rank in (0, 2)]
    [(0, 2, 4), (1, 3)]
    """
    return tuple(samples[live.index(rank) :: len(live)])


def share_of(samples: Sequence[Sample], live: Sequence[int], lost: frozenset[int]) -> tuple[Sample, ...]:
    """The samples of ranks that were lost.

    >>> share_of(range(5), (0, 2), frozenset({2}))
    (1, 3)
    """
    return tuple(sample for at, sample in enumerate(samples) if live[at % len(live)] in lost)


def holders(shard: int, live: Sequence[int], copies: int) -> tuple[int, ...]:
    """The ranks that hold a shard of the optimizer's state: the first live ones from its number on, around the ring.

    When a rank is lost, the next one has its shard already, and only one more copy has to be made.

    >>> holders(1, (0, 1, 2, 3), 2), holders(1, (0, 2, 3), 2), holders(3, (0, 1, 2, 3), 2)
    ((1, 2), (2, 3), (3, 0))
    """
    ring = sorted(live)
    start = next((at for at, rank in enumerate(ring) if rank >= shard), 0)
    return tuple(ring[(start + at) % len(ring)] for at in range(min(copies, len(ring))))


def cut_into_shards(sizes: Sequence[int], shards: int) -> list[list[int]]:
    """Parameters by shard: neighbours stay together, and shards are about equally large.

    >>> cut_into_shards([4, 1, 1, 4], 2)
    [[0, 1], [2, 3]]
    """
    found: list[list[int]] = [[] for _ in range(shards)]
    total, before = max(1, sum(sizes)), 0
    for at, size in enumerate(sizes):
        middle = before + size / 2
        found[min(shards - 1, int(middle * shards / total))].append(at)
        before += size
    return found
