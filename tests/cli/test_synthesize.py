"""`choreo synthesize`: traffic and shares on the command line, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cli import fine, mistake, record

RING = ("-t", "ring(3, 50GB/s, 1us)", "--size", "1MiB")


def test_traffic_is_read_from_a_file(tmp_path: Path) -> None:
    traffic = tmp_path / "traffic"
    traffic.write_text("0 5 1  # from rank 0\n\n1,0,1\n1 1 0\n")
    made = record(fine("synthesize", "all_to_all", "--traffic", str(traffic), *RING, "--json"))
    even = record(fine("synthesize", "all_to_all", *RING, "--json"))
    assert made["bound_s"] != even["bound_s"]


def test_shares_are_read() -> None:
    made = record(fine("synthesize", "all_gather", "--shares", "1,1,4", *RING, "--json"))
    even = record(fine("synthesize", "all_gather", *RING, "--json"))
    assert made["bound_s"] != even["bound_s"]
    assert made.keys() - even.keys() == {"shares"}


def test_the_keys_of_the_document() -> None:
    made = record(fine("synthesize", "all_gather", *RING, "--json"))
    names = "collective topology ranks size_bytes generator time_s bound_s efficiency library made_in_s"
    assert list(made) == names.split()
    assert isinstance(made["library"], dict)
    assert list(made["library"]) == ["algorithm", "time_s", "efficiency"]


def test_a_time_of_any_length_stands_apart() -> None:
    slow = ("-t", "ring(4, 1GB/s, 1us)", "--size", "1MiB", "--slow-link", "0-1=1e-12")
    assert "the library  1.05e+09 s  0.0 % of the bound" in str(fine("synthesize", "broadcast", *slow))


def test_packets_are_reported() -> None:
    said = fine("synthesize", "all_gather", *RING, "--packets", "--buffer", "1MiB")
    assert "1 MiB per switch, lossless, ecmp; packets of 4 KiB" in str(said)
    assert "add --packets" in mistake("synthesize", "all_gather", *RING, "--buffer", "1MiB")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 2\n\n3", "line 3 has 1 number, but the first has 2"),
        ("# none", "has no numbers"),
        ("a b\nc d", "must be numbers"),
        ("1 2\n3 4", "3 x 3 numbers, a row and a column for each rank, not 2 x 2"),
    ],
)
def test_other_traffic_is_refused(tmp_path: Path, text: str, says: str) -> None:
    traffic = tmp_path / "traffic"
    traffic.write_text(text)
    assert says in mistake("synthesize", "all_to_all", "--traffic", str(traffic), *RING)


def test_an_exact_search_tells_what_it_proved_and_what_it_does_not_do() -> None:
    said = str(fine("synthesize", "all_gather", *RING, "--effort", "exact"))
    assert "Exact search: " in said and "the fewest possible" in said
    assert "use effort medium or high" in mistake("synthesize", "barrier", *RING[:2], "--effort", "exact")


def test_shares_that_stay_equal_are_said_to() -> None:
    assert "blocks are equal" in str(fine("synthesize", "all_gather", *RING, "--shares", "auto"))


def test_shares_that_are_no_numbers_are_refused() -> None:
    assert "--shares must be numbers" in mistake("synthesize", "all_gather", "--shares", "1,x,4", *RING)


def test_build_and_show_take_what_it_is_made_for(tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    said = record(fine("build", "all_gather", "-a", "synthesized", *RING, "--output", str(made), "--json"))
    assert (said["algorithm"], said["ranks"]) == ("synthesized", 3)
    assert "proved" in str(fine("prove", "--schedule", str(made)))
    assert "all_gather by synthesized" in str(fine("show", "all_gather", "-a", "synthesized", *RING))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-a", "ring", "-p", "3", "--size", "1MiB"), "with --algorithm synthesized"),
        (("-a", "synthesized", "-p", "3"), "-a synthesized -t T --size S"),
        (("-a", "synthesized", "-t", "ring(3)"), "say how much"),
        (("-a", "synthesized", *RING, "--segments", "2"), "leave out --segments"),
        (("-a", "synthesized", "-t", "ring(3)", "--format", "mscll"), "did you mean 'msccl'"),  # before it is made
    ],
)
def test_build_says_what_is_missing(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    assert says in mistake("build", "all_gather", *arguments, "--output", str(tmp_path / "made.json"))
