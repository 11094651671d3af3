"""Every code block of the documents is run, and what it is said to print is what it prints.

A comment `file: NAME` above a block saves it under that name for the blocks after it; `run only` above a console block
runs it without comparing, for output that grows with the library. `...` in expected output stands for any lines. What
ranks of `choreo run` print is compared without regard to who was first.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import choreo
from tests.helpers.command import Ran, run_choreo
from tests.helpers.ranks.forks import forked_choreo, forked_ranks, import_torch

ROOT = Path(__file__).parent.parent
MADE = ROOT / "docs" / "reference" / "python"  # by `make docs`, from docstrings
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if MADE not in page.parents)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>[\w{}-]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
SOURCES = sorted(
    file.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for file in (ROOT / "src" / "choreo").rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)
TRAINS = re.compile(r"^(import torch|\$ choreo train|run = choreo\.train)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
# How far a command is, which only a slow machine prints.
PROGRESS = re.compile(r"^[a-z_ ]+: \d+ %\n", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    mark: str
    body: str


def blocks_of(document: Path) -> list[Block]:
    found = BLOCK.finditer(document.read_text(encoding="utf-8"))
    return [Block(match["language"], match["mark"] or "", match["body"]) for match in found]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHOREO_STORE", "store")  # not the user's own
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # whose data some commands read
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = blocks_of(document)
    if any(TRAINS.search(block.body) for block in blocks):
        import_torch()
    with forked_ranks():
        run_blocks(blocks, names)


def run_blocks(blocks: list[Block], names: dict[str, object]) -> None:
    for block in blocks:
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.body, encoding="utf-8")
        if block.language == "{toctree}":
            continue
        if block.language == "python":
            run_python(block, names)
        elif block.language == "console":
            run_console(block)
        else:
            read = block.language in ("text", "toml", "xml", "yaml") and block.mark.startswith("file: ")
            assert block.language == "json" or read, f"a {block.language!r} block is run by nobody: {block.body[:60]}"


def run_python(block: Block, names: dict[str, object]) -> None:
    if block.mark.startswith("file: "):
        return  # it is loaded by the command that the document gives
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block.body, "<document>", "exec"), names)


def run_console(block: Block) -> None:
    commands = re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]
    assert commands, "a console block without a command"
    for command in commands:
        line, _, expected = command.partition("\n")
        words = shlex.split(line)
        assert words[0] == "choreo", f"only choreo is run here, not {line}"
        words, into = (words[:-2], Path(words[-1])) if words[-2:-1] == [">"] else (words, None)
        ran = run_choreo(*words[1:]) if words[1] != "run" else run_ranks(words[1:])
        if into is not None:
            assert ran.code == 0, ran.err
            into.write_text(ran.out, encoding="utf-8")
        elif block.mark == "run only":
            assert ran.code == 0, ran.err
        else:
            if words[1] == "run":
                expected = "\n".join(sorted(expected.strip("\n").split("\n")))
            assert matches(ran.out + ran.err, expected), f"{line}\nprinted\n{ran.out}{ran.err}"


def run_ranks(words: list[str]) -> Ran:
    """`choreo run`, which writes to descriptors and not to Python's streams, with its lines in order."""
    ran = forked_choreo(*words)
    assert ran.code == 0, ran.err
    return Ran(0, "\n".join(sorted((ran.out + ran.err).strip("\n").split("\n"))), "")


def matches(printed: str, expected: str) -> bool:
    """Line by line but for spaces at line ends; `...` is any text."""
    want, got = ("\n".join(line.rstrip() for line in text.strip("\n").split("\n")) for text in (expected, printed))
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


def test_expected_output_is_compared() -> None:
    assert matches("a\nb\nc\n", "a\n...\nc\n")
    assert not matches("a\nb\nc\n", "a\nc\n")
    assert not matches("a\nb\nc\n", "...\nb\n")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_every_page_is_linked_from_the_index() -> None:
    listed = {
        line
        for page in (ROOT / "docs/index.md", ROOT / "docs/reference/python.md")
        for block in blocks_of(page)
        if block.language == "{toctree}"
        for line in block.body.splitlines()
        if line and not line.startswith(":")
    }
    pages = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in PAGES}
    assert listed - {"python/*"} == pages - {"index"}


def test_the_page_of_the_architecture_names_every_folder() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    folders = [path.parent.name for path in (ROOT / "src" / "choreo").glob("*/__init__.py")]
    assert [folder for folder in folders if f"`{folder}`" not in text] == []


def test_what_can_be_trusted_names_tests_that_exist() -> None:
    named = re.findall(r"`([^`]+)`", (ROOT / "docs" / "explanation" / "trust.md").read_text())
    files = [name for name in named if re.fullmatch(r"[a-z_/]+\.py", name) and not name.startswith("tools/")]
    functions = [name for name in named if re.fullmatch(r"test_\w+", name)]
    assert len(files) > 20 and len(functions) > 10
    assert [name for name in files if not (ROOT / "tests" / name).is_file()] == []
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in functions if f"def {name}(" not in tests] == []


def test_figures_of_the_worked_cases_are_shown() -> None:
    """Whole lines may be left out, but no figure within one."""
    for page in (ROOT / "docs/explanation/cases").glob("*.md"):
        for block in blocks_of(page):
            elided = [line for line in block.body.splitlines() if "..." in line and line != "..."]
            assert not elided, f"{name_of(page)}: {elided[0]}"


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("module", SOURCES)
def test_examples_in_docstrings_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if module.startswith(("choreo.train", "choreo.torch_backend")):
        import_torch()
    found = importlib.import_module(module)
    tests = [test for test in doctest.DocTestFinder().find(found, module) if test.examples]
    assert tests, "its examples are where no docstring is"
    for test in tests:
        test.globs["choreo"] = choreo
        printed: list[str] = []
        with forked_ranks():
            ran = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=printed.append)
        assert ran.failed == 0, "".join(printed)


def test_every_public_function_has_an_example() -> None:
    functions = {name for name in choreo.__all__ if inspect.isfunction(getattr(choreo, name))}
    assert functions
    assert [name for name in sorted(functions) if ">>> " not in (getattr(choreo, name).__doc__ or "")] == []


def test_code_in_public_docstrings_stays_on_its_line() -> None:
    """`docs/conf.py` marks code line by line."""
    texts = {name: getattr(choreo, name).__doc__ or "" for name in choreo.__all__}
    for file in (ROOT / "src" / "choreo").glob("*/__init__.py"):
        texts[file.parent.name] = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    lines = [(name, line) for name, text in texts.items() for line in text.splitlines()]
    assert [(name, line) for name, line in lines if line.count("`") % 2] == []


def test_the_picture_in_the_readme_is_what_its_command_draws(tmp_path: Path) -> None:
    drawn = tmp_path / "picture.svg"
    assert run_choreo("show", "all_reduce", "-a", "halving_doubling", "-p", "8", "--svg", str(drawn)).code == 0
    assert drawn.read_text(encoding="utf-8") == (ROOT / "docs/pictures/halving_doubling.svg").read_text(
        encoding="utf-8"
    )
