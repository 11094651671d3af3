"""Which algorithm runs: what `explain` and CHOREO_DEBUG say of it, and which give all ranks the same bits."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from choreo.algorithms import build, list_algorithms
from choreo.errors import ChoreoError, UsageError
from choreo.price import CostModel, price
from choreo.run.communicator import Communicator
from choreo.run.execute.choice import Chooser, forced_algorithms
from choreo.run.execute.constants import Band, Constants, network_constants
from choreo.run.execute.host_price import host_profile
from tests.helpers.ranks.run import Job

Array = npt.NDArray[Any]


def explained(comm: Communicator) -> str:
    return comm.explain("all_reduce", 1 << 20)


def test_choosing_imports_nothing_heavy() -> None:
    """It happens inside a rank's first call: a second of imports there would be a second of the first step."""
    code = (
        "import sys\n"
        "from choreo.collectives import COLLECTIVES\n"
        "from choreo.run.execute.choice import Chooser\n"
        "from choreo.run.execute.constants import default_constants\n"
        "for ranks in range(2, 10):\n"
        "    for name in COLLECTIVES:\n"
        "        Chooser(ranks, default_constants(), {}).choose(name, 4096)\n"
        "print([name for name in ('scipy', 'torch', 'networkx') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_explain(jobs: Callable[[int], Job]) -> None:
    said = jobs(3).run(explained)
    assert said[0] == said[1] == said[2]
    assert said[0].startswith("all_reduce of 1048576 bytes over 3 ranks: ")
    assert "the cheapest by price" in said[0]
    assert "naive" not in said[0]
    assert "staggered" not in said[0]


def test_rank_0s_choice_is_everybodys() -> None:
    mine = Chooser(
        4, Constants((Band(4, 1 << 62, 1e-3, 1e9, 1e-10),)), forced_algorithms("all_reduce:ring, broadcast:mst")
    )
    theirs = Chooser.from_json(mine.to_json(), 4)
    assert theirs.explain("all_reduce", 100) == mine.explain("all_reduce", 100)
    assert theirs.ranked("gather", 100) == mine.ranked("gather", 100)
    with pytest.raises(UsageError, match="write all_reduce:ring"):
        forced_algorithms("ring")
    with pytest.raises(UsageError, match="CHOREO_ALGORITHM: there is no all_reduce algorithm 'rin'"):
        forced_algorithms("all_reduce:rin")


def reported(comm: Communicator) -> str:
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        comm.all_reduce(np.ones(2, np.float32))
        comm.all_reduce(np.ones(2, np.float32))
    return err.getvalue()


def test_debug_prints_a_line_a_call() -> None:
    with Job(2, {"all_reduce": "ring"}, {"debug": True}) as job:
        for rank, said in enumerate(job.run(reported)):
            lines = said.splitlines()
            assert len(lines) == 2
            for line in lines:
                assert line.startswith(f"choreo: rank {rank}: all_reduce of 8 bytes by ring in ")
                assert line.endswith(" us")


def sums(algorithm: str, ranks: int) -> Array:
    """For every rank and chunk, a number that stands for the order in which contributions were added."""
    schedule = build("all_reduce", algorithm, ranks)
    rng = np.random.default_rng(0)
    mine = rng.integers(1, 1 << 62, (schedule.members, schedule.num_chunks), dtype=np.uint64)
    work, has = mine.copy(), np.ones(mine.shape, bool)
    has[ranks:] = False
    for rows in schedule.steps():
        before = work.copy()
        order = np.lexsort((rows.chunk, rows.src))
        for at in order:
            span = slice(int(rows.chunk[at]), int(rows.chunk[at] + rows.count[at]))
            source, target = int(rows.src[at]), int(rows.dst[at])
            comes = (mine if rows.from_input[at] else before)[source, span]
            if rows.reduce[at]:
                low, high = np.minimum(work[target, span], comes), np.maximum(work[target, span], comes)
                added = (low * np.uint64(0x9E3779B97F4A7C15)) ^ (high * np.uint64(0xC2B2AE3D27D4EB4F) >> np.uint64(7))
                comes = np.where(has[target, span], added, comes)
            work[target, span], has[target, span] = comes, True
    return work[:ranks]


@pytest.mark.parametrize("algorithm", [one.name for one in list_algorithms("all_reduce") if one.in_library])
def test_only_those_marked_give_ranks_different_bits(algorithm: str) -> None:
    same = next(one.same_bits for one in list_algorithms("all_reduce") if one.name == algorithm)
    found = []
    for ranks in (3, 4, 5, 8):
        with contextlib.suppress(ChoreoError):
            order = sums(algorithm, ranks)
            found.append(bool((order == order[0]).all()))
    assert found
    assert all(found) == same


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("collective", ["broadcast", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_with_a_host_for_every_rank_the_price_is_that_of_one_port(collective: str, ranks: int) -> None:
    network, memory = CostModel(2e-5, 1e9, 1e-10), CostModel(1e-6, 1e10, 1e-10)
    for algorithm in list_algorithms(collective):
        if not algorithm.in_library:
            continue
        try:
            schedule = build(collective, algorithm.name, ranks)
        except ChoreoError:
            continue
        if schedule.switches:
            continue
        found = host_profile(collective, algorithm.name, tuple(range(ranks)))
        assert not found.memory.any()
        for size in (8, 1 << 20):
            expected = price(schedule, size, network).total_s
            assert found.time_s(size, network, memory) == pytest.approx(expected), algorithm.name


@pytest.mark.parametrize("hosts", [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2, 3), (4, 5, 6, 7))])
def test_large_collectives_cross_between_hosts_as_little_as_any(hosts: tuple[tuple[int, ...], ...]) -> None:
    chooser = Chooser(sum(map(len, hosts)), network_constants(), {}).among(hosts)
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        crossing = {
            name: host_profile(collective, name, chooser.hosts).network[..., 1].max(axis=1).sum()
            for _, name in chooser.ranked(collective, 16 << 20)
        }
        assert crossing[chooser.choose(collective, 16 << 20)] == pytest.approx(min(crossing.values())), collective


def test_a_broadcast_crosses_to_another_host_once() -> None:
    chooser = Chooser(4, network_constants(), {}).among(((0, 1), (2, 3)))
    for size in (8, 1 << 20, 64 << 20):
        chosen = host_profile("broadcast", chooser.choose("broadcast", size), chooser.hosts)
        assert chosen.network[..., 1].max(axis=1).sum() == 1


def test_ranks_of_one_host_are_priced_as_without_hosts() -> None:
    chooser = Chooser(4, network_constants(), {})
    assert chooser.among(((0, 1, 2, 3),)).ranked("all_reduce", 4096) == chooser.ranked("all_reduce", 4096)
