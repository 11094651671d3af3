"""The status that a rank publishes in its own segment. The other ranks of its host only read it.

A part of a segment's first page is two slots for the rank's status, written in turn. A slot holds a growing
number, the length of the status, a checksum over both and the status, and the status. A reader takes the valid slot
with the higher number, so a rank that dies while it writes leaves its previous status. The rest of the page belongs to
the executor. The first MiB of the heap is the rank's call directory: the text of every call that it has prepared, by
signature. It lets others say what a dead rank was doing.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from choreo.run.execute.layout import CALL_RECORD, HEADER, WINDOW, offset_of

__all__ = [
    "DIRECTORY_BYTES",
    "CallDirectory",
    "Cause",
    "Status",
    "calls_of",
    "find_calls",
    "gave_up",
    "read_status",
    "write_status",
]

STATUS_AT, SLOT_BYTES = offset_of(HEADER, "reports"), 1536
_SLOT = struct.Struct("<QII")
_OUTCOME, _OUTCOME_AT = struct.Struct("<IIQ"), offset_of(HEADER, "outcome")  # with culprit and outcome_call
_HEAP_AT, _CALLS_AT = offset_of(HEADER, "heap_at"), offset_of(HEADER, "calls")
_CALL = struct.Struct("<QQ")  # number and signature

DIRECTORY_BYTES = 1 << 20
_ENTRY, ENTRY_BYTES = struct.Struct("<QI"), 256
ENTRIES = DIRECTORY_BYTES // ENTRY_BYTES
TEXT_BYTES = ENTRY_BYTES - _ENTRY.size


class Cause(NamedTuple):
    """The reason why a rank stopped: the executor's outcome, the rank that it blames, and the call."""

    rank: int
    outcome: int
    culprit: int
    call: int


class Status(msgspec.Struct, array_like=True, frozen=True):
    """The status of a rank, published by itself. In normal operation every field has its default."""

    cause: int = 0  # the executor's outcome, if the rank's call failed and it is in the consensus on why
    call: int = 0  # the number of that call
    culprit: int = -1  # the rank that it blames
    suspect: int = -1  # the rank that it was waiting for
    text: str = ""  # the call that failed, as text
    reduced: int = 0  # the last `survive=True` call whose result it has
    returned: int = 0  # the last such call that it has returned from
    attempt: int = -1  # which attempt to build a new communicator it is in, from 0
    blobs: tuple[bytes, ...] = ()  # its blobs in the exchanges of that attempt
    number: int = 0  # of the call in `text`; with `survive=True`, `call` is the first of two
    acknowledged: bool = False  # all other hosts have acknowledged what it sent since its call failed
    passed_on: Cause | None = None  # why another rank stopped first, for those that do not hear that rank

    @property
    def left_calls(self) -> bool:
        """Whether the rank is in shrink(), though no call of its own has failed."""
        return self.attempt >= 0 and not self.cause


def write_status(own: mmap.mmap, number: int, status: Status) -> None:
    """Write a status into the slot that does not hold the last one."""
    payload = msgspec.msgpack.encode(status)
    assert len(payload) <= SLOT_BYTES - _SLOT.size, "a status fits into its slot"
    at = STATUS_AT + number % 2 * SLOT_BYTES
    own[at : at + _SLOT.size + len(payload)] = _SLOT.pack(number, len(payload), _checksum(number, payload)) + payload


def read_status(theirs: mmap.mmap) -> Status:
    """The last status that a rank has written completely."""
    best, found = 0, Status()
    for at in (STATUS_AT, STATUS_AT + SLOT_BYTES):
        slot = theirs[at : at + SLOT_BYTES]
        number, length, checksum = _SLOT.unpack_from(slot)
        payload = slot[_SLOT.size : _SLOT.size + length]
        if number > best and length <= SLOT_BYTES - _SLOT.size and checksum == _checksum(number, payload):
            best, found = number, msgspec.msgpack.decode(payload, type=Status)
    return found


def gave_up(theirs: mmap.mmap) -> tuple[int, int, int]:
    """The reason why a rank's executor gave up, the rank it blames, and the call; zeros if it has not."""
    outcome, culprit, call = _OUTCOME.unpack_from(theirs, _OUTCOME_AT)
    return outcome, culprit, call


def calls_of(theirs: mmap.mmap) -> dict[int, int]:
    """The last calls that a rank began, and their signatures; call 0 is an entry that is empty or half written."""
    return dict(_CALL.unpack_from(theirs, _CALLS_AT + at * CALL_RECORD.itemsize) for at in range(WINDOW))


class CallDirectory:
    """The texts of the calls that this rank has prepared."""

    def __init__(self, own: mmap.mmap, at: int) -> None:
        self._own, self._at, self._count = own, at, 0
        assert _heap_at(own) == at, "the directory is allocated first"

    def add(self, signature: int, text: str) -> None:
        """Add a call; after a few thousand, the oldest are overwritten."""
        encoded = text.encode()[:TEXT_BYTES]
        at = self._at + self._count % ENTRIES * ENTRY_BYTES
        self._own[at : at + ENTRY_BYTES] = (_ENTRY.pack(signature, len(encoded)) + encoded).ljust(ENTRY_BYTES, b"\0")
        self._count += 1


def find_calls(theirs: mmap.mmap, signatures: Iterable[int]) -> dict[int, str]:
    """The texts of the calls with these signatures that are in a rank's directory."""
    at, missing = _heap_at(theirs), set(signatures)
    found: dict[int, str] = {}
    for number in range(ENTRIES):
        signature, length = _ENTRY.unpack_from(theirs, at + number * ENTRY_BYTES)
        if not length or not missing:
            break
        if signature in missing:
            missing.remove(signature)
            start = at + number * ENTRY_BYTES + _ENTRY.size
            found[signature] = theirs[start : start + min(length, TEXT_BYTES)].decode(errors="ignore")
    return found


def _heap_at(segment: mmap.mmap) -> int:
    return int.from_bytes(segment[_HEAP_AT : _HEAP_AT + 8], "little")


def _checksum(number: int, payload: bytes) -> int:
    return zlib.crc32(payload, number & 0xFFFFFFFF)
