"""The command line at a terminal, in pipes and as a process of its own."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from choreo.cli import progress
from tests.helpers.cli import BROKEN, CHOREO, RING, SIZE, fine, is_one_sentence, process


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


def test_the_tour_on_a_bare_machine() -> None:
    """Every verb is there, each with the command that anybody can paste, and it ends with a run and a plan.

    There is no HOME, no TERM, no language, and signals are ignored by what started it, as in a script under nohup.
    """
    command = f"trap '' INT HUP; exec {shlex.quote(str(CHOREO))} tour"
    bare = {"PATH": os.environ["PATH"], "COLUMNS": "80"}
    ran = subprocess.run(["sh", "-c", command], env=bare, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    told = [line for line in ran.stdout.splitlines() if not line.startswith("$ ")]
    assert max(map(len, told)) <= 80
    pasted = [line.removeprefix("$ ").split() for line in ran.stdout.splitlines() if line.startswith("$ ")]
    assert len(pasted) > 6 and {words[0] for words in pasted} <= {"choreo", str(CHOREO)}
    assert [words[1] for words in pasted[:6]] == ["show", "prove", "price", "simulate", "bench", "plan"]
    assert "before it has the contribution of rank" in ran.stdout
    measured = ran.stdout.partition("bench all_reduce")[2]
    assert "predicted" in measured and "Out of bounds values : 0 OK" in measured
    assert "MFU" in measured.partition("plan llama3-70b")[2]


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


def test_a_page_is_written_even_if_nobody_reads_the_answer(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    page, trace = tmp_path / "run.html", tmp_path / "run.json"
    try:
        process("simulate", *RING, "-t", "ring(4)", *SIZE, "--html", str(page), "--trace", str(trace), stdout=writer)
    finally:
        os.close(writer)
    assert page.exists() and trace.exists()


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
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_reported(arguments: list[str], unbuffered: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        ran = process(*arguments, stdout=full, PYTHONUNBUFFERED=unbuffered)
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_says_how_long_it_has_been_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.001)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.waiting("searching"):
        while not terminal.getvalue():
            time.sleep(0.001)
    assert re.fullmatch(r"\rsearching: \d+ s\r +\r", terminal.getvalue())


def test_work_that_says_how_much_of_it_is_done_no_longer_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.001)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.Progress("ring") as told, progress.waiting("ring", told):
        while not terminal.getvalue():
            time.sleep(0.001)
        told(1, 2)
    assert re.fullmatch(r"\rring: \d+ s\rring: 50 %\r +\r\r +\r", terminal.getvalue())
