"""The layout of what ranks share: the segment, the operations of a program, and frames on a socket.

`core/layout.h` has the same in C, and exports it. The compiled executor is only used if the two agree.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from choreo.run.execute import failures

__all__ = [
    "CALL_RECORD",
    "CHANNEL",
    "FRAME_BYTES",
    "GUARD",
    "HEADER",
    "MAILBOX",
    "OP",
    "Frame",
    "channel_at",
    "constants",
    "fields",
    "offset_of",
    "staging_at",
]

PAGE = 4096
MAGIC = int.from_bytes(b"Choreo03", "little")
# Mailboxes a peer: a call reuses the one of 64 calls ago. Slots of the staging: a call that stages nothing takes none.
WINDOW, STAGING_SLOTS = 64, 8
# Data in a mailbox.
INLINE_BYTES = 40
# A counter is the number of a call, and in these bits the number of a message within the call.
MESSAGE_BITS = 24
# A rank's chain is a hash of all its calls: (chain ^ signature) * CHAIN_FACTOR, modulo 2**64.
CHAIN_FACTOR = 0x9E3779B97F4A7C15
# How peers read an array: from staging, at an offset of the segment, or at an address of the process.
STAGED, REGISTERED, PRIVATE = 0, 1, 2
# Flags beside these modes: the first message is in the mailbox; the sender waits until its messages are consumed. From
# SLOT_BIT on is the slot in which the call begins to stage.
INLINED, ACKNOWLEDGED, SLOT_BIT = 1 << 16, 2 << 16, 24

# What an operation does. NEXT_PART: what is staged from here on goes to the other of two slots.
SEND, RECEIVE, TO_SCRATCH, FROM_SCRATCH, COPY, NEXT_PART = 0, 1, 2, 3, 4, 5
# Its flags. REDUCE rather than store; LAST range of its message; the sender has it in its input (THEIR_INPUT); this
# rank has in its input what is sent, or what the incoming bytes are added to (OWN_INPUT); the message is EXPOSED
# rather than staged; it is ALREADY_STAGED for another rank, which may be reading it.
REDUCE, LAST, THEIR_INPUT, OWN_INPUT, EXPOSED, ALREADY_STAGED = 1, 2, 4, 8, 16, 32

# On a stream: this many bytes of a message follow.
FRAME = int.from_bytes(b"FRAM", "little")
MAX_STREAMS, STRIPE_BYTES = 8, 512 << 10

CALL_RECORD = np.dtype([("number", "<u8"), ("signature", "<u8"), ("chain", "<u8"), ("pad", "V40")])
HEADER = np.dtype(
    [
        ("magic", "<u8"),
        ("rank", "<u4"),
        ("world", "<u4"),
        ("bytes", "<u8"),
        ("stage_at", "<u8"),
        ("stage_bytes", "<u8"),
        ("heap_at", "<u8"),
        ("outcome", "<u4"),  # why the rank stopped; 0 while it runs
        ("culprit", "<u4"),
        ("outcome_call", "<u8"),
        ("pad0", "V64"),
        ("returned", "<u8"),  # the last call that it has returned from
        ("core", "<u4"),
        ("pad1", "V372"),
        ("reports", "V3072"),  # what the rank says about a failure
        ("calls", CALL_RECORD, WINDOW),
        ("pad2", "V512"),
    ]
)
MAILBOX = np.dtype(
    {
        "names": ["ready", "chain", "modes", "addresses", "data"],
        "formats": ["<u8", "<u8", "<u8", ("<u8", 2), f"V{INLINE_BYTES}"],
        "offsets": [0, 8, 16, 24, 24],  # the addresses of work and input, or inlined data
        "itemsize": 64,
    }
)
CHANNEL = np.dtype(
    [
        ("mailboxes", MAILBOX, WINDOW),
        ("consumed", "<u8"),
        ("outcome_call", "<u8"),
        ("outcome", "<u4"),
        ("asleep", "<u4"),
        ("pad", "V40"),
    ]
)
OP = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("peer", "<u2"),
        ("number", "<u4"),  # of the message among those of this pair in this call, from 1
        ("step", "<u4"),
        ("guards", "<u4"),
        ("first_guard", "<u8"),
        ("at", "<u8"),  # in the own work; of a send, where the data is
        ("base", "<u8"),  # of a reduction, where the other operand is; of COPY, the offset in the input
        ("there", "<u8"),  # in the sender's input or work; of FROM_SCRATCH, in scratch
        ("staged", "<u8"),  # in the sender's staging
        ("length", "<u8"),
    ]
)
GUARD = np.dtype([("peer", "<u4"), ("number", "<u4")])
_FRAME = np.dtype([("magic", "<u4"), ("number", "<u4"), ("call", "<u8"), ("signature", "<u8"), ("length", "<u8")])
_PACKED_FRAME = struct.Struct("<IIQQQ")
FRAME_BYTES = _PACKED_FRAME.size


class Frame(NamedTuple):
    """The header of each range of bytes on a stream.

    >>> Frame.unpack(Frame(FRAME, 1, 7, 0, 4096).pack()).length
    4096
    """

    magic: int
    number: int
    call: int
    signature: int
    length: int

    def pack(self) -> bytes:
        """The bytes on the wire."""
        return _PACKED_FRAME.pack(*self)

    @classmethod
    def unpack(cls, head: bytes | bytearray) -> Frame:
        """Read the bytes from the wire."""
        return cls(*_PACKED_FRAME.unpack(head))


def offset_of(structure: np.dtype[Any], field: str) -> int:
    """The offset of a field in bytes.

    >>> offset_of(CHANNEL, "consumed")
    4096
    """
    assert structure.fields is not None
    return int(structure.fields[field][1])


def channel_at(peer: int) -> int:
    """The offset in a segment of the channel to a peer."""
    return HEADER.itemsize + peer * CHANNEL.itemsize


def staging_at(world_size: int) -> int:
    """The offset in a segment of the staging area.

    >>> staging_at(2), staging_at(8)
    (20480, 45056)
    """
    return -(-channel_at(world_size) // PAGE) * PAGE


_STRUCTURES: dict[str, np.dtype[Any]] = {
    "Header": HEADER,
    "CallRecord": CALL_RECORD,
    "Mailbox": MAILBOX,
    "Channel": CHANNEL,
    "Op": OP,
    "Guard": GUARD,
    "Frame": _FRAME,
}


def fields() -> dict[str, tuple[int, int]]:
    """The offset and the length of every structure and field, as the compiled executor exports them."""
    found = {}
    for name, structure in _STRUCTURES.items():
        found[name] = (0, structure.itemsize)
        for field, (kind, offset, *_) in (structure.fields or {}).items():
            if not field.startswith("pad"):
                found[f"{name}.{field}"] = (offset, kind.itemsize)
    return found


def constants() -> dict[str, int]:
    """Every constant that both executors must agree on; likewise."""
    own = {name: value for name, value in globals().items() if name.isupper() and isinstance(value, int)}
    outcomes = {name: value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)}
    return {name: value for name, value in {**own, **outcomes}.items() if name != "FRAME_BYTES"}
