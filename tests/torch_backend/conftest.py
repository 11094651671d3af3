"""Forked ranks with a process group of torch, that stay for all tests of a module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ranks.forks import import_torch
from tests.helpers.ranks.run import Job
from tests.helpers.suite.torch import dist, torch


def start(comm: Any, path: str, backend: str) -> str:
    """Make the default process group of a rank."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
    dist.init_process_group(backend, init_method=f"file://{path}", rank=comm.rank, world_size=comm.world_size)
    return str(dist.get_backend())


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Job]]:
    """So many ranks with a process group of the backend "choreo"."""
    started: dict[int, Job] = {}

    def of(ranks: int) -> Job:
        import_torch()
        job = started.get(ranks)
        if job is None or not job.processes:
            job = started[ranks] = Job(ranks)
            path: Path = tmp_path_factory.mktemp("store") / "store"
            assert job.run(start, str(path), "choreo") == ["choreo"] * ranks
        return job

    yield of
    for job in started.values():
        job.stop()
