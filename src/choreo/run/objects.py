"""Collectives of Python objects, by pickle. They have names of their own, since unpickling runs what a peer sent."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from choreo.errors import UsageError
from choreo.run.collective_calls import CollectiveCalls
from choreo.run.engine import Engine

__all__ = ["all_gather_object", "broadcast_object", "scatter_object"]


def all_gather_object(engine: Engine, given: Any, timeout_s: float) -> list[Any]:
    """The objects of all ranks, by rank."""
    return [pickle.loads(found) for found in engine.all_gather_bytes(_pickle(given), timeout_s)]


def broadcast_object(comm: CollectiveCalls, given: Any, root: int, timeout: float | None) -> Any:
    """The root's object; the arguments of other ranks do not matter."""
    data = np.frombuffer(_pickle(given), np.uint8).copy() if comm.rank == root else None
    length = np.array([0 if data is None else len(data)], np.int64)
    comm.broadcast(length, root, timeout=timeout)
    found = np.empty(int(length[0]), np.uint8) if data is None else data
    comm.broadcast(found, root, timeout=timeout)
    return given if comm.rank == root else pickle.loads(found.tobytes())


def scatter_object(comm: CollectiveCalls, given: Sequence[Any] | None, root: int, timeout: float | None) -> Any:
    """This rank's object of the root's list; the arguments of other ranks do not matter."""
    pieces: list[bytes] = []
    if comm.rank == root:
        if not isinstance(given, Sequence) or len(given) != comm.world_size:
            raise UsageError(f"the root must give a list of {comm.world_size} objects, one for each rank")
        pieces = [_pickle(one) for one in given]
    lengths = np.array([len(piece) for piece in pieces] or [0] * comm.world_size, np.int64)
    comm.broadcast(lengths, root, timeout=timeout)
    table = np.zeros((comm.world_size, int(lengths.max())), np.uint8)
    for row, piece in zip(table, pieces, strict=False):
        row[: len(piece)] = np.frombuffer(piece, np.uint8)
    mine = comm.scatter(table, root, timeout=timeout)
    return pickle.loads(mine.reshape(-1)[: int(lengths[comm.rank])].tobytes())


def _pickle(given: Any) -> bytes:
    try:
        return pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # the object's own code may raise anything
        raise UsageError(f"{type(given).__name__} cannot be pickled: {error}") from error
