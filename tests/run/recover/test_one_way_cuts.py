"""The network between hosts is cut in one direction: a host receives nothing from another, but can still send to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from choreo.run.communicator import Communicator
from choreo.run.consensus import control_channel
from choreo.run.consensus.consensus import Consensus
from choreo.run.consensus.failure_detector import FailureDetector
from tests.helpers.network.cuts import CALL_S, MIXED, SHRINK_S, THREE, after_a_cut, begin, go
from tests.helpers.network.hosts import Hosts, NetworkJob, why_no_hosts
from tests.helpers.ranks.faults import Pipe, values

pytestmark = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
NO_CORE_S = 0.6  # for how long a rank gets no core: longer than the others wait for one of which they know nothing


def after_a_cut_that_it_hardly_sees(*given: Any) -> Any:
    """As on a busy machine, where a rank looks too seldom to count for how long nothing was acknowledged."""
    control_channel.LONGEST_LOOK_S = 0.0
    return after_a_cut(*given)


@pytest.mark.parametrize("body", [after_a_cut, after_a_cut_that_it_hardly_sees])
@pytest.mark.parametrize(("sender", "hearer"), [(0, 1), (1, 0)])
def test_a_cut_in_one_direction_is_reported_on_both_sides(
    machines: Hosts, sender: int, hearer: int, body: Callable[..., Any]
) -> None:
    with NetworkJob(machines, MIXED, body, (CALL_S,) * 4, SHRINK_S, 0) as job:
        begin(job)
        machines.deafen(sender, hearer)
        go(job)
        found = values(job.ended())
    for rank, (failed, text, story, ranks, _) in enumerate(found):
        if rank < 2:
            # A rank of the other side that came too late to the call may be named alone.
            assert failed in ([2, 3], [2], [3]) and (story, ranks) == ("went on", (0, 1)), found
            assert all(f"rank {one} (host" in text for one in failed), text
        else:
            assert failed in ([0, 1], []) and "go on without it" in story, found
            assert not text or "rank 0 (host" in text, text


def check_one_of_two_is_left_out(found: list[Any]) -> None:
    """Hosts 0 and 1 lost each other, and host 2 reaches both: all that go on name the same one."""
    away = found[2][0]
    assert away in ([0], [1]), found
    for rank, (failed, text, story, ranks, _) in enumerate(found):
        assert "every rank answers" not in text, found
        if [rank] == away:
            assert "go on without it" in story, found
        else:
            assert (failed, story, ranks) == (away, "went on", tuple(sorted({0, 1, 2} - set(away)))), found


def test_a_cut_in_one_direction_is_reported_to_a_host_that_reaches_both(machines: Hosts) -> None:
    with NetworkJob(machines, THREE, after_a_cut_that_it_hardly_sees, (CALL_S,) * 3, SHRINK_S, 0) as job:
        begin(job)
        machines.deafen(0, 1)
        go(job)
        check_one_of_two_is_left_out(values(job.ended()))


def after_a_cut_without_a_core(comm: Communicator, talk: Pipe, slow: int, *given: Any) -> Any:
    """One rank gets no core after it has given up the call, and before it says why."""
    publish = FailureDetector.publish

    def publish_later(self: FailureDetector, **changes: object) -> None:
        if "cause" in changes:
            time.sleep(NO_CORE_S)
        publish(self, **changes)

    if comm.rank == slow:
        FailureDetector.publish = publish_later  # type: ignore[method-assign]
    return after_a_cut(comm, talk, *given)


def test_a_host_that_reaches_both_may_be_slow(machines: Hosts) -> None:
    with NetworkJob(machines, THREE, after_a_cut_without_a_core, 2, (CALL_S,) * 3, SHRINK_S, 0) as job:
        begin(job)
        machines.deafen(0, 1)
        go(job)
        check_one_of_two_is_left_out(values(job.ended()))


class BytesUnderWay:
    """A pipe on which the rank hears "go" only when the kernel has retransmitted what the cut has swallowed.

    Until that is acknowledged, TCP holds back what the rank sends next: nothing arrives in the other direction either.
    """

    def __init__(self, comm: Communicator, talk: Pipe) -> None:
        self._comm, self.send, self._recv = comm, talk.send, talk.recv

    def recv(self) -> None:
        self._recv()
        channel = self._comm._engine.connection.detector.channel
        assert channel is not None
        for one in channel.connections.values():
            one.send_progress(0, 0)
        time.sleep(CALL_S)


def after_a_cut_that_held_bytes_back(comm: Communicator, talk: Any, *given: Any) -> Any:
    """Rank 1 is the only one that knows why the call failed, and is slow to propose it."""
    decide = Consensus.decide

    def decide_later(*arguments: Any, **options: Any) -> bytes | None:
        time.sleep(NO_CORE_S)
        return decide(*arguments, **options)

    if comm.rank == 1:
        Consensus.decide = decide_later  # type: ignore[method-assign]
    return after_a_cut(comm, BytesUnderWay(comm, talk), *given)  # type: ignore[arg-type]


def test_a_host_that_reaches_both_passes_on_why_the_call_failed(machines: Hosts) -> None:
    """Only rank 1 is at its deadline. Rank 0 does not hear that from it, but from rank 2."""
    call_s = (20.0, CALL_S, 20.0)
    with NetworkJob(machines, THREE, after_a_cut_that_held_bytes_back, call_s, SHRINK_S, 0) as job:
        begin(job)
        machines.deafen(0, 1)
        go(job)
        check_one_of_two_is_left_out(values(job.ended()))
