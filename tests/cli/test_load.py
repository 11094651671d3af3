"""The command line with --load: algorithms from files, right and wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from choreo.algorithms import list_algorithms
from tests.helpers.cli import RING, SIZE, fine, mistake, record, table
from tests.helpers.command import run_choreo

FAILURE_KEYS = {"collective", "algorithm", "ranks", "step", "rank", "chunk", "story"}

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
    assert fine("price", *mine, *load, "--sweep", "8:1KiB").out.splitlines()[2].startswith("my_algorithm")
    assert fine("show", *mine, *load).out.startswith("all_reduce by my_algorithm")
    assert record(fine("build", *mine, *load, "-o", str(tmp_path / "s.json"), "--json"))["algorithm"] == "my_algorithm"
    assert fine("prove", "all_reduce", "-p", "5", *load).out.startswith("proved exactly: all_reduce by my_algorithm")
    assert record(fine("prove", "all_reduce", "-p", "5", *load, "--json"))["proved"] == 1
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


def test_a_wrong_algorithm_is_named_wherever_its_figures_are_asked_for(write: Write, tmp_path: Path) -> None:
    wrong = "import choreo\n@choreo.algorithm('broadcast')\ndef f(ranks, root):\n"
    wrong += "    return choreo.Schedule.from_list('broadcast', ranks, [choreo.move(0, 1, 0)], root=root)\n"
    load = ["broadcast", "--load", write(wrong), *SIZE]
    mine = [*load, "-a", "my_algorithm"]
    sweep = ["sweep", "price", *load, "-p", "3", "--store", str(tmp_path / "store")]
    for ran in (
        run_choreo("price", *mine, "-p", "3"),
        run_choreo("simulate", *mine, "-t", "ring(3, 50GB/s, 500ns)"),
        run_choreo(*sweep, "-a", "my_algorithm"),
        run_choreo(*sweep, "-a", "my_algorithm,ring"),
    ):
        assert "broadcast by my_algorithm over 3 ranks: " in ran.err


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
    (
        "no such argument",
        "return (lambda: 0)(ranks)",
        "failed at 4 ranks at line 4: TypeError",
    ),
    (
        "a mixture of numbers and columns",
        "return choreo.Schedule.from_rule('all_reduce', ranks, 2, lambda k: choreo.move([0, k], [1, 2], 0))",
        "src mixes numbers with lists or columns",
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


def test_a_function_that_takes_no_ranks(write: Write) -> None:
    file = write("import choreo\n@choreo.algorithm('all_reduce')\ndef f(): ...\n")
    told = mistake("prove", "all_reduce", "-a", "my_algorithm", "-p", "4", "--load", file)
    assert "failed at 4 ranks: TypeError: f() takes 0" in told


def test_the_name_of_a_function_is_not_that_of_its_algorithm(write: Write) -> None:
    told = mistake("prove", "all_reduce", "-a", "mine", "-p", "4", "--load", write(GOOD.format(options="")))
    assert "did you mean 'bine' or 'ring'? my_algorithm.py has 'my_algorithm': an algorithm is called after" in told


def test_what_was_loaded_is_what_is_meant(write: Write, tmp_path: Path) -> None:
    """Without --algorithm, if the file has one algorithm of the collective."""
    load = ["all_reduce", "--load", write(GOOD.format(options=""))]
    assert fine("show", *load, "-p", "3").out.startswith("all_reduce by my_algorithm")
    built = record(fine("build", *load, "-p", "3", "-o", str(tmp_path / "s.json"), "--json"))
    assert built["algorithm"] == "my_algorithm"
    ran = record(fine("simulate", *load, "-t", "ring(4, 1GB/s, 1us)", "--size", "1KiB", "--json"))
    assert ran["algorithm"] == "my_algorithm"
    told = mistake("show", "all_gather", *load[1:], "-p", "3")
    assert "say which schedule" in told


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
