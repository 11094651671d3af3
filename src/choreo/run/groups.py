"""Communicators between some of the ranks: groups, and the axes of a mesh."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from choreo.errors import CollectiveMismatch, UsageError
from choreo.run.connection import connect
from choreo.run.objects import all_gather_bytes

if TYPE_CHECKING:
    from choreo.run.communicator import Communicator

__all__ = ["Mesh", "NonMember", "make_mesh", "new_group"]


class NonMember:
    """What a rank gets from `new_group` if it is not in the group: false, and of no other use."""

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        self._sentence = f"rank {rank} is not a member of the group {list(ranks)}; ask `if group:` first"

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(self._sentence)

    def __enter__(self) -> NoReturn:
        raise UsageError(self._sentence)

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """There is nothing to close."""


class Mesh:
    """Ranks in a grid, the last axis varying fastest; `mesh["tp"]` is the communicator along that axis."""

    def __init__(
        self, shape: tuple[int, ...], names: tuple[str, ...], rank: int, axes: tuple[Communicator, ...]
    ) -> None:
        self.shape, self.names = shape, names
        self.coordinates = tuple(int(at) for at in np.unravel_index(rank, shape))
        self._axes = dict(zip(names, axes, strict=True))

    def __getitem__(self, name: str) -> Communicator:
        found = self._axes.get(name)
        if found is None:
            raise UsageError(f"the mesh has no axis {name!r}; its axes are {', '.join(self.names)}")
        return found

    def close(self) -> None:
        """Close the communicators of all axes."""
        for axis in self._axes.values():
            axis.close()

    def __repr__(self) -> str:
        return f"<Mesh {' x '.join(f'{name} {side}' for name, side in zip(self.names, self.shape, strict=True))}>"


# The first byte of what a rank brings to an exchange: more follows, it is through, or it failed.
MORE, THROUGH, FAILED = b"+", b".", b"!"


class _Within:
    """A meeting of some of a communicator's ranks, attended by all of them; ranks are their places in the group."""

    def __init__(self, parent: Communicator, ranks: tuple[int, ...]) -> None:
        self._parent, self._ranks = parent, ranks
        self.rank, self.world_size = ranks.index(parent.rank), len(ranks)

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of the group's members."""
        blobs = all_gather_bytes(self._parent, MORE + blob, timeout_s)
        for rank, theirs in enumerate(blobs):
            if theirs.startswith(FAILED):
                raise UsageError(f"rank {rank} could not join the group: {theirs[1:].decode()}")
        return [blobs[rank][1:] for rank in self._ranks]


def new_group(parent: Communicator, ranks: Sequence[int], timeout: float | None) -> Communicator | NonMember:
    """A communicator between these ranks, numbered in this order. All ranks of the parent call it."""
    group = _checked(parent, ranks)
    _agreed(parent, msgspec.json.encode(group), "new_group", timeout)
    if parent.rank in group:
        return _connected(parent, group, timeout)
    while any(blob.startswith(MORE) for blob in all_gather_bytes(parent, THROUGH, timeout)):
        pass
    return NonMember(parent.rank, group)


def make_mesh(parent: Communicator, shape: Sequence[int], names: Sequence[str], timeout: float | None) -> Mesh:
    """The ranks in a grid, and a communicator along every axis."""
    try:
        sides = tuple(operator.index(side) for side in shape)
    except TypeError:
        raise UsageError(f"shape must be whole numbers, one for each axis, not {shape!r:.60}") from None
    if min(sides, default=0) < 1 or math.prod(sides) != parent.world_size:
        raise UsageError(f"a mesh of shape {sides} has {math.prod(sides)} places for {parent.world_size} ranks")
    called = tuple(names)
    if isinstance(names, str) or len(set(called)) != len(sides) or not all(isinstance(one, str) for one in called):
        raise UsageError(f"names must be {len(sides)} different names, one for each axis, not {names!r:.60}")
    _agreed(parent, msgspec.json.encode((sides, called)), "mesh", timeout)
    grid = np.arange(parent.world_size).reshape(sides)
    here = tuple(int(at) for at in np.unravel_index(parent.rank, sides))
    lines = [np.moveaxis(grid, axis, -1)[here[:axis] + here[axis + 1 :]] for axis in range(len(sides))]
    axes = tuple(_connected(parent, tuple(line.tolist()), timeout) for line in lines)
    return Mesh(sides, called, parent.rank, axes)


def _connected(parent: Communicator, ranks: tuple[int, ...], timeout: float | None) -> Communicator:
    """The communicator of one group. Whoever is in none attends the meeting until all are through."""
    wait_s = parent.timeout_s if timeout is None else timeout
    try:
        name, network = f"group-{os.urandom(4).hex()}", parent._engine.connection.network
        connection = connect(_Within(parent, ranks), name, parent.machine, wait_s, network)
    except Exception as error:
        parent.check()  # where the parent itself failed there is nobody to tell
        all_gather_bytes(parent, FAILED + str(error).encode(), timeout)
        raise
    all_gather_bytes(parent, THROUGH, timeout)
    return parent.beside(connection)


def _checked(parent: Communicator, ranks: Sequence[int]) -> tuple[int, ...]:
    try:
        group = tuple(operator.index(rank) for rank in ranks)
    except TypeError:
        raise UsageError(f"ranks must be a list of ranks, not {ranks!r:.60}") from None
    if not group or len(set(group)) != len(group) or not all(0 <= rank < parent.world_size for rank in group):
        raise UsageError(f"ranks must be different ranks from 0 to {parent.world_size - 1}, not {list(group)}")
    return group


def _agreed(parent: Communicator, mine: bytes, what: str, timeout: float | None) -> None:
    for rank, theirs in enumerate(all_gather_bytes(parent, mine, timeout)):
        if theirs != mine:
            raise CollectiveMismatch(
                f"{what}: rank {rank} asked for {theirs.decode()}, rank {parent.rank} for {mine.decode()}"
            )
