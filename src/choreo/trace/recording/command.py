"""Run a user's training program with one of its steps traced.

The program is not changed. Its Python finds our `sitecustomize` on PYTHONPATH, which waits until the program has
imported torch, and then counts optimizer steps.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from choreo.errors import TraceError, UsageError, shown

__all__ = ["FOLDER", "STEP", "record_command"]

FOLDER, STEP = "CHOREO_TRACE_FOLDER", "CHOREO_TRACE_STEP"
INJECTED = Path(__file__).parent / "inject"
STDERR = 2  # the file descriptor: the program's output must not mix with the command's


def record_command(command: Sequence[str], folder: Path, step: int = 3) -> None:
    """Run a command, with step number `step` of every process that steps an optimizer traced into a folder."""
    if not command:
        raise UsageError("say what to run: choreo trace record -o DIR -- torchrun --nproc-per-node 2 train.py")
    if step < 1:
        raise UsageError(f"steps are counted from 1, and --step is {step}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{shown(folder)} is there already and not empty; give another folder, or remove it")
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).parents[3]
    path = os.pathsep.join(filter(None, (str(INJECTED), str(source), os.environ.get("PYTHONPATH", ""))))
    variables = os.environ | {"PYTHONPATH": path, FOLDER: str(folder.resolve()), STEP: str(step)}
    try:
        ended = subprocess.run(list(command), env=variables, check=False, stdout=STDERR)
    except OSError as error:
        raise UsageError(f"{shown(command[0])} cannot be run: {error.strerror}") from None
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()
    if ended.returncode:
        raise TraceError(f"{shown(command[0])} ended with code {ended.returncode}; its trace is not complete")
    if not any(folder.glob("kineto.*.json")):
        raise TraceError(
            f"no process stepped a torch optimizer {step} times, so nothing was traced; give a smaller --step, or use "
            "choreo.trace.recording.recording() in the program"
        )
