"""`choreo bound`: what it prints, what a script reads, and what it says of mistakes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from tests.helpers.cli import fine, mistake, record
from tests.helpers.command import run_choreo

KEYS = {
    "collective",
    "topology",
    "ranks",
    "size_bytes",
    "bound_s",
    "bandwidth_bound_s",
    "latency_bound_s",
    "crossing_bound_s",
    "crossing_latency_s",
    "fraction",
    "unit",
    "fraction_per_GBps",
    "fraction_in_links",
    "of",
    "of_bytes",
    "exact",
    "proof",
    "cut",
    "farthest",
}

RING = ("--topology", "ring(8)", "--size", "8GB")


def document(*arguments: str) -> dict[str, object]:
    found = record(fine("bound", *arguments, "--json"))
    assert set(found) == KEYS
    return found


@pytest.mark.parametrize(
    ("collective", "topology", "unit", "expected"),
    [
        ("all_gather", "dgx-1", "links", "7/6"),
        ("all_gather", "ring(8)", "links", "7/2"),
        ("all_gather", "torus(4x4)", "links", "15/4"),
        ("all_gather", "mesh(4x4)", "links", "15/2"),
        ("all_gather", "torus(4x4, 45GB/s, 1us)", "links", "15/4"),
        ("all_gather", "dgx-a100:2", "per GB/s", "3/65"),
        ("all_to_all", "dgx-1", "links", "8/3"),
        ("all_to_all", "ring(8)", "links", "8"),
        ("all_to_all", "torus(4x4)", "links", "8"),
        ("all_to_all", "mesh(4x4)", "links", "16"),
    ],
)
def test_known_values(collective: str, topology: str, unit: str, expected: str) -> None:
    found = document(collective, "--topology", topology, "--size", "64MiB")
    assert (found["fraction"], found["unit"], found["exact"]) == (expected, unit, True)


def test_what_a_script_reads() -> None:
    found = document("all_gather", "--topology", "ring(8, 1GB/s, 1us)", "--size", "8GB")
    assert found["bandwidth_bound_s"] == 3.5
    assert found["bound_s"] == found["crossing_bound_s"] == pytest.approx(3.5 + 1e-6)
    assert found["latency_bound_s"] == pytest.approx(4e-6)
    assert (found["of"], found["of_bytes"], found["proof"]) == ("share", 1e9, "cut")
    cut = found["cut"]
    assert isinstance(cut, dict)
    assert set(cut) == {"devices", "links"}
    assert (len(cut["devices"]), len(cut["links"])) == (7, 2)
    assert all(set(link) == {"from", "to", "bandwidth_bytes_per_s"} for link in cut["links"])
    assert found["farthest"] == [0, 4]


def test_prices_and_parts() -> None:
    prices = document("send_recv", *RING)["cut"]
    assert isinstance(prices, dict)
    assert (set(prices), prices["devices"]) == ({"devices", "links", "prices"}, [])
    parts = document("all_reduce", "--topology", "dgx-a100:16", "--size", "1GB")["cut"]
    assert isinstance(parts, dict)
    assert parts["parts"] == [list(range(8 * server, 8 * server + 8)) for server in range(16)]


def test_ranks_and_placement() -> None:
    assert document("all_gather", *RING, "--ranks", "4")["ranks"] == 4
    some = document("all_gather", *RING, "--placement", "0,2..4")
    assert (some["ranks"], some["fraction"]) == (4, "3/2")
    for placement in ("reversed", "random:3"):
        assert document("all_gather", *RING, "--placement", placement)["fraction"] == "7/2"
    assert document("all_gather", *RING, "--placement", "reversed", "-p", "3")["ranks"] == 3
    line = ("--topology", "line(4)", "--size", "4GB")
    assert document("scatter", *line, "--root", "0", "--placement", "reversed")["fraction"] == "3"
    assert document("scatter", *line, "--root", "1")["fraction"] == "2"


def test_slow_links_and_ranks() -> None:
    """The bound of the network that `simulate` and `synthesize` get by the same options."""
    assert document("all_gather", *RING, "--slow-link", "0-1=0")["fraction"] == "7"
    slow = [*RING, "--slow-link", "0-1=0.5", "--slow-rank", "3=2x"]
    simulated = record(fine("simulate", "all_gather", *slow, "--json"))
    assert document("all_gather", *slow)["bound_s"] == simulated["bound_s"]
    assert "there is no rank 9" in mistake("bound", "all_gather", *RING, "--slow-rank", "9=2x")


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text(
        'name = "pair"\ndevices = ["here", "there"]\n[[links]]\nfrom = "here"\nto = "there"\nbandwidth = "1GB/s"'
    )
    printed = fine("bound", "broadcast", "--topology", str(file), "--size", "1GB").out
    assert "broadcast of 1.00 GB over 2 ranks on pair: no schedule takes less than 1.00 s" in printed
    assert "Device here can send only through 1 link of 1.00 GB/s, and 1 vector of 1.00 GB must leave it." in printed


def printed(*arguments: str) -> list[str]:
    return fine("bound", *arguments).out.splitlines()


def test_what_a_person_reads() -> None:
    assert printed("all_gather", "--topology", "ring(8, 50GB/s, 1us)", "--size", "64MiB") == [
        "all_gather of 64 MiB over 8 ranks on ring(8, 50GB/s, 1us): no schedule takes less than 588 us",
        "",
        "bandwidth    587 us  7/2 × a share of 8 MiB at 50.0 GB/s",
        "latency     4.00 us  from 0 to 4, the farthest apart",
        "both         588 us  the bandwidth of a cut, and at least 1.00 us before and after it ← binds",
        "",
        "All devices except device 0 can send only through 2 links, 100 GB/s together, and 7 shares of 8 MiB must "
        "leave them.",
    ]


def test_where_latency_binds() -> None:
    lines = printed("barrier", "--topology", "ring(8, 50GB/s, 1us)")
    assert lines[0] == "barrier over 8 ranks on ring(8, 50GB/s, 1us): no schedule takes less than 4.00 us"
    assert lines[2:] == ["bandwidth       0 s", "latency     4.00 us  from 0 to 4, the farthest apart ← binds"]


def test_one_rank() -> None:
    assert printed("all_reduce", *RING, "-p", "1")[2:] == ["bandwidth       0 s", "latency         0 s"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("all_reduce", "-t", "torus(4x4)", "--size", "1GB"),
            "Each of 16 devices must reach the others and be reached by them: 30 vectors of 1.00 GB, through 64 links, "
            "64.0 GB/s together.",
        ),
        (
            ("all_reduce", "-t", "hgx-h100:16", "--size", "1GB"),
            "Each of 16 groups of 8 devices, like 0 to 7, must reach the others and be reached by them: 30 vectors of "
            "1.00 GB, through 128 links, 6400 GB/s together.",
        ),
        (
            ("broadcast", "-t", "switch(4, oversubscribed=2)", "--size", "1GB"),
            "All messages between 4 devices go through 1 link of 2.00 GB/s: 3 vectors of 1.00 GB.",
        ),
        (
            ("all_gather", "-t", "switch(4, 9GB/s) x switch(3, oversubscribed=2)", "--size", "12GB"),
            "All messages between 3 groups of 4 devices, like 0 to 3, go through 4 links, 6.00 GB/s together: 24 "
            "shares of 1.00 GB.",
        ),
        (
            ("all_to_all", "-t", "torus(4x4)", "--size", "16GB"),
            "Devices 0, 1, 4, 5, 8, 9, 12, 13 can send only through 8 links, 8.00 GB/s together, and 64 shares of "
            "1.00 GB must leave them.",
        ),
        (
            ("all_to_all", "-t", "torus(8x4)", "--size", "32GB"),
            "Devices 0 to 3, 8 to 11, 16 to 19, 24 to 27 can send only through 8 links, 8.00 GB/s together, and 256 "
            "shares of 1.00 GB must leave them.",
        ),
        (
            ("send_recv", "-t", "ring(8)", "--size", "1GB"),
            "No single cut sets the bound, but 8 links, 8.00 GB/s together, do: whichever paths it takes, the traffic "
            "must cross too many of them.",
        ),
        (
            ("send_recv", "-t", "ring(999)", "--size", "1GB"),
            "There may be a better bound: not every possible proof was tried.",
        ),
    ],
)
def test_proofs_in_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in printed(*arguments)


def test_parts_of_different_sizes(tmp_path: Path) -> None:
    file = tmp_path / "leaves.toml"
    links = [(a, b, 100) for a in range(4) for b in range(a)] + [(0, 4, 1), (0, 5, 1), (1, 4, 1), (1, 5, 1), (4, 5, 1)]
    tables = "".join(f'[[links]]\nfrom = {a}\nto = {b}\nbandwidth = "{c}GB/s"\n' for a, b, c in links)
    file.write_text(f'name = "leaves"\ndevices = 6\n{tables}')
    assert document("all_reduce", "-t", str(file), "--size", "1GB")["fraction"] == "2/5"
    assert (
        "Each of 3 groups of devices, the largest of 4, must reach the others and be reached by them: 4 vectors of "
        "1.00 GB, through 10 links, 10.0 GB/s together."
    ) in printed("all_reduce", "-t", str(file), "--size", "1GB")


MISTAKES = [
    (("all_gather", "--size", "1MB"), 'give a network: --topology "ring(8, 50GB/s, 500ns)"'),
    (("all_gather", "-t", "ring(8)"), "say how much: --size S, like 64MiB"),
    (("all_gathr", *RING), "there is no collective 'all_gathr'; did you mean"),
    (("all_gather", "-t", "rong(8)", "--size", "1"), "there is no kind of block 'rong'; did you mean"),
    (("all_gather", *RING, "--ranks", "9"), "9 ranks do not fit on ring(8), which has 8 devices"),
    (("all_gather", *RING, "--ranks", "0"), "there must be at least 1 rank, not 0"),
    (("all_gather", *RING, "--placement", "0,8"), "has no device '8', its devices are 0 to 7"),
    (("all_gather", *RING, "--placement", "0,1", "-p", "3"), "--placement gives 2 devices for 3 ranks"),
    (("all_gather", *RING, "--placement", "x"), "ring(8) has no device 'x'"),
    (("all_gather", *RING, "--root", "1"), "all_gather has no root, but root=1 was given"),
    (("broadcast", *RING, "--root", "8"), "root 8 is not a rank: with 8 ranks it must be 0 to 7"),
    (
        ("broadcast", "-t", "line(2, 0GB/s)", "--size", "1"),
        "there is no way from device 0 to device 1 of line(2, 0GB/s)",
    ),
    (("all_gather", "-t", "ring(8)", "--size", "1XB"), "'1XB' is not a size"),
    ((), "missing argument 'COLLECTIVE'; see choreo bound --help"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[sentence[:30] for _, sentence in MISTAKES])
def test_mistakes(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in mistake("bound", *arguments)


def test_help() -> None:
    ran = run_choreo("bound", "--help")
    assert ran.code == 0
    assert "Compute the least time that any schedule of COLLECTIVE could take" in ran.out


def test_fractions_are_exact() -> None:
    found = document("all_gather", "-t", "ring(3, 7GB/s)", "--size", "1MB")
    assert Fraction(str(found["fraction_per_GBps"])) == Fraction(2, 14)
    assert (found["fraction"], found["unit"]) == ("1", "links")
