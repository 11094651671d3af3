"""The largest schedule that each kind of picture can show."""

from __future__ import annotations

import numpy as np

from choreo.errors import UsageError
from choreo.schedule import Schedule

__all__ = ["check_size", "fits"]


def check_size(
    schedule: Schedule, picture: str, *, ranks: int, transfers: int, places: int, steps: int | None = None
) -> None:
    """Refuse a schedule that is too large for a kind of picture, with the limit, the value and what to do."""
    story = _too_much(schedule, ranks=ranks, transfers=transfers, places=places, steps=steps)
    if story is not None:
        others = ", or the text summary" if picture == "page" else ", the page, or the text summary"
        raise UsageError(f"the {picture} shows at most {story}{others}")


def fits(schedule: Schedule, *, ranks: int, transfers: int, places: int) -> bool:
    """Whether the schedule is within these limits."""
    return _too_much(schedule, ranks=ranks, transfers=transfers, places=places, steps=None) is None


def _too_much(schedule: Schedule, *, ranks: int, transfers: int, places: int, steps: int | None) -> str | None:
    """What there is too much of, and how to have less."""
    helpers = [name for name in ("relays", "switches") if getattr(schedule, name)]
    who = " and ".join(["ranks", *helpers])
    if schedule.members > ranks:
        return f"{ranks} {who}, not {schedule.members}; use fewer ranks"
    if steps is not None and schedule.num_steps > steps:
        return f"{steps} steps, not {schedule.num_steps}; use fewer ranks or segments"
    held = schedule.members * schedule.num_chunks
    if held > places:
        return f"{places} places ({who} times chunks), not {held}; use fewer ranks or segments"
    drawn = 0
    for rows in schedule.blocks():
        if drawn + len(rows) > transfers:
            last = int(rows.step[transfers - drawn])
            drawn += int(np.searchsorted(rows.step, last, side="right"))
            return (
                f"{transfers} transfers, and by step {last} of {schedule.num_steps} there are {drawn}; "
                "use fewer ranks or segments"
            )
        drawn += len(rows)
    return None
