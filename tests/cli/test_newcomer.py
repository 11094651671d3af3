"""What somebody new to the command line tries first: options given twice, names, units, narrow terminals."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from choreo.cli import COMMANDS
from choreo.cli.command import Command
from tests.helpers.cli import fine, mistake, record, table
from tests.helpers.command import run_choreo

RING = ["-t", "ring(8, 50GB/s, 500ns)"]
RUN = ["simulate", "all_reduce", *RING, "--size", "1MiB"]

NAMED = {
    "name": "pods",
    "devices": ["b0", "b1", "w0", "w1"],
    "links": [
        {"from": a, "to": b, "bandwidth": "50GB/s", "latency": "1us"}
        for a, b in (("b0", "b1"), ("b1", "w0"), ("w0", "w1"), ("w1", "b0"))
    ],
}


# options


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["simulate", "all_reduce", "-t", "ring(4)", "-t", "ring(8)", "--size", "8"], "--topology"),
        (["price", "all_reduce", "-p", "4", "-n", "8", "--size", "8"], "--ranks"),
        (["bound", "all_gather", "-t", "ring(4)", "--size", "8", "--size", "16"], "--size"),
        (["topology", "show", "ring(4)", "--svg", "a.svg", "--svg", "b.svg"], "--svg"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_given_twice_is_not_ignored_once(arguments: list[str], option: str) -> None:
    assert mistake(*arguments) == f"{option} is given twice, and takes one value; give it once"


def test_a_flag_given_twice_is_no_mistake() -> None:
    fine("list", "--json", "--json")


def test_an_option_of_no_algorithm_is_not_ignored() -> None:
    assert mistake(*RUN, "--option", "foo=1") == "--option foo=1 is for one algorithm; name it with --algorithm"
    assert "foo" in mistake(*RUN, "--option", "foo=1", "-a", "ring")


@pytest.mark.parametrize("spelling", ["-p", "-n", "--ranks"])
def test_ranks_are_spelled_the_same_everywhere(spelling: str, tmp_path: Path) -> None:
    ring = ["all_reduce", "-a", "ring", spelling, "2"]
    fine("price", *ring, "--size", "8")
    fine("prove", *ring)
    fine("show", *ring)
    fine("build", *ring, "-o", str(tmp_path / "ring.json"))
    fine("bound", "all_reduce", *RING, "--size", "8", spelling, "2")
    fine("simulate", "all_reduce", *RING, "--size", "8", spelling, "2")
    fine("calibrate", "--show", spelling, "2")
    assert "say how many ranks" in mistake("bench", "all_reduce")
    assert run_choreo("bench", "all_reduce", spelling, "0").err.startswith("choreo: there must be at least 1 rank")
    assert run_choreo("run", spelling, "0", "x.py").code == 2


# units


def test_a_size_is_written_as_in_nccl_tests_everywhere() -> None:
    assert record(fine("simulate", "all_reduce", *RING, "--size", "1M", "--json"))["size_bytes"] == 1 << 20
    assert record(fine("bound", "all_reduce", *RING, "--size", "1M", "--json"))["size_bytes"] == 1 << 20


# algorithms side by side


def test_a_sweep_of_named_algorithms_prints_each_and_marks_the_best() -> None:
    sweep = ["simulate", "all_reduce", *RING, "--sweep", "8:32", "-a", "ring", "-a", "recursive_doubling"]
    rows = [line for line in fine(*sweep).out.splitlines() if not line.startswith("#")]
    assert [row.split()[8] for row in rows] == ["ring", "recursive_doubling"] * 3
    assert [("← best" in row) for row in rows] == [False, True] * 3
    found = table(*sweep)
    assert [(one["size_bytes"], one["algorithm"], one["best"]) for one in found] == [
        (size, name, name == "recursive_doubling") for size in (8, 16, 32) for name in ("ring", "recursive_doubling")
    ]
    one = fine("simulate", "all_reduce", *RING, "--sweep", "8:32", "-a", "ring").out
    assert "best" not in one
    every = run_choreo("simulate", "all_reduce", *RING, "--sweep", "8:32", "-a", "all")
    assert re.search(r"# the fastest of \d+ algorithms at each size", every.out)


def test_a_race_has_a_winner_at_each_size() -> None:
    ran = run_choreo(
        "bench", "broadcast", "-n", "2", "-a", "all", "-b", "8", "-e", "32", "--rounds", "1", "--iters", "1"
    )
    rows = [line for line in ran.out.splitlines() if not line.startswith("#")]
    best = {row.split()[0]: row for row in rows if "← best" in row}
    assert set(best) == {"8", "32"}, ran.out
    for size, row in best.items():
        assert float(row.split()[5]) == min(float(one.split()[5]) for one in rows if one.split()[0] == size)


# names of devices


def test_devices_go_by_their_names(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    file.write_text(json.dumps(NAMED))
    where = ["-t", str(file), "--size", "1MiB", "-a", "ring"]
    by_number = record(fine("simulate", "all_reduce", *where, "--placement", "0,1,3", "--json"))
    by_name = record(fine("simulate", "all_reduce", *where, "--placement", "b0, b1,w1", "--json"))
    assert by_name["time_s"] == by_number["time_s"]
    fine("bound", "all_reduce", "-t", str(file), "--size", "1MiB", "--placement", "b0..w0")
    told = mistake("simulate", "all_reduce", *where, "--placement", "b0,b7")
    assert "pods has no device 'b7', its devices are b0 to w1" in told
    path = fine("simulate", "all_reduce", *where).out.partition("critical path")[2]
    assert re.search(r"step 0: [bw]\d -> [bw]\d", path), path
    placed = fine("simulate", "all_reduce", *where, "--placement", "w1,w0,b1").out.partition("critical path")[2]
    assert not re.search(r"b0", placed), placed


# catalogues


@pytest.mark.parametrize(
    ("catalogue", "key", "name"),
    [
        ("models", "model", "llama3-70b"),
        ("devices", "device", "H100-80G-SXM"),
        ("software", "software", "megatron-core"),
        ("topologies", "name", "hgx-h100"),
    ],
)
def test_what_is_known_by_name_is_listed(catalogue: str, key: str, name: str) -> None:
    listed = [str(one[key]) for one in table("list", catalogue)]
    assert name in listed
    printed = fine("list", catalogue).out
    assert all(one in printed for one in listed)


def test_algorithms_are_listed_by_their_name_too() -> None:
    assert fine("list", "algorithms").out == fine("list").out
    assert fine("list", "algorithms", "all_reduce").out == fine("list", "all_reduce").out
    assert "takes no further name" in mistake("list", "models", "llama3-8b")
    assert "did you mean 'models'" in mistake("list", "model")


# narrow terminals

WIDE = [
    ["list"],
    ["list", "all_reduce"],
    *(["list", catalogue] for catalogue in ("models", "devices", "software", "topologies")),
    ["price", "all_reduce", "-p", "64", "--size", "1MiB", "--gamma", "100GB/s"],
    ["price", "all_reduce", "-p", "64", "--sweep", "8:1GiB"],
    ["simulate", "all_reduce", *RING, "--size", "1MiB", "-a", "all"],
    ["simulate", "all_reduce", "-t", "dgx-a100:2", "--sweep", "8:1KiB", "-a", "ring", "-a", "hierarchical"],
    ["simulate", "all_reduce", "-t", "dgx-a100:2", "--sweep", "8:1KiB", "--library", "nccl"],
    ["topology", "show", "hgx-h100:4"],
    ["calibrate", "--show"],
]


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("arguments", WIDE, ids=" ".join)
def test_tables_fit(arguments: list[str], columns: int) -> None:
    lines = run_choreo(*arguments, columns=columns).out.splitlines()
    titles = [line for line in lines if line.startswith(("#", "all_reduce of", "left out"))]
    assert max(len(line) for line in lines if line not in titles) <= columns


def test_a_narrow_table_says_which_columns_it_leaves_out() -> None:
    price = ["price", "all_reduce", "-p", "8", "--size", "1MiB"]
    narrow, wide = run_choreo(*price, columns=80).out, run_choreo(*price, columns=160).out
    assert re.search(r"not shown for lack of room: .*traffic.*\n\(80 columns; .*--json has everything\)\n$", narrow)
    assert "left out" not in wide
    assert "traffic" in wide.splitlines()[1]
    swept = ["simulate", "all_reduce", *RING, "--sweep", "8:32"]
    assert "redop" in run_choreo(*swept).out, "a pipe gets all of nccl-tests' columns"
    assert "# not shown for lack of room: type, redop\n# (60 columns; " in run_choreo(*swept, columns=60).out


# help


def test_every_command_explains_itself_with_examples() -> None:
    for name in COMMANDS:
        ran = fine(name, "--help")
        assert name == "tour" or f"choreo {name} " in ran.out.partition("Usage:")[2].partition("\n")[2], name
        assert max(map(len, ran.out.splitlines())) <= 100
    assert "What if:" in fine("simulate", "--help").out


def test_commands_refuse_what_is_given_twice() -> None:
    """Every command must be of the class that checks this."""
    import importlib

    for name in COMMANDS:
        command = importlib.import_module(f"choreo.cli.commands.{name}").command
        assert isinstance(command, Command) or hasattr(command, "commands"), name


# what is printed can be pasted


def test_a_file_with_spaces_is_suggested_in_quotes() -> None:
    told = mistake("prove", "my ring (8).json", "-p", "8")
    assert shlex.split(told.rpartition("write ")[2]) == ["--schedule", "my ring (8).json"]
