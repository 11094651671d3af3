"""What tests share: the registry's grid, and a command line run in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from choreo.algorithms import _registry

if TYPE_CHECKING:
    from tests.helpers.run import Job

pytest.register_assert_rewrite(
    "tests.helpers.cli",
    "tests.helpers.files",
    "tests.oracles.fluid",
    "tests.helpers.mutants",
    "tests.helpers.faults",
    "tests.helpers.launch",
    "tests.helpers.hosts",
    "tests.helpers.rendezvous",
    "tests.helpers.registry",
    "tests.helpers.run",
    "tests.helpers.programs",
    "tests.helpers.simulate",
    "tests.oracles.topology",
)

# A busy machine makes a test slow, not wrong.
settings.register_profile(
    "suite", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# `nohup` and background jobs ignore these, and whatever is started inherits that. A handler that does nothing keeps
# this process alive just as well, and is the default again in the processes that tests start.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


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
    from tests.helpers.rendezvous import free_port

    return free_port()


@pytest.fixture(scope="module")
def jobs() -> Iterator[Callable[[int], Job]]:
    """So many ranks that stay for all tests of a module."""
    from tests.helpers.run import Job

    started: dict[int, Job] = {}
    yield lambda ranks: started.setdefault(ranks, Job(ranks))
    for one in started.values():
        one.stop()
