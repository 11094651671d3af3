"""Ranks that are short of something while they shrink: all hear of it, and nobody is lost for a moment's shortage."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from choreo.errors import ChoreoError, PeerFailure
from choreo.run import connect
from choreo.run.communicator import Communicator
from choreo.run.consensus.ledger import Ledger
from choreo.run.messages.point_to_point import PointToPoint
from choreo.run.recover import shrink
from tests.helpers.ranks.descriptors import few_descriptors
from tests.helpers.ranks.faults import Job, Pipe, eventually, values


def shrinks_with_few(comm: Communicator, _: Pipe) -> str:
    """The other ranks die; of those that are left, rank 1 has too few descriptors."""
    if comm.rank == 2:
        os._exit(1)
    pytest.MonkeyPatch().setattr(shrink, "ATTEMPTS", 3)
    with pytest.raises(PeerFailure):
        comm.barrier()
    with few_descriptors(3 if comm.rank == 1 else 1000), pytest.raises(PeerFailure) as caught:
        comm.shrink()
    told = str(caught.value)
    del caught
    assert (comm.shrink().all_reduce(np.ones(1)) == 2).all()  # there are more now
    return told


def test_why_no_communicator_could_be_built_is_reported() -> None:
    with Job(3, shrinks_with_few) as job:
        ended = job.ended(0, 1)
    assert not [one for one in ended if one.error], ended
    for one in ended:
        assert one.value.startswith("no communicator of ranks (0, 1) could be built in 3 attempts: ")
        assert one.value.endswith("allow more with ulimit -n")


def shrinks_without_addresses(comm: Communicator, talk: Pipe) -> int:
    """Rank 1 can map no shared memory at first; the others wait for it, and go on with it."""
    with pytest.raises(ChoreoError):
        comm.all_reduce(np.ones(3 + comm.rank))
    failed: list[object] = []
    real = mmap.mmap

    def no_addresses(*args: Any, **options: Any) -> Any:
        if len(failed) < 2:
            failed.append(args)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return real(*args, **options)

    with pytest.MonkeyPatch().context() as patch:
        if comm.rank == 1:
            patch.setattr(mmap, "mmap", no_addresses)
        after = comm.shrink()
    assert comm.rank != 1 or len(failed) == 2
    return int(after.all_reduce(np.ones(1))[0])


def test_a_rank_that_is_short_of_addresses_for_a_moment_stays() -> None:
    with Job(3, shrinks_without_addresses) as job:
        assert values(job.ended()) == [3, 3, 3]


def shrinks_without_room(comm: Communicator, talk: Pipe) -> tuple[list[str], int]:
    """Shared memory is full for a moment in rank 1: at its first reservation or decision, then at its second, ...

    What it was told, and how often it was short.
    """
    told = []
    shortages = 0
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(connect, "_scheduling_group", lambda: "a cgroup's path may be long " * 200)
        for number in range(6):
            with pytest.raises(ChoreoError):
                comm.all_reduce(np.ones(3 + comm.rank))
            place = itertools.count()
            with patch.context() as short:
                for name in ("write", "posix_fallocate"):
                    short.setattr(os, name, _short(getattr(os, name), place, number if comm.rank == 1 else -1))
                try:
                    after = comm.shrink(timeout=5)
                except ChoreoError as error:
                    told.append(str(error))
                    after = comm.shrink(timeout=5)
                comm = after
            assert comm.world_size == 2, number
            shortages += comm.rank == 1 and next(place) > number
    return told, shortages


def _short(real: Callable[..., int], place: Iterator[int], number: int) -> Callable[..., int]:
    def call(*args: Any) -> int:
        if next(place) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    return call


def test_a_rank_that_is_short_of_shared_memory_for_a_moment_stays() -> None:
    with Job(2, shrinks_without_room) as job:
        first, second = values(job.ended())
    assert first == ([], 0)
    told, shortages = second
    assert shortages >= 3
    assert all("cannot be written to shared memory: No space left" in one for one in told)


def is_short_at_the_last_decision(comm: Communicator, _: Pipe) -> tuple[int, ...]:
    """Rank 1 cannot write down that all are connected; rank 0 can, and goes on."""
    short = [f"exchange 0 {shrink.COMMIT}"] if comm.rank == 1 else []

    def decide(ledger: Ledger, topic: str, proposal: bytes, real: Callable[..., bytes] = Ledger.decide) -> bytes:
        if topic in short:
            short.remove(topic)
            assert eventually(lambda: ledger.decided(topic))
            raise ChoreoError("what the ranks decide cannot be written to shared memory")
        return real(ledger, topic, proposal)

    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(Ledger, "decide", decide)
        comm = comm.shrink(timeout=5)
    assert not short
    return comm.ranks


def test_a_rank_that_is_short_while_the_others_complete_the_attempt_goes_on_with_them() -> None:
    with Job(2, is_short_at_the_last_decision) as job:
        assert values(job.ended()) == [(0, 1)] * 2


def writes_no_decision(comm: Communicator, talk: Pipe) -> str:
    """Rank 1 may write no files when a call has failed; the limit is what a sandbox sets."""
    if comm.rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    with pytest.raises(ChoreoError) as caught:
        comm.shrink(timeout=2)
    return str(caught.value)


def test_a_decision_that_cannot_be_written_is_reported() -> None:
    with Job(2, writes_no_decision) as job:
        told = job.ended()[1]
    assert (
        told.value
        == "what the ranks decide cannot be written to shared memory: File too large: allow larger files with ulimit -f"
    ), told


def fails_to_introduce(comm: Communicator, talk: Pipe) -> int:
    """Rank 1 is short of descriptors just when the new communicator is set up."""
    failed: list[int] = []
    real = PointToPoint.__init__

    def short(self: PointToPoint, *args: Any) -> None:
        if comm.rank == 1 and len(failed) < 2:
            failed.append(1)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        real(self, *args)

    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(PointToPoint, "__init__", short)
        after = comm.shrink()
    assert comm.rank != 1 or len(failed) == 2
    return int(after.all_reduce(np.ones(1))[0])


def test_a_shortage_while_the_next_communicator_is_set_up_ends_nothing() -> None:
    with Job(3, fails_to_introduce) as job:
        assert values(job.ended()) == [3, 3, 3]
