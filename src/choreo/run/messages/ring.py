"""The ring of a channel: a rank writes messages into its own segment one after another, and one peer reads them.

What the peer has not read yet is never overwritten. The peer sees a message when the writer publishes how far the ring
is written, and the writer sees how far it was read. `core/ring.h` does the same as the two ends here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from choreo.compiled import import_compiled
from choreo.run.messages.words import Words

__all__ = [
    "BESIDE",
    "IN_RING",
    "NONSENSE",
    "RING_BYTES",
    "WANTS_ROOM",
    "Entry",
    "RingReader",
    "RingWriter",
    "ring_ends",
]

RING_BYTES = 64 << 10
RESERVE_BYTES = 16 << 10  # bytes kept free for the headers of out-of-line messages
# Words of a channel: how far this rank has written its ring, and read the peer's; whether it waits for room.
TAIL, HEAD, WANTS_ROOM = 2, 3, 5
# The header of each message: its kind, its element type, the bytes to the next one, its tag, its length, and its number
# if it is out of line. UNUSED marks the rest of the ring's end.
_HEADER = struct.Struct("<BBHIqQQ")
_START = struct.Struct("<BBHI")
UNUSED, IN_RING, BESIDE = 0, 1, 2
NONSENSE = "wrote nonsense into its ring"


class Entry(NamedTuple):
    """A message in the ring; `data` is empty if it is out of line."""

    kind: int
    dtype: int
    tag: int
    length: int
    number: int
    data: memoryview


class RingWriter:
    """The writer's end of a ring: this rank's messages for a peer."""

    def __init__(self, ring: memoryview, words: Words, index: int, /) -> None:
        self._ring, self._words, self._index = ring, words, index
        self.written = self._taken = 0  # and of that the peer has read

    def put(  # noqa: PLR0917 - the compiled twin takes no keywords
        self, kind: int, dtype: int, tag: int, length: int, number: int, data: memoryview | None, /
    ) -> bool:
        """Write a message, which the peer does not see yet; False if there is no room."""
        size = _rounded(_HEADER.size + (0 if data is None else length))
        at = self._take_room(size, 0 if data is None else RESERVE_BYTES)
        if at < 0:
            return False
        _HEADER.pack_into(self._ring, at, kind, dtype, 0, size, tag, length, number)
        if data is not None:
            self._ring[at + _HEADER.size : at + _HEADER.size + length] = data
        return True

    def send(self, dtype: int, tag: int, data: memoryview, /) -> bool:
        """Write a message, and let the peer see it; False if there is no room."""
        if not self.put(IN_RING, dtype, tag, len(data), 0, data):
            return False
        self.tell()
        return True

    def tell(self) -> None:
        """Publish what was written."""
        self._words.tell(self._index, TAIL, self.written)

    def has_been_read(self, end: int, /) -> bool:
        """Whether the peer has read up to here."""
        return self._words.read(self._index, HEAD) >= end

    def _take_room(self, size: int, reserve: int) -> int:
        """The offset of free room for this many bytes and a reserve; -1 if there is none."""
        at = self.written % RING_BYTES
        skipped = RING_BYTES - at if at + size > RING_BYTES else 0
        end = self.written + skipped + size
        if end - self._taken > RING_BYTES - reserve:
            self._taken = self._words.read(self._index, HEAD)
            if end - self._taken > RING_BYTES - reserve:
                return -1
        if skipped:
            _START.pack_into(self._ring, at, UNUSED, 0, 0, skipped)
            at = 0
        self.written = end
        return at


class RingReader:
    """The reader's end of a ring: a peer's messages for this rank."""

    def __init__(self, ring: memoryview, words: Words, index: int, /) -> None:
        self._ring, self._words, self._index = ring, words, index
        self._read = self._size = 0  # and the size of the next message

    def look(self) -> Entry | None:
        """The next message, which stays there until `advance`; ValueError if it is none that a rank writes."""
        while (tail := self._words.read(self._index, TAIL)) != self._read:
            at = self._read % RING_BYTES
            kind, _, _, size = _START.unpack_from(self._ring, at)
            if size < _START.size or size % 8 or at + size > RING_BYTES or size > tail - self._read:
                raise ValueError(NONSENSE)
            self._size = size
            if kind != UNUSED:
                return self._entry(at, size)
            self.advance()
        return None

    def advance(self) -> None:
        """The message was taken: its room can be used again."""
        self._read += self._size
        self._words.write(self._index, HEAD, self._read)
        if self._words.read(self._index, WANTS_ROOM):
            self._words.tell(self._index, HEAD, self._read)

    def take(self, dtype: int, tag: int, into: memoryview, /) -> bool | None:
        """Take the next message if it is this one, and in the ring; None if there is none."""
        entry = self.look()
        if entry is None:
            return None
        if (entry.kind, entry.dtype, entry.tag, entry.length) != (IN_RING, dtype, tag, len(into)):
            return False
        into[:] = entry.data
        self.advance()
        return True

    def _entry(self, at: int, size: int) -> Entry:
        if size < _HEADER.size:
            raise ValueError(NONSENSE)
        kind, dtype, _, _, tag, length, number = _HEADER.unpack_from(self._ring, at)
        if kind not in {IN_RING, BESIDE} or (kind == IN_RING and length > size - _HEADER.size):
            raise ValueError(NONSENSE)
        begin = at + _HEADER.size
        return Entry(kind, dtype, tag, length, number, self._ring[begin : begin + length if kind == IN_RING else begin])


def ring_ends(words: Words) -> tuple[type[RingReader], type[RingWriter]]:
    """The reader and writer of rings: compiled, if the words are."""
    compiled = None if type(words) is Words else import_compiled("choreo.run.messages._core")
    return (RingReader, RingWriter) if compiled is None else (compiled.RingReader, compiled.RingWriter)


def _rounded(length: int) -> int:
    return -(-length // 8) * 8
