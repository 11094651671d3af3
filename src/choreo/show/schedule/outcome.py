"""The result of the proof, for the picture of a right or a wrong schedule."""

from __future__ import annotations

from dataclasses import dataclass

from choreo.errors import ProofError
from choreo.prove import prove
from choreo.schedule import Schedule

__all__ = ["ProofOutcome", "outcome_of"]


@dataclass(frozen=True, slots=True)
class ProofOutcome:
    """Whether the schedule keeps its promise; if not, why, and the step, rank and chunk where it first breaks."""

    holds: bool
    story: str = ""
    step: int | None = None
    rank: int | None = None
    chunk: int | None = None


def outcome_of(schedule: Schedule) -> ProofOutcome:
    """Prove the schedule; a failed proof is an answer here, not an error."""
    try:
        prove(schedule)
    except ProofError as error:
        return ProofOutcome(False, error.story, error.step, error.rank, error.chunk)
    return ProofOutcome(True)
