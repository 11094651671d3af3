"""The error that every survivor of a failed call raises, in words."""

from __future__ import annotations

import numpy as np

from choreo.errors import ChoreoError, CollectiveMismatch, CommunicatorClosed, PeerFailure
from choreo.run.consensus.failure import Failure, RankFailure
from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.execute.calls import CallSpec
from choreo.run.execute.dtypes import ReduceOp, dtype_name, operation_code
from choreo.run.execute.failures import ALTERED, INTERRUPTED, LEFT, MISMATCHED, PEER_DIED, TIMED_OUT

__all__ = ["describe_call", "failure_error"]

MOST_BLOCKS = 8  # whose sizes are listed, where they differ
_ALTERED = "arrived altered: something between the hosts changed, dropped, repeated or moved bytes of it"
_ANEW = "no rank is given up, shrink() connects them anew"
_CUT = "a connection to it was cut: something between the hosts closed it"
_OPERATIONS = {
    operation_code(op, np.dtype(np.float64 if op is ReduceOp.AVG else np.int64)): op.value for op in reversed(ReduceOp)
}


def describe_call(call: CallSpec) -> str:
    """A call as text: the collective, its size and type, the operation, the root and the algorithm."""
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


def failure_error(
    detector: FailureDetector, failure: Failure, call: CallSpec, step: int | None, *, excluded: bool
) -> ChoreoError:
    """The error of this rank, which was at this call and step. It is `excluded` if the others went on without it."""
    where = f"{describe_call(call)}, call {detector.status.call}" + ("" if step is None else f", step {step}")
    if detector.rank in failure.ranks or excluded:
        return CommunicatorClosed(
            f"{where}: {detector.peers[detector.rank]} did not answer before a deadline; the other ranks go on without "
            "it"
        )
    if failure.cause == MISMATCHED:
        return CollectiveMismatch(f"call {failure.call}: {_mismatch(detector, failure)}")
    culprit = detector.peers[failure.culprit]
    if failure.cause == ALTERED or (failure.cause == PEER_DIED and not failure.ranks):
        what = f"what {culprit} sent {_ALTERED}" if failure.cause == ALTERED else f"{culprit} lives, but {_CUT}"
        left = ", ".join(str(detector.peers[rank]) for rank in sorted(failure.ranks)[:4])
        then = (
            f"{left} failed; shrink() goes on without them"
            if left
            else "no rank is given up, shrink() connects them anew"
        )
        return PeerFailure(f"{where}: {what}; {then}", ranks=failure.ranks, collective=call.collective, step=step)
    if failure.ranks:
        what = "; ".join(_what_happened(detector, one) for one in failure.details)
        rest = len(failure.ranks) - len(failure.details)
        more = f"; and {rest} more ranks failed" if rest else ""
    elif failure.cause == TIMED_OUT:
        what = f"not done before the deadline: {culprit} was waited for"
        more = ", though every rank answers; no rank is given up"
    else:
        what, more = f"{culprit} sent invalid data", ""
    return PeerFailure(
        f"{where}: {what}{more}; shrink() goes on without them",
        ranks=failure.ranks,
        collective=call.collective,
        step=step,
    )


def _what_happened(detector: FailureDetector, one: RankFailure) -> str:
    if one.outcome == ALTERED:
        return f"what {detector.peers[one.rank]} sent {_ALTERED}"
    what = {
        PEER_DIED: "died",
        TIMED_OUT: "did not answer before the deadline",
        LEFT: "ended or closed its communicator",
        INTERRUPTED: "was interrupted",
    }[one.outcome]
    mine = detector.status.call
    when = f"in call {one.call}, {one.text}" if one.call else "before its first call"
    if one.outcome == LEFT:
        when = f"after call {one.call}" if one.call else when
    elif one.call < 0:
        when = f"in call {mine}, or before it"
    elif one.call and one.call < mine:
        late = one.outcome == TIMED_OUT
        what = "had not come" if late else what
        when = f"to call {mine} by the deadline" if late else f"before call {mine}"
        when += f"; its last was call {one.call}, {one.text}"
    return f"{detector.peers[one.rank]} {what} {when}"


def _mismatch(detector: FailureDetector, failure: Failure) -> str:
    if len(failure.details) == 2:
        few, many = failure.details
        return f"{detector.peers[few.rank]} called {few.text}, but {detector.peers[many.rank]} called {many.text}"
    return f"{detector.peers[failure.culprit]} made another call than the others"
