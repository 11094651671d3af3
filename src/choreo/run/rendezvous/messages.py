"""The messages of a rendezvous, and how their bytes are checked. Decoding them cannot run code."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, TypeVar

import msgspec

from choreo.run.transport.errors import FrameError
from choreo.run.transport.limits import MAX_FRAME_BYTES, MAX_RANKS, MAX_REASON, MAX_TIMEOUT_S

__all__ = [
    "Abort",
    "Admission",
    "AdmissionRequest",
    "Join",
    "Leave",
    "Member",
    "Welcome",
    "all_payload",
    "blob_limit_bytes",
    "blob_payload",
    "decode",
    "encode",
    "format_members",
    "format_ranks",
    "parse_all",
    "parse_blob",
]


Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
# These end up in error messages, so they have no control characters.
Name = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,255}\Z")]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIMEOUT_S)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON)]


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank of the job, and where it runs.

    `host` is the host's name, for error messages. Ranks with the same `host_id` may share memory. `address` is where
    ranks on other hosts reach this one.
    """

    rank: Rank
    pid: Pid
    host: Name
    host_id: Name
    address: Name

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank registers, and says how long it will wait for the others."""

    rank: Rank
    world_size: Count
    pid: Pid
    host: Name
    host_id: Name
    timeout_s: Seconds


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All members, by rank."""

    members: Annotated[list[Member], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]


class Abort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason why the rendezvous has failed, and the ranks that caused it."""

    reason: Reason
    ranks: Annotated[list[Rank], msgspec.Meta(max_length=MAX_RANKS)]


class Leave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason why a rank leaves; empty if it is simply done."""

    reason: Reason


class AdmissionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process asks to join a running job."""

    pid: Pid
    host: Name
    host_id: Name


class Admission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data for a joining process: its rank, the numbers of all, timeouts, how to choose algorithms, the quorum."""

    rank: Rank
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]  # `Communicator.ranks`
    join_timeout_s: Seconds
    timeout_s: Seconds
    chooser: str
    quorum: Name


Message = TypeVar("Message", Join, Welcome, Abort, Leave, AdmissionRequest, Admission)


def encode(message: Join | Welcome | Abort | Leave | AdmissionRequest | Admission) -> bytes:
    """A message as the payload of a frame."""
    return msgspec.json.encode(message)


def decode(payload: bytes, kind: type[Message]) -> Message:
    """The message in a payload; FrameError unless every field has the right type and is within its bounds."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a malformed {kind.__name__} came: {error}") from None


_BLOB = struct.Struct(">Qd")  # the number of the exchange, and how long the sender will wait
_ALL = struct.Struct(">QI")  # the number of the exchange, and how many blobs there are
_LENGTH = struct.Struct(">I")


def blob_limit_bytes(world_size: int) -> int:
    """The number of bytes that each rank may bring to one exchange."""
    return (MAX_FRAME_BYTES - _ALL.size) // world_size - max(_LENGTH.size, _BLOB.size)


def blob_payload(number: int, timeout_s: float, blob: bytes) -> bytes:
    """One rank's blob of an exchange."""
    return _BLOB.pack(number, timeout_s) + blob


def parse_blob(payload: bytes) -> tuple[int, float, bytes]:
    """The number of the exchange, how long the sender will wait, and its blob."""
    if len(payload) < _BLOB.size:
        raise FrameError(f"a blob frame of {len(payload)} bytes came; the shortest has {_BLOB.size}")
    number, timeout_s = _BLOB.unpack_from(payload)
    if not (math.isfinite(timeout_s) and 0 <= timeout_s <= MAX_TIMEOUT_S):
        raise FrameError(f"a blob frame came with a timeout of {timeout_s} s")
    return number, timeout_s, payload[_BLOB.size :]


def all_payload(number: int, blobs: Sequence[bytes]) -> bytes:
    """The blobs of all ranks."""
    lengths = b"".join(_LENGTH.pack(len(blob)) for blob in blobs)
    return b"".join((_ALL.pack(number, len(blobs)), lengths, *blobs))


def parse_all(payload: bytes, number: int, world_size: int) -> list[bytes]:
    """The blobs of all ranks, of the exchange with this number."""
    if len(payload) < _ALL.size + world_size * _LENGTH.size:
        raise FrameError(f"the blobs of {world_size} ranks came in {len(payload)} bytes")
    found, count = _ALL.unpack_from(payload)
    if (found, count) != (number, world_size):
        raise FrameError(f"{count} blobs of exchange {found} came; expected {world_size} of exchange {number}")
    lengths = [size for (size,) in _LENGTH.iter_unpack(payload[_ALL.size : _ALL.size + count * _LENGTH.size])]
    at = _ALL.size + count * _LENGTH.size
    if at + sum(lengths) != len(payload):
        raise FrameError(f"blobs of {sum(lengths)} bytes were announced in a frame that has {len(payload) - at}")
    blobs = []
    for length in lengths:
        blobs.append(payload[at : at + length])
        at += length
    return blobs


def format_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 1, 2 and 5`, or the first few of many."""
    found = [str(rank) for rank in sorted(ranks)]
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > 8:
        return f"{len(found)} ranks ({', '.join(found[:6])}, ...)"
    return f"ranks {', '.join(found[:-1])} and {found[-1]}"


def format_members(members: Sequence[Member]) -> str:
    """`rank 3 (pid 7 on node0)` of each member, or of the first few."""
    named = ", ".join(map(str, members[:6]))
    return named if len(members) <= 6 else f"{named} and {len(members) - 6} more"
