"""Collectives of Python objects. They have names of their own, since unpickling runs what a peer sent."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Protocol

from choreo.errors import UsageError, excerpt
from choreo.run.blobs import all_gather_blobs, broadcast_blob, scatter_blobs
from choreo.run.collective_calls import CollectiveCalls

__all__ = ["PICKLE", "Codec", "ObjectCalls", "choose_codec"]


class Codec(Protocol):
    """A codec that encodes objects to bytes and decodes them."""

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
    if not isinstance(allow_pickle, bool):  # "false" in a configuration would allow it
        raise UsageError(f"allow_pickle must be True or False, not {excerpt(allow_pickle)}")
    for name in () if codec is None else ("encode", "decode"):
        if not callable(getattr(codec, name, None)):
            raise UsageError(f"codec must have the methods encode and decode; {type(codec).__name__} has no {name}")
    return codec if codec is not None else PICKLE if allow_pickle else None


def _encode(codec: Codec, given: Any) -> bytes:
    """The bytes of an object."""
    encoded = codec.encode(given)
    if not isinstance(encoded, bytes | bytearray | memoryview):
        raise UsageError(f"the codec's encode must return bytes, and returned {excerpt(encoded)}")
    return bytes(encoded)


class ObjectCalls(CollectiveCalls):
    """The collectives, and those of Python objects.

    Objects are pickled. Unpickling runs code that the sender chose, so every rank trusts the others with all that it
    may do itself. With `choreo.init(codec=...)` objects go through `codec.encode` and `codec.decode` instead, and with
    `choreo.init(allow_pickle=False)` these calls are refused. What comes from another host is authenticated before it
    is decoded, on a plain network too.
    """

    _codec: Codec | None = PICKLE

    def broadcast_object(self, given: Any = None, root: int = 0, *, timeout: float | str | None = None) -> Any:
        """Every rank gets the root's object; the arguments of other ranks are ignored.

        The object is pickled, and unpickling runs code that the root chose, unless `choreo.init` was given a codec.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.broadcast_object({"step": 3})
        {'step': 3}
        """
        root = self._rank(root, "root")
        codec, seconds = self._codec_of("broadcast_object"), self._seconds(timeout)
        blob = _encode(codec, given) if self.rank == root else None
        found = broadcast_blob(self._engine, blob, root, seconds, "broadcast_object")
        return given if self.rank == root else codec.decode(found)

    def all_gather_object(self, given: Any, *, timeout: float | str | None = None) -> list[Any]:
        """The objects of all ranks, by rank.

        Objects are pickled, and unpickling runs code that their senders chose, unless `choreo.init` was given a codec.

        >>> import choreo
        >>> with choreo.init() as comm:
        ...     comm.all_gather_object("a")
        ['a']
        """
        codec, seconds = self._codec_of("all_gather_object"), self._seconds(timeout)
        blobs = all_gather_blobs(self._engine, _encode(codec, given), seconds, "all_gather_object")
        return [codec.decode(blob) for blob in blobs]

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
        codec, seconds = self._codec_of("scatter_object"), self._seconds(timeout)
        pieces: list[bytes] = []
        if self.rank == root:
            if not isinstance(given, Sequence) or len(given) != self.world_size:
                raise UsageError(f"the root must give a list of {self.world_size} objects, one for each rank")
            pieces = [_encode(codec, item) for item in given]
        return codec.decode(scatter_blobs(self._engine, pieces, root, seconds, "scatter_object"))

    def _codec_of(self, name: str) -> Codec:
        if self._codec is None:
            raise UsageError(
                f"{name} pickles objects, and this communicator was made with allow_pickle=False; give choreo.init() a "
                "codec="
            )
        return self._codec
