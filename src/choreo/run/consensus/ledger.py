"""Consensus between the ranks of one host: a file to which they only append.

A rank appends its proposal on a topic; the first proposal on a topic is the decision. The kernel orders appends, so any
number of ranks may die, stop and wake at any moment, and the others still read the same decision. A rank that was given
up can append to the file, but cannot change a decision. The file is unlinked as soon as all ranks have opened it.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from choreo.errors import ChoreoError
from choreo.run.execute.segment import reserve_ahead
from choreo.run.transport.shortage import why

__all__ = ["Ledger"]

ENTRY_BYTES = 1024
RESERVED_BYTES = 64 << 10
_HEAD = struct.Struct("<IHH")  # checksum, bytes of the topic, bytes of the proposal
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Ledger:
    """One rank's open file."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self._descriptor = os.open(path, _FLAGS | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        self._read = 0
        self._entries: dict[bytes, list[bytes]] = {}
        if create:
            reserve_ahead(self._descriptor, RESERVED_BYTES)  # so that a late decision needs no new memory
        if os.fstat(self._descriptor).st_uid != os.getuid():
            self.close()
            raise PermissionError(f"{path} belongs to another user")

    def entries(self, topic: str) -> list[bytes]:
        """Everything that was appended on a topic, in order."""
        while len(entry := os.pread(self._descriptor, ENTRY_BYTES, self._read)) == ENTRY_BYTES:
            self._read += ENTRY_BYTES
            check, topic_bytes, length = _HEAD.unpack_from(entry)
            body = entry[_HEAD.size : _HEAD.size + topic_bytes + length]
            if check == zlib.crc32(entry[4 : _HEAD.size] + body):
                self._entries.setdefault(body[:topic_bytes], []).append(body[topic_bytes:])
        return self._entries.get(topic.encode(), [])

    def decided(self, topic: str) -> bytes | None:
        """The decision on a topic, if there is one."""
        return next(iter(self.entries(topic)), None)

    def all_decided(self, prefix: str) -> list[bytes]:
        """The decisions on all topics with this prefix."""
        self.entries("")
        return [found[0] for topic, found in self._entries.items() if topic.startswith(prefix.encode())]

    def decide(self, topic: str, proposal: bytes) -> bytes:
        """Propose a value; returns the decision, which may be another rank's proposal."""
        found = self.decided(topic)
        return self.append(topic, proposal)[0] if found is None else found

    def append(self, topic: str, body: bytes) -> list[bytes]:
        """Append an entry; returns all on this topic, in order."""
        name = topic.encode()
        sizes = struct.pack("<HH", len(name), len(body))
        entry = struct.pack("<I", zlib.crc32(sizes + name + body)) + sizes + name + body
        assert len(entry) <= ENTRY_BYTES, "a body fits into an entry"
        try:
            os.write(self._descriptor, entry.ljust(ENTRY_BYTES, b"\0"))
        except OSError as error:
            raise ChoreoError(f"what the ranks decide cannot be written to shared memory: {why(error)}") from error
        found = self.entries(topic)
        assert found, "an appended entry can be read"
        return found

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
