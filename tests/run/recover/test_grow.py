"""New and restarted processes come into a job that runs; what goes wrong on the way leaves the job as it was."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import choreo
from choreo.errors import JoinError, PeerFailure, UsageError
from choreo.run.communicator import Communicator
from tests.helpers.network.hosts import PORT, NetworkJob, hosts, why_no_hosts
from tests.helpers.ranks.faults import PATIENCE_S, Job, Pipe, segments

SECRET = "a secret of at least sixteen bytes"


def environment(port: int, *, secret: bool = True) -> dict[str, str]:
    """What a launcher says to every rank, and whoever restarts one says again."""
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return found | {"CHOREO_SECRET": SECRET} if secret else found


def works(comm: Communicator) -> Any:
    found = (comm.rank, comm.ranks, comm.all_gather(np.array([comm.rank]))[:, 0].tolist())
    comm.barrier()
    comm.close()
    return found


def grows(comm: Communicator, talk: Pipe, variables: dict[str, str], new_ranks: int = 1) -> Any:
    os.environ.update(variables)
    return works(comm.grow(new_ranks, timeout=20.0))


def joins(comm: Communicator, talk: Pipe, variables: dict[str, str], **given: Any) -> Any:
    """In a process that is no rank of the job, whatever it was before."""
    comm.close()
    os.environ.update(variables)
    return works(choreo.join(**{"timeout": 20.0} | given))


def joins_with(comm: Communicator, talk: Pipe, given: dict[str, Any]) -> Any:
    return joins(comm, talk, {}, **given)


@pytest.mark.parametrize("secret", [True, False], ids=["secret", "no-secret"])
def test_a_new_process_with_the_same_environment_comes_in(port: int, secret: bool) -> None:
    variables = environment(port, secret=secret)
    with Job(2, grows, variables) as job, Job(1, joins, variables) as joiner:
        ended = [*job.ended(), *joiner.ended()]
        assert not segments(*job.pids, *joiner.pids)
    assert [one.value for one in ended] == [(at, (0, 1, 2), [0, 1, 2]) for at in range(3)], ended


def test_several_come_at_once_and_to_one_who_was_alone(port: int) -> None:
    variables = environment(port)
    with Job(1, grows, variables, 2) as job, Job(1, joins, variables) as one, Job(1, joins, variables) as other:
        ended = [*job.ended(), *sorted([*one.ended(), *other.ended()], key=lambda one: one.value)]
    assert [one.value for one in ended] == [(at, (0, 1, 2), [0, 1, 2]) for at in range(3)], ended


def sees_them_waiting(comm: Communicator, talk: Pipe, variables: dict[str, str]) -> Any:
    """Calls go on while a process waits; then all let it in."""
    os.environ.update(variables)
    seen = [comm.waiting()]
    talk.send("open")
    while not comm.all_reduce(np.array([comm.waiting()]))[0]:
        time.sleep(0.002)
    seen.append(comm.waiting())
    return seen, works(comm.grow(timeout=20.0))


@pytest.mark.parametrize("secret", [True, False], ids=["secret", "no-secret"])
def test_ranks_see_who_waits_before_they_grow(port: int, secret: bool) -> None:
    variables = environment(port, secret=secret)
    with Job(2, sees_them_waiting, variables) as job:
        job.hear_all()
        with Job(1, joins, variables) as joiner:
            ended = [*job.ended(), *joiner.ended()]
            assert not segments(*job.pids, *joiner.pids)
    seen = [one.value[0] for one in ended[:2]]
    assert seen == [[0, 1], [0, 0]], ended
    assert [*(one.value[1] for one in ended[:2]), ended[2].value] == [(at, (0, 1, 2), [0, 1, 2]) for at in range(3)]


def grows_there(comm: Communicator, talk: Pipe, port: int) -> Any:
    return works(comm.grow(address=f"127.0.0.1:{port}", secret=SECRET.encode(), timeout=20.0))


def test_address_and_secret_can_be_given(port: int) -> None:
    given = {"address": f"127.0.0.1:{port}", "secret": SECRET}
    with Job(1, grows_there, port) as job, Job(1, joins_with, given) as joiner:
        ended = [*job.ended(), *joiner.ended()]
    assert [one.value for one in ended] == [(at, (0, 1), [0, 1]) for at in range(2)], ended


@pytest.mark.parametrize("where", [(0, 1), (0, 0)], ids=["to two hosts", "to one host"])
def test_a_new_process_comes_from_another_host(where: tuple[int, ...]) -> None:
    if why_no_hosts():
        pytest.skip(why_no_hosts())
    with hosts(2) as made:
        variables = {"MASTER_ADDR": made.addresses[0], "MASTER_PORT": str(PORT), "CHOREO_SECRET": SECRET}
        job = NetworkJob(made, where, grows, {}, CHOREO_SECRET=SECRET)
        with job, NetworkJob(made, (1,), joins, variables) as joiner:
            ended = [*job.ended(), *joiner.ended()]
    assert [one.value for one in ended] == [(at, (0, 1, 2), [0, 1, 2]) for at in range(3)], ended


# ---- what comes to nothing ----


def in_vain(comm: Communicator, talk: Pipe, variables: dict[str, str], timeout_s: float, new_ranks: int = 1) -> Any:
    """Nobody comes in; the communicator is as it was."""
    os.environ.update(variables)
    talk.send("grows")
    with pytest.raises(JoinError) as raised:
        comm.grow(new_ranks, timeout=timeout_s)
    assert (comm.all_reduce(np.ones(3)) == comm.world_size).all()
    comm.close()
    return str(raised.value)


def test_if_nobody_comes_all_go_on_as_before(port: int) -> None:
    with Job(3, in_vain, environment(port), 0.5) as job:
        reasons = [one.value for one in job.ended()]
    assert reasons == ["rank 0 cannot go on: 0 of 1 new processes came within 0.5 s"] * 3


@pytest.mark.parametrize("given", [{"secret": "another secret, long enough"}, {}], ids=["wrong", "none"])
def test_nobody_joins_who_does_not_hold_the_secret(port: int, given: dict[str, Any]) -> None:
    with Job(2, in_vain, environment(port), 2.0) as job:
        job.hear_all()
        with pytest.raises(JoinError, match=r"do not belong to the same job|no job admitted this process"):
            choreo.join(address=f"127.0.0.1:{port}", timeout=1.5, **given)
        reasons = [one.value for one in job.ended()]
    assert reasons[0] == reasons[1] and "0 of 1 new processes came" in reasons[0]
    assert ("does not hold this job's secret" in reasons[0]) == bool(given)


def test_a_rank_that_starts_late_is_told_to_join(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Job(1, in_vain, environment(port), 2.0) as job:
        job.hear(0)
        for name, text in (environment(port) | {"RANK": "1", "WORLD_SIZE": "2"}).items():
            monkeypatch.setenv(name, text)
        with pytest.raises(choreo.RendezvousError, match=r"this job runs already; .* calls choreo\.join\(\)"):
            choreo.init(timeout=5.0)
        assert "0 of 1" in job.ended()[0].value


def test_without_a_job_that_grows_join_says_so(port: int) -> None:
    with pytest.raises(JoinError, match=r"within 0\.2 s: .*; all ranks of the job must call grow\(\)"):
        choreo.join(address=f"127.0.0.1:{port}", secret=SECRET, timeout=0.2)
    with pytest.raises(JoinError, match="has not published its address"):
        choreo.join(address=f"127.0.0.1:{port}", timeout=0.2)
    with pytest.raises(UsageError, match="is not an address of this host, and without a secret"):
        choreo.join(address=f"192.0.2.1:{port}")
    with pytest.raises(UsageError, match="the secret in this call has 5 bytes"):
        choreo.join(address=f"127.0.0.1:{port}", secret="short")


def different(comm: Communicator, talk: Pipe, port: int, what: str) -> Any:
    if what == "count":
        comm.grow(1 + comm.rank, address=f"127.0.0.1:{port}", secret=SECRET)
    else:
        comm.grow(address=f"127.0.0.1:{port + comm.rank}", secret=SECRET)


@pytest.mark.parametrize("what", ["count", "place"])
def test_different_arguments_are_reported_on_all_ranks(port: int, what: str) -> None:
    with Job(2, different, port, what) as job:
        for one in job.ended():
            assert one.error == "CollectiveMismatch" and "give all ranks the same" in one.text, one


def test_how_many_is_checked() -> None:
    with choreo.init() as comm:
        for wrong in (0, -1, 1 << 20, "2"):
            with pytest.raises(UsageError, match="new_ranks"):
                comm.grow(wrong)  # type: ignore[arg-type]


# ---- who is lost on the way ----


def grows_until_it_works(comm: Communicator, talk: Pipe, variables: dict[str, str]) -> Any:
    os.environ.update(variables)
    talk.send("grows")
    failures: list[tuple[int, ...]] = []
    while True:
        try:
            return failures, works(comm.grow(timeout=2 * PATIENCE_S))
        except PeerFailure as error:
            failures.append(tuple(sorted(error.ranks)))
            comm = comm.shrink()


@pytest.mark.parametrize("lost", [0, 2], ids=["admitting", "other"])
def test_a_rank_that_dies_while_new_processes_are_admitted_is_noticed_at_once(port: int, lost: int) -> None:
    variables = environment(port)
    with Job(3, grows_until_it_works, variables) as job:
        job.hear_all()
        time.sleep(0.3)
        job.tell(lost, signal.SIGKILL)
        with Job(1, joins, variables) as joiner:
            ended = [*job.ended(*({0, 1, 2} - {lost})), *joiner.ended()]
    left = tuple(sorted({0, 1, 2} - {lost}))
    for one in ended[:2]:
        assert one.value[0] == [(lost,)], ended
    # The new process gets the number that became free.
    assert [one.value[-1] for one in ended[:2]] == [(at, (*left, lost), [0, 1, 2]) for at in range(2)], ended
    assert ended[2].value == (2, (*left, lost), [0, 1, 2])


def hangs_after_admission(comm: Communicator, talk: Pipe, variables: dict[str, str]) -> Any:
    """A new process that holds the secret, is admitted, and then sends nothing more."""
    comm.close()
    from choreo.run.join import _request_admission
    from choreo.run.rendezvous.environment import read_job_address
    from choreo.run.transport.deadline import Deadline

    os.environ.update(variables)
    line, admission, _ = _request_admission(read_job_address(), Deadline.after(20.0))
    talk.send(admission.rank)
    talk.recv()
    line.close()


@pytest.mark.parametrize("killed", [True, False], ids=["dies", "is silent"])
def test_a_new_process_that_is_lost_on_its_way_in_leaves_all_as_they_were(port: int, killed: bool) -> None:
    variables = environment(port)
    with Job(2, in_vain, variables, 20.0 if killed else 2.0) as job, Job(1, hangs_after_admission, variables) as joiner:
        assert joiner.hear(0) == 2
        if killed:
            joiner.tell(0, signal.SIGKILL)
        reasons = [one.value for one in job.ended()]
    assert reasons[0] == reasons[1]
    assert ("was lost while it joined" if killed else "did not answer within 2 s") in reasons[0], reasons


def joins_in_vain(comm: Communicator, talk: Pipe, variables: dict[str, str]) -> float:
    """A new process with little time. It says how much it took once it was admitted."""
    comm.close()
    os.environ.update(variables)
    while True:
        began_s = time.monotonic()
        with pytest.raises(JoinError) as raised:
            choreo.join(timeout=2.0)
        if "could not admit this process" in str(raised.value):
            return time.monotonic() - began_s


def test_a_timeout_of_join_is_for_all_its_steps(port: int) -> None:
    """However long the others would wait for a new process that is stuck."""
    variables = environment(port)
    with (
        Job(1, in_vain, variables, PATIENCE_S, 2) as job,
        Job(1, hangs_after_admission, variables) as stuck,
        Job(1, joins_in_vain, variables) as joiner,
    ):
        (took,) = joiner.ended()
        (reason,) = job.ended()
        stuck.tell(0, signal.SIGKILL)
    assert took.value < PATIENCE_S / 2, took
    assert "lost while it joined" in reason.value, reason


def breaks_the_protocol(comm: Communicator, talk: Pipe, variables: dict[str, str], what: str) -> Any:
    """A new process that holds the secret, but breaks the protocol."""
    comm.close()
    from choreo.run.join import _request_admission
    from choreo.run.rendezvous.environment import read_job_address
    from choreo.run.rendezvous.messages import blob_payload
    from choreo.run.transport.deadline import Deadline
    from choreo.run.transport.frames import FrameKind

    os.environ.update(variables)
    deadline = Deadline.after(20.0)
    line, _, _ = _request_admission(read_job_address(), deadline)
    if what == "bytes":
        line._socket.sendall(os.urandom(300))
    else:
        payload = {"frame": b"?", "number": blob_payload(7, 1.0, b"+"), "blob": blob_payload(1, 1.0, b"\xff")}[what]
        line.send(FrameKind.BLOB if what != "frame" else FrameKind.JOIN, payload, deadline)
    talk.recv()
    line.close()


@pytest.mark.parametrize("what", ["bytes", "frame", "number", "blob"])
def test_damaged_frames_of_a_new_process_are_refused_by_all(port: int, what: str) -> None:
    variables = environment(port)
    with Job(2, in_vain, variables, 10.0) as job, Job(1, breaks_the_protocol, variables, what):
        reasons = [one.value for one in job.ended()]
    assert reasons[0] == reasons[1]
    assert ("rank 2 cannot go on" if what == "blob" else "broke the protocol") in reasons[0], reasons
