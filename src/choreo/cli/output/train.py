"""Print a training run: a line for each step while it runs, and at the end where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import Column, NcclTable, echo_line, echo_table
from choreo.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.train import TrainingRun, TrainingStep

__all__ = ["StepTable", "print_kinds", "print_run"]

COLUMNS = (
    Column("step"),
    Column("loss"),
    Column("tokens/s", drop=2),
    Column("MFU", drop=3),
    Column("time"),
    Column("predicted"),
    Column("compute", drop=4),
    Column("comm", drop=5),
    Column("bubble", drop=6),
    Column("optimizer", drop=7),
)
UNITS = ("", "", "", "%", "ms", "ms", "ms", "ms", "ms", "ms")
WIDTHS = (5, 9, 9, 6, 9, 9, 9, 9, 9, 9)
# Parts that are not communication.
OTHERS = ("compute", "bubble", "optimizer", "stragglers")


class StepTable:
    """Prints a row for each step as it comes."""

    def __init__(self) -> None:
        self._table: NcclTable | None = None

    def step(self, step: TrainingStep) -> None:
        """Print a step."""
        if self._table is None:
            self._table = NcclTable(COLUMNS, UNITS, WIDTHS)
        parts = step.parts
        sent = sum(seconds for name, seconds in parts.items() if name not in OTHERS)
        cells = [
            str(step.step),
            f"{step.loss:.4f}",
            f"{step.tokens_per_s:,.0f}",
            f"{100 * step.mfu:.1f}",
            _ms(step.time_s),
            "-" if step.predicted_s is None else _ms(step.predicted_s),
            _ms(parts.get("compute", 0.0)),
            _ms(sent),
            _ms(parts.get("bubble", 0.0)),
            _ms(parts.get("optimizer", 0.0)),
        ]
        self._table.row(cells)


def _bytes(size: float) -> str:
    return format_bytes(size, binary=False)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def print_run(run: TrainingRun) -> None:
    """Print where a step's time went, the memory, and whether one process agrees."""
    parts = run.parts
    total = sum(parts.values())
    rows = []
    for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
        if seconds >= 0.0005 * total or name in run.predicted_parts:
            predicted = run.predicted_parts.get(name)
            forecast = "-" if predicted is None else format_time(predicted)
            rows.append([name, format_time(seconds), f"{100 * seconds / total:.1f} %", forecast])
    click.echo()
    echo_line(run.summary())
    echo_table((Column("part", left=True), Column("measured"), Column("share"), Column("predicted")), rows)
    predicted = run.predicted_memory_bytes
    beside = "" if predicted is None else f", predicted {_bytes(predicted)}"
    if run.disturbed:
        echo_line(run.disturbed)
    sequences = f"{counted(run.global_batch, 'sequence')} of {counted(run.seq, 'token')}"
    echo_line(f"a step: {sequences if run.seq else counted(run.global_batch, 'sample')}")
    echo_line(f"memory of the fullest rank: {_bytes(run.memory_bytes)}{beside}")
    if run.traffic:
        sent = ", ".join(
            f"{traffic['axis']} {traffic['collective']} {_bytes(traffic['bytes'])}" for traffic in run.traffic
        )
        echo_line(f"sent in a step by all ranks: {sent}")
    if run.staleness:
        echo_line(_ahead(run))
    if run.check is not None:
        verdict = "the same" if run.check["same"] else "NOT the same"
        worst = f"{run.check['error']:.1e} off at most, at step {run.check['step']}"
        echo_line(f"losses are {verdict} as with one process: {worst}")


def print_kinds(runs: list[TrainingRun]) -> None:
    """Print a row for each kind of data parallelism, and how stale the parameters of the asynchronous one were."""
    columns = (
        Column("data parallelism", left=True),
        Column("time"),
        Column("predicted"),
        Column("comm"),
        Column("sent"),
        Column("busiest", drop=1),
        Column("first loss", drop=2),
        Column("last loss"),
    )
    rows = []
    for run in runs:
        predicted = run.steps[-1].predicted_s
        rows.append(
            [
                run.data_parallel,
                format_time(run.time_s),
                "-" if predicted is None else format_time(predicted),
                format_time(sum(seconds for name, seconds in run.parts.items() if name not in OTHERS)),
                _bytes(sum(traffic["bytes"] for traffic in run.traffic)),
                _bytes(sum(traffic["busiest_rank_bytes"] for traffic in run.traffic)),
                f"{run.losses[0]:.4f}",
                f"{run.losses[-1]:.4f}",
            ]
        )
    echo_line(f"{runs[0].model} on {runs[0].plan.dp} replicas, the median of {counted(len(runs[0].steps), 'step')}")
    click.echo()
    echo_table(columns, rows)
    for run in runs:
        if run.staleness:
            echo_line(f"{run.data_parallel}: {_ahead(run)}")


def _ahead(run: TrainingRun) -> str:
    total = sum(run.staleness.values())
    shares = ", ".join(f"{ahead} ({100 * times / total:.0f} %)" for ahead, times in run.staleness.items())
    return f"steps that a worker was ahead of the slowest when it got its parameters: {shares}"
