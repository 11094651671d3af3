"""What is inside the frames of a meeting, and how it is checked. Nothing here can run code."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, TypeVar

import msgspec

from choreo.run.transport.errors import FrameError
from choreo.run.transport.limits import MAX_FRAME_BYTES, MAX_PATIENCE_S, MAX_RANKS, MAX_STORY

__all__ = [
    "Admission",
    "Join",
    "Leave",
    "Member",
    "Newcomer",
    "Verdict",
    "Welcome",
    "all_payload",
    "blob_limit_bytes",
    "blob_payload",
    "decode",
    "encode",
    "members_in_words",
    "parse_all",
    "parse_blob",
    "ranks_in_words",
]


Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
# What ends up in messages to people has no control characters.
Name = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,255}\Z")]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_PATIENCE_S)]
Story = Annotated[str, msgspec.Meta(max_length=MAX_STORY)]


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process that takes part: its rank, and where to find it.

    `host` is the machine's name, for people; `host_id` says which ranks may share memory; `address` is one under
    which the ranks of other machines reach it.
    """

    rank: Rank
    pid: Pid
    host: Name
    host_id: Name
    address: Name

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank says who it is, and for how long it will wait for the others."""

    rank: Rank
    world_size: Count
    pid: Pid
    host: Name
    host_id: Name
    patience_s: Seconds


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everybody, in the order of ranks."""

    members: Annotated[list[Member], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why the meeting is over, and which ranks it is about."""

    story: Story
    ranks: Annotated[list[Rank], msgspec.Meta(max_length=MAX_RANKS)]


class Leave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why somebody goes; nothing where there is nothing to say."""

    story: Story


class Newcomer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who asks to be let into a job that runs."""

    pid: Pid
    host: Name
    host_id: Name


class Admission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a newcomer needs to know: who it is among all, how long those wait, and how they choose algorithms."""

    rank: Rank
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]  # what all are called
    patience_s: Seconds
    timeout_s: Seconds
    chooser: str


Message = TypeVar("Message", Join, Welcome, Verdict, Leave, Newcomer, Admission)


def encode(message: Join | Welcome | Verdict | Leave | Newcomer | Admission) -> bytes:
    """A message as the payload of a frame."""
    return msgspec.json.encode(message)


def decode(payload: bytes, kind: type[Message]) -> Message:
    """The message of this kind in a payload, with every field of the right type and within its bounds."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a {kind.__name__.lower()} that is none came: {error}") from None


_BLOB = struct.Struct(">Qd")  # the number of the exchange, and for how long the sender will wait
_ALL = struct.Struct(">QI")  # the number of the exchange, and how many blobs there are
_LENGTH = struct.Struct(">I")


def blob_limit_bytes(world_size: int) -> int:
    """How many bytes each of so many ranks may share in one exchange."""
    return (MAX_FRAME_BYTES - _ALL.size) // world_size - max(_LENGTH.size, _BLOB.size)


def blob_payload(number: int, patience_s: float, blob: bytes) -> bytes:
    """One rank's share of an exchange."""
    return _BLOB.pack(number, patience_s) + blob


def parse_blob(payload: bytes) -> tuple[int, float, bytes]:
    """The number of the exchange, how long the sender will wait, and its share."""
    if len(payload) < _BLOB.size:
        raise FrameError(f"a share of {len(payload)} bytes came; the shortest has {_BLOB.size}")
    number, patience_s = _BLOB.unpack_from(payload)
    if not (math.isfinite(patience_s) and 0 <= patience_s <= MAX_PATIENCE_S):
        raise FrameError(f"a share came from one who will wait {patience_s} s")
    return number, patience_s, payload[_BLOB.size :]


def all_payload(number: int, blobs: Sequence[bytes]) -> bytes:
    """Everybody's shares of an exchange."""
    lengths = b"".join(_LENGTH.pack(len(blob)) for blob in blobs)
    return b"".join((_ALL.pack(number, len(blobs)), lengths, *blobs))


def parse_all(payload: bytes, number: int, world_size: int) -> list[bytes]:
    """Everybody's shares of the exchange of this number."""
    if len(payload) < _ALL.size + world_size * _LENGTH.size:
        raise FrameError(f"the shares of {world_size} ranks came in {len(payload)} bytes")
    found, count = _ALL.unpack_from(payload)
    if (found, count) != (number, world_size):
        raise FrameError(f"{count} shares of exchange {found} came; due were {world_size} of exchange {number}")
    lengths = [size for (size,) in _LENGTH.iter_unpack(payload[_ALL.size : _ALL.size + count * _LENGTH.size])]
    at = _ALL.size + count * _LENGTH.size
    if at + sum(lengths) != len(payload):
        raise FrameError(f"shares of {sum(lengths)} bytes came in a frame that has {len(payload) - at} for them")
    blobs = []
    for length in lengths:
        blobs.append(payload[at : at + length])
        at += length
    return blobs


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 1, 2 and 5`, or the first few of many."""
    found = [str(rank) for rank in sorted(ranks)]
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > 8:
        return f"{len(found)} ranks ({', '.join(found[:6])}, ...)"
    return f"ranks {', '.join(found[:-1])} and {found[-1]}"


def members_in_words(members: Sequence[Member]) -> str:
    """Who they are, or the first few of many."""
    named = ", ".join(map(str, members[:6]))
    return named if len(members) <= 6 else f"{named} and {len(members) - 6} more"
