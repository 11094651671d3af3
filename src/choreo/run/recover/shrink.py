"""`shrink`: the ranks that are left build a new connection.

They cannot use the connection that failed, so they exchange blobs through their statuses. Every wait ends with what it
waits for, with a death, or at a deadline.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from choreo.errors import ChoreoError, CommunicatorClosed, PeerFailure
from choreo.run.connect import EXCHANGES, connect
from choreo.run.connection import Connection
from choreo.run.consensus.consensus import MEMBERS, Consensus, Outcome, pack_ranks
from choreo.run.consensus.failure import decided_failure
from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.consensus.failure_message import excluded_error, minority_error

__all__ = ["SHRINK_S", "shrink"]

SHRINK_S = 30.0
COMMIT = EXCHANGES - 1  # once this exchange has succeeded, the old connection has its successor
PAUSE_S = 0.002
UNRESPONSIVE_S = 0.5  # after which a rank that is stopped or cut off is not waited for
MAX_REASON = 400  # characters: a decision fits into an entry of the ledger
ATTEMPTS = 100
LONGEST = 4  # times its timeout, or SHRINK_S if that is more, that it goes on while no rank is lost
SHRUNK = CommunicatorClosed("this communicator was shrunk; use the one that shrink() returned")


class _AbortedError(Exception):
    """An attempt was given up because these ranks were lost, or because one could not go on."""

    def __init__(self, lost: frozenset[int], why: str) -> None:
        super().__init__(f"ranks {sorted(lost)} were lost")
        self.lost, self.why = lost, why


class _SurvivorBootstrap:
    """Exchanges blobs between the survivors, through the statuses of their old connection."""

    def __init__(self, connection: Connection, members: tuple[int, ...], attempt: int, timeout_s: float) -> None:
        self._connection, self._timeout_s = connection, timeout_s
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
            detector, self._members, has_published, timeout_s, lambda: self._consensus.is_in_progress(topic)
        )
        self._settle(number, lost, ok=not missing)
        if number == COMMIT:
            return [b""] * self.world_size
        # The ranks that decided may have read a status from another host that is still on its way to this rank.
        late, _ = _wait(detector, self._members, has_published, timeout_s, one_is_ahead)
        statuses = [detector.status_of(rank) for rank in self._members]  # once: they may go on meanwhile
        if late or any(status.attempt > self._attempt or len(status.blobs) <= number for status in statuses):
            # Other ranks have aborted the next exchange of this attempt, and the decision on it says why.
            self._settle(number + 1, late, ok=False)
        return [status.blobs[number] for status in statuses]

    def abort(self, why: str) -> None:
        """Make the others abort the exchange that they are in, or the next, unless they have completed the last."""
        for number in range(max(len(self._blobs) - 1, 0), min(len(self._blobs), COMMIT) + 1):
            self._settle(number, self._detector.dead() & set(self._members), ok=False, why=why)

    def _settle(self, number: int, lost: frozenset[int], *, ok: bool, why: str = "") -> None:
        """Decide whether an exchange succeeded."""
        proposal = Outcome(ok and not lost, pack_ranks(lost), why.encode("ascii", "replace").decode()[:MAX_REASON])
        try:
            outcome = self._consensus.decide_outcome(
                self._topic(number), proposal, lambda rank: rank in self._members, self._timeout_s
            )
        except ChoreoError as error:
            if not ok:
                raise
            # It is short of something, so it proposes to try again; if the others have decided, it goes on with them.
            self._settle(number, lost, ok=False, why=f"{self._connection.peers[self._connection.rank]}: {error}")
            return
        if outcome is None:
            raise _end(self._connection, minority_error)
        if not outcome.ok:
            raise _AbortedError(outcome.lost_ranks, outcome.why)

    def _topic(self, number: int) -> str:
        return f"exchange {self._attempt} {number}"


def shrink(connection: Connection, timeout_s: float = SHRINK_S) -> tuple[Connection, tuple[int, ...]]:
    """A connection of the ranks that are left, and their ranks in the old one. All of them call it.

    A rank that dies meanwhile, or does not call within `timeout_s`, is left out. The old connection is closed. On a
    side of a cut that may not go on, it waits for the others as long, and then raises CommunicatorClosed.
    """
    if connection.closed:
        raise CommunicatorClosed("a communicator that is closed cannot be shrunk")
    everyone = frozenset(range(connection.world_size))
    connection.leave_calls()
    _settle_growth(connection, timeout_s)
    failed = connection.failure.ranks if connection.failure is not None else frozenset[int]()
    if connection.rank in failed:
        connection.check_not_ended()
    reason, began_s = "", time.monotonic()
    # A rank that has made fewer attempts than the others catches up: what they decided is there.
    first = connection.attempts
    for attempt in range(first, first + ATTEMPTS):
        members = _decide_members(connection, failed, attempt, timeout_s)
        connection.attempts = attempt + 1  # from here on: a call that is short of something before is made again
        # Far hosts may need longer to connect than a short `timeout_s`, so each attempt has twice as long.
        connect_s = max(timeout_s, min(timeout_s * 2.0 ** min(attempt, 30), SHRINK_S))
        bootstrap = _SurvivorBootstrap(connection, members, attempt, connect_s)
        name, rule = secrets.token_hex(6), connection.consensus.quorum.rule
        try:
            connected = connect(bootstrap, name, connection.host, connect_s, connection.network, quorum=rule)
        except _AbortedError as error:
            reason, lost = error.why or reason, error.lost
        except CommunicatorClosed:
            raise
        except (OSError, ChoreoError) as error:
            # A rank has died, or has given up this attempt: its segment is gone, or it does not answer. Or this rank
            # is short of something.
            reason = str(error)
            try:
                bootstrap.abort(f"{connection.peers[connection.rank]}: {error}")
            except _AbortedError as aborted:
                lost = aborted.lost
            else:  # the others have completed the attempt, and go on
                raise _end(connection, excluded_error, f"could not connect anew: {error}") from None
        else:
            connection.close(SHRUNK)
            return connected, members
        failed = everyone - set(members) | lost
        if lost:
            began_s = time.monotonic()
        elif time.monotonic() - began_s > LONGEST * max(timeout_s, SHRINK_S):
            break
    told = f"no communicator of ranks {members} could be built in {attempt - first + 1} attempts"
    raise PeerFailure(f"{told}: {reason}" if reason else told, ranks=failed)


def _settle_growth(connection: Connection, timeout_s: float) -> None:
    """Make sure that this connection has no other successor: a `grow` whose outcome this rank does not know."""
    if connection.growth:
        decided = connection.consensus.decide(connection.growth, b"no", patience_s=timeout_s)
        if decided != b"no":
            raise _end(connection, minority_error if decided is None else excluded_error)
        connection.growth = ""


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
        lambda: consensus.is_in_progress(topic),
        can_go_on_without=lambda missing: consensus.can_go_on_without(failed | missing),
    )
    left_out = failed | lost
    decided = consensus.decide_outcome(
        topic, Outcome(True, pack_ranks(left_out)), lambda rank: rank not in left_out, timeout_s
    )
    if decided is None:
        raise _end(connection, minority_error)
    if connection.rank in decided.lost_ranks:
        failure = decided_failure(consensus)
        if failure is not None and connection.rank in failure.ranks:
            raise _end(connection, excluded_error, f"did not answer in call {failure.call}")
        raise _end(connection, excluded_error)
    return tuple(rank for rank in range(connection.world_size) if rank not in decided.lost_ranks)


def _end(
    connection: Connection,
    reason: Callable[[FailureDetector, Consensus, str], CommunicatorClosed],
    what: str = "did not come to shrink() in time",
) -> CommunicatorClosed:
    """Close a connection whose rank does not go on; returns the error to raise."""
    what = "cannot shrink()" if reason is minority_error else what
    error = reason(connection.detector, connection.consensus, f"{connection.peers[connection.rank]} {what}")
    connection.close(error)
    return error


def _wait(
    detector: FailureDetector,
    ranks: tuple[int, ...],
    is_there: Callable[[int], bool],
    timeout_s: float,
    is_decided: Callable[[], bool],
    *,
    can_go_on_without: Callable[[frozenset[int]], bool] = lambda _: True,
) -> tuple[frozenset[int], frozenset[int]]:
    """Wait for these ranks. Returns the lost ones (dead, gone, or late), and all that are missing."""
    began_s = time.monotonic()
    missing = set(ranks) - {detector.rank}
    while True:
        dead = detector.dead()
        # Checked after `dead`: what a rank published before it died counts.
        missing = {rank for rank in missing if not is_there(rank) or detector.receives_nothing(rank)}
        lost = missing & (dead | detector.gone().keys())
        if missing == lost or is_decided():
            return frozenset(lost), frozenset(missing)
        waited_s = time.monotonic() - began_s
        unresponsive = waited_s >= UNRESPONSIVE_S and missing - lost <= detector.unresponsive(missing - lost)
        if waited_s >= timeout_s or (unresponsive and can_go_on_without(frozenset(missing))):
            return frozenset(missing), frozenset(missing)
        time.sleep(PAUSE_S)
