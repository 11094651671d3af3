"""The launchers that tests start jobs with: `choreo run`, torchrun and mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

__all__ = ["LAUNCHERS", "find_launcher", "launch_command"]

LAUNCHERS = ("choreo", "torchrun", "mpirun")


def find_launcher(name: str) -> list[str] | None:
    """The words that start a launcher, which is beside Python or in PATH; None if there is none."""
    if name == "choreo":
        return [sys.executable, "-m", "choreo", "run"]
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None and name == "torchrun" and find_spec("torch"):
        return [sys.executable, "-m", "torch.distributed.run"]
    return None if path is None else [path]


@cache
def launch_command(name: str, ranks: int) -> list[str]:
    """What starts so many ranks of Python, with the arguments that follow."""
    words = find_launcher(name)
    if words is None:
        raise FileNotFoundError(f"there is no {name} here")
    if name == "choreo":
        return [*words, "-n", str(ranks)]
    if name == "torchrun":
        return [*words, "--nproc-per-node", str(ranks), "--no-python", sys.executable]
    said = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False).stdout
    options = ["--oversubscribe"] if "Open MPI" in said else []
    options += ["--allow-run-as-root"] if options and os.geteuid() == 0 else []
    return [*words, *options, "-n", str(ranks), sys.executable]
