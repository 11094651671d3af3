"""The registry from Python: files of algorithms, loaded once, again, or not at all."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path

import pytest

import choreo
from choreo.algorithms import Algorithm, _registry, list_algorithms
from tests.helpers.command import run_choreo
from tests.helpers.registry import (
    CHAIN,
    Write,
    body,
    refusal,
    write_file,  # noqa: F401 - the fixture `write`
)

pytestmark = pytest.mark.usefixtures("registry")


# Clashes and loading again


def test_a_name_that_is_taken_by_the_library(write: Write) -> None:
    file = write(CHAIN.format(options=""), "mst.py")
    message = refusal(lambda: choreo.load_algorithms(file))
    assert re.fullmatch(
        r".*mst\.py: there already is an algorithm called 'mst' for broadcast, broadcast in .*algorithms/mst\.py; "
        r"give this one another name",
        message,
    )
    assert choreo.build("broadcast", "mst", 8).num_steps == 3


def test_a_name_of_the_library_for_another_collective_is_free(write: Write) -> None:
    code = body('return choreo.build("barrier", "bruck", ranks)', "barrier")
    choreo.load_algorithms(write(code, "swing.py"))
    choreo.prove(choreo.build("barrier", "swing", 5))


def test_two_files_of_one_name(write: Write) -> None:
    choreo.load_algorithms(write(CHAIN.format(options=""), "one/chain.py"))
    second = write(CHAIN.format(options=""), "two/chain.py")
    message = refusal(lambda: choreo.load_algorithms(second))
    assert "two/chain.py: there already is" in message
    assert "one/chain.py" in message


def test_two_algorithms_of_one_name_in_one_file(write: Write) -> None:
    """The first must not vanish without a word."""
    code = body('return choreo.build("all_reduce", "ring", ranks)')
    file = write(code + code.replace("made", "also_made").replace("ring", "mst"))
    assert "'mine'" in refusal(lambda: choreo.load_algorithms(file))


def test_loading_a_file_again_takes_what_it_says_now(write: Write) -> None:
    file = write(body('return choreo.build("all_reduce", "ring", ranks)'))
    choreo.load_algorithms(file)
    assert choreo.build("all_reduce", "mine", 8).num_steps == 14
    write(body('return choreo.build("all_reduce", "halving_doubling", ranks)') + "\n# so that its size differs\n")
    (again,) = choreo.load_algorithms(file)
    assert again.name == "mine"
    assert choreo.build("all_reduce", "mine", 8).num_steps == 6
    assert [a.name for a in list_algorithms("all_reduce")].count("mine") == 1


def test_the_same_file_by_another_path_is_the_same_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(CHAIN.format(options=""), "folder/chain.py")
    link = file.parent.parent / "link"
    link.symlink_to(file.parent)
    monkeypatch.chdir(file.parent)
    for path in (file, Path("chain.py"), Path("./chain.py"), Path("../folder/chain.py"), link / "chain.py"):
        (found,) = choreo.load_algorithms(path)
        assert found.name == "chain"


def test_a_file_that_fails_half_way_registers_nothing(write: Write) -> None:
    file = write(CHAIN.format(options="") + "\nraise RuntimeError('half way')\n")
    refusal(lambda: choreo.load_algorithms(file))
    assert "mine" not in [a.name for a in list_algorithms("broadcast")]


def test_what_a_file_prints_of_itself_is_its_own_affair(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    choreo.load_algorithms(write(CHAIN.format(options="") + "print('loaded')"))
    assert capsys.readouterr() == ("", "loaded\n")  # what a command prints stays its own


def test_a_file_may_use_dataclasses_and_its_own_types(write: Write) -> None:
    """What needs the module by its name works as in any other module."""
    file = write("", "shapes.py")
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import choreo\n"
        "@dataclass(frozen=True)\n"
        "class Hop:\n"
        "    src: int\n"
        "    dst: int\n" + CHAIN.format(options="")
    )
    (found,) = choreo.load_algorithms(file)
    assert found.name == "shapes"


@pytest.mark.parametrize("name", ["json", "choreo", "numpy"])
def test_a_file_named_as_a_module_harms_nothing(write: Write, name: str) -> None:
    before = importlib.import_module(name)
    choreo.load_algorithms(write(CHAIN.format(options=""), f"{name}.py"))
    assert sys.modules[name] is before
    choreo.prove(choreo.build("broadcast", name, 5))


def test_the_summary_is_that_of_the_file(write: Write) -> None:
    for name in ("mine", "json"):  # the second is also the name of a module
        file = write("", f"{name}.py")
        file.write_text(f'"""Hops from rank to rank."""\nimport choreo\n{CHAIN.format(options="")}', encoding="utf-8")
        (found,) = choreo.load_algorithms(file)
        assert found.summary == "Hops from rank to rank."


def test_a_file_in_the_package_is_an_algorithm(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding an algorithm to the library is adding a file; those that start with an underscore are no algorithms."""
    import choreo.algorithms as package

    folder = write(CHAIN.format(options=""), "library/brigade.py").parent
    write("raise RuntimeError", "library/_helper.py")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setattr(_registry, "_DISCOVERED", False)
    try:
        assert "brigade" in [a.name for a in list_algorithms("broadcast")]
        choreo.prove(choreo.build("broadcast", "brigade", 7, root=3))
    finally:
        sys.modules.pop("choreo.algorithms.brigade", None)
        vars(package).pop("brigade", None)


# Files that cannot be loaded

BROKEN = [
    ("a syntax error", "def f(:\n    pass\n", r"mine\.py: loading it failed at line 2: SyntaxError: .*"),
    ("an exception", "\nx = 1 / 0\n", r"mine\.py: loading it failed at line 3: ZeroDivisionError: division by zero"),
    (
        "an exception further down",
        "def f():\n    return {}['k']\nf()\n",
        r"mine\.py: loading it failed at line 3: KeyError: 'k'",
    ),
    ("an exit", "import sys\nsys.exit(0)\n", r"mine\.py: loading it failed at line 3: SystemExit: 0"),
    ("a missing module", "import no_such_module\n", r".*at line 2: ModuleNotFoundError: .*'no_such_module'"),
    ("endless recursion", "def f():\n    f()\nf()\n", r".*at line 3: RecursionError: .*"),
    ("nothing registered", "x = 1\n", r"mine\.py: it registers no algorithm; put @choreo\.algorithm\(COLLECTIVE\).*"),
    ("the decorator without its call", "@choreo.algorithm\ndef f(ranks):\n    pass\n", r".*"),
    ("an unknown collective", '@choreo.algorithm("allreduce")\ndef f(ranks):\n    pass\n', r".*'all_reduce'.*"),
    ("an exception of two lines", "raise ValueError('one\\ntwo')\n", r"mine\.py: .* at line 2: ValueError: one.*two"),
    ("an exception without words", "raise ValueError\n", r"mine\.py: .* at line 2: ValueError.*"),
    ("a zero byte", "\0", r"mine\.py: loading it failed.*"),
]


@pytest.mark.parametrize(("code", "message"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_files_that_cannot_be_loaded(write: Write, code: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(code).parent)
    before = list_algorithms()
    assert re.fullmatch(message, refusal(lambda: choreo.load_algorithms("mine.py")))
    assert list_algorithms() == before


def test_a_mistake_of_the_decorator_names_the_file(write: Write) -> None:
    file = write('@choreo.algorithm("allreduce")\ndef f(ranks):\n    pass\n')
    assert "mine.py" in refusal(lambda: choreo.load_algorithms(file))


def test_paths_that_are_no_files(write: Write, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere.py", tmp_path / "no" / "where.py", Path("/dev/null"), Path()):
        with pytest.raises(choreo.UsageError, match=r"there is (no such file|a folder, not a file) to load") as caught:
            choreo.load_algorithms(path)
        assert str(caught.value).startswith(f"{path}: ")
    text = write(CHAIN.format(options=""), "algorithm.txt")
    assert refusal(lambda: choreo.load_algorithms(text)) == (
        f"{text}: not a Python file; algorithms are loaded from files that end in .py, schedules from .json, .npz and "
        ".xml"
    )


# Schedules that were saved


@pytest.mark.parametrize("suffix", [".json", ".npz", ".xml"])
def test_a_saved_schedule_is_an_algorithm(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"made{suffix}"
    saved = choreo.build("all_gather", "ring", 4)
    choreo.save(saved, file)
    (found,) = choreo.load_algorithms(file)
    assert (found.collective, found.name, found.source, found.same_bits) == ("all_gather", "made", str(file), False)
    again = choreo.build("all_gather", "made", 4)
    choreo.prove(again)
    assert again.algorithm == "made" and again.ranks == 4
    with pytest.raises(choreo.RefusedError, match=r"all_gather by made needs exactly 4 ranks, not 5; use "):
        choreo.build("all_gather", "made", 5)
    choreo.load_algorithms(file)  # once more is no clash


def test_a_saved_schedule_has_one_root(tmp_path: Path) -> None:
    choreo.save(choreo.build("broadcast", "mst", 4, root=2), tmp_path / "made.json")
    choreo.load_algorithms(tmp_path / "made.json")
    assert choreo.build("broadcast", "made", 4, root=2).root == 2
    with pytest.raises(choreo.RefusedError, match="made has root 2, not 0; use --root 2"):
        choreo.build("broadcast", "made", 4)


def test_a_saved_schedule_with_a_name_that_is_taken(tmp_path: Path) -> None:
    choreo.save(choreo.build("all_gather", "direct", 4), tmp_path / "ring.json")
    with pytest.raises(choreo.UsageError, match=r"already is an algorithm called 'ring' for all_gather, .*rename the"):
        choreo.load_algorithms(tmp_path / "ring.json")


def test_a_damaged_schedule_is_no_algorithm(tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text('{"collective": "all_gather"')
    with pytest.raises(choreo.FormatError, match=r"made\.json: not a schedule"):
        choreo.load_algorithms(tmp_path / "made.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(write: Write) -> None:
    file = write(CHAIN.format(options=""))
    file.chmod(0)
    assert "mine.py" in refusal(lambda: choreo.load_algorithms(file))


# Adding a file is enough


@pytest.fixture
def brigade(registry: object, write: Write) -> Algorithm:
    (found,) = choreo.load_algorithms(
        write(CHAIN.format(options=', cost=choreo.Cost(alpha="p - 1", beta="p - 1")'), "brigade.py")
    )
    return found


def test_a_new_algorithm_is_everywhere(brigade: Algorithm, tmp_path: Path) -> None:
    listed = run_choreo("list", "broadcast", "--json").json
    assert isinstance(listed, list)
    assert {
        "collective": "broadcast",
        "algorithm": "brigade",
        "any_ranks": True,
        "requires": None,
        "cost": "(p - 1) α + (p - 1) n β",
    } in listed
    assert "brigade" in run_choreo("list").out
    proved = run_choreo("prove", "--all", "--algorithm", "brigade", "--ranks", "2..9", "--json").json
    assert isinstance(proved, dict)
    assert (proved["proved"], proved["failed"], proved["refused"]) == (8, 0, 0)
    priced = run_choreo("price", "broadcast", "--ranks", "4", "--size", "1MiB", "--json").json
    assert isinstance(priced, list)
    (price,) = [one for one in priced if one["algorithm"] == "brigade"]
    assert price["steps"] == 3
    assert price["alpha_s"] == pytest.approx(15e-6)
    assert "brigade" in run_choreo("price", "broadcast", "--ranks", "4", "--size", "1MiB").out
    assert run_choreo("show", "broadcast", "--algorithm", "brigade", "--ranks", "4").out.startswith(
        "broadcast by brigade"
    )
    file = tmp_path / "brigade.json"
    assert run_choreo("build", "broadcast", "-a", "brigade", "-p", "4", "--root", "1", "-o", str(file)).code == 0
    assert (choreo.load(file).algorithm, choreo.load(file).root) == ("brigade", 1)


def test_a_new_algorithm_can_run_along_an_axis(write: Write) -> None:
    code = "".join(
        f'@choreo.algorithm("{name}")\ndef {name}(ranks):\n    return choreo.build("{name}", "ring", ranks)\n'
        for name in ("all_gather", "reduce_scatter")
    )
    choreo.load_algorithms(write(code))
    choreo.prove(choreo.build("all_reduce", "hierarchical", 12, axes="3x4:mine,ring"))


def test_too_little_memory_is_not_an_algorithms_mistake(write: Write) -> None:
    choreo.load_algorithms(write('@choreo.algorithm("broadcast")\ndef mine(ranks, root=0):\n    raise MemoryError\n'))
    with pytest.raises(MemoryError):
        choreo.build("broadcast", "mine", 4)


def test_what_a_test_adds_is_forgotten() -> None:
    assert {"mine", "listening", "brigade", "even", "chain"} & {a.name for a in list_algorithms()} == set()
