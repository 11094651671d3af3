"""Human units at the edge: text to bytes, seconds and bytes a second, and back.

`KB`, `MB`, `GB` are decimal and `KiB`, `MiB`, `GiB` binary, as the international standard has them. Nothing here
imports numpy.
"""

from __future__ import annotations

import math
import re

from choreo.errors import SizeError

__all__ = [
    "format_bandwidth",
    "format_bytes",
    "format_time",
    "parse_bandwidth",
    "parse_gamma",
    "parse_rank_range",
    "parse_size",
    "parse_size_range",
    "parse_time",
]

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DECIMAL = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "ps": 1e-12}
_BITS = {"bit/s": 1, "kbit/s": 10**3, "mbit/s": 10**6, "gbit/s": 10**9, "tbit/s": 10**12}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(\S*)\s*")


def parse_size(text: str) -> int:
    """Bytes in `8`, `4KiB`, `1MB` (decimal), `64MiB`, `1.5GiB`."""
    value, unit = _split(text, "a size", "8, 4KiB, 1MB or 64MiB")
    if unit.lower() not in _BYTES:
        raise SizeError(f"{text!r} is not a size: unit {unit!r} is unknown; write 8, 4KiB, 1MB (decimal) or 64MiB")
    size = value * _BYTES[unit.lower()]
    if not size < 2**63:
        raise SizeError(f"{text!r} is not a size: more than 8 EiB")
    if size != int(size):
        raise SizeError(f"{text!r} is not a size: {size:g} bytes is not a whole number of bytes")
    return int(size)


def parse_time(text: str) -> float:
    """Seconds in `5us`, `1.5ms`, `500ns`, `2` (seconds)."""
    value, unit = _split(text, "a time", "5us, 500ns or 1.5ms")
    if unit.lower() not in _SECONDS:
        raise SizeError(f"{text!r} is not a time: unit {unit!r} is unknown; write 5us, 500ns or 1.5ms")
    return value * _SECONDS[unit.lower()]


def parse_bandwidth(text: str) -> float:
    """Bytes a second in `50GB/s`, `12.5GiB/s`, `400Gbit/s`; a bare number is bytes a second."""
    value, unit = _split(text, "a bandwidth", "50GB/s or 400Gbit/s")
    unit = unit.lower()
    if unit in _BITS:
        rate = value * _BITS[unit] / 8
    elif unit == "" or (unit.endswith("/s") and unit[:-2] in _BYTES and unit != "/s"):
        rate = value * _BYTES[unit.removesuffix("/s")]
    else:
        raise SizeError(f"{text!r} is not a bandwidth: unit {unit!r} is unknown; write 50GB/s or 400Gbit/s")
    if rate <= 0:
        raise SizeError(f"{text!r} is not a bandwidth: it must be more than zero")
    return rate


def parse_gamma(text: str) -> float:
    """Seconds a reduced byte: a number (`1e-11`), or the rate a rank reduces at (`100GB/s`)."""
    if "/" in text:
        return 1.0 / parse_bandwidth(text)
    value, unit = _split(text, "a gamma", "1e-11 (seconds a byte) or 100GB/s")
    if unit:
        raise SizeError(f"{text!r} is not a gamma; write seconds a byte, 1e-11, or a rate of reduction, 100GB/s")
    return value


def parse_size_range(text: str) -> tuple[int, int]:
    """The two ends of `8:1GiB`."""
    ends = text.split(":")
    if len(ends) != 2:
        raise SizeError(f"{text!r} is not a range of sizes; write FROM:TO, like 8:1GiB")
    first, last = parse_size(ends[0]), parse_size(ends[1])
    if first > last:
        raise SizeError(f"{text!r} is not a range of sizes: {ends[0]} is more than {ends[1]}; swap them")
    return first, last


def parse_rank_range(text: str) -> list[int]:
    """Numbers of ranks in `8`, `2..33`, `2,4,8` or a mixture, in order, each once."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise SizeError(f"{text!r} is not a number of ranks; write 8, 2..33 or 2,4,8")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if first < 1:
            raise SizeError(f"{text!r} asks for {first} ranks; there must be at least 1")
        if last < first:
            raise SizeError(f"{text!r} is not a range of ranks: {first} is more than {last}; swap them")
        counts.extend(range(first, last + 1))
    return list(dict.fromkeys(counts))


def format_bytes(size_bytes: float) -> str:
    """A size as people write it: `64 MiB`, `1.75 MiB` for whole KiB, else `1.50 MB`."""
    if size_bytes and size_bytes % 1024 == 0:
        unit, scale = next(pair for pair in _BINARY if size_bytes >= pair[1])
        return f"{size_bytes / scale:.4g} {unit}"
    for unit, scale in _DECIMAL:
        if size_bytes >= scale:
            return f"{_three_digits(size_bytes / scale)} {unit}"
    return f"{size_bytes:.4g} B"


def format_time(time_s: float) -> str:
    """A time as people write it: `12.3 us`."""
    if time_s == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(time_s) >= scale:
            return f"{_three_digits(time_s / scale)} {unit}"
    return f"{_three_digits(time_s / 1e-9)} ns"


def format_bandwidth(bytes_per_s: float) -> str:
    """A bandwidth as people write it: `50 GB/s`."""
    return f"{_three_digits(bytes_per_s / 1e9)} GB/s"


def _three_digits(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{digits}f}"


def _split(text: str, what: str, examples: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 64:
        raise SizeError(f"{text[:64]!r} is not {what}; write {examples}")
    value = float(match[1])
    if math.isinf(value):
        raise SizeError(f"{text!r} is not {what}: the number is too large")
    return value, match[2]
