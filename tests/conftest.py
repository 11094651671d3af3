"""What tests share: the registry's grid, and a command line run in this process."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from choreo.algorithms import _registry

if TYPE_CHECKING:
    from tests.helpers.pages.browser import Browser
    from tests.helpers.ranks.run import Job

pytest.register_assert_rewrite(
    "tests.helpers.pages.browser",
    "tests.helpers.cli",
    "tests.helpers.files",
    "tests.oracles.fluid",
    "tests.helpers.mutants",
    "tests.helpers.ranks.faults",
    "tests.helpers.ranks.launch",
    "tests.helpers.network.hosts",
    "tests.helpers.ranks.rendezvous",
    "tests.helpers.registry",
    "tests.helpers.ranks.run",
    "tests.helpers.ranks.executors",
    "tests.helpers.programs",
    "tests.helpers.simulate",
    "tests.helpers.ranks.train",
    "tests.oracles.topology",
)

# Bytecode is kept even where the environment says otherwise: without it every process that a test starts compiles what
# it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What the user has measured and recorded is not what tests are about: they find, and leave, folders of their own.
_OWN = tempfile.TemporaryDirectory(prefix="choreo-tests-")
os.environ.update(XDG_CACHE_HOME=f"{_OWN.name}/cache", XDG_DATA_HOME=f"{_OWN.name}/data")

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

# What workers begin with. Each of these stays in one process: tests that need torch, so that few import it; those that
# wait longest; those that share a browser.
FIRST = (
    (
        "tests/test_docs.py", "tests/test_surface.py::test_no_error", "tests/bench/test_bench.py::test_a_peer",
        "tests/torch_backend", "tests/train", "tests/calibrate/test_cpu.py::test_every",
    ),
    ("tests/run/chaos",),
    ("tests/explore/test_explore_browser.py", "tests/show/test_large", "tests/show/test_plan_b", "tests/show/test_s"),
)  # fmt: skip
# What `make test-quick` runs: something of every folder, in about thirty CPU seconds. A new file is left out until it
# is named here.
QUICK = (
    "tests/algorithms/test_bine.py",
    "tests/algorithms/test_loading.py",
    "tests/algorithms/test_registry.py",
    "tests/bench/test_bench.py::test_figures",
    "tests/bench/test_bench.py::test_inputs",
    "tests/bench/test_bench.py::test_mistakes",
    "tests/bench/test_bench.py::test_what_must_come_out",
    "tests/bound/test_bound.py",
    "tests/bound/test_mistakes.py",
    "tests/calibrate/test_device_command.py",
    "tests/calibrate/test_device_fit.py::test_a",
    "tests/cli/test_bound.py",
    "tests/cli/test_mistakes.py",
    "tests/cli/test_topology.py",
    "tests/collectives",
    "tests/explore/test_moment.py",
    "tests/hardware",
    "tests/nccl",
    "tests/plan/test_how_sure.py",
    "tests/plan/test_launch.py",
    "tests/plan/test_network.py",
    "tests/plan/test_pipeline.py",
    "tests/plan/test_this_machine.py",
    "tests/price/test_price.py::test_a",
    "tests/price/test_price.py::test_every_closed_form_is_the_price_term_by_term[all_gather",
    "tests/price/test_price.py::test_the_formulas",
    "tests/price/test_price.py::test_the_road",
    "tests/prove/test_mutants_by_hand.py",
    "tests/prove/test_prove.py",
    "tests/record/test_import.py",
    "tests/run/consensus/test_between_hosts.py",
    "tests/run/execute/test_executor_checks.py",
    "tests/run/launch/test_launch.py::test_mistakes",
    "tests/run/launch/test_launch.py::test_ranks_find_each_other",
    "tests/run/messages/test_ring.py",
    "tests/run/messages/test_sockets.py",
    "tests/run/messages/test_words.py",
    "tests/run/recover/test_faults.py::test_a_rank_that_is_killed",
    "tests/run/rendezvous/test_environment.py",
    "tests/run/rendezvous/test_local_file.py",
    "tests/run/test_choice.py",
    "tests/run/test_failed_calls.py",
    "tests/run/test_objects.py",
    "tests/run/transport/test_handshake.py",
    "tests/schedule/test_files_contradictions.py",
    "tests/schedule/test_messages.py",
    "tests/schedule/test_sccl.py",
    "tests/schedule/test_schedule.py",
    "tests/show/test_any_result.py",
    "tests/show/test_wrong_schedule.py",
    "tests/simulate/packets/test_exact.py",
    "tests/simulate/test_fluid_oracle.py",
    "tests/simulate/test_receive_in_order.py",
    "tests/sweep/test_sweep.py::test_files",
    "tests/sweep/test_sweep_command.py::test_mistakes",
    "tests/sweep/test_sweep.py::test_price",
    "tests/synthesize/test_translated.py",
    "tests/test_docs.py::test_links",
    "tests/test_docs.py::test_the_page",
    "tests/test_results.py",
    "tests/test_surface.py::test_every_name",
    "tests/test_surface.py::test_the",
    "tests/test_tiny.py",
    "tests/topology/test_catalogue.py",
    "tests/topology/test_language.py",
    "tests/topology/test_topology.py",
    "tests/torch_backend/test_tensors.py",
    "tests/trace/test_trace.py",
    "tests/train/test_predict.py",
    "tests/tune",
    "tests/validate/test_nccl.py",
    "tests/validate/test_validate.py",
    "tests/workload",
)
ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what takes long, and try fewer examples")
    parser.addoption("--grid", action="store_true", help="run the large grids too, which take many minutes")
    parser.addoption("--workers", metavar="N", type=int, help="run the tests in so many processes")
    parser.addoption("--cpu", metavar="FILE", help="CPU seconds of each test, into a file, and what costs most")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--cpu"):
        from tests.helpers.suite.cpu import Costs

        config.pluginmanager.register(Costs(Path(file)))
    if count := config.getoption("--workers"):
        from tests.helpers.suite.workers import Workers

        config.pluginmanager.register(Workers(count, FIRST))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if _is_left_out(collection_path, config) else None


def _is_left_out(path: Path, config: pytest.Config) -> bool:
    """Whether a file has none of the quick tests where only those are asked for."""
    if not config.getoption("--quick") or not path.name.startswith("test_"):
        return False
    name = path.relative_to(ROOT).as_posix()
    return not name.startswith(QUICK) and not any(one.startswith(name) for one in QUICK)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        items[:] = [item for item in items if item.nodeid.startswith(QUICK)]
    if not config.getoption("--grid"):
        items[:] = [item for item in items if item.get_closest_marker("grid") is None]
        _try_fewer_examples(items, 10 if config.getoption("--quick") else None)


def _try_fewer_examples(items: list[pytest.Item], most: int | None) -> None:
    """Half of Hypothesis' examples where there are many, or at most so many.

    They are the same in every run, so the second half is for `--grid`, and for whoever changes what it is about.
    """
    tests: set[Any] = {getattr(item, "obj", None) for item in items}
    for test in tests:
        if (given := getattr(test, "_hypothesis_internal_use_settings", None)) is not None:
            examples = min(given.max_examples, most or max(25, given.max_examples // 2))
            test._hypothesis_internal_use_settings = settings(given, max_examples=examples)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Nothing that was imported is ever garbage, and looking for some among it takes a third of a second each time."""
    if session.config.getoption("--workers"):
        from tests.helpers.ranks.prices import price_algorithms

        price_algorithms()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # and looking often for a little takes a twentieth of all time


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
    from tests.helpers.ranks.rendezvous import free_port

    return free_port()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of this process, in which each has pages of its own."""
    from tests.helpers.pages.browser import Browser

    one = Browser(tmp_path_factory.mktemp("browser"))
    yield one
    one.close()


@pytest.fixture
def forked() -> Iterator[None]:
    """Ranks of launchers and benchmarks are forked from this process, which spares them their imports."""
    from tests.helpers.ranks.forks import forked_ranks

    with forked_ranks():
        yield


@pytest.fixture(scope="module")
def jobs() -> Iterator[Callable[[int], Job]]:
    """So many ranks that stay for all tests of a module."""
    from tests.helpers.ranks.run import Job

    started: dict[int, Job] = {}
    yield lambda ranks: started.setdefault(ranks, Job(ranks))
    for one in started.values():
        one.stop()
