"""Human units at the edge: text to bytes, seconds and bytes a second, and back.

`KB`, `MB`, `GB` are decimal and `KiB`, `MiB`, `GiB` binary, as the international standard has them. A bare `K`, `M`,
`G` or `T` is binary, as in nccl-tests: `32M` is 32 MiB. A bare number of bytes is a size; a time or a bandwidth needs
its unit. Nothing here imports numpy.

`parse_size` and the like read text. `size_of` and the like take what a Python caller may pass, a number or text.
"""

from __future__ import annotations

import contextlib
import math
import re
from fractions import Fraction
from numbers import Integral, Real

from choreo.checks import is_whole
from choreo.errors import SizeError, UsageError, excerpt

__all__ = [
    "BEYOND_MEASURE",
    "bandwidth_of",
    "counted",
    "format_bandwidth",
    "format_bytes",
    "format_count",
    "format_time",
    "gamma_of",
    "parse_bandwidth",
    "parse_gamma",
    "parse_message_rate",
    "parse_rank_range",
    "parse_size",
    "parse_size_range",
    "parse_time",
    "rate_of",
    "size_of",
    "time_of",
]

MAX_COUNTS = 100_000
MANY = 10**5  # more than anybody's GB/s: a number like that has no unit because it is in bytes
BEYOND_MEASURE = 1e100  # bytes or seconds: products of three such are still numbers
MOST_GAMMA = Fraction(1, 1000)  # seconds per byte: a number this large without a unit is not meant in seconds per byte

_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DECIMAL = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
_BYTES = {"": 1, "b": 1} | {unit.lower(): scale for unit, scale in (*_BINARY, *_DECIMAL)}
_BYTES |= {unit[0].lower(): scale for unit, scale in _BINARY}
_SECONDS = {"s": "1", "ms": "1e-3", "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ns": "1e-9", "ps": "1e-12"}
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(\S*)\s*")
# Bits or bytes is a matter of case, and a factor of eight: 400Gb/s, 400Gbit/s and 400Gbps are bits, 50GB/s bytes.
_BITS_A_SECOND = re.compile(r"([kKMGT]?)(?:b/s|bps|[bB]it/s)")
_BYTES_A_SECOND = re.compile(r"([kKMGT]?|[KMGT]i)B(?:/s|ps)")


def parse_size(text: str) -> int:
    """Bytes in `8`, `4KiB`, `1MB` (decimal), `64MiB`, `1.5GiB`, `32M` (binary, as in nccl-tests).

    >>> parse_size("32M") == parse_size("32MiB") == 32 * 2**20
    True
    """
    value, unit = _split(text, "a size", "8, 4KiB, 1MB or 64MiB")
    if unit.lower() not in _BYTES:
        raise SizeError(f"{text!r} is not a size: unit {unit!r} is unknown; write 8, 4KiB, 1MB (decimal) or 64MiB")
    size = value * _BYTES[unit.lower()]
    if size >= 2**63:
        raise SizeError(f"{text!r} is not a size: 8 EiB or more")
    if size.denominator != 1:
        raise SizeError(f"{text!r} is not a size: {float(size):g} bytes is not a whole number of bytes")
    return int(size)


def parse_time(text: str) -> float:
    """Seconds in `5us`, `1.5ms`, `500ns`, `2s`; only zero needs no unit.

    >>> parse_time("1.5ms")
    0.0015
    """
    value, unit = _split(text, "a time", "5us, 500ns or 1.5ms")
    if unit == "":
        if value:
            raise SizeError(f"{text!r} is not a time: its unit is missing; write {_with_unit(text.strip(), value)}")
        return 0.0
    if unit not in _SECONDS:
        raise SizeError(f"{text!r} is not a time: unit {unit!r} is unknown; write 5us, 500ns or 1.5ms")
    seconds = value * Fraction(_SECONDS[unit])
    if seconds > BEYOND_MEASURE:
        raise SizeError(f"{text!r} is not a time: it is beyond all measure; write 5us, 500ns or 1.5ms")
    return float(seconds)


def parse_bandwidth(text: str, *, may_be_zero: bool = False) -> float:
    """Bytes a second in `50GB/s`, `12.5GiB/s`, `400Gbit/s`, `400Gbps`.

    A link that is down has none: where it `may_be_zero`, `0` and `0GB/s` are bandwidths too.

    >>> parse_bandwidth("400Gbit/s")
    50000000000.0
    """
    value, unit = _split(text, "a bandwidth", "50GB/s or 400Gbit/s")
    bits, in_bytes = _BITS_A_SECOND.fullmatch(unit), _BYTES_A_SECOND.fullmatch(unit)
    if bits:
        rate = value * _PREFIXES[bits[1].lower()] / 8
    elif in_bytes:
        rate = value * _BYTES[f"{in_bytes[1]}B".lower()]
    elif unit:
        raise SizeError(
            f"{text!r} is not a bandwidth: unit {unit!r} is unknown; write 50GB/s for bytes or 400Gbit/s for bits"
        )
    elif value:
        number = text.strip()
        likely = f"{number}GB/s or {number}Gbit/s" if value < MANY else "50GB/s or 400Gbit/s"
        raise SizeError(f"{text!r} is not a bandwidth: its unit is missing; write {likely}")
    else:
        rate = value
    return 0.0 if may_be_zero and rate == 0 else _rate(text, rate, "a bandwidth")


def parse_gamma(text: str) -> float:
    """Seconds per reduced byte: a small number (`1e-11`), or the rate a rank reduces at (`100GB/s`)."""
    if "/" in text or text.strip().endswith("ps"):
        return _rate(text, 1 / Fraction(parse_bandwidth(text)), "a gamma")
    value, unit = _split(text, "a gamma", "1e-11 (seconds per byte) or 100GB/s")
    if unit:
        raise SizeError(f"{text!r} is not a gamma; write seconds per byte, 1e-11, or a rate of reduction, 100GB/s")
    if value >= MOST_GAMMA:
        number = text.strip()
        raise SizeError(
            f"{text!r} is not a gamma: its unit is missing; write {number}GB/s for a rate of reduction, or seconds "
            "per byte, like 1e-11"
        )
    return float(value)


def parse_message_rate(text: str) -> float:
    """Messages a second in `200M/s`, `1.5M`, `50K/s` or `1e6`.

    >>> parse_message_rate("200M/s")
    200000000.0
    """
    value, unit = _split(text, "a message rate", "200M/s")
    prefix = unit.removesuffix("/s").lower()
    if prefix not in _PREFIXES:
        raise SizeError(f"{text!r} is not a message rate: unit {unit!r} is unknown; write 200M/s or 50K/s")
    return _rate(text, value * _PREFIXES[prefix], "a message rate")


def size_of(value: float | str, name: str = "size_bytes") -> float:
    """A size that a caller gave: bytes, or text like `64MiB`.

    >>> size_of("1MiB"), size_of(1000)
    (1048576, 1000)
    """
    return parse_size(value) if isinstance(value, str) else _number(value, name, "a number of at least 0", "1MiB")


def time_of(value: float | str, name: str) -> float:
    """A time that a caller gave: seconds, or text like `5us`.

    >>> time_of("5us", "alpha_s"), time_of(1.5, "alpha_s")
    (5e-06, 1.5)
    """
    return parse_time(value) if isinstance(value, str) else _number(value, name, "a time of at least 0 seconds", "5us")


def bandwidth_of(value: float | str, name: str = "bandwidth_bytes_per_s", *, may_be_zero: bool = False) -> float:
    """A bandwidth that a caller gave: bytes a second, or text like `50GB/s`.

    >>> bandwidth_of("50GB/s") == bandwidth_of(50e9)
    True
    """
    if isinstance(value, str):
        return parse_bandwidth(value, may_be_zero=may_be_zero)
    rate = _number(value, name, "a number of at least 0", "50GB/s")
    if rate == 0 and not may_be_zero:
        raise UsageError(f"{name} must be more than 0, not {value!r}")
    return rate


def rate_of(value: float | str, name: str = "message_rate") -> float:
    """A message rate that a caller gave: messages a second, or text like `200M/s`.

    >>> rate_of("200M/s") == rate_of(2e8)
    True
    """
    if isinstance(value, str):
        return parse_message_rate(value)
    rate = _number(value, name, "a number of more than 0", "200M/s")
    if rate == 0:
        raise UsageError(f"{name} must be more than 0, not {value!r}; leave it out where messages are not limited")
    return rate


def gamma_of(value: float | str, name: str = "gamma_s_per_byte") -> float:
    """A cost of reduction that a caller gave: seconds per byte, or the rate as text, like `100GB/s`.

    >>> gamma_of("100GB/s")
    1e-11
    """
    if isinstance(value, str):
        return parse_gamma(value)
    return _number(value, name, "a number of at least 0", "100GB/s")


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
        if last - first >= MAX_COUNTS:
            raise SizeError(f"{text!r} is {last - first + 1} numbers of ranks; at most {MAX_COUNTS} can be asked for")
        counts.extend(range(first, last + 1))
    return list(dict.fromkeys(counts))


def format_bytes(size_bytes: float, *, binary: bool | None = None) -> str:
    """A size as people write it, `64 MiB` or `1.50 MB`: binary if told, or if it is a whole number of KiB.

    64 MB are such a number too, and stay what they are: three digits say them exactly in decimal units alone.
    """
    if binary is None:
        binary = size_bytes % 1024 == 0 and not (size_bytes % 1_000_000 == 0 and size_bytes % 65_536)
    for unit, scale in _BINARY if binary else _DECIMAL:
        if (size_bytes if binary else _rounded(size_bytes)) >= scale:
            exact = binary and size_bytes % (scale / 16) == 0
            return f"{size_bytes / scale:.6g} {unit}" if exact else f"{_three_digits(size_bytes / scale)} {unit}"
    return f"{size_bytes:.4g} B"


def format_time(time_s: float) -> str:
    """A time as people write it: `12.3 us`."""
    if time_s == 0 or not math.isfinite(time_s):
        return f"{time_s:g} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(_rounded(time_s)) >= scale:
            return f"{_three_digits(time_s / scale)} {unit}"
    return f"{_three_digits(time_s / 1e-9)} ns"


def format_bandwidth(bytes_per_s: float) -> str:
    """A bandwidth as people write it: `50.0 GB/s`."""
    unit, scale = next((pair for pair in _DECIMAL[1:] if _rounded(bytes_per_s) >= pair[1]), ("B", 1))
    return f"{_three_digits(bytes_per_s / scale)} {unit}/s"


def format_count(number: float) -> str:
    """A large number as people write it.

    >>> format_count(70.56e9)
    '70.6 B'
    """
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= scale:
            text = f"{number / scale:.3g}"
            return f"{number / scale:.0f} {unit}" if "e" in text else f"{text} {unit}"
    return f"{number:.3g}"


def counted(number: int, noun: str, several: str | None = None) -> str:
    """`1 rank`, `2 ranks`; where the plural is not the noun and an s, `several` is."""
    return f"{number} {noun}" if number == 1 else f"{number} {several or noun + 's'}"


def _with_unit(text: str, value: Fraction) -> str:
    """What a time without a unit could mean: a small number is seconds."""
    if value >= Fraction(1, 1000):
        return f"{text}us or {text}s"
    unit = next((unit for unit in ("us", "ns", "ps") if value >= Fraction(_SECONDS[unit])), "ps")
    return f"{float(value / Fraction(_SECONDS[unit])):g}{unit}, or {text}s"


def _rounded(value: float) -> float:
    """To three digits, so that a little less than 1 MB is not 1000 KB."""
    return float(f"{value:.3g}")


def _three_digits(value: float) -> str:
    value = _rounded(value)
    if not 1e-6 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _number(value: object, name: str, what: str, example: str) -> float:
    """A number that is not negative and not beyond all measure; NumPy's become Python's."""
    number: float = math.nan
    if is_whole(value):
        number = int(value)
    elif isinstance(value, Real) and not isinstance(value, Integral):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not 0 <= number <= BEYOND_MEASURE:
        raise UsageError(f"{name} must be {what}, or text like {example!r}, not {excerpt(value)}")
    return number


def _rate(text: str, rate: Fraction, what: str) -> float:
    if not 0 < rate <= BEYOND_MEASURE:
        raise SizeError(f"{text!r} is not {what}: it must be more than zero and not beyond all measure")
    return float(rate)


def _split(text: str, what: str, examples: str) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(text) if len(text) <= 64 else None
    if match is None or len(match[1].lower().partition("e")[2]) > 4:
        raise SizeError(f"{text[:64]!r} is not {what}; write {examples}")
    return Fraction(match[1]), match[2]
