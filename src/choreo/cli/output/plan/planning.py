"""Print plans side by side: what limits each, what was ruled out, and how to run the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from choreo.cli.output.plan.training_run import print_run
from choreo.cli.output.text.table import Column, echo_line, echo_note, echo_table, width
from choreo.show.plan.words import kernels, limits, plan_words, title
from choreo.units import format_bytes, format_time

if TYPE_CHECKING:
    from choreo.plan import Planning
    from choreo.plan.job import TrainingJob
    from choreo.plan.remedies import Remedy
    from choreo.plan.step import Step
    from choreo.plan.training_run import TrainingRun
    from choreo.workload import Plan

__all__ = ["print_planning"]

# A plan that is less likely to fit in memory is not worth launching.
LEAST_CHANCE = 0.01


def print_planning(planning: Planning, run: TrainingRun | None = None) -> None:
    """Print everything about the answer, the best plan first."""
    echo_line(title(planning))
    for warning in planning.best.step.warnings:
        echo_note(f"note: {warning}")
    click.echo()
    _print_best(planning)
    print_run(run)
    if len(planning.plans) > 1 or planning.considered > 1:
        click.echo()
        _print_table(planning)
        if planning.equal > 1:
            echo_line(f"the first {planning.equal} differ by less than the error of such predictions")
    _print_ruled_out(planning)
    if planning.job is not None and planning.best.step.fits_chance >= LEAST_CHANCE:
        _print_launch(planning.job, planning.best.plan)


def _print_best(planning: Planning) -> None:
    best = planning.best
    step = best.step
    unit = "tokens" if planning.job is not None else "samples"
    speed = (
        f"{step.tokens_per_s_per_gpu:,.4g}" if step.tokens_per_s_per_gpu < 1e4 else f"{step.tokens_per_s_per_gpu:,.0f}"
    )
    hours = step.step_time_s * planning.gpus / 3600
    _line("plan", plan_words(best.plan))
    rate = f"{speed} {unit}/s per GPU, MFU {100 * step.mfu:.1f} %, HFU {100 * step.hfu:.1f} %"
    _line("step", f"{format_time(step.step_time_s)}, {rate}, {hours:.3g} GPU-hours")
    if planning.job is not None:
        _line("range", _sure(step))
    _line("time", limits(planning, best, 4))
    if by_kind := kernels(step):
        total = step.step_time_s
        parts = sorted(by_kind.items(), key=lambda kind: -kind[1])
        _line(
            "kernels",
            ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in parts if seconds >= 0.005 * total),
        )
    _line("memory", _memory(step.memory, step.memory_bytes, step.device_bytes))
    if not step.fits:
        over = format_bytes(step.memory_bytes - step.device_bytes, binary=False)
        _line("", f"it does not fit, by {over}; nothing that was considered does; --fit finds how many GPUs would do")
        if planning.remedies:
            _line("", "it would fit with " + ", or with ".join(map(_remedy, planning.remedies)))
    elif planning.job is not None and step.memory_bytes > planning.job.room_bytes:
        asked = f"{100 * planning.job.headroom:.3g} %"
        _line("", f"no plan leaves {asked} free; the chance that this one fits is {100 * step.fits_chance:.0f} %")


def _remedy(remedy: Remedy) -> str:
    lacks = f"; this is {remedy.lacks}" if remedy.lacks else ""
    return f"{remedy.option} ({format_bytes(remedy.memory_bytes, binary=False)}{lacks})"


def _sure(step: Step) -> str:
    """The ranges of time and memory, and what they come from."""
    times = " to ".join(format_time(seconds) for seconds in step.step_time_range_s)
    sizes = " to ".join(format_bytes(size, binary=False) for size in step.memory_range_bytes)
    if not step.errors.compared:
        told = f"{step.errors.time_like} tests these times, so their range is a guess"
        return f"{times}, {sizes}: {told}; memory {step.errors.memory_like}"
    like = f"{step.errors.time_like}; memory {step.errors.memory_like}"
    return f"{times}, {sizes}: 90 % of similar published runs were this close to their prediction ({like})"


def _memory(parts: Mapping[str, float], total: float, room: float) -> str:
    listed = ", ".join(
        f"{name} {format_bytes(size, binary=False)}"
        for name, size in sorted(parts.items(), key=lambda part: -part[1])
        if size >= 0.01 * total
    )
    return f"{format_bytes(total, binary=False)} of {format_bytes(room, binary=False)}: {listed}"


def _line(name: str, words: str) -> None:
    echo_line(words, label=name, indent=8)


def _print_table(planning: Planning) -> None:
    plans = planning.plans
    cut = [name for name in ("dp", "tp", "pp", "cp", "ep") if any(getattr(planned.plan, name) > 1 for planned in plans)]
    cut += ["etp"] * any(planned.plan.etp for planned in plans)
    rows = []
    for number, planned in enumerate(plans, 1):
        plan, step = planned.plan, planned.step
        schedule = "" if plan.pp == 1 else plan.schedule + (f" x{plan.interleave}" if plan.interleave > 1 else "")
        rows.append(
            [
                str(number),
                *(str(plan.axis_size(name)) for name in cut),
                str(plan.zero),
                "yes" if plan.sequence_parallel else "",
                str(plan.micro_batch),
                schedule,
                plan.recompute,
                format_time(step.step_time_s),
                f"{100 * step.mfu:.1f} %",
                format_bytes(step.memory_bytes, binary=False) + ("" if step.fits else " (too much)"),
                f"{100 * step.bubble_s / step.step_time_s:.1f} %",
                limits(planning, planned, 2),
            ]
        )
    columns = [
        Column(""),
        *map(Column, cut),
        Column("zero"),
        Column("sp", 4),
        Column("batch"),
        Column("schedule", 2, left=True),
        Column("recompute", 1, left=True),
        Column("step"),
        Column("MFU"),
        Column("memory", 3),
        Column("bubble", 5),
        Column("limited by", 6, wrap=True),
    ]
    used = [number for number, column in enumerate(columns) if column.name == "" or any(row[number] for row in rows)]
    echo_table([columns[number] for number in used], [[row[number] for number in used] for row in rows])


def _print_ruled_out(planning: Planning) -> None:
    if planning.considered < 2:
        return
    left = planning.considered - sum(planning.ruled_out.values())
    click.echo()
    fit = f"{left:,} can be run and fit; ruled out:" if planning.ruled_out else "all can be run and fit"
    echo_line(f"{planning.considered:,} plans considered in {planning.seconds:.1f} s, {fit}")
    for reason, count in sorted(planning.ruled_out.items(), key=lambda reason: -reason[1]):
        echo_line(reason, label=f"{count:>12,}", indent=14)


def _print_launch(job: TrainingJob, plan: Plan) -> None:
    from choreo.plan.launch import launches

    for launch in launches(job, plan):
        click.echo()
        if launch.lacks:
            echo_line(f"{launch.program} cannot run it: {'; '.join(launch.lacks)}")
            continue
        click.echo(f"to run it with {launch.program}:")
        click.echo(_wrapped(launch.options))
        for note in launch.notes:
            echo_line(f"({note})", label="  ", indent=2)


def _wrapped(options: Iterable[str]) -> str:
    """Options on lines that end in a backslash, as a shell takes them."""
    lines, line = [], " "
    for option in options:
        if len(line) + len(option) > width() - 4 and line.strip():
            lines.append(line)
            line = " "
        line += f" {option}"
    return " \\\n".join([*lines, line])
