"""Human units: text to numbers and back, decimal against binary, ranges, and what is said of text that is neither."""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from choreo.errors import SizeError, UsageError
from choreo.units import (
    bandwidth_of,
    format_bandwidth,
    format_bytes,
    format_count,
    format_time,
    gamma_of,
    parse_bandwidth,
    parse_gamma,
    parse_rank_range,
    parse_size,
    parse_size_range,
    parse_time,
    size_of,
    time_of,
)

DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZES = {"": 1, "B": 1} | DECIMAL | BINARY
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "ps": 1e-12}
HALF_A_PERCENT = 5.1e-3  # three digits are shown


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("0", 0),
        ("8B", 8),
        ("4KiB", 4096),
        ("4kib", 4096),
        ("4 KiB", 4096),
        (" 4KiB ", 4096),
        ("1MB", 10**6),
        ("1MiB", 2**20),
        ("64MiB", 1 << 26),
        ("1GB", 10**9),
        ("1GiB", 2**30),
        ("1.5GiB", 3 << 29),
        (".5KiB", 512),
        ("2.", 2),
        ("1e3", 1000),
        ("1e3KB", 10**6),
        ("1TiB", 2**40),
        ("1K", 2**10),
        ("32M", 32 << 20),
        ("1.5g", 3 << 29),
        ("1T", 2**40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert isinstance(parse_size(text), int)


@given(st.integers(0, 2**53), st.sampled_from(sorted(SIZES)))
def test_whole_numbers_of_every_unit_are_exact(number: int, unit: str) -> None:
    if number * SIZES[unit] < 2**53:
        assert parse_size(f"{number}{unit}") == number * SIZES[unit]


@given(st.integers(0, 2**63 - 1))
@example(2**53 + 1)
@example(2**63 - 1)
def test_every_number_of_bytes_is_itself(number: int) -> None:
    assert parse_size(str(number)) == number


@given(st.integers(0, 10**12), st.sampled_from(sorted(DECIMAL)))
@example(1001, "KB")
def test_decimal_fractions_are_exact(number: int, unit: str) -> None:
    """1.001KB is 1001 bytes, whatever a binary fraction makes of it."""
    text = f"{Decimal(number) / DECIMAL[unit]:f}{unit}"
    assert parse_size(text) == number


@pytest.mark.parametrize(("unit", "scale"), sorted((DECIMAL | BINARY).items()))
def test_decimal_is_not_binary(unit: str, scale: int) -> None:
    assert parse_size(f"1{unit}") == scale
    assert parse_size(f"1{unit.upper()}") == parse_size(f"1{unit.lower()}") == scale


@given(st.integers(1, 1023), st.sampled_from(sorted(BINARY)))
def test_binary_sizes_come_back(number: int, unit: str) -> None:
    written = format_bytes(number * BINARY[unit])
    assert written == f"{number} {unit}"
    assert parse_size(written) == number * BINARY[unit]


@given(st.integers(0, 2**63 - 1) | st.floats(0.01, 1e18))
def test_a_size_is_written_within_half_a_percent(size: float) -> None:
    number, unit = format_bytes(size).split()
    assert float(number) * SIZES[unit] == pytest.approx(size, rel=HALF_A_PERCENT)
    megabytes = size % 1_000_000 == 0 and size % 65_536 != 0
    assert (unit in BINARY) == (size > 0 and size % 1024 == 0 and not megabytes)


@given(st.floats(1e-15, 1e6), st.sampled_from(sorted(TIMES)))
def test_times(value: float, unit: str) -> None:
    assert parse_time(f"{value!r}{unit}") == pytest.approx(value * TIMES[unit], rel=1e-12)


@given(st.floats(1e-15, 1e6))
def test_a_time_is_written_within_half_a_percent(time_s: float) -> None:
    assert parse_time(format_time(time_s)) == pytest.approx(time_s, rel=HALF_A_PERCENT)


@given(st.floats(1e-3, 1e15))
def test_a_bandwidth_is_written_within_half_a_percent(rate: float) -> None:
    written = format_bandwidth(rate)
    assert written.endswith("B/s")
    assert parse_bandwidth(written) == pytest.approx(rate, rel=HALF_A_PERCENT)


def test_what_is_written() -> None:
    assert [format_bytes(size) for size in (0, 1, 1000, 1024, 1500, 1792 * 1024, 1.5e6, 8 / 3)] == [
        "0 B",
        "1 B",
        "1.00 KB",
        "1 KiB",
        "1.50 KB",
        "1.75 MiB",
        "1.50 MB",
        "2.667 B",
    ]
    assert [format_time(time_s) for time_s in (0, 1, 0.0123, 5e-6, 1.5e-9)] == [
        "0 s",
        "1.00 s",
        "12.3 ms",
        "5.00 us",
        "1.50 ns",
    ]
    assert format_bandwidth(50e9) == "50.0 GB/s"
    assert [format_bandwidth(one) for one in (999_999, 9_999_999, 999_400)] == ["1.00 MB/s", "10.0 MB/s", "999 KB/s"]
    assert [format_time(one) for one in (9.9999e-4, 0.99999, 9.9999e-5)] == ["1.00 ms", "1.00 s", "100 us"]
    assert format_bytes(999_999, binary=False) == "1.00 MB"
    assert [format_bytes(size) for size in (64_000_000, 64 << 20)] == ["64.0 MB", "64 MiB"]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50GB/s", 50e9),
        ("50 GB/s", 50e9),
        ("400Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("50GBps", 50e9),
        ("12.5GiB/s", 12.5 * 2**30),
        ("400Gbit/s", 50e9),
        ("1Tbit/s", 125e9),
        ("8bit/s", 1.0),
        ("7B/s", 7.0),
    ],
)
def test_bandwidths(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


def test_zero_needs_no_unit() -> None:
    assert parse_time("0") == parse_time("0us") == 0
    assert parse_bandwidth("0", may_be_zero=True) == parse_bandwidth("0GB/s", may_be_zero=True) == 0


def test_what_python_callers_may_pass() -> None:
    assert (size_of("1MiB"), size_of(7), size_of(2.5)) == (2**20, 7, 2.5)
    assert (time_of("5us", "alpha_s"), time_of(5, "alpha_s")) == (5e-6, 5)
    assert (bandwidth_of("50GB/s"), bandwidth_of(50e9)) == (50e9, 50e9)
    assert (gamma_of("100GB/s"), gamma_of(1e-11)) == (1e-11, 1e-11)
    assert type(size_of(np.int64(8))) is int  # type: ignore[arg-type]  # NumPy is not in the stubs
    assert type(time_of(np.float32(0.5), "alpha_s")) is float  # type: ignore[arg-type]  # NumPy is not in the stubs
    for wrong in (-1, float("nan"), float("inf"), True, None, [1], 10**400, np.timedelta64(8, "ns")):
        with pytest.raises(UsageError, match=r"size_bytes must be a number of at least 0, or text like '1MiB', not"):
            size_of(wrong)  # type: ignore[arg-type]  # the mistake is the test
    with pytest.raises(UsageError, match="bandwidth_bytes_per_s must be more than 0, not 0"):
        bandwidth_of(0)


def test_gamma_is_seconds_a_byte_or_a_rate() -> None:
    assert parse_gamma("1e-11") == 1e-11
    assert parse_gamma("0") == 0
    assert parse_gamma("100GB/s") == pytest.approx(1e-11)
    assert parse_gamma("800Gbit/s") == pytest.approx(1e-11)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", [8]),
        ("2..5", [2, 3, 4, 5]),
        ("2, 4, 8", [2, 4, 8]),
        ("2..4,8,3", [2, 3, 4, 8]),
        (" 7 ", [7]),
        ("3..3", [3]),
        ("8,2", [8, 2]),
    ],
)
def test_rank_ranges(text: str, counts: list[int]) -> None:
    assert parse_rank_range(text) == counts


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), min_size=1, max_size=5))
def test_rank_ranges_are_in_order_and_each_once(parts: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}..{first + more}" if more else str(first) for first, more in parts)
    wanted = [count for first, more in parts for count in range(first, first + more + 1)]
    assert parse_rank_range(text) == list(dict.fromkeys(wanted))


def test_size_ranges() -> None:
    assert parse_size_range("8:1GiB") == (8, 2**30)
    assert parse_size_range("0:0") == (0, 0)


WRONG = [
    (parse_size, "", "'' is not a size; write 8, 4KiB, 1MB or 64MiB"),
    (parse_size, "-1", "'-1' is not a size"),
    (parse_size, "nan", "'nan' is not a size"),
    (parse_size, "inf", "'inf' is not a size"),
    (parse_size, "1e400", "'1e400' is not a size: 8 EiB or more"),
    (parse_size, "0x10", "unit 'x10' is unknown"),
    (parse_size, "1_000", "unit '_000' is unknown"),
    (parse_size, "1,000", "unit ',000' is unknown"),
    (parse_size, "٣", "is not a size"),
    (parse_size, "八", "is not a size"),
    (parse_size, "4Ki", "unit 'Ki' is unknown; write 8, 4KiB, 1MB (decimal) or 64MiB"),
    (parse_size, "4 K iB", "is not a size"),
    (parse_size, "1.5", "1.5 bytes is not a whole number of bytes"),
    (parse_size, "9e18KB", "8 EiB or more"),
    (parse_size, str(2**63), "8 EiB or more"),
    (parse_size, "9" * 100, "is not a size"),
    (parse_size, "8\n8", "is not a size"),
    (parse_time, "", "'' is not a time; write 5us, 500ns or 1.5ms"),
    (parse_time, "-5us", "is not a time"),
    (parse_time, "5", "'5' is not a time: its unit is missing; write 5us or 5s"),
    (parse_time, "1e-6", "'1e-6' is not a time: its unit is missing; write 1us, or 1e-6s"),
    (parse_time, "2.5e-9", "write 2.5ns, or 2.5e-9s"),
    (
        parse_gamma,
        "1e-3",
        "'1e-3' is not a gamma: its unit is missing; write 1e-3GB/s for a rate of reduction, or seconds",
    ),
    (parse_time, "5 minutes", "unit 'minutes' is unknown"),
    (parse_time, "5us/s", "unit 'us/s' is unknown"),
    (parse_bandwidth, "", "'' is not a bandwidth; write 50GB/s or 400Gbit/s"),
    (parse_bandwidth, "0", "it must be more than zero"),
    (parse_bandwidth, "0GB/s", "it must be more than zero"),
    (parse_bandwidth, "50", "'50' is not a bandwidth: its unit is missing; write 50GB/s or 50Gbit/s"),
    (parse_bandwidth, "50e9", "'50e9' is not a bandwidth: its unit is missing; write 50GB/s or 400Gbit/s"),
    (parse_bandwidth, "50GB", "unit 'GB' is unknown"),
    (parse_bandwidth, "50/s", "unit '/s' is unknown"),
    (parse_bandwidth, "50GB/h", "unit 'GB/h' is unknown"),
    (parse_bandwidth, "1e308GB/s", "is not a bandwidth"),
    (parse_gamma, "1e-320B/s", "is not a gamma"),
    (parse_gamma, "1e-11s", "write seconds per byte, 1e-11, or a rate of reduction, 100GB/s"),
    (parse_gamma, "fast", "'fast' is not a gamma"),
    (parse_gamma, "0GB/s", "it must be more than zero"),
    (parse_size_range, "8", "'8' is not a range of sizes; write FROM:TO, like 8:1GiB"),
    (parse_size_range, "8:9:10", "is not a range of sizes; write FROM:TO"),
    (parse_size_range, ":", "'' is not a size"),
    (parse_size_range, "8..9", "is not a range of sizes"),
    (parse_size_range, "1GiB:8", "1GiB is more than 8; swap them"),
    (parse_rank_range, "", "'' is not a number of ranks; write 8, 2..33 or 2,4,8"),
    (parse_rank_range, ",", "is not a number of ranks"),
    (parse_rank_range, "8,", "is not a number of ranks"),
    (parse_rank_range, "-8", "is not a number of ranks"),
    (parse_rank_range, "2.5", "is not a number of ranks"),
    (parse_rank_range, "2..", "is not a number of ranks"),
    (parse_rank_range, "2...8", "is not a number of ranks"),
    (parse_rank_range, "eight", "is not a number of ranks"),
    (parse_rank_range, "٣", "is not a number of ranks"),
    (parse_rank_range, "0", "asks for 0 ranks; there must be at least 1"),
    (parse_rank_range, "0..4", "asks for 0 ranks; there must be at least 1"),
    (parse_rank_range, "33..2", "33 is more than 2; swap them"),
]


@pytest.mark.parametrize(("parse", "text", "sentence"), WRONG)
def test_what_is_said_of_the_rest(parse: object, text: str, sentence: str) -> None:
    assert callable(parse)
    with pytest.raises(SizeError, match=re.escape(sentence)) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("parse", [parse_size, parse_time, parse_bandwidth, parse_gamma, parse_size_range])
@given(text=st.text(max_size=80) | st.from_regex(r"[0-9.eE+-]{1,12}[a-zA-Z/:]{0,6}", fullmatch=True))
def test_any_text_is_a_number_or_one_sentence(parse: object, text: str) -> None:
    assert callable(parse)
    try:
        value = parse(text)
    except SizeError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert all(0 <= one < float("inf") for one in (value if isinstance(value, tuple) else (value,)))


@pytest.mark.parametrize(
    ("number", "text"), [(70.56e9, "70.6 B"), (999e12, "999 T"), (999.9e12, "1000 T"), (2.25e15, "2250 T"), (12, "12")]
)
def test_counts_have_no_exponent(number: float, text: str) -> None:
    assert format_count(number) == text
