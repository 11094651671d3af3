"""A collective is an arrow between two layouts of one logical vector.

A *layout* says which rank holds which block of the vector. Seven of the collectives are the arrows between three
layouts: every rank has the whole vector, the root has it, each rank has its own block.

                          to EVERYWHERE    to ROOT      to BLOCK
    from EVERYWHERE (+)   all_reduce       reduce       reduce_scatter
    from ROOT             broadcast        -            scatter
    from BLOCK            all_gather       gather       -

Leaving EVERYWHERE the copies are different contributions and are summed; otherwise each block has one origin.
Hence the algebra that composite algorithms are written in: arrows that meet compose (reduce_scatter then all_gather
is all_reduce), and an arrow turned round is its dual (an all_gather run backwards is a reduce_scatter).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from choreo.checks import check_rank
from choreo.errors import UnknownNameError, UsageError, excerpt

__all__ = ["COLLECTIVES", "Collective", "Layout", "collective_between", "get_collective"]


class Layout(Enum):
    """Which rank holds which block."""

    EVERYWHERE = "every rank holds the whole vector"
    ROOT = "the root holds the whole vector"
    BLOCK = "rank r holds block r"
    SHIFTED = "rank r holds block r - 1, rank 0 the last"
    PAIR_SOURCE = "rank r holds the blocks (r, d) for every d"
    PAIR_TARGET = "rank r holds the blocks (s, r) for every s"

    def blocks(self, ranks: int) -> int:
        """The number of blocks that the layout cuts the vector into."""
        if self in (Layout.BLOCK, Layout.SHIFTED):
            return ranks
        return ranks * ranks if self in (Layout.PAIR_SOURCE, Layout.PAIR_TARGET) else 1

    def holds(
        self, rank: npt.NDArray[np.int64], block: npt.NDArray[np.int64], ranks: int, root: int | None
    ) -> npt.NDArray[np.bool_]:
        """Whether `rank` holds `block`; the two arrays broadcast against each other."""
        shape = np.broadcast(rank, block).shape
        match self:
            case Layout.EVERYWHERE:
                held = np.ones(shape, np.bool_)
            case Layout.ROOT:
                held = rank == root
            case Layout.BLOCK:
                held = rank == block
            case Layout.SHIFTED:
                held = rank == (block + 1) % ranks
            case Layout.PAIR_SOURCE:
                held = rank == block // ranks
            case Layout.PAIR_TARGET:
                held = rank == block % ranks
        return held if held.shape == shape else np.broadcast_to(held, shape)


# Of these a rank already has its own share, or keeps it: only the rest crosses the network.
SHARED_OUT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class Collective:
    """What every rank holds before and must hold after.

    `size_per` says what a size n means: "vector" the whole logical vector, so all blocks together are n bytes;
    "rank" what one rank sends in all, so all blocks together are p n bytes; "nothing" tokens of no bytes.
    """

    name: str
    before: Layout
    after: Layout
    summary: str
    size_per: str = "vector"

    @property
    def reduces(self) -> bool:
        """Whether contributions of several ranks are summed."""
        return self.before is Layout.EVERYWHERE

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root."""
        return Layout.ROOT in (self.before, self.after)

    def blocks(self, ranks: int) -> int:
        """The number of blocks of the vector in the contract: 1, p or p squared."""
        return max(self.before.blocks(ranks), self.after.blocks(ranks))

    def total_bytes(self, size_bytes: float, ranks: int) -> float:
        """The bytes of all chunks together when the collective's size is `size_bytes`."""
        return {"vector": size_bytes, "rank": size_bytes * ranks, "nothing": 0.0}[self.size_per]

    def bus_factor(self, ranks: int) -> float:
        """nccl-tests' factor from size over time to bus bandwidth, which is comparable with a link's bandwidth."""
        if self.name == "all_reduce":
            return 2 * (ranks - 1) / ranks
        return (ranks - 1) / ranks if self.name in SHARED_OUT else 1.0

    def check_root(self, root: int | None, ranks: int) -> int | None:
        """The root to use: 0 unless told otherwise, None where the collective has none."""
        if not self.rooted:
            if root is not None:
                raise UsageError(f"{self.name} has no root, but root={excerpt(root)} was given; leave it out")
            return None
        if root is None:
            return 0
        return check_rank("root", root, ranks)


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("broadcast", Layout.ROOT, Layout.EVERYWHERE, "the root's vector reaches every rank"),
        Collective("reduce", Layout.EVERYWHERE, Layout.ROOT, "the root gets the sum of everybody's vector"),
        Collective("scatter", Layout.ROOT, Layout.BLOCK, "rank r gets block r of the root's vector"),
        Collective("gather", Layout.BLOCK, Layout.ROOT, "the root gets every rank's block"),
        Collective("all_gather", Layout.BLOCK, Layout.EVERYWHERE, "every rank gets every rank's block"),
        Collective("reduce_scatter", Layout.EVERYWHERE, Layout.BLOCK, "rank r gets block r of the sum"),
        Collective("all_reduce", Layout.EVERYWHERE, Layout.EVERYWHERE, "every rank gets the sum"),
        Collective(
            "all_to_all",
            Layout.PAIR_SOURCE,
            Layout.PAIR_TARGET,
            "rank d gets from every rank s the block that s has for d",
            size_per="rank",
        ),
        Collective(
            "barrier",
            Layout.BLOCK,
            Layout.EVERYWHERE,
            "every rank hears from every rank: an all_gather of tokens of no bytes",
            size_per="nothing",
        ),
        Collective(
            "send_recv",
            Layout.BLOCK,
            Layout.SHIFTED,
            "every rank sends its vector to the next rank and gets that of the rank before",
            size_per="rank",
        ),
    )
}


def get_collective(name: str) -> Collective:
    """The contract called `name`, or an error with the nearest names.

    >>> get_collective("all_reduce").reduces
    True
    """
    try:
        return COLLECTIVES[name]
    except (KeyError, TypeError):
        raise UnknownNameError("collective", name if isinstance(name, str) else excerpt(name), COLLECTIVES) from None


def collective_between(before: Layout, after: Layout) -> Collective | None:
    """The collective that leads from one layout to another, if there is one.

    >>> found = collective_between(Layout.BLOCK, Layout.EVERYWHERE)
    >>> found.name if found else None
    'all_gather'
    """
    found = (c for c in COLLECTIVES.values() if c.before is before and c.after is after)
    return next(found, None)
