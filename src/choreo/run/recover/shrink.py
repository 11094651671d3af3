"""What a communicator does when ranks fail: say what happened, and go on without them.

`explain` makes the error that all survivors raise; `shrink` builds a communicator of those that are left; `surviving`
is an all_reduce that does both by itself. Every wait here ends by what is waited for, a death, or a deadline.
"""

from __future__ import annotations

import contextlib
import copy
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from choreo.errors import ChoreoError, CollectiveMismatch, CommunicatorClosed, MeetingError, PeerFailure
from choreo.run.connection import Connection, connect
from choreo.run.execute.arrays import check_out, take
from choreo.run.execute.dtypes import ReduceOp, dtype_name, operation_code
from choreo.run.execute.failures import INTERRUPTED, LEFT, MISMATCHED, PEER_DIED, TIMED_OUT
from choreo.run.recover.consensus import Circle, Story, Verdict, agree

if TYPE_CHECKING:
    from choreo.run.communicator import Communicator
    from choreo.run.execute.calls import CallSpec, PreparedCall

__all__ = ["SHRINK_S", "describe", "explain", "release", "shrink", "shrunk", "surviving"]

SHRINK_S = 30.0
PAUSE_S = 0.002
ATTEMPTS = 100
MOST_BLOCKS = 8  # that are told one by one, where they differ
_OPERATIONS = {
    operation_code(op, np.dtype(np.float64 if op is ReduceOp.AVG else np.int64)): op.value for op in reversed(ReduceOp)
}
SHRUNK = CommunicatorClosed("this communicator was shrunk; use the one that shrink() returned")


# ---- saying what happened ----


def describe(call: CallSpec) -> str:
    """A call as people read it: the collective, its size and type, the operation, the root and the algorithm."""
    if call.collective == "barrier":
        return f"barrier() by {call.algorithm}"
    blocks = call.blocks
    count = str(sum(blocks)) if len(set(blocks)) == 1 else "+".join(map(str, blocks[:MOST_BLOCKS]))
    if len(set(blocks)) > 1 and len(blocks) > MOST_BLOCKS:
        count += f"+...={sum(blocks)}"
    parts = [f"{count} x {dtype_name(call.dtype)}"]
    if call.collective in ("all_reduce", "reduce", "reduce_scatter"):
        parts.append(ReduceOp.AVG.value if call.averages else _OPERATIONS[call.operation])
    if call.root is not None:
        parts.append(f"root {call.root}")
    return f"{call.collective}({', '.join(parts)}) by {call.algorithm}"


def explain(connection: Connection, prepared: PreparedCall, outcome: int, culprit: int, operation: int) -> ChoreoError:
    """The error of a call that failed, once all survivors agree on why. No call works afterwards, but `shrink` does."""
    at = prepared.program.ops[operation] if operation >= 0 else None
    step, suspect = (None, -1) if at is None else (int(at["step"]), int(at["peer"]))
    circle = connection.circle
    gave_up, _, interrupted = circle.gave_up(circle.rank)
    if gave_up == INTERRUPTED:
        # What the others know of that call this rank does not: it has no say in what became of it.
        closed = CommunicatorClosed(
            f"{describe(prepared.call)}, call {connection.calls}: {circle.places[circle.rank]} was interrupted in call "
            f"{interrupted}; the other ranks go on without it"
        )
        connection.end(lambda: copy.copy(closed))
        return copy.copy(closed)
    call, until_s = connection.surviving or (connection.calls, None)
    said = {"call": call, "cause": outcome, "culprit": culprit, "suspect": suspect}
    verdict = agree(circle, said | {"text": describe(prepared.call)[:160]}, everybody_until_s=until_s)
    connection.verdict = verdict

    told = _error(circle, verdict, prepared.call, step)
    connection.end(lambda: copy.copy(told))
    return copy.copy(told)  # what is raised holds on to every frame that it came through


def _error(circle: Circle, verdict: Verdict, call: CallSpec, step: int | None) -> ChoreoError:
    where = f"{describe(call)}, call {circle.notice.call}" + ("" if step is None else f", step {step}")
    if circle.rank in verdict.ranks or excluded(circle):
        return CommunicatorClosed(
            f"{where}: {circle.places[circle.rank]} did not answer before a deadline; the other ranks go on without it"
        )
    if verdict.cause == MISMATCHED:
        return CollectiveMismatch(f"call {verdict.call}: {_told_apart(circle, verdict)}")
    if verdict.ranks:
        what = "; ".join(_fate(circle, story) for story in verdict.stories)
        rest = len(verdict.ranks) - len(verdict.stories)
        more = f"; and {rest} more ranks failed" if rest else ""
    else:
        more = ", though every rank answers; no rank is given up" if verdict.cause == TIMED_OUT else ""
        what = (
            f"not done before the deadline: {circle.places[verdict.culprit]} was waited for"
            if verdict.cause == TIMED_OUT
            else f"{circle.places[verdict.culprit]} sent or showed what makes no sense"
        )
    return PeerFailure(
        f"{where}: {what}{more}; shrink() goes on without them",
        ranks=verdict.ranks,
        collective=call.collective,
        step=step,
    )


def _fate(circle: Circle, story: Story) -> str:
    what = {
        PEER_DIED: "died",
        TIMED_OUT: "did not answer before the deadline",
        LEFT: "ended or closed its communicator",
        INTERRUPTED: "was interrupted",
    }[story.outcome]
    began = f"in call {story.call}, {story.text}" if story.call else "before its first call"
    if story.outcome == LEFT:
        began = f"after call {story.call}" if story.call else began
    elif story.call < 0:
        began = f"in call {circle.notice.call}, or before it"
    elif story.call and story.call < circle.notice.call:
        late = story.outcome == TIMED_OUT
        what = "had not come" if late else what
        began = f"to call {circle.notice.call} by the deadline" if late else f"before call {circle.notice.call}"
        began += f"; its last was call {story.call}, {story.text}"
    return f"{circle.places[story.rank]} {what} {began}"


def _told_apart(circle: Circle, verdict: Verdict) -> str:
    if len(verdict.stories) == 2:
        few, many = verdict.stories
        return f"{circle.places[few.rank]} called {few.text}, but {circle.places[many.rank]} called {many.text}"
    return f"{circle.places[verdict.culprit]} made another call than the others"


# ---- going on without them ----


def release(connection: Connection, error: ChoreoError) -> None:
    """Let go of a connection that another has taken the place of."""
    connection.end(lambda: copy.copy(error))
    connection.close()


class _AbortedError(Exception):
    """An attempt to build a communicator that was given up, because these ranks were lost."""

    def __init__(self, lost: frozenset[int]) -> None:
        super().__init__(f"ranks {sorted(lost)} were lost")
        self.lost = lost


class _Outcome(msgspec.Struct, array_like=True):
    fine: bool
    failed: tuple[int, ...] = ()


class _Reunion:
    """How those who are left find each other: as a meeting, but on the boards of their old communicator."""

    def __init__(self, circle: Circle, members: tuple[int, ...], attempt: int) -> None:
        self._circle, self._members, self._attempt = circle, members, attempt
        self.rank, self.world_size = members.index(circle.rank), len(members)
        self._shared: tuple[bytes, ...] = ()

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blob, by rank; if somebody is lost before all have theirs up, nobody gets any."""
        circle, number = self._circle, len(self._shared)
        self._shared += (blob,)
        circle.post(blobs=self._shared)

        def there(rank: int) -> bool:
            said = circle.read(rank)
            return said.attempt == self._attempt and len(said.blobs) > number

        topic = self._topic(number)
        lost, missing = _wait(circle, self._members, there, timeout_s, lambda: circle.is_being_decided(topic))
        self.settle(number, lost, fine=not missing)
        # What a rank elsewhere has put up may be known to those who decided, and be still on its way to this one.
        late, _ = _wait(circle, self._members, there, timeout_s, lambda: any(map(self._is_ahead, self._members)))
        if late or any(map(self._is_ahead, self._members)):
            # Others are ahead: they have given the next exchange of this attempt up, and say why there.
            self.settle(number + 1, late, fine=False)
        return [circle.read(rank).blobs[number] for rank in self._members]

    def _is_ahead(self, rank: int) -> bool:
        return self._circle.read(rank).attempt > self._attempt

    def settle(self, number: int, lost: frozenset[int], *, fine: bool = True) -> None:
        """Agree on whether an exchange came to its end."""
        mine = msgspec.msgpack.encode(_Outcome(fine and not lost, tuple(sorted(lost))))
        decided = self._circle.decide(self._topic(number), mine, lambda rank: rank in self._members)
        outcome = msgspec.msgpack.decode(decided, type=_Outcome)
        if not outcome.fine:
            raise _AbortedError(frozenset(outcome.failed))

    def _topic(self, number: int) -> str:
        return f"exchange {self._attempt} {number}"


def shrink(connection: Connection, timeout_s: float = SHRINK_S) -> tuple[Connection, tuple[int, ...]]:
    """A connection of those that are left, and which ranks of this one they are. All of them call it.

    Whoever dies meanwhile or does not come within `timeout_s` is left out. The old connection has ended afterwards.
    """
    if connection.closed:
        raise CommunicatorClosed("a communicator that is closed cannot be shrunk")
    circle = connection.circle
    failed = connection.verdict.ranks if connection.verdict is not None else frozenset[int]()
    if circle.rank in failed:
        connection.raise_end()
    for attempt in range(ATTEMPTS):
        members = _members(connection, failed, attempt, timeout_s)
        reunion = _Reunion(circle, members, attempt)
        try:
            made = connect(reunion, secrets.token_hex(6), connection.machine, timeout_s, connection.network)
        except _AbortedError as error:
            failed = frozenset(range(circle.world_size)) - set(members) | error.lost
            continue
        except (OSError, MeetingError):
            # A segment that has gone already, or nobody who answers: a rank died, or has given this attempt up.
            try:
                reunion.settle(1, circle.dead() & set(members), fine=False)
            except _AbortedError as error:
                failed = frozenset(range(circle.world_size)) - set(members) | error.lost
            continue
        release(connection, SHRUNK)
        return made, members
    raise PeerFailure(f"no communicator of ranks {members} could be built in {ATTEMPTS} attempts", ranks=failed)


def _members(connection: Connection, failed: frozenset[int], attempt: int, timeout_s: float) -> tuple[int, ...]:
    """Who goes on, as all of them see it."""
    circle, topic = connection.circle, f"members {attempt}"
    circle.post(attempt=attempt, blobs=())
    expected = tuple(rank for rank in range(circle.world_size) if rank not in failed)
    lost, _ = _wait(
        circle,
        expected,
        lambda rank: circle.read(rank).attempt >= attempt,
        timeout_s,
        lambda: circle.is_being_decided(topic),
    )
    mine = msgspec.msgpack.encode(_Outcome(True, tuple(sorted(failed | lost))))
    decided = msgspec.msgpack.decode(
        circle.decide(topic, mine, lambda rank: rank not in failed | lost), type=_Outcome
    ).failed
    if circle.rank in decided:
        place = circle.places[circle.rank]
        error = CommunicatorClosed(f"{place} did not come to shrink() in time; the other ranks go on without it")
        release(connection, error)
        raise error
    return tuple(rank for rank in range(circle.world_size) if rank not in decided)


def excluded(circle: Circle) -> bool:
    """Whether others have gone on without this rank."""
    decisions = circle.ledger.all_decided("members ")
    return any(circle.rank in msgspec.msgpack.decode(one, type=_Outcome).failed for one in decisions)


def _wait(
    circle: Circle,
    ranks: tuple[int, ...],
    there: Callable[[int], bool],
    timeout_s: float,
    decided: Callable[[], bool],
) -> tuple[frozenset[int], frozenset[int]]:
    """Wait for these ranks; those that died before they were there or are not there in time, and all that are not."""
    end_s = time.monotonic() + timeout_s
    missing = set(ranks) - {circle.rank}
    while True:
        dead = circle.dead()
        # Looked at after their death: what a rank put up before it died counts.
        missing = {rank for rank in missing if not there(rank)}
        lost = missing & (dead | circle.gone().keys())
        if missing == lost or decided():
            return frozenset(lost), frozenset(missing)
        if time.monotonic() >= end_s:
            return frozenset(missing), frozenset(missing)
        time.sleep(PAUSE_S)


def shrunk(communicator: Communicator, timeout_s: float) -> Communicator:
    """The communicator of those that are left, in which nothing is left of this one."""
    communicator._engine.progress.drain(None)  # each call has its deadline
    connection, ranks = communicator._engine.connection, communicator.ranks
    while True:
        connection, members = shrink(connection, timeout_s)
        ranks = tuple(ranks[member] for member in members)
        try:
            made = communicator.beside(connection)
        except PeerFailure:
            continue  # somebody was lost while they were introduced to each other
        made.ranks = ranks
        communicator.retire(SHRUNK)
        return made


def surviving(
    communicator: Communicator, x: Any, op: ReduceOp, out: Any, timeout: float | None
) -> tuple[Any, tuple[int, ...]]:
    """An all_reduce that ends well for everybody who lives: the result, and the original ranks that are in it.

    A barrier follows the reduction: whoever gets through it knows that all have the result. If it or the reduction
    fails, the survivors agree on whether all of them have the result; if not they do it again among themselves, from a
    copy of what they were given.
    """
    taken = take(x, writable=out is None)
    into = taken if out is None else check_out(out, taken.array.shape, taken.array.dtype)
    given = taken.array.copy()
    patience_s = communicator._seconds(timeout)
    communicator._engine.progress.drain(None)
    while True:
        connection = communicator._engine.connection
        if connection.verdict is not None:
            with contextlib.suppress(PeerFailure):  # somebody was lost while they were introduced to each other
                communicator.become(*shrink(connection, patience_s))
            continue
        contributors, call, end_s = communicator.ranks, connection.calls + 1, time.monotonic() + patience_s
        np.copyto(into.array, given)
        connection.surviving = (call, end_s)
        try:
            communicator.all_reduce(into.array, op, timeout=patience_s)
            connection.circle.post(reduced=call)
            communicator.barrier(timeout=max(0.001, end_s - time.monotonic()))
            connection.circle.post(returned=call)
        except PeerFailure as error:
            verdict = connection.verdict
            if verdict is None or verdict.reduced < call:
                # Where it was an earlier call that failed, others raise that: so does this one, or they part.
                if not error.ranks or (verdict is not None and verdict.first < call):
                    raise
                continue
        finally:
            connection.surviving = None
        into.put_back()
        return (x if out is None else out), contributors
