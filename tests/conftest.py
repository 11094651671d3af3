"""What tests share: the registry's grid, and a command line run in this process."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings

from choreo.algorithms import _registry
from choreo.cli import _run

pytest.register_assert_rewrite(
    "cli_helpers",
    "file_helpers",
    "fluid_oracle",
    "mutant_helpers",
    "registry_helpers",
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
