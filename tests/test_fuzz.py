"""A sample of tools/fuzz.py: no file makes a reader fail, warn, or take long or much memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SLOW = ("model", "nccl-tests", "training-runs")  # predicted row by row, or planned
QUICK = (
    "schedule-json", "schedule-npz", "schedule-msccl", "schedule-mscclpp", "schedule-sccl",
    "topology-json", "topology-toml", "topology-xml", "topology-yml",
    "topology-text", "plan", "device", "result", "constants", "kernels", "checkpoint", "secret", "environment",
    "nccl-output", "nccl-output-json", "nccl-inspector", "sweep",
    "trace-chakra", "trace-chakra-json", "trace-kineto", "trace-execution", "trace-text",
)  # fmt: skip


@pytest.mark.parametrize(("kinds", "count"), [(QUICK, 150), (SLOW, 12)], ids=["quick", "slow"])
def test_mutants_are_read_or_refused_in_a_sentence(
    kinds: tuple[str, ...], count: int, pytestconfig: pytest.Config
) -> None:
    count = count if pytestconfig.getoption("--grid") else count // 2
    asked = [word for kind in kinds for word in ("--kind", kind)]
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), "--count", str(count), *asked]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *lines, summary = ran.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(kinds)
    assert summary.startswith(f"{len(kinds)} kinds, ") and " 0 bad, " in summary


def test_every_kind_is_in_the_sample() -> None:
    assert {path.name for path in (ROOT / "tests" / "data" / "fuzz").iterdir() if path.is_dir()} == {*QUICK, *SLOW}


@pytest.mark.grid
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_the_compiled_executor_takes_no_harm_from_programs_and_frames() -> None:
    command = [sys.executable, str(ROOT / "tools" / "fuzz_core.py"), "20000", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "20000 programs" in ran.stdout
