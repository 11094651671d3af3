"""What the tests of the command line share: ways to run it, and what they run it on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.helpers.command import Ran, run_choreo

CHOREO = Path(sys.executable).with_name("choreo")

PRICE_KEYS = {
    "collective",
    "ranks",
    "size_bytes",
    "algorithm",
    "steps",
    "alpha_s",
    "beta_s",
    "gamma_s",
    "total_s",
    "max_bytes_sent",
    "max_bytes_received",
    "max_fan_in",
    "total_bytes",
}

RING = ["all_reduce", "-a", "ring", "-p", "4"]
SIZE = ["--size", "8"]

BROKEN = {
    "collective": "broadcast",
    "ranks": 3,
    "algorithm": "mine",
    "steps": [[{"src": 1, "dst": 2, "chunk": 0}], [{"src": 0, "dst": 1, "chunk": 0}]],
}


def fine(*arguments: str) -> Ran:
    """A command that must end well and say nothing on stderr."""
    ran = run_choreo(*arguments)
    assert (ran.code, ran.err) == (0, "")
    return ran


def table(*arguments: str) -> list[dict[str, object]]:
    found = fine(*arguments, "--json").json
    assert isinstance(found, list)
    return found


def record(ran: Ran) -> dict[str, object]:
    found = ran.json
    assert isinstance(found, dict)
    return found


def is_one_sentence(code: int, out: str, err: str) -> bool:
    return (
        code == 2
        and out == ""
        and err.startswith("choreo: ")
        and err.endswith("\n")
        and len(err.splitlines()) == 1
        and "Traceback" not in err
    )


def mistake(*arguments: str) -> str:
    """The one sentence that a command is refused with."""
    ran = run_choreo(*arguments)
    assert is_one_sentence(ran.code, ran.out, ran.err), ran
    return ran.err.removeprefix("choreo: ").removesuffix("\n")


def process(
    *arguments: str, limit_bytes: int | None = None, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`choreo` as a process of its own."""

    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    return subprocess.run(
        [str(CHOREO), *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=limit,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | environment,
    )
