"""What a rank tells the others when something goes wrong: one notice in its own segment, which they only read.

Bytes 512 to 3583 of a segment's first page are two slots, written in turn: a number that grows, the length of the
notice, a checksum over both and the notice, and the notice. A reader takes the valid slot with the higher number, so a
rank that dies in the middle of writing leaves its notice before that one. The rest of the page is the executor's.

The first MiB of the heap is a rank's directory: the text of every call that it has ever prepared, by signature, so
that others can say what it did even when it can no longer say so itself.
"""

from __future__ import annotations

import mmap
import struct
import zlib

import msgspec

from choreo.run.execute.layout import CALL_RECORD, HEADER, WINDOW, offset_of

__all__ = ["DIRECTORY_BYTES", "Directory", "Notice", "calls_of", "gave_up", "look_up", "post", "read"]

BOARD_AT, SLOT_BYTES = offset_of(HEADER, "reports"), 1536
_SLOT = struct.Struct("<QII")
_OUTCOME, _OUTCOME_AT = struct.Struct("<IIQ"), offset_of(HEADER, "outcome")  # with culprit and outcome_call
_HEAP_AT, _CALLS_AT = offset_of(HEADER, "heap_at"), offset_of(HEADER, "calls")
_CALL = struct.Struct("<QQ")  # number and signature

DIRECTORY_BYTES = 1 << 20
_ENTRY, ENTRY_BYTES = struct.Struct("<QI"), 256
ENTRIES = DIRECTORY_BYTES // ENTRY_BYTES
TEXT_BYTES = ENTRY_BYTES - _ENTRY.size


class Notice(msgspec.Struct, array_like=True, frozen=True):
    """What a rank says of itself."""

    cause: int = 0  # an outcome of the executor: it has given up, and takes part in the agreement on why
    call: int = 0  # in this call
    culprit: int = -1  # whom it blames
    suspect: int = -1  # whom it was waiting for
    text: str = ""  # the call it made
    reduced: int = 0  # the last call to survive failures whose result it has
    returned: int = 0  # the last such call that it has returned from
    attempt: int = -1  # to build a new communicator, from 0
    blobs: tuple[bytes, ...] = ()  # what it shares in that attempt


def post(own: mmap.mmap, number: int, notice: Notice) -> None:
    """Put up a notice, in the slot that does not hold the last one."""
    payload = msgspec.msgpack.encode(notice)
    assert len(payload) <= SLOT_BYTES - _SLOT.size, "a notice keeps within its slot"
    at = BOARD_AT + number % 2 * SLOT_BYTES
    own[at : at + _SLOT.size + len(payload)] = _SLOT.pack(number, len(payload), _check(number, payload)) + payload


def read(theirs: mmap.mmap) -> Notice:
    """The last notice that a rank has put up whole."""
    best, found = 0, Notice()
    for at in (BOARD_AT, BOARD_AT + SLOT_BYTES):
        slot = theirs[at : at + SLOT_BYTES]
        number, length, check = _SLOT.unpack_from(slot)
        payload = slot[_SLOT.size : _SLOT.size + length]
        if number > best and length <= SLOT_BYTES - _SLOT.size and check == _check(number, payload):
            best, found = number, msgspec.msgpack.decode(payload, type=Notice)
    return found


def gave_up(theirs: mmap.mmap) -> tuple[int, int, int]:
    """Why a rank's executor stopped, whom it blames, in which call; zeros if it has not."""
    outcome, culprit, call = _OUTCOME.unpack_from(theirs, _OUTCOME_AT)
    return outcome, culprit, call


def calls_of(theirs: mmap.mmap) -> dict[int, int]:
    """The last calls that a rank began, and their signatures; 0 if there was none, or one is just being written."""
    return dict(_CALL.unpack_from(theirs, _CALLS_AT + at * CALL_RECORD.itemsize) for at in range(WINDOW))


class Directory:
    """A rank's own list of the calls it has prepared."""

    def __init__(self, own: mmap.mmap, at: int) -> None:
        self._own, self._at, self._count = own, at, 0
        assert _heap_at(own) == at, "the directory is the first that is taken from the heap"

    def add(self, signature: int, text: str) -> None:
        """Write down a call; after a few thousand the oldest are overwritten."""
        told = text.encode()[:TEXT_BYTES]
        at = self._at + self._count % ENTRIES * ENTRY_BYTES
        self._own[at : at + ENTRY_BYTES] = (_ENTRY.pack(signature, len(told)) + told).ljust(ENTRY_BYTES, b"\0")
        self._count += 1


def look_up(theirs: mmap.mmap, signature: int) -> str:
    """What a rank calls the call of this signature, or nothing."""
    at = _heap_at(theirs)
    for number in range(ENTRIES):
        found, length = _ENTRY.unpack_from(theirs, at + number * ENTRY_BYTES)
        if not length:
            break
        if found == signature:
            start = at + number * ENTRY_BYTES + _ENTRY.size
            return theirs[start : start + min(length, TEXT_BYTES)].decode(errors="replace")
    return ""


def _heap_at(segment: mmap.mmap) -> int:
    return int.from_bytes(segment[_HEAP_AT : _HEAP_AT + 8], "little")


def _check(number: int, payload: bytes) -> int:
    return zlib.crc32(payload, number & 0xFFFFFFFF)
