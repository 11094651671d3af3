"""The command line: what each command does, and the shapes of the JSON that scripts rely on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import choreo
from choreo.algorithms import list_algorithms
from choreo.cli import COMMANDS
from choreo.cli.output.text.plot import plot
from tests.helpers.cli import BROKEN, PRICE_KEYS, fine, record, table
from tests.helpers.command import run_choreo

PROOF_KEYS = {"proved", "failed", "refused", "failures", "refusals"}


# choreo list

# What `price` compares unless told: no switch that reduces is taken for granted.
RANKS_ALONE = {a.name for a in list_algorithms("all_reduce")} - {"in_network"}


def test_list() -> None:
    listed = table("list")
    assert {tuple(sorted(one)) for one in listed} == {("algorithm", "any_ranks", "collective", "cost", "requires")}
    assert [(one["collective"], one["algorithm"]) for one in listed] == [
        (a.collective, a.name) for a in list_algorithms()
    ]
    for one in listed:
        assert one["any_ranks"] is (one["requires"] is None)
        assert one["cost"] is None or isinstance(one["cost"], str)
    printed = fine("list").out
    assert all(str(one["algorithm"]) in printed for one in listed)


def test_list_one_collective() -> None:
    assert {one["collective"] for one in table("list", "broadcast")} == {"broadcast"}
    assert "all_to_all" not in fine("list", "broadcast").out


# choreo prove


@pytest.mark.parametrize(
    "options",
    [
        ["all_reduce", "--algorithm", "ring", "--ranks", "8"],
        ["all_reduce", "-a", "ring", "-p", "8"],
        ["broadcast", "--algorithm", "mst", "--ranks", "5", "--root", "3"],
        ["all_reduce", "--algorithm", "hierarchical", "--axes", "8x4:direct,ring"],
        ["all_reduce", "--algorithm", "hierarchical", "--ranks", "32", "--axes", "8x4:direct,ring", "--rotate"],
        ["broadcast", "--algorithm", "mst", "--ranks", "6", "--segments", "4"],
        ["all_reduce", "--algorithm", "ring", "--ranks", "1"],
        ["all_reduce", "--algorithm", "ring", "--ranks", "300", "--exact"],
    ],
    ids=" ".join,
)
def test_prove_one(options: list[str]) -> None:
    proved = record(fine("prove", *options, "--json"))
    assert set(proved) == PROOF_KEYS | {"proofs"}
    assert (proved["proved"], proved["failed"], proved["refused"]) == (1, 0, 0)
    assert (proved["failures"], proved["refusals"]) == ([], [])
    assert fine("prove", *options).out.startswith("proved exactly: ")


def test_prove_many() -> None:
    assert record(fine("prove", "all_reduce", "-a", "ring", "-p", "2..9,16", "--json"))["proved"] == 9
    count = len(list_algorithms("broadcast"))
    assert record(fine("prove", "broadcast", "-p", "2,3", "--root", "1", "--json"))["proved"] == 2 * count


def test_prove_all() -> None:
    proved = record(fine("prove", "--all", "--ranks", "2..16", "--json"))
    assert set(proved) == PROOF_KEYS
    assert (proved["proved"], proved["failed"], proved["refused"]) == (15 * len(list_algorithms()), 0, 0)
    printed = fine("prove", "--all", "--ranks", "2..3").out
    assert printed == f"{2 * len(list_algorithms())} proved, 0 failed, 0 refused\n"


def test_prove_a_file(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(BROKEN))
    ran = run_choreo("prove", "--schedule", str(file), "--json")
    assert (ran.code, ran.err) == (1, "")
    proved = record(ran)
    assert set(proved) == PROOF_KEYS | {"proofs"}
    assert (proved["proved"], proved["failed"], proved["refused"]) == (0, 1, 0)
    assert proved["failures"] == [
        {
            "collective": "broadcast",
            "algorithm": "mine",
            "ranks": 3,
            "step": 0,
            "rank": 1,
            "chunk": 0,
            "story": "step 0: rank 1 sends chunk 0 to rank 2 before it has it: it arrives only in step 1",
        }
    ]
    told = run_choreo("prove", "--schedule", str(file))
    assert (told.code, told.err) == (1, "")
    assert "FAILED broadcast by mine over 3 ranks" in told.out


# choreo build


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_build(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"s.{suffix}"
    built = record(
        fine("build", "broadcast", "--algorithm", "mst", "--ranks", "6", "--root", "2", "-o", str(file), "--json")
    )
    assert built == {
        "file": str(file),
        "collective": "broadcast",
        "algorithm": "mst",
        "ranks": 6,
        "root": 2,
        "chunks": 1,
        "steps": 3,
        "bytes": file.stat().st_size,
    }
    assert np_rows(choreo.load(file)) == np_rows(choreo.build("broadcast", "mst", 6, root=2))
    assert str(file) in fine("build", "all_gather", "-a", "ring", "-p", "4", "-o", str(file)).out
    assert record(fine("prove", "--schedule", str(file), "--json"))["proved"] == 1


def np_rows(schedule: choreo.Schedule) -> list[list[object]]:
    return [column.tolist() for column in dict(schedule.columns()).values()]


def test_build_turns_one_form_into_the_other(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a.json"), str(tmp_path / "b.npz")
    fine("build", "all_reduce", "-a", "hierarchical", "--axes", "2x3", "--rotate", "-o", first)
    fine("build", "--schedule", first, "--output", second)
    assert np_rows(choreo.load(first)) == np_rows(choreo.load(second))


# choreo price


def test_price() -> None:
    options = ["--size", "1MiB", "--alpha", "5us", "--bandwidth", "50GB/s", "--gamma", "1e-11"]
    prices = table("price", "all_reduce", "--ranks", "8", *options)
    assert {frozenset(one) for one in prices} == {frozenset(PRICE_KEYS)}
    assert {one["algorithm"] for one in prices} == RANKS_ALONE
    totals = [one["total_s"] for one in prices]
    assert totals == sorted(totals)  # type: ignore[type-var]  # numbers, as the next line sees
    (ring,) = table("price", "all_reduce", "--ranks", "8", *options, "--algorithm", "ring")
    size = 1 << 20
    wanted = {
        "alpha_s": 14 * 5e-6,
        "beta_s": 14 / 8 * size / 50e9,
        "gamma_s": 7 / 8 * size * 1e-11,
        "max_bytes_sent": 14 / 8 * size,
        "max_bytes_received": 14 / 8 * size,
        "total_bytes": 14 * size,
        "total_s": 14 * 5e-6 + 14 / 8 * size / 50e9 + 7 / 8 * size * 1e-11,
    }
    assert {name: ring[name] for name in wanted} == pytest.approx(wanted)
    assert (ring["algorithm"], ring["steps"], ring["max_fan_in"]) == ("ring", 14, 1)
    assert ring in prices


def test_price_defaults_and_units() -> None:
    one = ["price", "all_reduce", "-p", "8", "-a", "ring", "--size"]
    assert table(*one, "1MiB") == table(*one, "1048576") == table(*one, "1024KiB", "--alpha", "5us", "--gamma", "0")
    assert table(*one, "1MB") == table(*one, "1000000", "--bandwidth", "400Gbit/s")
    assert table(*one, "1MB") != table(*one, "1MiB")
    assert table(*one, "8", "--gamma", "100GB/s")[0]["gamma_s"] == pytest.approx(7 / 8 * 8 * 1e-11)


def test_price_ports() -> None:
    one = ["price", "all_gather", "-p", "8", "-a", "direct", "--size", "8B", "--alpha", "1s", "--bandwidth", "1B/s"]
    assert [row["total_s"] for row in table(*one)] == [14.0]
    assert [row["total_s"] for row in table(*one, "--ports", "one")] == [14.0]
    assert [row["total_s"] for row in table(*one, "--ports", "all")] == [2.0]
    assert [row["total_s"] for row in table(*one, "--ports", "read")] == [9.0]  # it copies its own as well
    assert [row["total_s"] for row in table(*one, "--ports", "read", "--cores", "2")] == [36.0]


def test_price_axes_rotate_and_segments() -> None:
    one = ["price", "all_reduce", "-p", "32", "--size", "1MiB", "-a", "hierarchical", "--axes", "8x4:direct,ring"]
    assert [row["steps"] for row in table(*one)] == [2 * (1 + 3)]
    assert table(*one, "--rotate") != table(*one)
    assert [row["steps"] for row in table("price", "broadcast", "-a", "linear", "-p", "4", "--size", "8")] == [1]
    cut = table("price", "broadcast", "-a", "linear", "-p", "4", "--size", "8", "--segments", "5")
    assert [row["steps"] for row in cut] == [5]
    among = table("price", "all_reduce", "--axes", "2x4", "--size", "8")
    assert {row["algorithm"] for row in among} == RANKS_ALONE


def test_price_a_file(tmp_path: Path) -> None:
    file = str(tmp_path / "s.npz")
    fine("build", "all_reduce", "-a", "ring", "-p", "8", "-o", file)
    named = table("price", "all_reduce", "-a", "ring", "-p", "8", "--size", "64MiB")
    assert table("price", "--schedule", file, "--size", "64MiB") == named


def test_the_list_of_one_collective_says_what_each_algorithm_does() -> None:
    told = " ".join(fine("list", "all_gather").out.split())
    assert "in step k ranks 2^k apart pass on everything gathered so far" in told
    assert "in step k ranks 2^k apart" not in fine("list").out


def test_price_table() -> None:
    printed = fine("price", "all_reduce", "--ranks", "8", "--size", "1MiB").out
    assert printed.startswith("all_reduce of 1 MiB over 8 ranks: 5.00 us per message, 50.0 GB/s")
    assert printed.count("← best") == 1
    assert all(len(line) <= 130 for line in printed.splitlines())


def test_sweep() -> None:
    sweep = ["price", "all_reduce", "--ranks", "8", "--sweep", "8:1GiB", "--gamma", "1e-11"]
    found = record(fine(*sweep, "--json"))
    assert set(found) == {"ranges"}
    ranges = found["ranges"]
    assert isinstance(ranges, list)
    assert {frozenset(one) for one in ranges} == {frozenset({"from_bytes", "to_bytes", "algorithm"})}
    assert (ranges[0]["from_bytes"], ranges[-1]["to_bytes"]) == (8, 1 << 30)
    assert all(a["to_bytes"] + 1 == b["from_bytes"] for a, b in itertools.pairwise(ranges))
    assert len(ranges) > 1
    for one in ranges:
        best = table(*sweep[:4], "--size", str(one["to_bytes"]), "--gamma", "1e-11")
        won = next(row for row in best if row["algorithm"] == one["algorithm"])
        assert won["total_s"] == pytest.approx(best[0]["total_s"])
    printed = fine(*sweep).out
    title = "all_reduce over 8 ranks: 5.00 us per message, 50.0 GB/s, 100 GB/s reduced, one port each way"
    assert printed.startswith(title)
    assert all(one["algorithm"] in printed for one in ranges)
    assert "└─" in printed


def test_of_equal_curves_that_lose_the_first_is_on_top() -> None:
    times = {"fast": [1.0, 4.0], "first": [2.0, 2.0], "same": [2.0, 2.0]}
    drawn = plot([1, 2], times, ["fast", "first"])
    assert [line.split() for line in drawn[-2:]] == [["●", "fast"], ["○", "first"]]


@pytest.mark.parametrize("sizes", ["0:0", "8:8", "0:8", "1:1GiB", "0:1GiB"])
@pytest.mark.parametrize("ranks", ["1", "2", "5"])
@pytest.mark.parametrize("collective", ["all_reduce", "barrier", "send_recv"])
def test_sweeps_of_any_length(collective: str, ranks: str, sizes: str) -> None:
    fine("price", collective, "--ranks", ranks, "--sweep", sizes)
    assert set(record(fine("price", collective, "--ranks", ranks, "--sweep", sizes, "--json"))) == {"ranges"}


# choreo show


def test_show(tmp_path: Path) -> None:
    ring = ["show", "all_reduce", "--algorithm", "ring", "--ranks", "4"]
    assert fine(*ring).out.startswith("all_reduce by ring: 4 ranks")
    svg, html = tmp_path / "ring.svg", tmp_path / "ring.html"
    assert str(svg) in fine(*ring, "--svg", str(svg)).out
    assert svg.read_text(encoding="utf-8").startswith("<svg ")
    both = fine(*ring, "--svg", str(svg), "--html", str(html)).out
    assert str(svg) in both
    assert str(html) in both
    assert html.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    shown = record(fine(*ring, "--html", str(html), "--json"))
    assert {"collective", "algorithm", "ranks", "root", "chunks", "steps", "proof"} <= set(shown)
    assert (shown["collective"], shown["algorithm"], shown["ranks"]) == ("all_reduce", "ring", 4)


def test_show_a_file_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(BROKEN))
    assert "wrong: step 0: rank 1 sends chunk 0" in fine("show", "--schedule", str(file)).out


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    for flag in ("--help", "-h"):
        assert fine(command, flag).out.startswith(f"Usage: choreo {command}")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("run", "explore")])
def test_every_command_takes_json_as_the_help_says(command: str) -> None:
    assert "--json" in fine("--help").out
    assert "--json" in fine(command, "--help").out


@pytest.mark.parametrize("command", ["plan", "train", "tune", "sweep"])
@pytest.mark.parametrize("columns", [60, 80])
def test_help_breaks_no_name_at_a_hyphen(command: str, columns: int) -> None:
    shown = run_choreo(command, "--help", columns=columns).out
    assert not [line for line in shown.splitlines() if line.endswith("-")]


def test_help_and_version() -> None:
    listed = fine("--help").out
    assert all(command in listed for command in COMMANDS)
    assert fine().out == listed
    assert fine("--version").out == f"choreo, version {choreo.__version__}\n"
