"""The axes of a mesh of ranks, and what runs along each: `8x4:direct,ring`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from choreo.checks import MAX_RANKS, whole_number
from choreo.errors import UsageError
from choreo.units import counted

__all__ = ["BLOCK_ALGORITHM", "Axes", "parse_axes"]

# The algorithm each building block of a network wants along its axis.
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
        """How many ranks the mesh has."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.sizes))}:{','.join(self.algorithms)}"


def parse_axes(axes: str | Axes | Sequence[int]) -> Axes:
    """Axes from `8x4`, `8x4:direct,ring`, `8x4:switch,ring` or a sequence of sizes.

    A name is an algorithm, or a building block (ring, fully_connected, switch) that stands for the algorithm it
    wants. Without names every axis is a ring.
    """
    if isinstance(axes, Axes):
        return axes
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
