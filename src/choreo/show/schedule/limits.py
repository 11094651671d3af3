"""How large a schedule each kind of picture can show."""

from __future__ import annotations

from choreo.errors import UsageError
from choreo.schedule import Schedule

__all__ = ["check_size", "fits"]


def check_size(schedule: Schedule, picture: str, *, ranks: int, transfers: int, places: int) -> None:
    """Refuse a schedule that is too large for a kind of picture, with the limit, the value and what to do."""
    story = _too_much(schedule, picture, ranks, transfers, places)
    if story is not None:
        raise UsageError(story)


def fits(schedule: Schedule, *, ranks: int, transfers: int, places: int) -> bool:
    """Whether the schedule is within these limits."""
    return _too_much(schedule, "picture", ranks, transfers, places) is None


def _too_much(schedule: Schedule, picture: str, ranks: int, transfers: int, places: int) -> str | None:
    who = "ranks and switches" if schedule.switches else "ranks"
    if schedule.members > ranks:
        most = f"the {picture} shows at most {ranks} {who}"
        return f"{most}, not {schedule.members}; use fewer ranks, or the text summary"
    held = schedule.members * schedule.num_chunks
    if held > places:
        return (
            f"the {picture} shows at most {places} places ({who} times chunks), not {held}; use fewer ranks or "
            "segments, or the text summary"
        )
    drawn = 0
    for rows in schedule.steps():
        drawn += len(rows)
        if drawn > transfers:
            return (
                f"the {picture} shows at most {transfers} transfers, and by step {rows.step[0]} of "
                f"{schedule.num_steps} there are {drawn}; use fewer ranks or segments, or the text summary"
            )
    return None
