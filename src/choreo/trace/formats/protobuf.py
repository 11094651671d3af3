"""The wire format of protocol buffers: fields of a message, and messages with their length before them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from choreo.errors import TraceError

__all__ = ["VARINT", "delimited", "fields", "packed_varints", "put_bytes", "put_double", "put_message", "put_varint"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a place, and the place after it."""
    value = shift = 0
    while True:
        try:
            byte = data[at]
        except IndexError:
            raise TraceError("the file ends in the middle of a number") from None
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift >= 7 * MAX_VARINT_BYTES:
            raise TraceError(f"a number has more than {MAX_VARINT_BYTES} bytes, just before byte {at}")


def delimited(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each message of a file begins and ends; each is preceded by its length."""
    at, end = 0, len(data)
    while at < end:
        size, start = varint(data, at)
        at = start + size
        if at > end:
            raise TraceError(f"a message of {size} bytes begins at byte {start}, and the file has {end} bytes")
        yield start, at


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, kind, and value; for bytes, where they begin and end."""
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = varint(data, at - 1)
        kind = tag & 7
        if kind == VARINT:
            value = data[at] if at < end else 0x80
            if value < 0x80:
                at += 1
            else:
                value, at = varint(data, at)
            yield tag >> 3, kind, value, 0
        elif kind == BYTES:
            size, at = varint(data, at)
            if at + size > end:
                raise TraceError(f"a field of {size} bytes begins at byte {at} and does not fit into its message")
            yield tag >> 3, kind, at, at + size
            at += size
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if at + size > end:
                raise TraceError(f"a number of {size} bytes does not fit into its message, at byte {at}")
            yield tag >> 3, kind, int.from_bytes(data[at : at + size], "little"), 0
            at += size
        else:
            raise TraceError(f"a field of kind {kind}, which there is not, at byte {at}")


def packed_varints(data: bytes, at: int, end: int) -> list[int]:
    """The numbers of a packed list."""
    found = []
    while at < end:
        value, at = varint(data, at)
        found.append(value)
    if at != end:
        raise TraceError(f"a list of numbers ends in the middle of one, at byte {at}")
    return found


def put_number(value: int) -> bytes:
    """A number as a varint; negative numbers are encoded as 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_varint(field: int, value: int) -> bytes:
    """A field that is a number."""
    return put_number(field << 3 | VARINT) + put_number(value)


def put_double(field: int, value: float) -> bytes:
    """A field that is a double."""
    return put_number(field << 3 | FIXED64) + struct.pack("<d", value)


def put_bytes(field: int, value: bytes) -> bytes:
    """A field that is bytes, a text or a message."""
    return put_number(field << 3 | BYTES) + put_number(len(value)) + value


def put_message(value: bytes) -> bytes:
    """A message with its length before it."""
    return put_number(len(value)) + value
