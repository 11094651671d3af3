"""The phases of a schedule: parts that are collectives themselves, and their steps."""

from __future__ import annotations

from typing import NamedTuple

from choreo.schedule import Schedule
from choreo.show.schedule.words import printable

__all__ = ["Span", "phases_of"]


class Span(NamedTuple):
    """A phase: the collective that steps `first` to `last` are."""

    collective: str
    first: int
    last: int

    @property
    def heading(self) -> str:
        """The phase and its steps: `reduce_scatter: steps 0 to 2`."""
        steps = f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"
        return f"{self.collective}: {steps}"


def phases_of(schedule: Schedule) -> list[Span]:
    """The phases that have steps, in order; none where the schedule was not composed of any."""
    spans, first = [], 0
    for phase in schedule.phases:
        end = min(first + phase.num_steps, schedule.num_steps)
        if end > first:
            spans.append(Span(printable(phase.collective), first, end - 1))
        first = end
    return spans
