"""Reading and writing a segment in Python: words of 8 and 4 bytes, at the offsets of `layout`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.run.execute.failures import LEFT
from choreo.run.execute.layout import (
    CALL_RECORD,
    CHANNEL,
    HEADER,
    MAGIC,
    MAILBOX,
    PRIVATE,
    REGISTERED,
    STAGED,
    WINDOW,
    channel_at,
    offset_of,
    staging_at,
)
from choreo.run.execute.twin.program import MAX_BYTES, MAX_RANKS

__all__ = ["Bytes", "SegmentWords", "address_for_peers", "belongs_to", "bytes_of", "ends_call", "prepare_segment"]

Bytes = npt.NDArray[np.uint8]


class SegmentWords:
    """The header and channels of a segment. A word is read and written whole."""

    def __init__(self, segment: object, world: int) -> None:
        head = memoryview(segment)[: staging_at(world)]  # type: ignore[arg-type]
        self._words, self._halves = head.cast("Q"), head.cast("I")

    def word(self, at: int) -> int:
        """The 8 bytes at an offset."""
        return self._words[at // 8]

    def set_word(self, at: int, value: int) -> None:
        """Write 8 bytes."""
        self._words[at // 8] = value

    def half(self, at: int) -> int:
        """The 4 bytes at an offset."""
        return self._halves[at // 4]

    def set_half(self, at: int, value: int) -> None:
        """Write 4 bytes."""
        self._halves[at // 4] = value

    @property
    def outcome(self) -> int:
        """The reason why the segment's rank stopped; 0 while it runs."""
        return self.half(offset_of(HEADER, "outcome"))

    @property
    def report(self) -> tuple[int, int, int] | None:
        """The reason why it stopped, the rank it blames, and the call; None while it runs."""
        if not self.outcome:
            return None
        return self.outcome, self.half(offset_of(HEADER, "culprit")), self.word(offset_of(HEADER, "outcome_call"))

    def ends(self, call: int) -> bool:
        """Whether its rank stopped before it had done its part of this call."""
        return ends_call(self.outcome, self.word(offset_of(HEADER, "outcome_call")), call)

    def release(self) -> None:
        """Let go of the segment."""
        self._words.release()
        self._halves.release()


def ends_call(outcome: int, outcome_call: int, call: int) -> bool:
    """Whether a rank with this outcome stopped before it had done its part of a call."""
    return outcome_call < call if outcome == LEFT else bool(outcome) and outcome_call <= call


def call_record_at(call: int) -> int:
    """The offset in a segment of the record of a call."""
    return offset_of(HEADER, "calls") + call % WINDOW * CALL_RECORD.itemsize


def mailbox_at(peer: int, call: int) -> int:
    """The offset in a segment of the mailbox of a peer and a call."""
    return channel_at(peer) + offset_of(CHANNEL, "mailboxes") + call % WINDOW * MAILBOX.itemsize


def prepare_segment(own: object, rank: int, world: int, stage_bytes: int, /) -> None:
    """Write the header of a rank's own segment, so that peers can open it."""
    data = bytes_of(own, writable=True)
    if not 0 <= rank < world or not _has_room(len(data), world, stage_bytes):
        raise ValueError("the segment is too small, or the rank is none of the world's")
    words, at = SegmentWords(own, world), staging_at(world)
    words.set_half(offset_of(HEADER, "rank"), rank)
    words.set_half(offset_of(HEADER, "world"), world)
    sizes = {"bytes": len(data), "stage_at": at, "stage_bytes": stage_bytes, "heap_at": at + stage_bytes}
    for field, value in (*sizes.items(), ("magic", MAGIC)):
        words.set_word(offset_of(HEADER, field), value)
    words.release()


def belongs_to(data: Bytes, segment: object, rank: int, world: int, stage_bytes: int) -> bool:
    """Whether this is the segment of a rank of this communicator."""
    if not _has_room(len(data), world, stage_bytes):
        return False
    words = SegmentWords(segment, world)
    wanted = {"magic": MAGIC, "bytes": len(data), "stage_bytes": stage_bytes}
    fine = all(words.word(offset_of(HEADER, field)) == value for field, value in wanted.items())
    fine = fine and words.half(offset_of(HEADER, "rank")) == rank and words.half(offset_of(HEADER, "world")) == world
    words.release()
    return fine


def bytes_of(array: Any, *, writable: bool = False) -> Bytes:
    """The bytes of an array, or of anything that has a buffer; none for None."""
    if array is None:
        return np.empty(0, np.uint8)
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous or (writable and not array.flags.writeable):
            raise ValueError("an array is not contiguous, or cannot be written")
        flat: Bytes = array.reshape(-1).view(np.uint8)
        return flat
    held = memoryview(array)
    if not held.c_contiguous or (writable and held.readonly):
        raise BufferError("a buffer is not contiguous, or cannot be written")
    return np.frombuffer(held, np.uint8)


def address_for_peers(own: Bytes, array: Any, stages: bool) -> tuple[int, int]:
    """The way in which peers read an array, and its address: an offset in the segment, or an address of this process;
    or none.
    """
    if array is None or stages:
        return STAGED, 0
    at = _address(bytes_of(array)) - _address(own)
    return (REGISTERED, at) if 0 <= at < len(own) else (PRIVATE, _address(bytes_of(array)))


def _address(data: Bytes) -> int:
    return int(data.__array_interface__["data"][0])


def _has_room(length: int, world: int, stage_bytes: int) -> bool:
    return 0 < world <= MAX_RANKS and 0 <= stage_bytes <= MAX_BYTES and staging_at(world) + stage_bytes <= length
