"""Collectives of Python objects, by pickle. They have names of their own, since unpickling runs what a peer sent."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from choreo.errors import UsageError
from choreo.run.collective_calls import CollectiveCalls

__all__ = ["ObjectCalls"]


class ObjectCalls(CollectiveCalls):
    """The collectives, and those of Python objects."""

    def broadcast_object(self, given: Any = None, root: int = 0, *, timeout: float | str | None = None) -> Any:
        """Every rank gets the root's object; the arguments of other ranks do not matter.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.broadcast_object({"step": 3})
        {'step': 3}
        """
        root = self._rank(root, "root")
        data = np.frombuffer(_pickle(given), np.uint8).copy() if self.rank == root else None
        length = np.array([0 if data is None else len(data)], np.int64)
        self.broadcast(length, root, timeout=timeout)
        found = np.empty(int(length[0]), np.uint8) if data is None else data
        self.broadcast(found, root, timeout=timeout)
        return given if self.rank == root else pickle.loads(found.tobytes())

    def all_gather_object(self, given: Any, *, timeout: float | str | None = None) -> list[Any]:
        """The objects of all ranks, by rank.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.all_gather_object("a")
        ['a']
        """
        return [pickle.loads(blob) for blob in self._engine.all_gather_bytes(_pickle(given), self._seconds(timeout))]

    def scatter_object(
        self, given: Sequence[Any] | None = None, root: int = 0, *, timeout: float | str | None = None
    ) -> Any:
        """Each rank gets its object of the root's list; the arguments of other ranks do not matter.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.scatter_object(["a"])
        'a'
        """
        root = self._rank(root, "root")
        pieces: list[bytes] = []
        if self.rank == root:
            if not isinstance(given, Sequence) or len(given) != self.world_size:
                raise UsageError(f"the root must give a list of {self.world_size} objects, one for each rank")
            pieces = [_pickle(one) for one in given]
        lengths = np.array([len(piece) for piece in pieces] or [0] * self.world_size, np.int64)
        self.broadcast(lengths, root, timeout=timeout)
        table = np.zeros((self.world_size, int(lengths.max())), np.uint8)
        for row, piece in zip(table, pieces, strict=False):
            row[: len(piece)] = np.frombuffer(piece, np.uint8)
        mine = self.scatter(table, root, timeout=timeout)
        return pickle.loads(mine.reshape(-1)[: int(lengths[self.rank])].tobytes())


def _pickle(given: Any) -> bytes:
    try:
        return pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # the object's own code may raise anything
        raise UsageError(f"{type(given).__name__} cannot be pickled: {error}") from error
