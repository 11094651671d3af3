"""Collectives of Python objects. They have names of their own, since unpickling runs what a peer sent."""

from __future__ import annotations

import hmac
import pickle
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from choreo.errors import PeerFailure, UsageError
from choreo.run.collective_calls import CollectiveCalls
from choreo.run.transport.deadline import Deadline

__all__ = ["PICKLE", "Codec", "ObjectCalls", "choose_codec"]

TAG_BYTES = 32
MAX_OBJECT_BYTES = 1 << 40  # on a plain network a length may be anything


class Codec(Protocol):
    """How objects are encoded to bytes and decoded."""

    def encode(self, given: Any, /) -> bytes:
        """The bytes of an object."""
        ...

    def decode(self, data: bytes, /) -> Any:
        """The object in these bytes, which another rank has sent."""
        ...


class Pickle:
    """Python's pickle: takes every object, but decoding runs code that the sender chose."""

    def encode(self, given: Any, /) -> bytes:
        """Pickle an object."""
        try:
            return pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # the object's own code may raise anything
            raise UsageError(f"{type(given).__name__} cannot be pickled: {error}") from error

    def decode(self, data: bytes, /) -> Any:
        """Unpickle an object."""
        return pickle.loads(data)


PICKLE = Pickle()


def choose_codec(codec: Codec | None, allow_pickle: bool) -> Codec | None:
    """The codec of a communicator: the one that is given, or pickle if that is allowed.

    >>> choose_codec(None, False) is None
    True
    """
    for name in () if codec is None else ("encode", "decode"):
        if not callable(getattr(codec, name, None)):
            raise UsageError(f"codec must have the methods encode and decode; {type(codec).__name__} has no {name}")
    return codec if codec is not None else PICKLE if allow_pickle else None


class ObjectCalls(CollectiveCalls):
    """The collectives, and those of Python objects.

    Objects are pickled. Unpickling runs code that the sender chose, so every rank trusts the others with all that it
    may do itself. With `choreo.init(codec=...)` objects go through `codec.encode` and `codec.decode` instead, and with
    `choreo.init(allow_pickle=False)` these calls are refused. What comes from another host is authenticated before it
    is decoded, on a plain network too.
    """

    _codec: Codec | None = PICKLE
    _objects = 0  # how many of these calls were made; the same on all ranks

    def broadcast_object(self, given: Any = None, root: int = 0, *, timeout: float | str | None = None) -> Any:
        """Every rank gets the root's object; the arguments of other ranks are ignored.

        The object is pickled, and unpickling runs code that the root chose, unless `choreo.init` was given a codec.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.broadcast_object({"step": 3})
        {'step': 3}
        """
        root = self._rank(root, "root")
        codec, number = self._next_call("broadcast_object")
        data = None
        if self.rank == root:
            data = np.frombuffer(self._signed(codec.encode(given), number), np.uint8).copy()
        length, deadline = np.array([0 if data is None else len(data)], np.int64), self._deadline(timeout)
        self._engine.broadcast(length, root, deadline.left_s, "broadcast_object")
        found = np.empty(self._checked_length(int(length[0]), root), np.uint8) if data is None else data
        self._engine.broadcast(found, root, deadline.left_s, "broadcast_object")
        [blob] = self._check({root: found.tobytes()}, number, "broadcast_object", deadline)
        return given if self.rank == root else codec.decode(blob)

    def all_gather_object(self, given: Any, *, timeout: float | str | None = None) -> list[Any]:
        """The objects of all ranks, by rank.

        Objects are pickled, and unpickling runs code that their senders chose, unless `choreo.init` was given a codec.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.all_gather_object("a")
        ['a']
        """
        codec, number = self._next_call("all_gather_object")
        mine, deadline = self._signed(codec.encode(given), number), self._deadline(timeout)
        blobs = dict(enumerate(self._engine.all_gather_bytes(mine, deadline.left_s, "all_gather_object")))
        return [codec.decode(blob) for blob in self._check(blobs, number, "all_gather_object", deadline)]

    def scatter_object(
        self, given: Sequence[Any] | None = None, root: int = 0, *, timeout: float | str | None = None
    ) -> Any:
        """Each rank gets its object of the root's list; the arguments of other ranks are ignored.

        Objects are pickled, and unpickling runs code that the root chose, unless `choreo.init` was given a codec.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.scatter_object(["a"])
        'a'
        """
        root = self._rank(root, "root")
        codec, number = self._next_call("scatter_object")
        pieces: list[bytes] = []
        if self.rank == root:
            if not isinstance(given, Sequence) or len(given) != self.world_size:
                raise UsageError(f"the root must give a list of {self.world_size} objects, one for each rank")
            pieces = [self._signed(codec.encode(one), number, to=rank) for rank, one in enumerate(given)]
        lengths = np.array([len(piece) for piece in pieces] or [0] * self.world_size, np.int64)
        deadline = self._deadline(timeout)
        self._engine.broadcast(lengths, root, deadline.left_s, "scatter_object")
        most = max(self._checked_length(int(length), root) for length in lengths)
        table = np.zeros((self.world_size, most), np.uint8)
        for row, piece in zip(table, pieces, strict=False):
            row[: len(piece)] = np.frombuffer(piece, np.uint8)
        mine = self.scatter(table, root, timeout=max(deadline.left_s, 1e-3)).reshape(-1)
        [blob] = self._check(
            {root: mine[: int(lengths[self.rank])].tobytes()}, number, "scatter_object", deadline, to=self.rank
        )
        return codec.decode(blob)

    def _next_call(self, name: str) -> tuple[Codec, int]:
        if self._codec is None:
            raise UsageError(
                f"{name} pickles objects, and this communicator was made with allow_pickle=False; give choreo.init() a "
                "codec="
            )
        self._objects += 1
        return self._codec, self._objects

    def _deadline(self, timeout: float | str | None) -> Deadline:
        return self._engine.deadline(self._seconds(timeout))

    # On a plain network an object carries a tag: HMAC-SHA256 over the call's number, sender, receiver and bytes.

    @property
    def _key(self) -> bytes | None:
        """The key of these tags; None where all that comes is authenticated anyway."""
        connection = self._engine.connection
        network = connection.network
        return (
            None if network is None or network.sealed or not connection.remote.any() else network.derive_key("objects")
        )

    def _tag(self, key: bytes, blob: bytes, number: int, sender: int, to: int) -> bytes:
        return hmac.digest(key, struct.pack("<QIi", number, sender, to) + blob, "sha256")

    def _signed(self, blob: bytes, number: int, to: int = -1) -> bytes:
        key = self._key
        return blob if key is None else blob + self._tag(key, blob, number, self.rank, to)

    def _checked_length(self, length: int, root: int) -> int:
        if not 0 <= length <= MAX_OBJECT_BYTES:
            raise _altered("the length of an object", {root}, self._engine.connection.peers)
        return length

    def _check(self, blobs: dict[int, bytes], number: int, name: str, deadline: Deadline, to: int = -1) -> list[bytes]:
        """The blobs of these ranks without their tags; PeerFailure on all ranks if one of them is not what was sent."""
        key = self._key
        if key is None:
            return list(blobs.values())
        wrong = np.zeros(self.world_size, bool)
        for sender, blob in blobs.items():
            tag = self._tag(key, blob[:-TAG_BYTES], number, sender, to)
            wrong[sender] = not hmac.compare_digest(tag, blob[-TAG_BYTES:])
        everywhere = np.flatnonzero(self._engine.all_gather(wrong, deadline.left_s, name).any(axis=0))
        if len(everywhere):
            raise _altered(name, set(everywhere.tolist()), self._engine.connection.peers)
        return [blob[:-TAG_BYTES] for blob in blobs.values()]


def _altered(name: str, ranks: set[int], peers: Sequence[object]) -> PeerFailure:
    who = " and ".join(str(peers[rank]) for rank in sorted(ranks))
    return PeerFailure(
        f"{name}: what {who} sent arrived altered: something between the hosts changed it; no rank is given up",
        ranks=(),
        collective=name,
    )
