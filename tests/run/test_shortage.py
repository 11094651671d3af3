"""Ranks whose process or machine is short of something: all of them hear of what, and go on when there is more."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from choreo.algorithms import _registry, list_algorithms
from choreo.errors import ChoreoError, UsageError
from choreo.run.communicator import Communicator
from choreo.run.execute import choice
from choreo.run.execute.constants import default_constants
from tests.helpers.faults import Job, Pipe


def descriptors() -> list[int]:
    """Those that are open, but for the one that finds this out."""
    found = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())
    return [one for one in found if os.path.lexists(f"/proc/self/fd/{one}")]


def open_descriptors() -> int:
    return len(descriptors())


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Only so many more than are open now; the numbers below them are taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = []
    while open_descriptors() <= descriptors()[-1]:
        filled.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in filled:
            os.close(one)


def tries_groups(comm: Communicator, _: Pipe, most: int) -> list[str]:
    """What a group of all says to this rank, while rank 1 has few descriptors; nothing may be left of it."""
    told = []
    before = open_descriptors()
    for spare in range(most):
        with few_descriptors(spare) if comm.rank == 1 else few_descriptors(1000):
            try:
                group = comm.new_group(range(comm.world_size))
                group.close()
                del group
                told.append("")
            except ChoreoError as error:
                told.append(str(error))
        assert open_descriptors() == before, (spare, told)
    assert (comm.all_reduce(np.ones(2)) == comm.world_size).all()
    return told


def test_few_descriptors_are_told_to_every_rank() -> None:
    with Job(2, tries_groups, 12) as job:
        ended = job.ended()
    assert not [one for one in ended if one.error], ended
    mine, limited = ended[0].value, ended[1].value
    assert [bool(one) for one in mine] == [bool(one) for one in limited]
    assert mine[0] and not mine[-1], mine
    for ours, theirs in zip(mine, limited, strict=True):
        if theirs:
            assert theirs.endswith("allow more with ulimit -n"), theirs
            assert ours.startswith("rank 1 (pid ") and ours.endswith("allow more with ulimit -n"), ours


def tries_full_memory(comm: Communicator, _: Pipe) -> str:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.posix_fallocate
    if comm.rank == 1:
        os.posix_fallocate = full
    with pytest.raises(ChoreoError) as caught:
        comm.new_group([2, 1, 0])
    os.posix_fallocate = real
    comm.new_group([2, 1, 0]).close()
    return str(caught.value)


def test_full_shared_memory_is_told_to_every_rank() -> None:
    with Job(3, tries_full_memory) as job:
        ended = job.ended()
    assert not [one for one in ended if one.error], ended
    assert ended[1].value.startswith("there is no room for")
    for other in (0, 2):
        assert "rank 1 (pid " in ended[other].value and ended[1].value in ended[other].value


def test_a_choice_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered of a folder that could not be listed, or of a schedule that could not be built."""

    def no_descriptor(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def no_memory(*_: Any) -> Any:
        raise UsageError("there is no memory for it")

    known = len(list_algorithms("all_reduce"))
    monkeypatch.setattr(_registry, "_DISCOVERED", False)
    with monkeypatch.context() as short:
        short.setattr(Path, "iterdir", no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            list_algorithms("all_reduce")
    assert len(list_algorithms("all_reduce")) == known
    chooser = choice.Chooser(11, default_constants(), {})
    choice._profiles.cache_clear()
    with monkeypatch.context() as short:
        short.setattr(choice, "build", no_memory)
        with pytest.raises(UsageError, match="no memory"):
            chooser.choose("all_gather", 8)
    assert chooser.choose("all_gather", 8)
