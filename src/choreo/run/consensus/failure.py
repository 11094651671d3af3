"""Agree on what failed: the survivors of a call decide in bounded time, whichever ranks fail meanwhile.

A rank whose call fails publishes its status, which makes the others stop too. Then it watches which ranks are dead,
which have published a status, and which are silent. When every live rank has published, or the silent ones have had
their time, it proposes what it sees. The first proposal is the decision (`consensus`).

A rank may stop only because another one did. It passes on why that one stopped (`causes`), so that ranks which do not
hear that one learn it too. A rank that knows no cause waits for one.

A silent rank has not necessarily failed. It may have returned from the call and be computing; then it learns the
decision in its next call. It counts as failed if the deadline of the call has passed and one of these holds: some rank
waits for it, it never began the call, or its host cannot be reached. If the network is cut in one direction, a rank can
send but receives nothing: it counts as failed too. A rank that is already in shrink() is neither silent nor failed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from choreo.run.consensus.between_hosts import SILENT_S
from choreo.run.consensus.causes import known_causes, publish_cause
from choreo.run.consensus.consensus import Consensus, pack_ranks, unpack_ranks
from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.consensus.status import Cause, Status
from choreo.run.execute.failures import ALTERED, MISMATCHED, PEER_DIED, TIMED_OUT

__all__ = ["CUT_ONE_WAY", "Failure", "RankFailure", "agree_on_failure", "decided_failure"]

# How long ranks have to publish their status. A rank in the call polls 50 times a second, if it gets a core; one that
# has not begun the call will hardly do so now. A rank that has said that it gives up has SILENT_S.
GRACE_S, GRACE_IN_CALL_S = 0.3, 1.5
PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.01
TOPIC = "failure"
CUT_ONE_WAY = 100  # besides the executor's outcomes: a rank that sends, but receives nothing


class RankFailure(msgspec.Struct, array_like=True, frozen=True):
    """The failure of one rank, and the call in which it failed."""

    rank: int
    outcome: int
    call: int
    text: str


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """The facts about a failed call that all survivors agree on."""

    failed: bytes  # one bit per rank
    cause: int
    call: int
    culprit: int
    reduced: int  # the last `survive=True` call whose result every survivor has
    first: int  # the earliest call after that in which a survivor failed
    details: tuple[RankFailure, ...]  # of the first few that failed; of a mismatch, one rank of each side
    all_answer: bool  # every rank that has not failed has published its status

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that failed."""
        return unpack_ranks(self.failed)


class _View(NamedTuple):
    """One rank's view of the others."""

    dead: frozenset[int]
    statuses: dict[int, Status]  # of all that are not dead
    silent: set[int]  # ranks that have not published a status
    cut_one_way: set[int]  # ranks that have, but receive nothing
    causes: list[Cause]

    @property
    def late(self) -> bool:
        """Whether the call is past a rank's deadline."""
        return any(cause.outcome == TIMED_OUT for cause in self.causes)


def agree_on_failure(
    detector: FailureDetector,
    consensus: Consensus,
    status: Mapping[str, Any],
    *,
    wait_for_all_until_s: float | None = None,
) -> tuple[Failure, bool]:
    """Agree with the other survivors on what happened. Also says whether all agree. `status` is this rank's own.

    On the side of a network partition that may not continue, nobody decides, and a rank gets what it sees itself.
    `wait_for_all_until_s` is for a call with `survive=True`: it waits for every rank until that time, and a rank that
    is silent until then has failed.
    """
    detector.report_host(int(status["number"]))  # before the status: whoever proposes then knows what was called here
    detector.publish(**status)
    survive = wait_for_all_until_s is not None
    began_s, pause_s = time.monotonic(), PAUSE_S
    while True:
        now_s = time.monotonic()  # before this rank looks: if it then gets no core, what it saw is outdated
        decided = decided_failure(consensus)
        if decided is not None:
            return decided, True
        in_progress = consensus.is_in_progress(TOPIC)
        seen = _look(detector, survive=survive)
        silent, late = seen.silent, seen.late
        publish_cause(detector, seen.causes)
        if late:
            detector.publish_acknowledged()
        in_call = late and any(detector.call_of(rank)[0] >= detector.status.call for rank in silent)
        end_s = began_s + (GRACE_IN_CALL_S if in_call else GRACE_S)
        if wait_for_all_until_s is not None:
            end_s = max(wait_for_all_until_s, end_s)
        left_calls = any(status.left_calls for status in seen.statuses.values())
        unexplained = not (seen.causes or seen.dead or detector.gone() or left_calls)
        if unexplained or any(detector.gave_up(rank)[0] for rank in silent):
            end_s = max(end_s, began_s + SILENT_S)
        is_looking = _is_looking(detector, seen)
        if is_looking:
            end_s = began_s + SILENT_S
        # A rank that is stopped or cut off gets no time beyond the deadline of the call.
        unresponsive = late and silent and not silent - detector.unresponsive(silent)
        if not (silent or is_looking or unexplained) or unresponsive or now_s >= end_s:
            proposal = _propose(detector, seen, survive=survive)
            failed = proposal.ranks
            may_decide = consensus.can_go_on_without(failed | silent)
            # In a call with `survive=True` the network may be back in time, unless the others have ended.
            if may_decide or in_progress or not survive or not consensus.can_go_on_without(seen.dead):
                found = None
                if may_decide or in_progress:
                    found = consensus.decide(
                        TOPIC,
                        msgspec.msgpack.encode(proposal) if may_decide else None,
                        lambda rank, failed=failed: rank not in failed and detector.status_of(rank).cause != 0,  # type: ignore[misc]
                    )
                return (proposal, False) if found is None else (msgspec.msgpack.decode(found, type=Failure), True)
            if now_s >= end_s:
                return proposal, False
        # A rank that has not seen enough yet does not propose; but it votes, whenever it looks for a decision.
        time.sleep(PAUSE_S if in_progress else pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def decided_failure(consensus: Consensus) -> Failure | None:
    """What the survivors of a failed call have agreed on, if there was one."""
    found = consensus.decided(TOPIC)
    return None if found is None else msgspec.msgpack.decode(found, type=Failure)


def _look(detector: FailureDetector, *, survive: bool) -> _View:
    dead = detector.dead()
    detector.report_host()
    statuses = {rank: detector.status_of(rank) for rank in range(detector.world_size) if rank not in dead}
    call = detector.status.call
    silent = {
        rank
        for rank, status in statuses.items()
        if not status.cause and not status.left_calls and not (survive and status.returned >= call)
    }
    silent -= detector.gone().keys()
    seen = _View(dead, statuses, silent, set(), known_causes(detector, statuses))
    if seen.late:
        seen.cut_one_way.update({rank for rank in statuses if detector.receives_nothing(rank)} - silent)
    return seen


def _is_looking(detector: FailureDetector, seen: _View) -> bool:
    """Whether a rank still finds out if all that it sends arrives.

    If the call timed out and all ranks answer, one of them may receive nothing: what is sent to it is never
    acknowledged. How long that takes to show depends on the load, so each rank publishes when all is acknowledged.
    """
    if detector.channel is None or not seen.late or seen.silent or seen.cut_one_way or seen.dead:
        return False
    return not all(status.acknowledged for status in seen.statuses.values() if status.cause)


def _propose(detector: FailureDetector, seen: _View, *, survive: bool) -> Failure:
    dead, statuses, silent, causes = seen.dead, seen.statuses, seen.silent, seen.causes
    call, gone = detector.status.call, detector.gone()
    suspects = {status.suspect for status in statuses.values()} | {
        cause.culprit for cause in causes if cause.outcome == TIMED_OUT
    }
    stuck = set()
    if survive:
        stuck = silent
    elif seen.late:
        stuck = {
            rank
            for rank in silent
            if rank in suspects or detector.is_cut_off(rank) or 0 <= detector.call_of(rank)[0] < call
        }
    lost = {rank: ALTERED if detector.is_altered(rank) else PEER_DIED for rank in dead}
    failed = dict.fromkeys(sorted(stuck), TIMED_OUT)
    failed |= dict.fromkeys(sorted(seen.cut_one_way), CUT_ONE_WAY) | lost | gone
    failed.pop(detector.rank, None)
    survivors = [status for rank, status in statuses.items() if rank not in failed]
    details = [RankFailure(rank, failed[rank], *detector.call_of(rank)) for rank in sorted(failed)[:4]]
    # The proposer may be calls ahead of another survivor. From these two numbers, each survivor determines for its own
    # call whether all have the result.
    reduced = min(survivor.reduced for survivor in survivors)
    first = min(
        (survivor.call for survivor in survivors if survivor.cause and survivor.call > reduced), default=sys.maxsize
    )
    kinds = {cause.outcome: cause for cause in causes if cause.rank not in failed}
    # If calls do not match, a rank that has left may simply have finished.
    if MISMATCHED in kinds and not (stuck or dead - gone.keys()):
        cause, culprit = MISMATCHED, kinds[MISMATCHED].culprit
        call, details = _sides(detector, kinds[MISMATCHED].call)
    elif ALTERED in kinds:
        cause, culprit = ALTERED, kinds[ALTERED].culprit
    elif failed:
        cause, culprit = failed[min(failed)], min(failed)
    else:
        own = detector.status
        worst = kinds[min(kinds)] if kinds else Cause(detector.rank, own.cause, own.culprit, own.call)
        cause, culprit = worst.outcome, worst.culprit
    return Failure(pack_ranks(failed), cause, call, culprit, reduced, first, tuple(details), silent <= failed.keys())


def _sides(detector: FailureDetector, call: int) -> tuple[int, list[RankFailure]]:
    """The first call in which ranks differ, and one rank of the smallest and of the largest side, with their calls.

    It may be earlier than the given call, in which the mismatch was noticed.
    """
    known = [detector.calls_of(rank) for rank in range(detector.world_size)]
    for number in sorted({number for calls in known for number in calls}):
        texts: dict[str, list[int]] = {}
        for rank, calls in enumerate(known):
            if number in calls:
                texts.setdefault(calls[number], []).append(rank)
        if len(texts) > 1:
            sides = sorted(texts.items(), key=lambda side: (len(side[1]), -side[1][0]))
            return number, [RankFailure(ranks[0], MISMATCHED, number, text) for text, ranks in (sides[0], sides[-1])]
    return call, []
