"""Bytes that the receiver decodes: objects, and what ranks tell each other in order to connect.

Lengths go before bytes. On a plain network, where arrays are not authenticated, both carry a tag: HMAC-SHA256 over the
number of the call, the sender, the receiver and the bytes. If a tag is wrong, all ranks raise PeerFailure before
anything is decoded.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence

import numpy as np

from choreo.errors import PeerFailure
from choreo.run.engine import CallRequest, Engine
from choreo.run.execute.arrays import Array

__all__ = ["all_gather_blobs", "broadcast_blob", "scatter_blobs"]

TAG_BYTES = 32
EVERYBODY = -1
LENGTH = struct.Struct("<Q")


def all_gather_blobs(engine: Engine, blob: bytes, timeout_s: float, step_of: str) -> list[bytes]:
    """The blobs of all ranks, by rank, of any lengths."""
    steps = _Steps(engine, timeout_s, step_of)
    lengths = [LENGTH.unpack(length)[0] for length in steps.all_gather(LENGTH.pack(len(blob)))]
    found = steps.all_gather(blob.ljust(max(lengths), b"\0"))
    return [bytes(blob[:length]) for blob, length in zip(found, lengths, strict=True)]


def broadcast_blob(engine: Engine, blob: bytes | None, root: int, timeout_s: float, step_of: str) -> bytes:
    """The root's blob; the other ranks give None."""
    steps = _Steps(engine, timeout_s, step_of)
    length = None if blob is None else LENGTH.pack(len(blob))
    return bytes(steps.broadcast(blob, LENGTH.unpack(steps.broadcast(length, LENGTH.size, root))[0], root))


def scatter_blobs(engine: Engine, blobs: Sequence[bytes], root: int, timeout_s: float, step_of: str) -> bytes:
    """This rank's blob of the root's, one for each rank; the other ranks give none."""
    steps, layout = _Steps(engine, timeout_s, step_of), f"<{engine.world_size}Q"
    table = struct.pack(layout, *map(len, blobs)) if blobs else None
    lengths = struct.unpack(layout, steps.broadcast(table, struct.calcsize(layout), root))
    most = max(lengths)
    return bytes(steps.scatter([blob.ljust(most, b"\0") for blob in blobs], most, root)[: lengths[engine.rank]])


class _Steps:
    """The steps of one call, with one deadline. All bytes of a step have the same length."""

    def __init__(self, engine: Engine, timeout_s: float, step_of: str) -> None:
        self._engine, self._deadline, self._step_of = engine, engine.deadline(timeout_s), step_of
        connection = engine.connection
        network = connection.network
        is_plain = network is not None and not network.sealed and bool(connection.remote.any())
        self._key = network.derive_key("objects") if network is not None and is_plain else None
        self._extra = TAG_BYTES if is_plain else 0

    def all_gather(self, mine: bytes) -> list[memoryview]:
        number = self._engine.connection.calls
        given = np.frombuffer(self._tagged(mine, number), np.uint8)
        rows = self._engine.all_gather(given, self._deadline.left_s, self._step_of)
        return self._checked(dict(enumerate(rows)), number)

    def broadcast(self, given: bytes | None, length: int, root: int) -> memoryview:
        number, array = self._engine.connection.calls, np.empty(length + self._extra, np.uint8)
        if given is not None:
            array[:] = np.frombuffer(self._tagged(given, number), np.uint8)
        self._engine.broadcast(array, root, self._deadline.left_s, self._step_of)
        return self._checked({root: array}, number)[0]

    def scatter(self, pieces: list[bytes], length: int, root: int) -> memoryview:
        number, mine = self._engine.connection.calls, np.empty(length + self._extra, np.uint8)
        tagged = b"".join(self._tagged(piece, number, to) for to, piece in enumerate(pieces))
        table = np.frombuffer(tagged, np.uint8) if pieces else None
        left_s = self._deadline.left_s
        request = CallRequest("scatter", table, None, mine.dtype, mine.size, None, root, left_s, mine, self._step_of)
        self._engine.run(self._engine.prepare(request), request)
        return self._checked({root: mine}, number, self._engine.rank)[0]

    def _tag(self, key: bytes, data: bytes | memoryview, number: int, sender: int, to: int) -> bytes:
        digest = hmac.new(key, struct.pack("<QIi", number, sender, to), "sha256")
        digest.update(data)
        return digest.digest()

    def _tagged(self, data: bytes, number: int, to: int = EVERYBODY) -> bytes:
        return data if self._key is None else data + self._tag(self._key, data, number, self._engine.rank, to)

    def _checked(self, found: dict[int, Array], number: int, to: int = EVERYBODY) -> list[memoryview]:
        """The data of these ranks without tags; PeerFailure on all ranks if some of it is not what was sent."""
        blobs = {sender: array.data for sender, array in found.items()}
        if self._key is None:
            return list(blobs.values())
        engine, wrong = self._engine, np.zeros(self._engine.world_size, bool)
        for sender, blob in blobs.items():
            tag = self._tag(self._key, blob[:-TAG_BYTES], number, sender, to)
            wrong[sender] = not hmac.compare_digest(tag, blob[-TAG_BYTES:])
        everywhere = engine.all_gather(wrong, self._deadline.left_s, self._step_of).any(axis=0) | wrong
        if everywhere.any():
            who = " and ".join(str(engine.connection.peers[rank]) for rank in np.flatnonzero(everywhere))
            raise PeerFailure(
                f"{self._step_of}: what {who} sent arrived altered: something between the hosts changed it; no rank is "
                "given up",
                ranks=(),
                collective=self._step_of,
            )
        return [blob[:-TAG_BYTES] for blob in blobs.values()]
