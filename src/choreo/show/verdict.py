"""What the proof says of a schedule that is shown, right or wrong: a picture goes on where a proof stops."""

from __future__ import annotations

from dataclasses import dataclass

from choreo.errors import ProofError
from choreo.prove.prove import prove
from choreo.schedule import Schedule

__all__ = ["Verdict", "verdict_of"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the schedule keeps its promise; if not, the story, and the step, rank and chunk where it first breaks."""

    holds: bool
    story: str = ""
    step: int | None = None
    rank: int | None = None
    chunk: int | None = None


def verdict_of(schedule: Schedule) -> Verdict:
    """The proof's verdict."""
    try:
        prove(schedule)
    except ProofError as error:
        return Verdict(False, error.story, error.step, error.rank, error.chunk)
    return Verdict(True)
