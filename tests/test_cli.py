"""The command line: what scripts rely on, and one sentence for every mistake."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran, run_choreo

import choreo
from choreo.algorithms import list_algorithms
from choreo.cli import COMMANDS

CHOREO = Path(sys.executable).with_name("choreo")

PRICE_KEYS = {
    "algorithm",
    "steps",
    "alpha_s",
    "beta_s",
    "gamma_s",
    "total_s",
    "max_bytes_sent",
    "max_bytes_received",
    "max_fan_in",
    "total_bytes",
}
PROOF_KEYS = {"proved", "failed", "refused", "failures", "refusals"}
FAILURE_KEYS = {"collective", "algorithm", "ranks", "step", "rank", "chunk", "story"}


def fine(*arguments: str) -> Ran:
    """A command that must end well and say nothing on stderr."""
    ran = run_choreo(*arguments)
    assert (ran.code, ran.err) == (0, "")
    return ran


def table(*arguments: str) -> list[dict[str, object]]:
    found = fine(*arguments, "--json").json
    assert isinstance(found, list)
    return found


def record(ran: Ran) -> dict[str, object]:
    found = ran.json
    assert isinstance(found, dict)
    return found


def is_one_sentence(code: int, out: str, err: str) -> bool:
    return (
        code == 2
        and out == ""
        and err.startswith("choreo: ")
        and err.endswith("\n")
        and len(err.splitlines()) == 1
        and "Traceback" not in err
    )


def mistake(*arguments: str) -> str:
    """The one sentence that a command is refused with."""
    ran = run_choreo(*arguments)
    assert is_one_sentence(ran.code, ran.out, ran.err), ran
    return ran.err.removeprefix("choreo: ").removesuffix("\n")


def process(
    *arguments: str, limit_bytes: int | None = None, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`choreo` as a process of its own."""

    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    return subprocess.run(
        [str(CHOREO), *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=limit,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | environment,
    )


# choreo list


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


BROKEN = {
    "collective": "broadcast",
    "ranks": 3,
    "algorithm": "mine",
    "steps": [[{"src": 1, "dst": 2, "chunk": 0}], [{"src": 0, "dst": 1, "chunk": 0}]],
}


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
    assert {one["algorithm"] for one in prices} == {a.name for a in list_algorithms("all_reduce")}
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


def test_price_axes_rotate_and_segments() -> None:
    one = ["price", "all_reduce", "-p", "32", "--size", "1MiB", "-a", "hierarchical", "--axes", "8x4:direct,ring"]
    assert [row["steps"] for row in table(*one)] == [2 * (1 + 3)]
    assert table(*one, "--rotate") != table(*one)
    assert [row["steps"] for row in table("price", "broadcast", "-a", "linear", "-p", "4", "--size", "8")] == [1]
    cut = table("price", "broadcast", "-a", "linear", "-p", "4", "--size", "8", "--segments", "5")
    assert [row["steps"] for row in cut] == [5]
    among = table("price", "all_reduce", "--axes", "2x4", "--size", "8")
    assert {row["algorithm"] for row in among} == {a.name for a in list_algorithms("all_reduce")}


def test_price_a_file(tmp_path: Path) -> None:
    file = str(tmp_path / "s.npz")
    fine("build", "all_reduce", "-a", "ring", "-p", "8", "-o", file)
    named = table("price", "all_reduce", "-a", "ring", "-p", "8", "--size", "64MiB")
    assert table("price", "--schedule", file, "--size", "64MiB") == named


def test_price_table() -> None:
    printed = fine("price", "all_reduce", "--ranks", "8", "--size", "1MiB").out
    assert printed.startswith("all_reduce of 1 MiB over 8 ranks: 5.00 us a message, 50.0 GB/s")
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
    assert all(one["algorithm"] in printed for one in ranges)
    assert "└─" in printed


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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_json_as_the_help_says(command: str) -> None:
    assert "--json" in fine("--help").out
    assert "--json" in fine(command, "--help").out


def test_help_and_version() -> None:
    listed = fine("--help").out
    assert all(command in listed for command in COMMANDS)
    assert fine().out == listed
    assert fine("--version").out == f"choreo, version {choreo.__version__}\n"


def test_tour() -> None:
    printed = fine("tour").out
    assert "proved" in printed


# Mistakes

RING = ["all_reduce", "-a", "ring", "-p", "4"]
MST = ["broadcast", "-a", "mst", "-p", "4"]
SIZE = ["--size", "8"]

MISTAKES: list[tuple[list[str], str]] = [
    # commands
    (["prvoe"], "there is no command 'prvoe'; did you mean 'prove' or"),
    ([""], "there is no command ''"),
    (["--nonsense"], "no such option '--nonsense'; see choreo --help"),
    (["list", "--nonsense"], "see choreo list --help"),
    (["prove", "--rank", "4"], "--rank"),
    (["prove", "all_reduce", "ring"], "unexpected extra argument (ring)"),
    (["列表"], "there is no command '列表'"),
    # names
    (["list", "allreduce"], "there is no collective 'allreduce'; did you mean 'all_reduce'"),
    (["list", ""], "there is no collective ''; known: all_gather, "),
    (["list", "two\nlines"], "there is no collective 'two\\nlines'"),
    (["list", "😀"], "there is no collective '😀'"),
    (["prove", "al_reduce", "-a", "ring", "-p", "4"], "did you mean 'all_reduce'"),
    (["prove", "all_reduce", "-a", "rign", "-p", "4"], "there is no all_reduce algorithm 'rign'; did you mean 'ring'?"),
    (["prove", "all_reduce", "-a", "", "-p", "4"], "there is no all_reduce algorithm ''"),
    (["prove", "--all", "-a", "rign", "-p", "4"], "'ring'"),
    (["price", "all_reduce", "-a", "rign", "-p", "4", *SIZE], "did you mean 'ring'?"),
    (["show", "all_reduce", "-a", "rign", "-p", "4"], "did you mean 'ring'?"),
    (["build", "all_reduce", "-a", "rign", "-p", "4", "-o", "x.json"], "did you mean 'ring'?"),
    (["prove", "all_to_all", "-a", "ring", "-p", "4"], "ring does not do all_to_all, only "),
    # what is missing
    (["prove"], "say what to prove: COLLECTIVE and --algorithm, --schedule FILE, or --all"),
    (["prove", "all_reduce"], "say how many ranks: --ranks 8"),
    (["prove", "--all"], "say how many ranks: --ranks 8"),
    (["price"], "give either --size S for a table or --sweep FROM:TO"),
    (["price", *SIZE], "say what to price: COLLECTIVE, or --schedule FILE"),
    (["price", "all_reduce", *SIZE], "say how many ranks: --ranks P"),
    (["price", *RING], "give either --size S"),
    (["show"], "say which schedule: COLLECTIVE and one --algorithm, or --schedule FILE"),
    (["show", "all_reduce", "-p", "4"], "say which schedule"),
    (["show", "all_reduce", "-a", "ring"], "say how many ranks"),
    (["build", *RING], "missing option '--output' / '-o'"),
    (["build", "-o", "x.json"], "say which schedule"),
    (["prove", *RING[:-1]], "requires an argument"),
    # ranks
    (["prove", "all_reduce", "-a", "ring", "-p", "0"], "there must be at least 1"),
    (["prove", "all_reduce", "-a", "ring", "-p", "-1"], "'-1' is not a number of ranks"),
    (["prove", "all_reduce", "-a", "ring", "-p", ""], "'' is not a number of ranks; write 8, 2..33 or 2,4,8"),
    (["prove", "all_reduce", "-a", "ring", "-p", "nan"], "is not a number of ranks"),
    (["prove", "all_reduce", "-a", "ring", "-p", "٤"], "is not a number of ranks"),
    (["prove", "--all", "-p", "33..2"], "33 is more than 2; swap them"),
    (["prove", "--all", "-p", "0..4"], "there must be at least 1"),
    (["prove", "all_reduce", "-a", "ring", "-p", "1" + "0" * 30], "is not a number of ranks"),
    (["price", "all_reduce", "-p", "0", *SIZE], "ranks must be a whole number from 1 to 4194304, not 0"),
    (["price", "all_reduce", "-p", "-3", *SIZE], "from 1 to 4194304, not -3"),
    (["price", "all_reduce", "-p", "2..4", *SIZE], "'2..4' is not a valid integer"),
    (["price", "all_reduce", "-p", "eight", *SIZE], "'eight' is not a valid integer"),
    (["price", "all_reduce", "-p", "", *SIZE], "is not a valid integer"),
    (["price", "all_reduce", "-p", "4.0", *SIZE], "is not a valid integer"),
    (["show", "all_reduce", "-a", "ring", "-p", "0"], "from 1 to 4194304, not 0"),
    (["build", "all_reduce", "-a", "ring", "-p", "5000000", "-o", "x.json"], "from 1 to 4194304, not 5000000"),
    # roots
    (["prove", *MST, "--root", "4"], "root 4 is not a rank: with 4 ranks it must be 0 to 3"),
    (["prove", *MST, "--root", "-1"], "root -1 is not a rank"),
    (["price", *MST, "--root", "9", *SIZE], "root 9 is not a rank"),
    (["price", "broadcast", "-p", "4", "--root", "9", *SIZE], "root 9 is not a rank"),
    (["show", *MST, "--root", "4"], "root 4 is not a rank"),
    (["prove", *MST, "--root", "first"], "'first' is not a valid integer"),
    (["prove", *RING, "--root", "0"], "all_reduce has no root, but root=0 was given; leave it out"),
    (["price", "all_reduce", "-p", "4", "--root", "0", *SIZE], "all_reduce has no root"),
    # segments
    (["prove", *RING, "--segments", "0"], "segments must be a whole number of at least 1, not 0"),
    (["prove", *RING, "--segments", "-2"], "at least 1, not -2"),
    (["prove", *RING, "--segments", "many"], "'many' is not a valid integer"),
    # axes
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "3x3"], "axes 3 x 3 make 9 ranks, not 8"),
    (["price", "all_reduce", "-p", "8", "--axes", "3x3", *SIZE], "axes 3 x 3 make 9 ranks, not 8"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", ""], "'' are not axes; write sizes"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2×4"], "are not axes"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2x-4"], "are not axes"),
    (
        ["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "0x8"],
        "the size of an axis must be a whole number of at least 1, not 0",
    ),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2x4:ring"], "2 sizes but 1 name;"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2x4:rign,ring"], "did you mean 'ring'"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2x4:,"], "no algorithm to run along an axis"),
    (["prove", "all_gather", "-a", "hierarchical", "--axes", "2x4:mst,linear"], "does no all_gather along an axis"),
    (["prove", *RING, "--axes", "2x2"], "all_reduce by ring takes no axes; leave it out"),
    (["prove", *RING, "--rotate"], "all_reduce by ring takes no rotate; leave it out"),
    (["show", *RING, "--axes", "2x2", "--rotate"], "takes no axes; leave it out"),
    (["price", "all_to_all", "-p", "8", "--axes", "2x4", *SIZE], "axes"),
    (["prove", "all_to_all", "-p", "8", "--axes", "2x4"], "axes"),
    (["price", "all_to_all", "-p", "8", "--rotate", *SIZE], "rotate"),
    # sizes, times, bandwidths
    (["price", *RING, "--size", ""], "'' is not a size; write 8, 4KiB, 1MB or 64MiB"),
    (["price", *RING, "--size", "-1"], "'-1' is not a size"),
    (["price", *RING, "--size", "big"], "'big' is not a size"),
    (["price", *RING, "--size", "nan"], "'nan' is not a size"),
    (["price", *RING, "--size", "inf"], "'inf' is not a size"),
    (["price", *RING, "--size", "4Kb/s"], "unit 'Kb/s' is unknown"),
    (["price", *RING, "--size", "1.5"], "not a whole number of bytes"),
    (["price", *RING, "--size", "1e30"], "8 EiB or more"),
    (["price", *RING, "--size", "1e999"], "8 EiB or more"),
    (["price", *RING, "--size", "八"], "is not a size"),
    (["price", *RING, "--size", "9" * 5000], "is not a size"),
    (["price", *RING, "--sweep", "8"], "is not a range of sizes; write FROM:TO, like 8:1GiB"),
    (["price", *RING, "--sweep", "1GiB:8"], "swap them"),
    (["price", *RING, "--sweep", ""], "is not a range of sizes"),
    (["price", *RING, "--sweep", "8:nan"], "'nan' is not a size"),
    (["price", *RING, "--sweep", "-8:8"], "'-8' is not a size"),
    (["price", *RING, *SIZE, "--alpha", "5GB"], "unit 'GB' is unknown"),
    (["price", *RING, *SIZE, "--alpha", "-5us"], "is not a time"),
    (["price", *RING, *SIZE, "--alpha", "nan"], "is not a time"),
    (["price", *RING, *SIZE, "--alpha", ""], "is not a time"),
    (
        ["price", *RING, *SIZE, "--bandwidth", "5us"],
        "unit 'us' is unknown; write 50GB/s for bytes or 400Gbit/s for bits",
    ),
    (["price", *RING, *SIZE, "--bandwidth", "0"], "it must be more than zero"),
    (["price", *RING, *SIZE, "--bandwidth", "-1GB/s"], "is not a bandwidth"),
    (["price", *RING, *SIZE, "--bandwidth", "1e308GB/s"], "bandwidth"),
    (["price", *RING, *SIZE, "--gamma", "-1"], "is not a gamma"),
    (["price", *RING, *SIZE, "--gamma", "fast"], "is not a gamma"),
    (["price", *RING, *SIZE, "--gamma", "1e-11s"], "write seconds a byte, 1e-11, or a rate of reduction"),
    (["price", *RING, *SIZE, "--ports", "two"], "'two' is not one of 'one', 'all'"),
    # options that contradict one another
    (["price", *RING, *SIZE, "--sweep", "8:16"], "give either --size S for a table or --sweep"),
    # files
    (["prove", "--schedule", "nowhere.json"], "nowhere.json: there is no such file"),
    (["prove", "--schedule", ""], "file"),
    (["prove", "--schedule", "."], "."),
    (["price", "--schedule", "nowhere.npz", *SIZE], "nowhere.npz: there is no such file"),
    (["show", "--schedule", "nowhere.json"], "nowhere.json: there is no such file"),
    (["build", *RING, "-o", "x"], "x: a schedule is written to a file that ends in .json or .npz"),
    (["build", *RING, "-o", ""], "a schedule is written to a file that ends in .json or .npz"),
    (["build", *RING, "-o", "."], "a schedule is written to a file that ends in .json or .npz"),
    (["build", *RING, "-o", "x.txt"], "x.txt: a schedule is written to a file that ends in .json or .npz"),
    (["build", *RING, "-o", "no/where.json"], "no/where.json: cannot be written: No such file or directory"),
    (["show", *RING, "--svg", "no/where.svg"], "no/where.svg: cannot be written: No such file or directory"),
    (["show", *RING, "--html", "."], "goes to a file that ends in .html, or to - for stdout"),
    (["show", *RING, "--svg", ""], "goes to a file that ends in .svg"),
    (["show", *RING, "--svg", "x" * 300 + ".svg"], "cannot be written: File name too long"),
    # too much to show
    (["show", "all_reduce", "-a", "ring", "-p", "500", "--svg", "x.svg"], "shows at most"),
    (["show", "all_reduce", "-a", "ring", "-p", "500", "--html", "x.html"], "shows at most"),
    (["show", "all_reduce", "-a", "ring", "-p", "500", "--json"], "shows at most"),
    # files of algorithms
    (["list", "--load", "nowhere.py"], "nowhere.py: there is no such file to load algorithms from"),
    (["list", "--load", ""], "there is no such file to load algorithms from"),
    (["list", "--load", "."], ".: there is a folder, not a file to load algorithms from"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[" ".join(m[0])[:80] for m in MISTAKES])
def test_mistakes(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in mistake(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_says_nothing_on_stdout_with_json_either() -> None:
    assert mistake("prove", "all_reduce", "-a", "rign", "-p", "4", "--json") == (
        "there is no all_reduce algorithm 'rign'; did you mean 'ring'?"
    )


@pytest.mark.parametrize(
    "extra",
    [
        ["all_reduce"],
        ["--algorithm", "ring"],
        ["--ranks", "8"],
        ["--root", "0"],
        ["--axes", "2x4"],
        ["--segments", "2"],
        ["--rotate"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("command", [["prove"], ["price", *SIZE], ["show"], ["build", "-o", "copy.json"]])
def test_a_file_already_says_it_all(
    command: list[str], extra: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fine("build", *MST, "-o", "s.json")
    told = mistake(*command, "--schedule", "s.json", *extra)
    assert told == f"--schedule already says what to take; leave out {extra[0]}"
    assert not Path("copy.json").exists()


def test_a_file_and_everything_contradict_each_other(tmp_path: Path) -> None:
    file = str(tmp_path / "s.json")
    fine("build", *MST, "-o", file)
    assert "--all" in mistake("prove", "--all", "--schedule", file)


NOT_SCHEDULES = {
    "empty": b"",
    "text": b"hello",
    "an empty object": b"{}",
    "a list": b"[1, 2]",
    "binary": bytes(range(256)),
    "a bad archive": b"PK\x03\x04 and so on",
    "wrong json": b'{"collective": "broadcast", "ranks": 3, "steps": [[{"src": 0, "dst": 3, "chunk": 0}]]}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", NOT_SCHEDULES.values(), ids=NOT_SCHEDULES.keys())
@pytest.mark.parametrize("command", [["prove"], ["price", *SIZE], ["show"], ["build", "-o", "copy.json"]])
def test_files_that_are_not_schedules(
    command: list[str], content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_bytes(content)
    assert mistake(*command, "--schedule", "s.json").startswith("s.json: not a schedule: ")
    assert not Path("copy.json").exists()


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").mkdir()
    told = mistake("prove", "--schedule", str(tmp_path / "s.json"))
    assert str(tmp_path / "s.json") in told
    told = mistake("build", *RING, "-o", str(tmp_path / "s.json"))
    assert told == f"{tmp_path / 's.json'}: cannot be written: Is a directory"


@pytest.mark.parametrize("newline", ["prove --schedule", "list --load", "show all_reduce -a ring -p 4 --svg"])
def test_a_path_of_two_lines_makes_one(newline: str, tmp_path: Path) -> None:
    mistake(*newline.split(), str(tmp_path / "two\nlines" / "file"))


EXTREMES = [
    ["--alpha", "1e308"],
    ["--alpha", "1e300", "--size", "8EiB"],
    ["--alpha", "0"],
    ["--bandwidth", "1e-310"],
    ["--bandwidth", "1e-310", "--size", "0"],
    ["--bandwidth", "1e308"],
    ["--gamma", "5e-324"],
    ["--gamma", "1e308"],
    ["--gamma", "1e-320B/s"],
    ["--size", "0"],
    ["--size", "8e18"],
]


@pytest.mark.parametrize("options", EXTREMES, ids=" ".join)
@pytest.mark.parametrize("form", ["table", "json", "sweep"])
def test_extreme_links_have_a_price_or_are_a_mistake(options: list[str], form: str) -> None:
    """No traceback, and no number in the JSON that is not one."""
    sized = options if "--size" in options else [*options, *SIZE]
    if form == "sweep":
        sized = [*options, "--sweep", "8:1KiB"] if "--size" not in options else ["--sweep", f"0:{options[-1]}"]
    ran = run_choreo("price", "all_reduce", "-p", "4", *sized, *(["--json"] if form == "json" else []))
    if ran.code != 0:
        assert is_one_sentence(ran.code, ran.out, ran.err), ran
    elif form == "json":
        assert isinstance(ran.json, list)
        assert all(isinstance(one[name], int | float) for one in ran.json for name in PRICE_KEYS - {"algorithm"})


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["prove", *RING, "--segments", "1000000000"], "chunks"),
        (["prove", *RING, "--segments", "1" + "0" * 20], "chunks"),
        (["prove", "--all", "-p", "1..999999999"], "ranks"),
        (["price", "all_reduce", "-a", "ring", "-p", "1000000000", *SIZE], "4194304"),
        (["build", "all_reduce", "-a", "hierarchical", "--axes", "1000x1000x1000", "-o", "x.npz"], "4194304"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else value,
)
def test_absurd_numbers_are_refused_before_they_take_memory(
    arguments: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = process(*arguments, limit_bytes=3 << 29)
    assert is_one_sentence(ran.returncode, ran.stdout, ran.stderr), ran
    assert word in ran.stderr
    assert "memory" not in ran.stderr.lower()


# --load

GOOD = """
import choreo

@choreo.algorithm("all_reduce"{options})
def mine(ranks):
    return choreo.build("all_reduce", "ring", ranks)
"""

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, registry: object) -> Write:
    """Write my_algorithm.py and give its path."""

    def write(code: str) -> str:
        file = tmp_path / "my_algorithm.py"
        file.write_text(code, encoding="utf-8")
        return str(file)

    return write


def test_load_works_with_every_command(write: Write, tmp_path: Path) -> None:
    load = ["--load", write(GOOD.format(options=""))]
    mine = ["all_reduce", "--algorithm", "my_algorithm", "--ranks", "5"]
    assert "my_algorithm" in [one["algorithm"] for one in table("list", "all_reduce", *load)]
    assert "my_algorithm" in fine("list", *load).out
    assert record(fine("prove", *mine, *load, "--json"))["proved"] == 1
    assert [one["steps"] for one in table("price", *mine, *load, "--size", "1MiB")] == [8]
    assert "my_algorithm" in [one["algorithm"] for one in table("price", "all_reduce", "-p", "5", *SIZE, *load)]
    assert "my_algorithm" in fine("price", "all_reduce", "-p", "5", *SIZE, *load).out
    assert fine("price", *mine, *load, "--sweep", "8:1KiB").out.startswith("my_algorithm")
    assert fine("show", *mine, *load).out.startswith("all_reduce by my_algorithm")
    assert record(fine("build", *mine, *load, "-o", str(tmp_path / "s.json"), "--json"))["algorithm"] == "my_algorithm"
    assert record(fine("prove", "--all", "-p", "2", *load, "--json"))["proved"] == len(list_algorithms())
    assert record(fine("prove", "--schedule", str(tmp_path / "s.json"), *load, "--json"))["proved"] == 1


def test_load_first_or_last_or_twice(write: Write) -> None:
    file = write(GOOD.format(options=""))
    fine("prove", "--load", file, "all_reduce", "-a", "my_algorithm", "-p", "4")
    fine("prove", "all_reduce", "-a", "my_algorithm", "-p", "4", "--load", file, "--load", file)


def test_refusals_are_counted_apart(write: Write) -> None:
    file = write(GOOD.format(options=", requires=choreo.POWER_OF_TWO"))
    proved = record(fine("prove", "--all", "--ranks", "2..9", "--load", file, "--json"))
    assert (proved["proved"], proved["failed"], proved["refused"]) == (8 * (len(list_algorithms()) - 1) + 3, 0, 5)
    refusals = proved["refusals"]
    assert isinstance(refusals, list)
    assert [one["ranks"] for one in refusals] == [3, 5, 6, 7, 9]
    assert {frozenset(one) for one in refusals} == {frozenset({"collective", "algorithm", "ranks", "reason"})}
    assert "needs a number of ranks that is a power of two, not 3; use " in refusals[0]["reason"]
    assert fine("prove", "--all", "--ranks", "2..3", "--load", file).out.endswith(", 0 failed, 1 refused\n")
    alone = run_choreo("prove", "all_reduce", "-a", "my_algorithm", "-p", "3", "--load", file, "--json")
    one = record(alone)
    assert (alone.code, one["proved"], one["failed"], one["refused"]) == (2, 0, 0, 1)
    assert alone.err.startswith("choreo: all_reduce by my_algorithm needs a number of ranks that is a power of two")
    listed = [row for row in table("list", "--load", file) if row["algorithm"] == "my_algorithm"]
    assert [(row["any_ranks"], row["requires"]) for row in listed] == [
        (False, "a number of ranks that is a power of two")
    ]
    assert "a power of two" in " ".join(fine("list", "all_reduce", "--load", file).out.split())


def test_an_algorithm_that_refuses_cannot_be_priced_or_shown(write: Write, tmp_path: Path) -> None:
    mine = ["all_reduce", "-a", "my_algorithm", "-p", "6", "--load"]
    mine.append(write(GOOD.format(options=", requires=choreo.POWER_OF_TWO")))
    for command in (["price", *SIZE], ["show"], ["build", "-o", str(tmp_path / "s.json")]):
        told = mistake(*command, *mine)
        assert told.startswith("all_reduce by my_algorithm needs a number of ranks that is a power of two, not 6; use ")
    among = run_choreo("price", "all_reduce", "-p", "6", *SIZE, "--load", mine[-1], "--json")
    assert among.code == 0
    assert isinstance(among.json, list)
    assert "my_algorithm" not in [one["algorithm"] for one in among.json]
    assert among.err.startswith("left out: all_reduce by my_algorithm needs ")


def test_a_wrong_algorithm_fails_and_the_others_are_proved(write: Write) -> None:
    file = write(
        "import choreo\n"
        "@choreo.algorithm('broadcast')\n"
        "def f(ranks, root):\n"
        "    return choreo.Schedule.from_list('broadcast', ranks, [choreo.move(0, 1, 0)], root=root)\n"
    )
    ran = run_choreo("prove", "--all", "--ranks", "2..4", "--load", file, "--json")
    assert (ran.code, ran.err) == (1, "")
    proved = record(ran)
    assert (proved["proved"], proved["failed"], proved["refused"]) == (3 * (len(list_algorithms()) - 1) + 1, 2, 0)
    failures = proved["failures"]
    assert isinstance(failures, list)
    assert {frozenset(one) for one in failures} == {frozenset(FAILURE_KEYS)}
    assert [(one["collective"], one["algorithm"], one["ranks"]) for one in failures] == [
        ("broadcast", "my_algorithm", 3),
        ("broadcast", "my_algorithm", 4),
    ]
    assert (failures[0]["rank"], failures[0]["chunk"]) == (2, 0)
    told = run_choreo("prove", "--all", "--ranks", "2..4", "--load", file)
    assert told.code == 1
    assert told.out.count("FAILED broadcast by my_algorithm over ") == 2


LOAD_MISTAKES = [
    ("a syntax error", "def f(:\n", "my_algorithm.py: loading it failed at line 1: SyntaxError"),
    ("an exception", "\n1 / 0\n", "my_algorithm.py: loading it failed at line 2: ZeroDivisionError: division by zero"),
    ("an exception of two lines", "raise ValueError('one\\ntwo')", "at line 1: ValueError: one"),
    ("an exit", "import sys\nsys.exit(0)\n", "my_algorithm.py: loading it failed at line 2: SystemExit: 0"),
    ("an exit in words", "import sys\nsys.exit('bye')\n", "at line 2: SystemExit: bye"),
    ("nothing", "", "it registers no algorithm; put @choreo.algorithm(COLLECTIVE) above a function"),
    ("a zero byte", "\0", "my_algorithm.py: loading it failed"),
    ("an unknown collective", "import choreo\n@choreo.algorithm('allreduce')\ndef f(ranks): ...\n", "'all_reduce'"),
    ("a missing module", "import nonsense_that_is_not_there\n", "at line 1: ModuleNotFoundError"),
    ("a name that is taken", GOOD.format(options=", name='ring'"), "there already is an algorithm called"),
]


@pytest.mark.parametrize(("code", "sentence"), [m[1:] for m in LOAD_MISTAKES], ids=[m[0] for m in LOAD_MISTAKES])
@pytest.mark.parametrize("command", [["list"], ["prove", "--all", "-p", "2"], ["show", *RING], ["price", *RING, *SIZE]])
def test_files_that_cannot_be_loaded(write: Write, command: list[str], code: str, sentence: str) -> None:
    assert sentence in mistake(*command, "--load", write(code))


BUILD_MISTAKES = [
    ("nothing", "pass", "all_reduce by my_algorithm (my_algorithm.py) returned NoneType, not a Schedule"),
    ("a list", "return [1]", "returned list, not a Schedule"),
    ("other ranks", "return choreo.build('all_reduce', 'ring', ranks + 1)", "was asked for 4 ranks but returned"),
    ("another collective", "return choreo.build('all_gather', 'ring', ranks)", "returned another collective"),
    ("an exception", "return {}['k']", "failed at 4 ranks at line 4: KeyError: 'k'"),
    ("an exception of two lines", "raise ValueError('a\\nb')", "failed at 4 ranks at line 4: ValueError: a"),
    ("an exit", "raise SystemExit(0)", "failed at 4 ranks at line 4: SystemExit"),
    (
        "a rank out of range",
        "return choreo.Schedule.from_list('all_reduce', ranks, [choreo.move(0, ranks, 0)])",
        "dst 4 is out of range; with 4 ranks it must be 0 to 3",
    ),
    (
        "a loop out of range",
        "return choreo.Schedule.from_function('all_reduce', ranks, 3, lambda k: [][k])",
        "IndexError: list index out of range",
    ),
    (
        "a step of nothing",
        "return choreo.Schedule.from_function('all_reduce', ranks, 3, lambda k: None)",
        "my_algorithm",
    ),
    (
        "an empty step",
        "return choreo.Schedule.from_list('all_reduce', ranks, [[], choreo.move(0, 1, 0)])",
        "step 0 has no transfers; leave it out",
    ),
    ("halves", "return choreo.Schedule.from_list('all_reduce', ranks, [choreo.move(0.5, 1, 0)])", "whole numbers"),
]


@pytest.mark.parametrize(("text", "sentence"), [m[1:] for m in BUILD_MISTAKES], ids=[m[0] for m in BUILD_MISTAKES])
@pytest.mark.parametrize("command", ["prove", "price", "show", "build"])
def test_algorithms_that_give_no_schedule(write: Write, command: str, text: str, sentence: str, tmp_path: Path) -> None:
    file = write(f"import choreo\n@choreo.algorithm('all_reduce')\ndef f(ranks):\n    {text}\n")
    extra = {"price": SIZE, "build": ["-o", str(tmp_path / "s.json")]}.get(command, [])
    told = mistake(command, "all_reduce", "-a", "my_algorithm", "-p", "4", "--load", file, *extra)
    assert sentence in told
    assert not (tmp_path / "s.json").exists()


def test_rows_out_of_range_name_the_algorithm(write: Write) -> None:
    """Among all algorithms at all ranks, the sentence says which one it is about."""
    text = "return choreo.Schedule.from_list('all_reduce', ranks, [choreo.move(0, ranks, 0)])"
    file = write(f"import choreo\n@choreo.algorithm('all_reduce')\ndef f(ranks):\n    {text}\n")
    ran = run_choreo("prove", "--all", "--ranks", "2..3", "--load", file)
    assert ran.code in (1, 2)
    assert "my_algorithm" in ran.out + ran.err


def test_what_a_loaded_file_prints_does_not_spoil_the_json(write: Write) -> None:
    printing = GOOD.format(options="").replace("    return", "    print('building')\n    return") + "print('loading')\n"
    load = ["--load", write(printing)]
    assert isinstance(run_choreo("list", "--json", *load).json, list)
    proved = run_choreo("prove", "all_reduce", "-a", "my_algorithm", "-p", "4", "--json", *load)
    assert (record(proved)["proved"], proved.err) == (1, "loading\nbuilding\n")


STRANGE = ["[/red]", "[bold]", "[link=x]y", "a b", "日本語", "x" * 200, "-", "--all", "%s{0}"]


@pytest.mark.parametrize("name", STRANGE)
def test_strange_names_of_algorithms(write: Write, name: str, tmp_path: Path) -> None:
    """A name is shown as it is, whatever a terminal or a format would make of it."""
    load = ["--load", write(GOOD.format(options=f", name={name!r}"))]
    assert name in [one["algorithm"] for one in table("list", "all_reduce", *load)]
    short = name[:12]
    assert short in fine("list", "all_reduce", *load).out
    file = str(tmp_path / "s.json")
    fine("build", "all_reduce", f"--algorithm={name}", "-p", "3", *load, "-o", file)
    assert short in fine("price", "--schedule", file, *SIZE).out
    assert short in fine("price", "--schedule", file, "--sweep", "8:1KiB").out
    assert short in fine("prove", "--schedule", file).out
    assert short in fine("show", "--schedule", file).out


@pytest.mark.parametrize("command", [["prove"], ["price", *SIZE], ["price", "--sweep", "8:1KiB"], ["show"], ["build"]])
def test_a_name_in_a_file_cannot_drive_the_terminal(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    row = {"src": 0, "dst": 1, "chunk": 0}
    named = {"collective": "broadcast", "ranks": 2, "steps": [[row]], "algorithm": "a\u001b[2J\u0007\nb"}
    file.write_text(json.dumps(named))
    extra = ["-o", str(tmp_path / "copy.json")] if command == ["build"] else []
    printed = fine(*command, "--schedule", str(file), *extra).out
    assert "\u001b" not in printed
    assert "\u0007" not in printed


# Real processes


def test_help_is_light() -> None:
    """`choreo --help` imports nothing but click and the command line itself."""
    code = (
        "import sys\n"
        "from choreo.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as ended:\n"
        "    assert ended.code == 0, ended.code\n"
        "heavy = {'numpy', 'rich', 'msgspec', 'choreo.algorithms', 'choreo.schedule'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Usage: choreo ")


def test_the_console_script() -> None:
    ran = process("--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == fine("--help").out
    assert process("prove", *RING).returncode == 0


def test_exit_codes_of_processes(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(BROKEN))
    assert process("prove", "--schedule", str(file)).returncode == 1
    wrong = process("prove", "all_reduce", "-a", "rign", "-p", "4")
    assert is_one_sentence(wrong.returncode, wrong.stdout, wrong.stderr)


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["show", *RING], ["price", *RING, *SIZE]])
def test_nobody_reads_the_output(arguments: list[str]) -> None:
    """As in `choreo list | head -1`, with a reader that is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = process(*arguments, stdout=writer)
    finally:
        os.close(writer)
    assert ran.stderr == ""
    assert ran.returncode == 0


def test_the_first_line_is_enough() -> None:
    ran = subprocess.run(
        ["bash", "-c", f"{CHOREO} prove all_reduce -p 2..20 | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    assert re.fullmatch(r"proved exactly: .*\n0\n", ran.stdout)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["show", *RING]], ids=" ".join)
def test_a_full_disk_is_told(arguments: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        ran = process(*arguments, stdout=full)
    finally:
        os.close(full)
    assert is_one_sentence(ran.returncode, "", ran.stderr), ran
    assert "No space left on device" in ran.stderr


def test_no_output_at_all() -> None:
    ran = subprocess.run(
        ["bash", "-c", f"{CHOREO} prove all_reduce -a ring -p 4 >&-"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("arguments", [["list"], ["price", *RING, *SIZE], ["show", *RING]], ids=" ".join)
def test_a_terminal_without_greek(arguments: list[str]) -> None:
    """Where the output cannot encode a character, something else stands in its place."""
    ran = process(*arguments, PYTHONIOENCODING="ascii")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names themselves")
@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_a_file_name_that_is_no_text(json_option: list[str], tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.json"
    ran = subprocess.run(
        [os.fsencode(CHOREO), b"build", b"broadcast", b"-amst", b"-p4", b"-o", name, *map(os.fsencode, json_option)],
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in ran.stderr
    assert ran.returncode in (0, 2)
    assert os.path.exists(name) == (ran.returncode == 0)  # noqa: PTH110 - pathlib has no bytes
