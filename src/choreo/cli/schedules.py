"""Schedules that a command may rely on, and what is said of those that are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.options import Choice

if TYPE_CHECKING:
    from choreo.schedule import Schedule

__all__ = ["checked", "left_out", "trusted"]


def trusted(candidate: Choice, ranks: int) -> Schedule:
    """A schedule that does what it promises: the library's, which the tests prove, or a user's that is proved now."""
    from choreo.algorithms import get_algorithm

    schedule = candidate.build(ranks)
    in_library = get_algorithm(str(candidate.collective), candidate.algorithms[0]).in_library
    return schedule if in_library and candidate.axes is None else checked(schedule)


def checked(schedule: Schedule) -> Schedule:
    """A schedule that was just proved; figures are worth nothing for one that is wrong."""
    from choreo.prove import prove

    prove(schedule)
    return schedule


def left_out(candidate: Choice, error: Exception) -> None:
    """Say on stderr which algorithm is not in the table, and why."""
    name = f"{candidate.collective} by {candidate.algorithms[0]}"
    told = str(error) if name in str(error) else f"{name}: {error}"
    click.echo(f"left out: {' '.join(told.split())}", err=True)
