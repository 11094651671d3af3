"""Subsets of a communicator's ranks: groups, the axes of a mesh, and the connections of both."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from choreo.errors import CollectiveMismatch, RendezvousError, UsageError, excerpt
from choreo.run.blobs import all_gather_blobs
from choreo.run.connect import CONNECTING_SHARE, connect
from choreo.run.connection import Connection
from choreo.run.engine import Engine
from choreo.run.transport.deadline import Deadline

if TYPE_CHECKING:
    from choreo.run.communicator import Communicator

__all__ = ["Mesh", "NonMember", "connect_axes", "connect_group", "exchange_blobs", "mesh_sides"]

# The first byte of a rank's blob in an exchange: it is still connecting, it is done, or it failed.
CONNECTING, DONE, FAILED = b"+", b".", b"!"
MAX_AXES = 64  # NumPy's own limit


class NonMember:
    """The result of `new_group` in a rank outside the group: an object that is false, and raises if it is used."""

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        self._message = f"rank {rank} is not a member of the group {list(ranks)}; ask `if group:` first"

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(self._message)

    def __enter__(self) -> NoReturn:
        raise UsageError(self._message)

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Do nothing."""


class Mesh:
    """Ranks in a grid, the last axis varying fastest. `mesh["tp"]` is the communicator along that axis.

    >>> import choreo
    >>> with choreo.init() as comm:
    ...     mesh = comm.mesh((1, 1), names=("dp", "tp"))
    ...     mesh.coordinates, mesh["tp"].world_size
    ...     mesh.close()
    ((0, 0), 1)
    """

    def __init__(
        self, shape: tuple[int, ...], names: tuple[str, ...], rank: int, axes: tuple[Communicator, ...]
    ) -> None:
        self.shape, self.names = shape, names
        self.coordinates = tuple(int(at) for at in np.unravel_index(rank, shape))
        self._axes = dict(zip(names, axes, strict=True))

    def __getitem__(self, name: str) -> Communicator:
        found = self._axes.get(name)
        if found is None:
            raise UsageError(f"the mesh has no axis {excerpt(name)}; its axes are {', '.join(self.names)}")
        return found

    def close(self) -> None:
        """Close the communicators of all axes."""
        for axis in self._axes.values():
            axis.close()

    def __repr__(self) -> str:
        return f"<Mesh {' x '.join(f'{name} {side}' for name, side in zip(self.names, self.shape, strict=True))}>"


class _GroupBootstrap:
    """Exchanges blobs within a group, as a step of a call. All ranks of the parent call it."""

    def __init__(self, parent: Engine, ranks: tuple[int, ...], deadline: Deadline, step_of: str) -> None:
        self._parent, self._ranks, self._deadline, self._step_of = parent, ranks, deadline, step_of
        self.rank, self.world_size = ranks.index(parent.rank), len(ranks)

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of the group's members."""
        del timeout_s  # one deadline is for all exchanges
        blobs = exchange_blobs(self._parent, CONNECTING + blob, self._deadline, self._step_of)
        _check_joined(blobs)
        return [blobs[rank][1:] for rank in self._ranks]


def connect_group(parent: Engine, ranks: Sequence[int], deadline: Deadline) -> Connection | NonMember:
    """Connect these ranks, numbered in this order. All ranks of the parent call it."""
    group = _check_ranks(parent, ranks)
    _check_same(parent, msgspec.json.encode(group), "new_group", deadline)
    if parent.rank in group:
        return _connect(parent, group, deadline, "new_group")
    _wait_for_all(parent, DONE, deadline, "new_group")
    return NonMember(parent.rank, group)


def mesh_sides(world_size: int, shape: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
    """The sides of a mesh of these ranks; UsageError unless shape and names fit."""
    try:
        sides = tuple(operator.index(side) for side in shape)
    except TypeError:
        raise UsageError(f"shape must be whole numbers, one for each axis, not {excerpt(shape)}") from None
    if min(sides, default=0) < 1 or math.prod(sides) != world_size:
        places = excerpt(math.prod(sides))
        raise UsageError(f"a mesh of shape {excerpt(sides)} has {places} places for {world_size} ranks")
    if len(sides) > MAX_AXES:
        raise UsageError(f"a mesh has at most {MAX_AXES} axes, not {len(sides)}; leave out those of one rank")
    given = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else ()
    if not all(isinstance(name, str) and name.isprintable() for name in given) or len(set(given)) != len(sides):
        raise UsageError(f"names must be {len(sides)} different names, one for each axis, not {excerpt(names)}")
    return sides


def connect_axes(
    parent: Engine, sides: tuple[int, ...], names: tuple[str, ...], deadline: Deadline
) -> list[Connection]:
    """Connect this rank along every axis of a mesh. All ranks of the parent call it."""
    _check_same(parent, msgspec.json.encode((sides, names)), "mesh", deadline)
    grid = np.arange(parent.world_size).reshape(sides)
    here = tuple(int(at) for at in np.unravel_index(parent.rank, sides))
    axes = [np.moveaxis(grid, axis, -1)[here[:axis] + here[axis + 1 :]] for axis in range(len(sides))]
    connections: list[Connection] = []
    with contextlib.ExitStack() as undo:
        for axis in axes:
            connections.append(_connect(parent, tuple(axis.tolist()), deadline, "mesh"))
            undo.callback(connections[-1].close)
        undo.pop_all()
    return connections


def _connect(parent: Engine, ranks: tuple[int, ...], deadline: Deadline, step_of: str) -> Connection:
    """Connect one group. Ranks that are done, and those that failed, stay in the exchanges until all are done."""
    connection, failed = parent.connection, None
    with contextlib.ExitStack() as undo:
        try:
            connected = connect(
                _GroupBootstrap(parent, ranks, deadline, step_of),
                f"group-{os.urandom(4).hex()}",
                connection.host,
                CONNECTING_SHARE * deadline.left_s,
                connection.network,
                quorum=connection.consensus.quorum.rule,
            )
            undo.callback(connected.close)
        except Exception as error:
            parent.check()  # if the parent itself failed, all ranks know
            failed = error
        try:
            mine = DONE if failed is None else FAILED + str(failed).encode()
            blobs = _wait_for_all(parent, mine, deadline, step_of)
            if failed is not None:
                raise failed
        finally:
            del failed  # it refers to this frame, and that to all that was made
        _check_joined(blobs)
        undo.pop_all()
    return connected


def exchange_blobs(parent: Engine, blob: bytes, deadline: Deadline, step_of: str) -> list[bytes]:
    """The blobs of all ranks of the parent; past the deadline this fails, and names who did not come."""
    return all_gather_blobs(parent, blob, max(deadline.left_s, 1e-3), step_of)


def _wait_for_all(parent: Engine, mine: bytes, deadline: Deadline, step_of: str) -> list[bytes]:
    """Wait until no rank of the parent is connecting any more; returns how each ended."""
    while True:
        blobs = exchange_blobs(parent, mine, deadline, step_of)
        if not any(blob.startswith(CONNECTING) for blob in blobs):
            return blobs


def _check_joined(blobs: list[bytes]) -> None:
    for rank, theirs in enumerate(blobs):
        if theirs.startswith(FAILED):
            told = theirs[1:].decode(errors="replace")
            raise RendezvousError(f"rank {rank} could not join the group: {told}", ranks=(rank,))


def _check_ranks(parent: Engine, ranks: Sequence[int]) -> tuple[int, ...]:
    try:
        group = tuple(operator.index(rank) for rank in ranks)
    except TypeError:
        raise UsageError(f"ranks must be a list of ranks, not {excerpt(ranks)}") from None
    if not group or len(set(group)) != len(group) or not all(0 <= rank < parent.world_size for rank in group):
        raise UsageError(f"ranks must be different ranks from 0 to {parent.world_size - 1}, not {excerpt(list(group))}")
    return group


def _check_same(parent: Engine, mine: bytes, what: str, deadline: Deadline) -> None:
    for rank, theirs in enumerate(exchange_blobs(parent, mine, deadline, what)):
        if theirs != mine:
            raise CollectiveMismatch(
                f"{what}: rank {rank} asked for {theirs.decode()}, rank {parent.rank} for {mine.decode()}"
            )
