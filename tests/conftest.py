"""What tests share: the registry's grid, and a command line run in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from choreo.algorithms import _registry
from choreo.cli import _run

if TYPE_CHECKING:
    from run_helpers import Job

pytest.register_assert_rewrite(
    "cli_helpers",
    "file_helpers",
    "fluid_oracle",
    "mutant_helpers",
    "fault_helpers",
    "launch_helpers",
    "network_helpers",
    "meeting_helpers",
    "registry_helpers",
    "run_helpers",
    "run_program_helpers",
    "simulate_helpers",
    "topology_oracle",
)

# A busy machine makes a test slow, not wrong.
settings.register_profile(
    "suite", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)


def run_choreo(*arguments: str) -> Ran:
    """`choreo` with these arguments, without starting a process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _run(list(arguments))
    return Ran(code, out.getvalue(), err.getvalue())


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], _registry.Algorithm]:
    """A registry of this test's own, that forgets what the test adds."""
    _registry.registered()
    copy = dict(_registry._FOUND)
    monkeypatch.setattr(_registry, "_FOUND", copy)
    return copy


@pytest.fixture(autouse=True)
def no_job_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tests are themselves run by."""
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "TORCHELASTIC", "CHOREO_")):
            monkeypatch.delenv(name)


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    from meeting_helpers import free_port

    return free_port()


@pytest.fixture(scope="module")
def jobs() -> Iterator[Callable[[int], Job]]:
    """So many ranks that stay for all tests of a module."""
    from run_helpers import Job

    started: dict[int, Job] = {}
    yield lambda ranks: started.setdefault(ranks, Job(ranks))
    for one in started.values():
        one.stop()
