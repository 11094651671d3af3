"""Shared memory in which a rank keeps messages that it has sent and nobody has taken: a bounded part of its heap."""

from __future__ import annotations

from choreo.errors import UsageError
from choreo.run.execute.arrays import Array
from choreo.run.execute.heap import Heap

__all__ = ["SendBuffers"]

# What a rank keeps for all peers together. A larger message is kept only if it is alone.
MOST_BYTES = 1 << 30
# Buffers stay for the next message, because fresh memory costs as much as the copy.
IDLE_BYTES = 32 << 20
SMALLEST_BYTES, COARSE_BYTES = 16 << 10, 1 << 20


class SendBuffers:
    """Buffers in the heap of a rank."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._idle: dict[int, list[Array]] = {}
        self._idle_bytes = 0
        self.used_bytes = 0
        self.shortage = ""  # why there was no memory the last time

    def take(self, length: int) -> Array | None:
        """A buffer for this many bytes; None if too much is in use, or the system has no more."""
        room = _rounded(length)
        if self.used_bytes and self.used_bytes + room > MOST_BYTES:
            return None
        kept = self._idle.get(room)
        if kept:
            self._idle_bytes -= room
            found = kept.pop()
        else:
            try:
                found = self._heap.empty(room, "u1")
            except UsageError as error:
                self.shortage = str(error)
                self._idle.clear()  # perhaps the memory of others is enough the next time
                self._idle_bytes = 0
                return None
        self.used_bytes, self.shortage = self.used_bytes + room, ""
        return found

    def give_back(self, buffer: Array) -> None:
        """A buffer is free again."""
        self.used_bytes -= buffer.nbytes
        if self._idle_bytes + buffer.nbytes <= IDLE_BYTES:
            self._idle_bytes += buffer.nbytes
            self._idle.setdefault(buffer.nbytes, []).append(buffer)


def _rounded(length: int) -> int:
    """Few different sizes, so that buffers can be used again."""
    if length > COARSE_BYTES:
        return -(-length // COARSE_BYTES) * COARSE_BYTES
    return max(SMALLEST_BYTES, 1 << (length - 1).bit_length())
