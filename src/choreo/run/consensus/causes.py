"""The causes of a failure that a rank knows, from whichever rank it heard them.

A rank that stops only because another one did has no cause of its own. If two hosts do not hear each other, a third one
passes on what it has heard. So all ranks that are connected at all know the same causes.
"""

from __future__ import annotations

from collections.abc import Mapping

from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.consensus.status import Cause, Status
from choreo.run.execute.failures import INTERRUPTED, LEFT, PEER_GAVE_UP

__all__ = ["known_causes", "publish_cause"]

_NO_CAUSE = (0, PEER_GAVE_UP, LEFT, INTERRUPTED)


def known_causes(detector: FailureDetector, statuses: Mapping[int, Status]) -> list[Cause]:
    """The causes that ranks have passed on, have given up with, or have published; those known best come last."""
    found = [status.passed_on for status in statuses.values() if status.passed_on is not None]
    found += [Cause(rank, *detector.gave_up(rank)) for rank in statuses]
    found += [Cause(rank, status.cause, status.culprit, status.call) for rank, status in statuses.items()]
    return [cause for cause in found if cause.outcome not in _NO_CAUSE]


def publish_cause(detector: FailureDetector, causes: list[Cause]) -> None:
    """Pass on the cause that counts most, unless it is this rank's own."""
    status = detector.status
    first = min(causes, key=lambda cause: (cause.outcome, cause.rank), default=None)
    if first is not None and first.outcome != status.cause and first != status.passed_on:
        detector.publish(passed_on=first)
