"""Python objects, by pickle: only in calls that are named for it, since unpickling runs what a peer sent."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from choreo.errors import UsageError

if TYPE_CHECKING:
    from choreo.run.communicator import Communicator

__all__ = ["all_gather_bytes", "all_gather_object", "broadcast_object", "scatter_object"]


def all_gather_bytes(comm: Communicator, mine: bytes, timeout: float | None) -> list[bytes]:
    """Everybody's bytes, by rank, however many each has."""
    lengths = comm.all_gather(np.array([len(mine)], np.int64), timeout=timeout)[:, 0].tolist()
    padded = np.zeros(max(lengths), np.uint8)
    padded[: len(mine)] = np.frombuffer(mine, np.uint8)
    rows = comm.all_gather(padded, timeout=timeout)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def all_gather_object(comm: Communicator, given: Any, timeout: float | None) -> list[Any]:
    """Everybody's object, by rank."""
    return [pickle.loads(found) for found in all_gather_bytes(comm, _pickled(given), timeout)]


def broadcast_object(comm: Communicator, given: Any, root: int, timeout: float | None) -> Any:
    """The root's object; the others' arguments do not matter."""
    data = np.frombuffer(_pickled(given), np.uint8).copy() if comm.rank == root else None
    length = np.array([0 if data is None else len(data)], np.int64)
    comm.broadcast(length, root, timeout=timeout)
    found = np.empty(int(length[0]), np.uint8) if data is None else data
    comm.broadcast(found, root, timeout=timeout)
    return given if comm.rank == root else pickle.loads(found.tobytes())


def scatter_object(comm: Communicator, given: Sequence[Any] | None, root: int, timeout: float | None) -> Any:
    """The root's list of objects, one for each rank; the others' arguments do not matter."""
    pieces: list[bytes] = []
    if comm.rank == root:
        if not isinstance(given, Sequence) or len(given) != comm.world_size:
            raise UsageError(f"the root must give a list of {comm.world_size} objects, one for each rank")
        pieces = [_pickled(one) for one in given]
    lengths = np.array([len(piece) for piece in pieces] or [0] * comm.world_size, np.int64)
    comm.broadcast(lengths, root, timeout=timeout)
    table = np.zeros((comm.world_size, int(lengths.max())), np.uint8)
    for row, piece in zip(table, pieces, strict=False):
        row[: len(piece)] = np.frombuffer(piece, np.uint8)
    mine = comm.scatter(table, root, timeout=timeout)
    return pickle.loads(mine.reshape(-1)[: int(lengths[comm.rank])].tobytes())


def _pickled(given: Any) -> bytes:
    try:
        return pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever the object's own code raises
        raise UsageError(f"{type(given).__name__} cannot be pickled: {error}") from error
