"""Plans and steps in figures: where the time goes, and what fills the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from choreo.plan import Planned, Planning, Step
from choreo.show.plan.words import limits, plan_words, title
from choreo.show.sheet import Sheet, SheetTable
from choreo.units import format_bytes, format_time

__all__ = ["planned_sheet", "planning_sheet", "step_sheet"]


def planning_sheet(planning: Planning) -> Sheet:
    """The best plan, and those that come next."""
    rows = tuple(
        (
            str(number),
            str(planned.plan),
            format_time(planned.step.step_time_s),
            f"{100 * planned.step.mfu:.1f} %",
            _gigabytes(planned.step.memory_bytes) + ("" if planned.step.fits else " (too much)"),
            limits(planning, planned, 2),
        )
        for number, planned in enumerate(planning.plans, 1)
    )
    plans = SheetTable("the best plans", ("", "plan", "step", "MFU", "memory", "limited by"), rows, (0, 2, 3, 4))
    facts = (("plan", plan_words(planning.best.plan)), *_figures(planning.best.step))
    considered = ("considered", f"{planning.considered:,} plans")
    return Sheet(title(planning), (*facts, considered), (plans,))


def planned_sheet(planned: Planned) -> Sheet:
    """A plan and its step."""
    return Sheet(plan_words(planned.plan), _figures(planned.step), _tables(planned.step))


def step_sheet(step: Step) -> Sheet:
    """A step, with its time and its memory part by part."""
    return Sheet(f"a training step of {format_time(step.step_time_s)}", _figures(step), _tables(step))


def _figures(step: Step) -> tuple[tuple[str, str], ...]:
    room = _gigabytes(step.device_bytes)
    return (
        ("step", format_time(step.step_time_s)),
        ("per GPU", f"{step.tokens_per_s_per_gpu:,.0f} tokens/s"),
        ("MFU", f"{100 * step.mfu:.1f} %"),
        ("HFU", f"{100 * step.hfu:.1f} %"),
        ("bubble", f"{100 * step.bubble_s / step.step_time_s:.1f} %"),
        ("memory", f"{_gigabytes(step.memory_bytes)} of {room}{'' if step.fits else ': too much'}"),
    )


def _tables(step: Step) -> tuple[SheetTable, ...]:
    times = _parts("where the time goes", "time", step.parts, step.step_time_s, format_time)
    return times, _parts("memory", "bytes", step.memory, step.memory_bytes, _gigabytes)


def _gigabytes(size_bytes: float) -> str:
    return format_bytes(size_bytes, binary=False)


def _parts(
    caption: str, what: str, parts: Mapping[str, float], total: float, words: Callable[[float], str]
) -> SheetTable:
    rows = tuple(
        (name, words(value), f"{100 * value / total:.1f} %")
        for name, value in sorted(parts.items(), key=lambda part: -part[1])
        if value > 0
    )
    return SheetTable(caption, ("part", what, "share"), rows, (1, 2))
