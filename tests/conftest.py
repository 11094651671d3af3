"""What tests share: the registry's grid, and a command line run in this process."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from choreo.algorithms import _registry

if TYPE_CHECKING:
    from tests.helpers.browser import Browser
    from tests.helpers.run import Job

pytest.register_assert_rewrite(
    "tests.helpers.browser",
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
    "tests.helpers.executors",
    "tests.helpers.programs",
    "tests.helpers.simulate",
    "tests.helpers.train",
    "tests.oracles.topology",
)

# Bytecode is kept even where the environment says otherwise: without it every worker rewrites the asserts of every
# file, and every process that a test starts compiles what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Ranks are forked from this process. What it holds is no garbage of theirs, and looking through it would copy it.
os.register_at_fork(after_in_child=gc.freeze)

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

# Longest first, so that no worker is left alone with one in the end. Of the workers, the first begins with what needs
# torch, so that few others import it, and the second with what waits longest.
TORCH = ("tests/test_docs.py", "tests/torch_backend", "tests/train")
LONGEST = "tests/run/chaos"
# What `make test-quick` leaves out: about a tenth of the tests' time is left, and something of every folder.
SLOW = (
    LONGEST,
    "tests/test_docs.py",
    "tests/algorithms/test_algorithms.py",
    "tests/algorithms/test_in_network.py",
    "tests/bench",
    "tests/bound/test_bound.py",
    "tests/bound/test_large.py",
    "tests/bound/test_oracle.py",
    "tests/calibrate",
    "tests/cli/test_cli.py",
    "tests/cli/test_load.py",
    "tests/cli/test_newcomer.py",
    "tests/cli/test_plan.py",
    "tests/cli/test_processes.py",
    "tests/plan/test_cases.py",
    "tests/plan/test_search.py",
    "tests/plan/test_space.py",
    "tests/price/test_price.py",
    "tests/prove/test_mutants.py",
    "tests/prove/test_mutants_stories.py",
    "tests/prove/test_prove.py",
    "tests/run/execute",
    "tests/run/launch",
    "tests/run/recover/test_faults.py",
    "tests/run/recover/test_leaving.py",
    "tests/run/recover/test_mismatch.py",
    "tests/run/recover/test_grow.py",
    "tests/run/consensus",
    "tests/run/rendezvous/test_hosts.py",
    "tests/run/rendezvous/test_local_file.py",
    "tests/run/rendezvous/test_rendezvous.py",
    "tests/run/rendezvous/test_unauthenticated.py",
    "tests/run/test_api.py",
    "tests/run/test_communicator.py",
    "tests/run/test_failed_calls.py",
    "tests/run/transport",
    "tests/schedule/test_compose.py",
    "tests/schedule/test_files_archives.py",
    "tests/schedule/test_files_documents.py",
    "tests/record/test_ask.py",
    "tests/record/test_questions.py",
    "tests/show/test_plan_browser.py",
    "tests/show/test_schedule.py",
    "tests/show/test_schedule_browser.py",
    "tests/show/test_simulation.py",
    "tests/show/test_simulation_browser.py",
    "tests/show/test_topology.py",
    "tests/simulate/test_in_network.py",
    "tests/simulate/test_oracle.py",
    "tests/simulate/test_properties.py",
    "tests/sweep",
    "tests/test_surface.py",
    "tests/topology/test_files.py",
    "tests/topology/test_nccl_xml.py",
    "tests/topology/test_routes.py",
    "tests/validate",
)
ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what takes long, and try fewer examples")
    parser.addoption("--grid", action="store_true", help="run the large grids too, which take many minutes")
    parser.addoption("--cpu", metavar="FILE", help="CPU seconds of each test, into a file, and what costs most")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        settings.register_profile("quick", settings.get_profile("suite"), max_examples=10)
        settings.load_profile("quick")
    if file := config.getoption("--cpu"):
        from tests.helpers.cpu import Costs

        config.pluginmanager.register(Costs(Path(file), hasattr(config, "workerinput")))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    name = collection_path.relative_to(ROOT).as_posix()
    return True if config.getoption("--quick") and name in SLOW else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--grid"):
        items[:] = [item for item in items if item.get_closest_marker("grid") is None]
    items.sort(key=lambda item: not item.nodeid.startswith(TORCH))
    longest = [item for item in items if item.nodeid.startswith(LONGEST)]
    others = [item for item in items if not item.nodeid.startswith(LONGEST)]
    second = len(items) // getattr(config, "workerinput", {}).get("workercount", 1)  # of equal parts, one a worker
    items[:] = others[:second] + longest + others[second:]


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


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of this process, in which each has pages of its own."""
    from tests.helpers.browser import Browser

    one = Browser(tmp_path_factory.mktemp("browser"))
    yield one
    one.close()


@pytest.fixture
def forked() -> Iterator[None]:
    """Ranks of launchers and benchmarks are forked from this process, which spares them their imports."""
    from tests.helpers.forks import forked_ranks

    with forked_ranks():
        yield


@pytest.fixture(scope="module")
def jobs() -> Iterator[Callable[[int], Job]]:
    """So many ranks that stay for all tests of a module."""
    from tests.helpers.run import Job

    started: dict[int, Job] = {}
    yield lambda ranks: started.setdefault(ranks, Job(ranks))
    for one in started.values():
        one.stop()
