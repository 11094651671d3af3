"""The text of the error that every survivor of a failed call raises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from choreo.errors import ChoreoError, CollectiveMismatch, CommunicatorClosed, PeerFailure
from choreo.run.consensus.consensus import Consensus
from choreo.run.consensus.failure import CUT_ONE_WAY, Failure, RankFailure
from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.execute.calls import CallSpec
from choreo.run.execute.dtypes import ReduceOp, dtype_name, operation_code
from choreo.run.execute.failures import ALTERED, INTERRUPTED, LEFT, MISMATCHED, PEER_DIED, PEER_GAVE_UP, TIMED_OUT

__all__ = ["describe_call", "excluded_error", "failure_error", "minority_error"]

MOST_BLOCKS = 8  # whose sizes are listed, where they differ
MOST_RANKS = 16  # that are listed
_ALTERED = "arrived altered: something between the hosts changed, dropped, repeated or moved bytes of it"
_RECONNECT = "no rank is given up, and shrink() reconnects them"
_NOBODY = "no rank is given up, and shrink() goes on with those that call it"
_CUT = "a connection to it was cut: something between the hosts closed it"
_OPERATIONS = {
    operation_code(op, np.dtype(np.float64 if op is ReduceOp.AVG else np.int64)): op.value for op in reversed(ReduceOp)
}


def describe_call(call: CallSpec) -> str:
    """A call as text: the collective, its size and type, the operation, the root and the algorithm."""
    if call.step_of:
        return f"{call.step_of}, in its {describe_call(replace(call, step_of=''))}"
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


def excluded_error(detector: FailureDetector, consensus: Consensus, what: str) -> CommunicatorClosed:
    """The error of a rank that the others have excluded."""
    went_on = consensus.went_on()
    who = f" ({', '.join(map(str, went_on))})" if 0 < len(went_on) <= MOST_RANKS else ""
    return CommunicatorClosed(
        f"{what}: the other ranks{who} go on without it; choreo.join() brings it back once they call grow()"
    )


def minority_error(detector: FailureDetector, consensus: Consensus, what: str) -> CommunicatorClosed:
    """The error of a rank on the side of a network partition that may not continue."""
    away = detector.dead() | {rank for rank in range(detector.world_size) if detector.is_cut_off(rank)}
    here = [rank for rank in range(detector.world_size) if rank not in away]
    return CommunicatorClosed(
        f"{what}: {consensus.quorum.verdict(here)}, so it is a minority, and the other ranks may go on without it; "
        'choreo.join() brings it back once they call grow(); with quorum="any" every side would go on'
    )


def failure_error(
    detector: FailureDetector,
    consensus: Consensus,
    failure: Failure,
    call: CallSpec,
    step: int | None,
    *,
    agreed: bool,
    survive: bool,
) -> ChoreoError:
    """The error of this rank, which was at this call and step. `agreed` says whether the survivors decided on it."""
    where = f"{describe_call(call)}, call {detector.status.call}" + ("" if step is None else f", step {step}")
    if detector.rank in failure.ranks or consensus.went_on():
        me = f"{where}: {detector.peers[detector.rank]} did not answer before a deadline"
        return excluded_error(detector, consensus, me)
    if survive and not agreed:
        return minority_error(detector, consensus, f"{where}: {detector.peers[detector.rank]} is cut off")
    if failure.cause == MISMATCHED:
        return CollectiveMismatch(f"call {failure.call}: {_mismatch(detector, failure)}")
    culprit = detector.peers[failure.culprit]
    if failure.cause == ALTERED or (failure.cause == PEER_DIED and not failure.ranks):
        what = f"what {culprit} sent {_ALTERED}" if failure.cause == ALTERED else f"{culprit} lives, but {_CUT}"
        left = ", ".join(str(detector.peers[rank]) for rank in sorted(failure.ranks)[:4])
        then = f"{left} failed; shrink() goes on without them" if left else _RECONNECT
        return PeerFailure(f"{where}: {what}; {then}", ranks=failure.ranks, collective=call.collective, step=step)
    if failure.ranks:
        what = "; ".join(_what_happened(detector, detail) for detail in failure.details)
        rest = len(failure.ranks) - len(failure.details)
        more = f"; and {rest} more ranks failed" if rest else ""
    elif detector.status_of(failure.culprit).left_calls:
        what, more = f"{culprit} called shrink() instead", ""
    elif failure.cause == TIMED_OUT:
        what = f"timed out waiting for {culprit}"
        more = ", although every rank answers" if failure.all_answer else ""
    elif failure.cause == PEER_GAVE_UP:
        what, more = f"{culprit} gave up the call", ", and has not said why"
    else:
        what, more = f"{culprit} sent invalid data", ""
    then = "shrink() goes on without them" if failure.ranks else _NOBODY
    if not agreed:
        answers = (rank == detector.rank or detector.status_of(rank).cause for rank in range(detector.world_size))
        here = (rank for rank, answered in enumerate(answers) if answered and rank not in failure.ranks)
        then = f"{consensus.quorum.verdict(here)}, and only a majority goes on: shrink() waits until it is one"
    return PeerFailure(
        f"{where}: {what}{more}; {then}",
        ranks=failure.ranks,
        collective=call.collective,
        step=step,
    )


def _what_happened(detector: FailureDetector, failure: RankFailure) -> str:
    if failure.outcome == ALTERED:
        return f"what {detector.peers[failure.rank]} sent {_ALTERED}"
    what = {
        PEER_DIED: "died",
        TIMED_OUT: "did not answer before the deadline",
        LEFT: "ended or closed its communicator",
        INTERRUPTED: "was interrupted",
        CUT_ONE_WAY: "answers, but receives nothing from this side: the network is cut in one direction",
    }[failure.outcome]
    if failure.outcome == CUT_ONE_WAY:
        return f"{detector.peers[failure.rank]} {what}"
    mine = detector.status.call
    when = f"in call {failure.call}, {failure.text}" if failure.call else "before its first call"
    if failure.outcome == LEFT:
        when = (
            f"before call {mine} was done"
            if failure.call < 0
            else f"after call {failure.call}"
            if failure.call
            else when
        )
    elif failure.call < 0:
        when = f"in call {mine}, or before it"
    elif failure.call and failure.call < mine:
        late = failure.outcome == TIMED_OUT
        what = "had not come" if late else what
        when = f"to call {mine} by the deadline" if late else f"before call {mine}"
        when += f"; its last was call {failure.call}, {failure.text}"
    return f"{detector.peers[failure.rank]} {what} {when}"


def _mismatch(detector: FailureDetector, failure: Failure) -> str:
    if len(failure.details) == 2:
        few, many = failure.details
        return f"{detector.peers[few.rank]} called {few.text}, but {detector.peers[many.rank]} called {many.text}"
    return f"{detector.peers[failure.culprit]} made a different call from the others"
