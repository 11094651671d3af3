"""A proof before figures: those of a wrong schedule are worthless."""

from __future__ import annotations

from choreo.errors import ProofError
from choreo.prove.prove import prove
from choreo.schedule import Schedule
from choreo.units import counted

__all__ = ["checked"]


def checked(schedule: Schedule, named: str = "") -> Schedule:
    """The schedule, proved. The error of a wrong one begins with its name: `named`, or collective, algorithm and ranks.

    >>> checked(Schedule.from_list("broadcast", 2, []))
    Traceback (most recent call last):
    choreo.errors.ProofError: broadcast by unnamed over 2 ranks: ...
    """
    try:
        prove(schedule)
    except ProofError as error:
        name = named or f"{schedule.collective} by {schedule.algorithm} over {counted(schedule.ranks, 'rank')}"
        error.tell(f"{name}: {error.story}")
        raise
    return schedule
