"""What is fuzzed: kinds of files, and what Choreo does with each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from choreo.cli import _run as run_command

__all__ = ["KINDS", "Kind"]

Target = Callable[[Path], object]
JOB = ("--cluster", "hgx-h100", "--gpus", "8", "--global-batch", "8", "--seq", "512", "--micro-batch", "1")
PLAN = ("--zero", "1", "--recompute", "none", "--json")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: how it is written, and what reads it; of these a case takes one."""

    form: str  # one of mutate.MUTATORS
    targets: tuple[Target, ...]
    suffix: str = ""

    @property
    def ending(self) -> str:
        """How the file's name ends."""
        return self.suffix or f".{self.form}"


def _command(*arguments: str) -> Target:
    """A command; FILE stands for the file, and TEXT for its text."""

    def run(file: Path) -> object:
        text = file.read_bytes().decode("utf-8", "replace") if "TEXT" in arguments else ""
        return run_command([str(file) if one == "FILE" else text if one == "TEXT" else one for one in arguments])

    return run


def _plan(file: Path) -> None:
    from choreo.train.plan_file import read_plan
    from choreo.workload import get_model

    read_plan(file).check(get_model("gpt2-124m"), 4, 8, 64, trained=True)


def _constants(file: Path) -> None:
    from choreo.run.execute.choice import Chooser
    from choreo.run.execute.constants import load_constants

    os.environ["CHOREO_CONSTANTS"] = str(file)
    chooser = Chooser(4, load_constants(), {})
    for size in (8, 1 << 20):
        chooser.choose("all_reduce", size)


def _kernels(file: Path) -> None:
    from choreo.calibrate.device.kernels import read_kernels

    for kernel in read_kernels(file):
        _ = kernel.batch, kernel.bytes_moved


def _checkpoint(file: Path) -> None:
    from choreo.train.checkpoint.folder import CheckpointFolder

    folder = file.with_name("checkpoints")
    checkpoint = folder / "step-00000002"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "rank-0.pt").write_bytes(b"state")
    file.replace(checkpoint / "checkpoint.json")
    held = CheckpointFolder(folder)
    try:
        held.last({"name": "gpt2-124m", "layers": 12})
    finally:
        held.close()


def _nccl_output(file: Path) -> None:
    from choreo.record.importing.nccl_tests import read_nccl_tests

    read_nccl_tests(file)


def _nccl_inspector(file: Path) -> None:
    from choreo.record.importing.nccl_inspector import is_inspector_file, read_nccl_inspector

    if is_inspector_file(file):
        read_nccl_inspector(file)


def _sweep(file: Path) -> None:
    from choreo.sweep.file import read_sweep
    from choreo.sweep.verbs import cases_of

    for case in cases_of(*read_sweep(file)):
        _ = case.hash


def _secret(file: Path) -> None:
    from choreo.run.transport.secret import read_secret_file

    file.chmod(0o600)
    read_secret_file(file)


def _environment(file: Path) -> None:
    from choreo.run.execute.choice import forced_algorithms
    from choreo.run.rendezvous.environment import read_environment, read_job_address

    text = file.read_bytes().decode("utf-8", "replace").replace("\0", "")
    variables = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    for read in (read_environment, read_job_address):
        read(variables)
    forced_algorithms(variables.get("CHOREO_ALGORITHM", ""))


_NETWORK = (
    _command("topology", "show", "FILE"),
    _command("topology", "show", "FILE", "--json"),
    _command("simulate", "all_reduce", "-a", "ring", "-p", "3", "-t", "FILE", "--size", "1MiB"),
    _command("simulate", "all_reduce", "-a", "direct", "-t", "FILE", "--size", "1MiB"),
)
_SCHEDULE = (
    _command("prove", "--schedule", "FILE"),
    _command("prove", "--schedule", "FILE", "--json"),
    _command("price", "--schedule", "FILE", "--size", "1MiB", "--json"),
    _command("show", "--schedule", "FILE"),
    _command("simulate", "--schedule", "FILE", "-t", "switch(8, 50GB/s, 1us)", "--size", "1MiB"),
)
_TRACE = (
    _command("trace", "info", "FILE"),
    _command("trace", "info", "FILE", "--json"),
    _command("simulate", "--workload", "FILE", "-t", "switch(8, 50GB/s, 1us)"),
)

KINDS = {
    "schedule-json": Kind("json", _SCHEDULE),
    "schedule-npz": Kind("npz", _SCHEDULE),
    "schedule-msccl": Kind("xml", _SCHEDULE),
    "schedule-mscclpp": Kind("json", _SCHEDULE),
    "schedule-sccl": Kind("json", _SCHEDULE),
    "topology-json": Kind("json", _NETWORK),
    "topology-toml": Kind("toml", _NETWORK),
    "topology-xml": Kind("xml", _NETWORK),
    "topology-yml": Kind("text", _NETWORK, ".yml"),
    "topology-text": Kind("text", (_command("topology", "show", "--", "TEXT"),)),
    "model": Kind("json", (_command("plan", "FILE", "--json"), _command("plan", "FILE", *JOB, *PLAN))),
    "plan": Kind("json", (_plan,)),
    "device": Kind("toml", (_command("plan", "llama3-8b", *JOB, *PLAN, "--tp", "8", "--device", "FILE"),)),
    "result": Kind("json", (_command("simulate", "--compare", "FILE", "FILE"),)),
    "constants": Kind("json", (_constants, _command("calibrate", "--show"))),
    "kernels": Kind("csv", (_kernels,)),
    "nccl-tests": Kind("csv", (_command("simulate", "--validate", "FILE"),)),
    "nccl-output": Kind("text", (_nccl_output,)),
    "nccl-output-json": Kind("json", (_nccl_output,)),
    "nccl-inspector": Kind("text", (_nccl_inspector,), ".log"),
    "trace-chakra": Kind("bytes", _TRACE, ".0.et"),
    "trace-chakra-json": Kind("json", _TRACE),
    "trace-kineto": Kind("json", _TRACE),
    "trace-execution": Kind("json", _TRACE),
    "trace-text": Kind("text", _TRACE, ".txt"),
    "sweep": Kind("toml", (_sweep,)),
    "training-runs": Kind("csv", (_command("plan", "--validate", "FILE"),)),
    "checkpoint": Kind("json", (_checkpoint,)),
    "secret": Kind("text", (_secret,)),
    "environment": Kind("text", (_environment,)),
}
