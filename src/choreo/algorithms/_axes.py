"""The axes of a mesh of ranks, and the algorithm along each: `8x4:direct,ring`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from choreo.checks import MAX_RANKS, whole_number
from choreo.errors import UsageError
from choreo.topology import Topology
from choreo.units import counted

__all__ = ["BLOCK_ALGORITHM", "Axes", "AxesLike", "axes_for", "axes_of", "parse_axes", "squarest"]

# The algorithm that suits each building block of a network along its axis.
BLOCK_ALGORITHM = {
    "ring": "ring",
    "line": "ring",
    "fully_connected": "direct",
    "switch": "halving_doubling",
    "fat_tree": "halving_doubling",
    "graph": "ring",
}


@dataclass(frozen=True, slots=True)
class Axes:
    """Sizes of a mesh of ranks, innermost first, and the algorithm along each axis."""

    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.sizes:
            raise UsageError("axes need at least one size; write 8x4, or 8x4:direct,ring")
        object.__setattr__(self, "sizes", tuple(whole_number("the size of an axis", size) for size in self.sizes))
        if self.ranks > MAX_RANKS:
            raise UsageError(f"axes {self} make {self.ranks} ranks; there can be at most {MAX_RANKS}")
        if len(self.algorithms) != len(self.sizes):
            raise UsageError(
                f"axes {self} have {counted(len(self.sizes), 'size')} but {counted(len(self.algorithms), 'name')}; "
                "give one name a size, or none"
            )

    @property
    def ranks(self) -> int:
        """The number of ranks in the mesh."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.sizes))}:{','.join(self.algorithms)}"


AxesLike: TypeAlias = str | Axes | Sequence[int] | Topology


def axes_of(topology: Topology) -> Axes:
    """The topology's dimensions as axes, each with the algorithm that suits its kind of block.

    >>> from choreo.topology import get_topology
    >>> str(axes_of(get_topology("ring(4, 50GB/s, 1us) x switch(8, 25GB/s, 1us)")))
    '4x8:ring,halving_doubling'
    """
    long = [block for block in topology.blocks if block.size > 1] or list(topology.blocks[:1])
    return Axes(tuple(block.size for block in long), tuple(BLOCK_ALGORITHM[block.kind] for block in long))


def parse_axes(axes: AxesLike) -> Axes:
    """Axes from `8x4`, `8x4:direct,ring`, `8x4:switch,ring`, a sequence of sizes, or a topology.

    A name is an algorithm, or a building block (ring, fully_connected, switch) that stands for the algorithm that suits
    it. Without names every axis is a ring.

    >>> str(parse_axes("8x4:switch,ring"))
    '8x4:halving_doubling,ring'
    """
    if isinstance(axes, Axes):
        return axes
    if isinstance(axes, Topology):
        return axes_of(axes)
    if not isinstance(axes, str):
        return Axes(tuple(axes), ("ring",) * len(axes))
    sizes_text, _, names_text = axes.partition(":")
    if not re.fullmatch(r"[0-9]{1,7}(x[0-9]{1,7})*", sizes_text):
        raise UsageError(
            f"{axes!r} are not axes; write sizes, innermost first, and perhaps names: 8x4 or 8x4:direct,ring"
        )
    sizes = tuple(int(size) for size in sizes_text.split("x"))
    names = names_text.split(",") if names_text else ["ring"] * len(sizes)
    return Axes(sizes, tuple(BLOCK_ALGORITHM.get(name.strip(), name.strip()) for name in names))


def axes_for(ranks: int, axes: AxesLike | None) -> Axes:
    """The given axes, which must make so many ranks, or else two rings as equal in length as possible.

    >>> str(axes_for(12, None)), str(axes_for(12, "6x2:direct,ring"))
    ('3x4:ring,ring', '6x2:direct,ring')
    """
    found = parse_axes(squarest(ranks) if axes is None else axes)
    if found.ranks != ranks:
        product = " x ".join(map(str, found.sizes))
        raise UsageError(f"axes {product} make {found.ranks} ranks, not {ranks}; let them multiply to the ranks")
    return found


def squarest(ranks: int) -> tuple[int, int]:
    """Two sizes as near each other as the number of ranks allows, the smaller first.

    >>> squarest(12), squarest(7)
    ((3, 4), (1, 7))
    """
    inner = next(size for size in range(math.isqrt(ranks), 0, -1) if ranks % size == 0)
    return inner, ranks // inner
