"""What a terminal shows: tables as wide as it is, and colours where they are wanted."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from choreo.cli import _run
from tests.helpers.command import run_choreo

RING = ["-t", "ring(8, 50GB/s, 500ns)"]
DATA = Path(__file__).parents[1] / "data"
JOB = ["--cluster", "hgx-h100", "--gpus", "8", "--global-batch", "64", "--seq", "2048"]
WIDE = [
    ["list"],
    ["list", "all_reduce"],
    *(["list", catalogue] for catalogue in ("models", "devices", "software", "topologies")),
    ["price", "all_reduce", "-p", "64", "--size", "1MiB", "--gamma", "100GB/s"],
    ["price", "all_reduce", "-p", "64", "--sweep", "8:1GiB"],
    ["simulate", "all_reduce", *RING, "--size", "1MiB", "-a", "all"],
    ["simulate", "all_reduce", "-t", "dgx-a100:2", "--sweep", "8:1KiB", "-a", "ring", "-a", "hierarchical"],
    ["simulate", "all_reduce", "-t", "dgx-a100:2", "--sweep", "8:1KiB", "--library", "nccl"],
    [
        "simulate",
        "all_reduce",
        "-t",
        "ring(2, 50GB/s, 1us) x switch(2, 400Gbit/s, 1us)",
        "--sweep",
        "8:64",
        "-a",
        "all",
    ],
    ["simulate", "all_reduce", "-t", "dgx-a100:2", "--size", "1KiB", "--library", "nccl"],
    ["bench", "all_reduce", "-n", "2", "-e", "8", "--rounds", "1", "--iters", "1"],
    ["bench", "reduce", "-n", "2", "-e", "8", "--rounds", "1", "--iters", "1", "-a", "all"],
    ["tour"],
    ["topology", "show", "hgx-h100:4"],
    ["calibrate", "--show"],
    ["plan", "llama3-70b"],
    ["plan", "resnet-50", "--gpus", "256", "--steps-per-s", "3", "--parameter-server", "50GB/s"],
    ["simulate", "all_reduce", "-t", "dgx-1", "--size", "1MiB", "-a", "ring"],
    ["prove", "all_reduce", "-a", "hierarchical", "--axes", "8x4"],
    ["plan", "llama3-8b", *JOB],
    ["plan", "llama3-8b", *JOB, "--tp", "8", "--traffic"],
    ["plan", "llama3-8b", *JOB, "--vary", "tp=1,3,8"],
    ["plan", "llama3-8b", *JOB, "--tp", "8", "--software", "nobody-knows-it"],
    ["simulate", "--validate", str(DATA / "nccl_measured.csv")],
    ["bound", "all_reduce", "-t", "dgx-1", "--size", "1MiB"],
]


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("arguments", WIDE, ids=" ".join)
def test_tables_fit(arguments: list[str], columns: int) -> None:
    ran = run_choreo(*arguments, columns=columns)
    assert max(map(len, (ran.out + ran.err).splitlines())) <= columns


def test_a_narrow_table_says_which_columns_it_leaves_out() -> None:
    price = ["price", "all_reduce", "-p", "8", "--size", "1MiB"]
    narrow, wide = run_choreo(*price, columns=80).out, run_choreo(*price, columns=160).out
    assert re.search(r"columns hidden at width 80: .*traffic.*\n\(.*--json has everything\)\n$", narrow)
    assert "left out" not in wide
    assert re.search("^algorithm .* traffic$", wide, re.MULTILINE)
    swept = ["simulate", "all_reduce", *RING, "--sweep", "8:32"]
    assert "redop" in run_choreo(*swept).out, "a pipe gets all of nccl-tests' columns"
    assert "# columns hidden at width 60: type, redop\n# (--json has everything)" in run_choreo(*swept, columns=60).out


class Terminal(io.StringIO):
    """A stdout that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


COLORED = [
    ["list"],
    ["show", "all_reduce", "-a", "ring", "-p", "4"],
    ["price", "all_reduce", "-p", "8", "--size", "1MiB"],
    ["simulate", "all_reduce", *RING, "--size", "8", "-a", "all"],
]


@pytest.mark.parametrize("arguments", COLORED, ids=" ".join)
def test_no_color_is_respected(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    seen = {}
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        with contextlib.redirect_stdout(Terminal()) as terminal:
            assert _run(arguments) == 0
        seen[value] = terminal.getvalue()
    assert "\x1b[" in seen[""]
    assert re.sub(r"\x1b\[[\d;]*m", "", seen[""]) == seen["1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "all_reduce", *RING, "--size", "1MiB"],
        ["plan", "llama3-8b", *JOB],
        ["show", "all_reduce", "-a", "ring", "-p", "3"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_page_on_stdout_is_all_that_is_there(arguments: list[str]) -> None:
    ran = run_choreo(*arguments, "--html", "-")
    assert (ran.code, ran.out.startswith("<!doctype html>"), ran.out.count("<!doctype html>")) == (0, True, 1)
