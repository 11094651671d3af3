"""The axes of a mesh of ranks, and what runs along each: `8x4:direct,ring`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from choreo.errors import UsageError
from choreo.schedule.schedule import MAX_RANKS

__all__ = ["Axes", "parse_axes"]

# The algorithm each building block of a network wants along its axis.
BLOCK_ALGORITHM = {"ring": "ring", "fully_connected": "direct", "switch": "halving_doubling"}


@dataclass(frozen=True, slots=True)
class Axes:
    """Sizes of a mesh of ranks, innermost first, and the algorithm along each axis."""

    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]

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
        return parse_axes("x".join(str(size) for size in axes))
    sizes_text, _, names_text = axes.partition(":")
    if not re.fullmatch(r"[0-9]{1,7}(x[0-9]{1,7})*", sizes_text):
        raise UsageError(
            f"{axes!r} are not axes; write sizes, innermost first, and perhaps names: 8x4 or 8x4:direct,ring"
        )
    sizes = tuple(int(size) for size in sizes_text.split("x"))
    if math.prod(sizes) > MAX_RANKS:
        raise UsageError(f"axes {axes!r} make {math.prod(sizes)} ranks; there can be at most {MAX_RANKS}")
    if 0 in sizes:
        raise UsageError(f"axes {axes!r} have an axis of size 0; every axis needs at least 1 rank")
    names = names_text.split(",") if names_text else ["ring"] * len(sizes)
    if len(names) != len(sizes):
        raise UsageError(f"axes {axes!r} have {len(sizes)} sizes but {len(names)} names; give one name a size, or none")
    return Axes(sizes, tuple(BLOCK_ALGORITHM.get(name.strip(), name.strip()) for name in names))
