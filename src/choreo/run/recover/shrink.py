"""`shrink`: the ranks that are left build a new connection.

They cannot use the connection that failed, so they exchange blobs through their statuses. Every wait ends with what it
waits for, with a death, or at a deadline.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from choreo.errors import CommunicatorClosed, PeerFailure, RendezvousError
from choreo.run.connect import connect
from choreo.run.connection import Connection
from choreo.run.consensus.consensus import MEMBERS, Outcome
from choreo.run.consensus.failure_detector import FailureDetector

__all__ = ["SHRINK_S", "shrink"]

SHRINK_S = 30.0
PAUSE_S = 0.002
HOPELESS_S = 0.5  # after which a rank that is stopped or cut off is not waited for
ATTEMPTS = 100
SHRUNK = CommunicatorClosed("this communicator was shrunk; use the one that shrink() returned")


class _AbortedError(Exception):
    """An attempt was given up because these ranks were lost."""

    def __init__(self, lost: frozenset[int]) -> None:
        super().__init__(f"ranks {sorted(lost)} were lost")
        self.lost = lost


class _SurvivorBootstrap:
    """Exchanges blobs between the survivors, through the statuses of their old connection."""

    def __init__(self, connection: Connection, members: tuple[int, ...], attempt: int) -> None:
        self._detector, self._consensus = connection.detector, connection.consensus
        self._members, self._attempt = members, attempt
        self.rank, self.world_size = members.index(connection.rank), len(members)
        self._blobs: tuple[bytes, ...] = ()

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of all survivors, by rank; aborts the attempt if one is lost before all have published theirs."""
        detector, number = self._detector, len(self._blobs)
        self._blobs += (blob,)
        detector.publish(blobs=self._blobs)

        def has_published(rank: int) -> bool:
            status = detector.status_of(rank)
            return status.attempt == self._attempt and len(status.blobs) > number

        def one_is_ahead() -> bool:
            return any(detector.status_of(rank).attempt > self._attempt for rank in self._members)

        topic = self._topic(number)
        lost, missing = _wait(
            detector, self._members, has_published, timeout_s, lambda: self._consensus.is_under_way(topic)
        )
        self.settle(number, lost, ok=not missing)
        # The ranks that decided may have read a status from another host that is still on its way to this rank.
        late, _ = _wait(detector, self._members, has_published, timeout_s, one_is_ahead)
        if late or one_is_ahead():
            # Other ranks have aborted the next exchange of this attempt, and the decision on it says why.
            self.settle(number + 1, late, ok=False)
        return [detector.status_of(rank).blobs[number] for rank in self._members]

    def settle(self, number: int, lost: frozenset[int], *, ok: bool = True) -> None:
        """Decide whether an exchange succeeded."""
        proposal = Outcome(ok and not lost, tuple(sorted(lost)))
        outcome = self._consensus.decide_outcome(self._topic(number), proposal, lambda rank: rank in self._members)
        if not outcome.ok:
            raise _AbortedError(frozenset(outcome.lost))

    def _topic(self, number: int) -> str:
        return f"exchange {self._attempt} {number}"


def shrink(connection: Connection, timeout_s: float = SHRINK_S) -> tuple[Connection, tuple[int, ...]]:
    """A connection of the ranks that are left, and their ranks in the old one. All of them call it.

    A rank that dies meanwhile, or does not call within `timeout_s`, is left out. The old connection is closed.
    """
    if connection.closed:
        raise CommunicatorClosed("a communicator that is closed cannot be shrunk")
    detector, everyone = connection.detector, frozenset(range(connection.world_size))
    failed = connection.failure.ranks if connection.failure is not None else frozenset[int]()
    if connection.rank in failed:
        connection.check_not_ended()
    for attempt in range(ATTEMPTS):
        members = _decide_members(connection, failed, attempt, timeout_s)
        bootstrap = _SurvivorBootstrap(connection, members, attempt)
        try:
            made = connect(bootstrap, secrets.token_hex(6), connection.host, timeout_s, connection.network)
        except _AbortedError as error:
            failed = everyone - set(members) | error.lost
            continue
        except (OSError, RendezvousError):
            # A rank has died, or has given up this attempt: its segment is gone, or it does not answer.
            try:
                bootstrap.settle(1, detector.dead() & set(members), ok=False)
            except _AbortedError as error:
                failed = everyone - set(members) | error.lost
            continue
        connection.close(SHRUNK)
        return made, members
    raise PeerFailure(f"no communicator of ranks {members} could be built in {ATTEMPTS} attempts", ranks=failed)


def _decide_members(connection: Connection, failed: frozenset[int], attempt: int, timeout_s: float) -> tuple[int, ...]:
    """Wait for the ranks that are left, and agree on which of them go on."""
    detector, consensus, topic = connection.detector, connection.consensus, f"{MEMBERS}{attempt}"
    detector.publish(attempt=attempt, blobs=())
    expected = tuple(rank for rank in range(connection.world_size) if rank not in failed)
    lost, _ = _wait(
        detector,
        expected,
        lambda rank: detector.status_of(rank).attempt >= attempt,
        timeout_s,
        lambda: consensus.is_under_way(topic),
    )
    left_out = failed | lost
    decided = consensus.decide_outcome(
        topic, Outcome(True, tuple(sorted(left_out))), lambda rank: rank not in left_out
    ).lost
    if connection.rank in decided:
        me = connection.peers[connection.rank]
        error = CommunicatorClosed(f"{me} did not come to shrink() in time; the other ranks go on without it")
        connection.close(error)
        raise error
    return tuple(rank for rank in range(connection.world_size) if rank not in decided)


def _wait(
    detector: FailureDetector,
    ranks: tuple[int, ...],
    is_there: Callable[[int], bool],
    timeout_s: float,
    is_decided: Callable[[], bool],
) -> tuple[frozenset[int], frozenset[int]]:
    """Wait for these ranks. Returns those that are lost (dead, gone, or late), and all that are missing."""
    began_s = time.monotonic()
    missing = set(ranks) - {detector.rank}
    while True:
        dead = detector.dead()
        # Checked after `dead`: what a rank published before it died counts.
        missing = {rank for rank in missing if not is_there(rank)}
        lost = missing & (dead | detector.gone().keys())
        if missing == lost or is_decided():
            return frozenset(lost), frozenset(missing)
        waited_s = time.monotonic() - began_s
        if waited_s >= timeout_s or (waited_s >= HOPELESS_S and missing - lost <= detector.hopeless(missing - lost)):
            return frozenset(missing), frozenset(missing)
        time.sleep(PAUSE_S)
