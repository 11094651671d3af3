"""What somebody new to the command line tries first: options given twice, names, units."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from choreo.calibrate.calibrate import Calibration
from choreo.cli import COMMANDS
from choreo.cli.command import Command
from choreo.cli.options.simulate import Asked
from choreo.cli.spellings import SPELLINGS
from choreo.run.execute.constants import Band, Constants
from choreo.schedule import Schedule
from choreo.simulate import Simulation
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
    assert mistake(*arguments) == f"{option} is given twice, but takes one value; give it once"


def test_a_flag_given_twice_is_no_mistake() -> None:
    fine("list", "--json", "--json")


def test_what_other_tools_call_an_option_leads_to_one_that_is_there() -> None:
    commands = [importlib.import_module(f"choreo.cli.commands.{name}").command for name in COMMANDS]
    ours = {option for command in commands for parameter in command.params for option in parameter.opts}
    assert {name for options in SPELLINGS.values() for name in options.values()} <= ours


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


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--alpha", "5"], "write 5us or 5s"),
        (["--bandwidth", "50"], "write 50GB/s or 50Gbit/s"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_number_without_its_unit_is_refused(arguments: list[str], hint: str) -> None:
    price = ["price", "all_reduce", "-p", "4", "--size", "8"]
    assert hint in mistake(*price, *arguments)
    fine(*price, "--alpha", "0")


def test_a_barrier_needs_no_size() -> None:
    assert record(fine("simulate", "barrier", *RING, "--json"))["size_bytes"] == 0


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


def test_a_schedule_made_with_low_effort_is_said_to_be() -> None:
    said = "synthesized is made with --effort low here; choreo synthesize searches longer"
    command = ["simulate", "all_gather", *RING]
    assert said in run_choreo(*command, "--size", "1KiB", "-a", "all").out
    assert f"# {said}" in run_choreo(*command, "--sweep", "8:16", "-a", "all").out
    assert said not in run_choreo(*command, "--size", "1KiB", "-a", "ring", "-a", "synthesized").out
    assert said not in run_choreo(*command, "--size", "1KiB", "-a", "all", "-a", "synthesized").out


def test_all_algorithms_are_asked_for_by_one_word_everywhere() -> None:
    for command in (["price", "all_gather", "-p", "6", "--size", "1KiB"], ["prove", "all_gather", "-p", "6"]):
        assert fine(*command, "-a", "all").out == fine(*command).out
    assert "many schedules, and this takes one" in mistake("show", "all_gather", "-p", "6", "-a", "all")


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
    assert "takes no other name" in mistake("list", "models", "llama3-8b")
    assert "did you mean 'models'" in mistake("list", "model")


# help


def test_every_command_explains_itself_with_examples() -> None:
    for name in COMMANDS:
        ran = fine(name, "--help")
        assert name == "tour" or f"choreo {name} " in ran.out.partition("Usage:")[2].partition("\n")[2], name
        assert max(map(len, ran.out.splitlines())) <= 80
    assert "What if:" in fine("simulate", "--help").out


def test_commands_refuse_what_is_given_twice() -> None:
    """Every command must be of the class that checks this."""
    for name in COMMANDS:
        command = importlib.import_module(f"choreo.cli.commands.{name}").command
        assert isinstance(command, Command) or hasattr(command, "commands"), name


# calibration


def test_a_fit_that_is_far_off_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement is a stand-in for one on a busy machine."""
    constants = Constants((Band(2, 1 << 62, 1e-6, 1e9, 0.0, residual=0.94),), host="here", date="now", cores=2)
    far_off = Calibration(constants, (), load_average=7.5)
    monkeypatch.setattr(importlib.import_module("choreo.calibrate"), "calibrate", lambda *_, **__: far_off)
    monkeypatch.setenv("CHOREO_CONSTANTS", str(tmp_path / "constants.json"))
    ran = run_choreo("calibrate", "-n", "2")
    assert (ran.code, list(tmp_path.iterdir())) == (1, [])
    assert "not kept" in ran.out
    assert re.search(r"error\n.* 94 %", ran.out), ran.out
    assert re.match(
        r"choreo: not kept: the error of the fit is 94 % at 2 ranks, .*load average is 7.5 on 2 cores", ran.err
    )
    assert "--force" in ran.err
    assert fine("calibrate", "-n", "2", "--force").out.startswith("here, 2 cores, now: kept in ")
    assert (tmp_path / "constants.json").exists()


# mistakes


def test_a_typo_is_answered_in_one_sentence() -> None:
    assert mistake("price", "all_reduce", "--rank", "8") == (
        "no such option '--rank'; did you mean '--ranks'? See choreo price --help"
    )
    assert mistake("topology", "shw").startswith("no such command 'shw'; did you mean 'show'?")


def test_a_device_that_is_not_there_is_named_with_the_option() -> None:
    told = mistake(*RUN, "--beside", "all_gather=1MiB@0..9")
    assert told.startswith("--beside '0..9': ring(8, 50GB/s, 500ns) has no device '9'")


# what is printed can be pasted


def test_suggestions_survive_a_shell() -> None:
    told = mistake(*RUN, "--slow-link", "nonsense")
    examples = shlex.split(told.partition("write ")[2].replace(",", ""))
    assert "0->1=0.5" in examples
    told = mistake("simulate", "all_reduce", "-t", "ring", "--size", "8")
    (example,) = shlex.split(told.partition("write ")[2])
    fine("simulate", "all_reduce", "-t", example, "--size", "8")
    told = mistake("simulate", "all_reduce", "--size", "8")
    option, example = shlex.split(told.partition("give a network: ")[2])[:2]
    fine("simulate", "all_reduce", option, example, "--size", "8")
    fine(*RUN, "--slow-link", "0->1=0.5")


def test_a_file_with_spaces_is_suggested_in_quotes() -> None:
    told = mistake("prove", "my ring (8).json", "-p", "8")
    assert shlex.split(told.rpartition("write ")[2]) == ["--schedule", "my ring (8).json"]


def test_a_file_that_could_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    simulated = ["simulate", "all_reduce", "-t", "no-such-machine", "--size", "8"]
    assert "cannot be written: No such file" in mistake(*simulated, "--html", str(tmp_path / "none" / "run.html"))
    assert "Is a directory" in mistake(*simulated, "--trace", str(tmp_path))


def test_a_slow_rail_is_all_links_of_its_switch() -> None:
    switches = "switch0 and switch1 each join 8 devices, switch2 to switch9 each join 2 groups of 8"
    assert switches in " ".join(fine("topology", "show", "hgx-h100:2").out.split())
    told = ["simulate", "all_gather", "-t", "hgx-h100:2", "--size", "64MiB", "-a", "ring", "--json"]
    one_by_one = [word for rank in (0, 8) for word in ("--slow-link", f"{rank}-switch2=0.5")]
    rail, each, none = (
        record(fine(*told, *slow))["time_s"] for slow in (["--slow-link", "switch2=0.5"], one_by_one, [])
    )
    assert rail == each != none
    assert "--slow-link '3' is one device; write both ends" in mistake(*told, "--slow-link", "3=0.5")
    assert "0 has links to switch0, switch2" in mistake(*told, "--slow-link", "0-1=0.5")


def test_what_nccl_tests_printed_is_sent_to_the_store() -> None:
    log = "tests/data/record/all_reduce.txt"
    assert f"choreo record import {log}" in mistake("validate", log)


def test_ctrl_c_leaves_the_algorithms_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    run, simulated = Asked.run, []

    def run_three(self: Asked, schedule: Schedule, size: int, which: str = "") -> Simulation:
        simulated.append(schedule.algorithm)
        if len(simulated) > 3:
            raise KeyboardInterrupt
        return run(self, schedule, size, which)

    monkeypatch.setattr(Asked, "run", run_three)
    ran = run_choreo(*RUN, "-a", "all")
    assert ran.code == 130
    assert all(name in ran.out for name in simulated[:3])
    assert re.search(r"stopped: 3 of \d+ algorithms were simulated", ran.err)
    assert "direct" not in simulated  # what takes long comes last
