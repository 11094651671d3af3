"""A training run in figures: its steps, and where their time went, beside what was predicted."""

from __future__ import annotations

from dataclasses import replace

from choreo.show.sheet import Sheet, SheetTable
from choreo.train.result import TrainingRun
from choreo.units import format_bytes, format_time

__all__ = ["training_sheet"]


def training_sheet(run: TrainingRun) -> Sheet:
    """The run, its parts measured beside predicted, and every step."""
    predicted, parts = run.predicted_parts, run.parts
    total = sum(parts.values())
    rows = tuple(
        (name, format_time(seconds), f"{100 * seconds / total:.1f} %", _time(predicted.get(name)))
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1])
    )
    steps = tuple(
        (
            str(step.step),
            f"{step.loss:.4f}",
            f"{step.tokens_per_s:,.0f}",
            f"{100 * step.mfu:.1f} %",
            format_time(step.time_s),
            _time(step.predicted_s),
        )
        for step in run.steps
    )
    expected = run.predicted_memory_bytes
    memory = format_bytes(run.memory_bytes, binary=False)
    if expected is not None:
        memory += f", predicted {format_bytes(expected, binary=False)}"
    facts = [("step", format_time(run.time_s)), ("memory", memory), ("backend", run.backend)]
    if run.disturbed:
        facts.append(("disturbed", run.disturbed))
    if run.check is not None:
        same = "the same" if run.check["same"] else "not the same"
        facts.append(("check", f"{same} losses as one process, {run.check['error']:.1e} off at most"))
    tables: tuple[SheetTable, ...] = (
        SheetTable(
            "where the time went, in the median step", ("part", "measured", "share", "predicted"), rows, (1, 2, 3)
        ),
        SheetTable("steps", ("step", "loss", "tokens/s", "MFU", "time", "predicted"), steps, (0, 1, 2, 3, 4, 5)),
    )
    if not predicted and all(step.predicted_s is None for step in run.steps):
        facts.append(("predicted", "nothing: choreo train says why when it starts"))
        tables = tuple(_without_last_column(table) for table in tables)
    return Sheet(run.summary(), tuple(facts), tables)


def _without_last_column(table: SheetTable) -> SheetTable:
    return replace(
        table,
        columns=table.columns[:-1],
        rows=tuple(row[:-1] for row in table.rows),
        right=tuple(at for at in table.right if at < len(table.columns) - 1),
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_time(seconds)
