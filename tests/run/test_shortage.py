"""Ranks whose process or machine is short of something: all of them hear of what, and go on when there is more."""

from __future__ import annotations

import errno
import os
import resource
import selectors
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from choreo.algorithms import _registry, list_algorithms
from choreo.errors import ChoreoError, PeerFailure, RendezvousError, UsageError
from choreo.run import communicator
from choreo.run.communicator import Communicator
from choreo.run.connect import _Connecting
from choreo.run.execute import choice
from choreo.run.execute.backend import executor
from choreo.run.execute.constants import default_constants
from choreo.run.execute.processes import ended_processes
from choreo.run.messages.point_to_point import PointToPoint
from choreo.run.rendezvous import hosts as hosts_of_ranks
from choreo.run.rendezvous.rendezvous import rendezvous
from choreo.run.transport import shortage
from tests.helpers.network.hosts import NetworkJob, hosts, why_no_hosts
from tests.helpers.ranks.descriptors import few_descriptors, open_descriptors
from tests.helpers.ranks.faults import Ended, Job, Pipe, eventually, names_held, values
from tests.helpers.ranks.launch import command


def tries_groups(comm: Communicator, _: Pipe, spares: Sequence[int]) -> list[str]:
    """What a group of all says to this rank, while rank 1 has few descriptors; nothing may be left of it."""
    told = []
    before = open_descriptors()
    for spare in spares:
        with few_descriptors(spare) if comm.rank == 1 else few_descriptors(1000):
            try:
                group = comm.new_group(range(comm.world_size))
                group.close()
                del group
                told.append("")
            except ChoreoError as error:
                told.append(str(error))
        assert eventually(lambda: open_descriptors() == before), (spare, told)
    assert (comm.all_reduce(np.ones(2)) == comm.world_size).all()
    return told


def check_told(ended: list[Ended]) -> None:
    assert not [one for one in ended if one.error], ended
    limited = ended[1].value
    assert limited[0] and not limited[-1], limited
    for rank, one in enumerate(ended):
        for ours, theirs in zip(one.value, limited, strict=True):
            assert bool(ours) == bool(theirs)
            if theirs:
                assert theirs.endswith("allow more with ulimit -n"), theirs
                assert rank == 1 or (ours.startswith("rank 1 (pid ") and ours.endswith("ulimit -n")), ours


def test_few_descriptors_are_reported_to_every_rank() -> None:
    with Job(2, tries_groups, range(12)) as job:
        check_told(job.ended())


@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
def test_few_descriptors_between_hosts_are_reported_to_every_rank() -> None:
    """The others do not wait for a rank that cannot accept them."""
    with hosts(2) as made, NetworkJob(made, [0, 0, 1], tries_groups, (0, 4, 6, 9, 12, 15, 30)) as job:
        check_told(job.ended())


def fails_to_mesh(comm: Communicator, _: Pipe, steps: Sequence[tuple[type, str]], error: Exception) -> list[str]:
    """Rank 1 fails along its second axis, on which it is alone, at each of these steps; nothing may be left of it."""
    told, before = [], open_descriptors()
    for owner, step in steps:
        real = getattr(owner, step)

        def short(self: Any, *args: Any, real: Callable[..., Any] = real, **options: Any) -> Any:
            of = args[0] if isinstance(self, PointToPoint) else self
            if getattr(of, "_world_size", None) == 1 or getattr(of, "world_size", None) == 1:
                raise type(error)(*error.args)
            return real(self, *args, **options)

        with pytest.MonkeyPatch().context() as patch, pytest.raises(ChoreoError) as caught:
            if comm.rank == 1:
                patch.setattr(owner, step, short)
            comm.mesh((3, 1), names=("a", "b"))
        told.append(str(caught.value))
        del caught
        assert eventually(lambda: open_descriptors() == before), (step, told)
        assert (comm.all_reduce(np.ones(2)) == comm.world_size).all()
    return told


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        (hosts_of_ranks, "_boot_id", "rank 0 cannot begin to find the others: Too many open files"),
        (selectors, "DefaultSelector", "rank 0 (pid {}) cannot listen at 127.0.0.1:{}: Too many open files"),
    ],
)
def test_a_rank_that_has_no_descriptor_to_begin_with(
    owner: object, name: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    before = open_descriptors()
    with monkeypatch.context() as short, pytest.raises(RendezvousError) as caught:
        short.setattr(owner, name, _no_descriptor)
        rendezvous(0, 2, "127.0.0.1", port, b"a secret of the job", timeout_s=5)
    host = f"{os.getpid()} on {hosts_of_ranks.host_name()}"
    assert str(caught.value).startswith(told.format(host, port))
    assert open_descriptors() == before


def _no_descriptor(*_: object) -> object:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("error", "more"),
    [(OSError(errno.EMFILE, "Too many open files"), "ulimit -n"), (MemoryError(), "(ulimit -v, a container's limits)")],
)
def test_an_axis_that_cannot_be_made_is_reported_to_the_ranks_of_all_axes(error: Exception, more: str) -> None:
    """Nobody waits for the deadline of a rank that is not on their own axis."""
    steps = [(_Connecting, name) for name in ("introduce", "open", "accept", "finish")] + [(PointToPoint, "__init__")]
    with Job(3, fails_to_mesh, steps, error) as job:
        ended = job.ended()
    assert not [one for one in ended if one.error], ended
    for rank, one in enumerate(ended):
        assert len(one.value) == len(steps)
        for told in one.value:
            assert told.endswith(more) and (rank == 1) == told.startswith("this rank"), told


def test_processes_are_watched_with_fewer_descriptors_than_are_open() -> None:
    ended = subprocess.Popen(["true"])
    watched = [os.pidfd_open(pid) for pid in (ended.pid, os.getpid())]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert eventually(lambda: ended_processes(watched) == {watched[0]})
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        assert ended_processes(watched) == {watched[0]}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in watched:
            os.close(one)
        ended.wait()


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


def test_full_shared_memory_is_reported_to_every_rank() -> None:
    with Job(3, tries_full_memory) as job:
        ended = job.ended()
    assert not [one for one in ended if one.error], ended
    assert ended[1].value.startswith("there is no room for")
    for other in (0, 2):
        assert "rank 1 (pid " in ended[other].value and ended[1].value in ended[other].value


def test_a_choice_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered of a folder that could not be listed, or of a schedule that could not be built."""

    def no_memory(*_: Any) -> Any:
        raise UsageError("there is no memory for it")

    known = len(list_algorithms("all_reduce"))
    monkeypatch.setattr(_registry, "_DISCOVERED", False)
    with monkeypatch.context() as short:
        short.setattr(Path, "iterdir", _no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            list_algorithms("all_reduce")
    assert len(list_algorithms("all_reduce")) == known
    chooser = choice.Chooser(11, default_constants(), {})
    choice._choices.cache_clear()
    with monkeypatch.context() as short:
        short.setattr(choice, "build", no_memory)
        with pytest.raises(UsageError, match="no memory"):
            chooser.choose("all_gather", 8)
    assert chooser.choose("all_gather", 8)


def opens_files(comm: Communicator, talk: Pipe) -> list[str]:
    """What calls open: files of modules that are imported late, and others."""
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    x, size, me = np.ones(6), comm.world_size, comm.rank
    for call in (comm.all_reduce, comm.broadcast, comm.reduce, comm.all_gather, comm.reduce_scatter, comm.gather):
        call(x)
    comm.scatter(x)
    comm.all_to_all(x)
    comm.all_to_all(x, send_sizes=[6 // size] * size)
    comm.barrier()
    comm.send(x, me)
    comm.recv(x, me)
    comm.all_gather_object(x)
    comm.broadcast_object(x)
    comm.all_reduce(x, async_op=True).wait()
    comm.all_reduce(x, survive=True)
    return opened


@pytest.mark.parametrize("ranks", [2, 3])
def test_no_call_opens_a_file(ranks: int) -> None:
    """So no call fails for want of descriptors, and none waits for an import."""
    with Job(ranks, opens_files) as job:
        assert values(job.ended()) == [[]] * ranks


def loses_a_rank(comm: Communicator, _: Pipe) -> set[str]:
    """Rank 2 dies while a group is made; what the others still have of the group."""
    if comm.rank == 2:
        pytest.MonkeyPatch().setattr(communicator, "PointToPoint", lambda *_: os._exit(1))
    with pytest.raises(PeerFailure):
        comm.new_group(range(3))
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return {name for name in (*names_held(os.getpid()), *links) if "choreo-group" in name or "choreo-log-group" in name}


def test_nothing_is_left_of_a_group_whose_rank_died_while_it_was_made() -> None:
    with Job(3, loses_a_rank) as job:
        ended = job.ended(0, 1)
    assert not [one for one in ended if one.error], ended
    assert [one.value for one in ended] == [set(), set()]


def fails_to_start_threads(comm: Communicator, _: Pipe) -> list[str]:
    """Too little memory for a thread's stack; each is asked for twice, and then there is more."""
    x, told = np.ones(4), []
    called: list[object] = []
    twin = executor(compiled=False).ProgressQueue(None, ChoreoError, print)
    receives = [comm.irecv(np.empty(4), 0, tag) for tag in range(2)]
    asked: list[Callable[[], object]] = [
        lambda: comm.all_reduce(x, async_op=True),
        lambda: twin.submit(lambda: 3),
        lambda: receives[0].add_done_callback(called.append),
    ]
    comm.all_reduce(x)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (8 << 20), before[1]))
    try:
        for ask in asked * 2:
            with pytest.raises(ChoreoError) as caught:
                ask()
            told.append(str(caught.value))
            assert (comm.all_reduce(x) == 1).all()  # what needs no thread works
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    comm.all_reduce(x, async_op=True).wait(30)
    assert twin.submit(lambda: 3).wait(30)
    twin.stop()
    receives[1].add_done_callback(called.append)
    for tag in range(2):
        comm.send(x, 0, tag)
        receives[tag].wait(30)
    assert eventually(lambda: called == receives[1:])
    comm.close()
    return told


def test_a_thread_that_cannot_start_is_an_error_each_time() -> None:
    with Job(1, fails_to_start_threads) as job:
        [ended] = job.ended()
    assert not ended.error, ended.text
    assert len(ended.value) == 6
    for told in ended.value:
        assert "cannot be started: Cannot allocate memory; allow more (ulimit -u, ulimit -v" in told


@pytest.mark.parametrize(("ends", "reason"), [(True, "out of memory"), (False, "it does not begin")])
def test_a_thread_that_never_begins_is_an_error(ends: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may find no memory for itself, and then nobody hears of it but by what it drops."""
    monkeypatch.setattr(shortage, "START_S", 600.0 if ends else 0.1)
    kept: list[object] = []
    for name in ("_start_new_thread", "_start_joinable_thread"):
        monkeypatch.setattr(threading, name, lambda *given, **_: 0 if ends else kept.append(given), raising=False)
    before = threading.active_count()
    with pytest.raises(ChoreoError, match=f"the thread for a test cannot be started: {reason}; allow more"):
        shortage.start_thread(lambda: None, "test", "a test")
    assert threading.active_count() == before + (not ends)  # one that may yet begin is still counted


def test_a_launcher_with_few_descriptors_says_so() -> None:
    shell = f"ulimit -n 13; exec {shlex.join(command('-n', 2, '-m', 'this'))}"
    ran = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1 and ran.stderr.endswith("allow more with ulimit -n\n"), ran.stderr
