"""Print predicted against measured training steps: row by row, then by source, software and all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import Column, echo_json, echo_table
from choreo.cli.progress import Progress
from choreo.errors import shown
from choreo.units import format_time
from choreo.validate.errors import grouped

if TYPE_CHECKING:
    from choreo.validate.plan.choice import Choice
    from choreo.validate.plan.fit import Fold
    from choreo.validate.plan.validate import GroupError, PredictedRow, Validation

__all__ = ["print_plan_validation"]

MOST_SKIPPED = 100  # rows that are named one by one


def print_plan_validation(path: Path | None, *, leave_one_out: bool, as_json: bool) -> None:
    """Every row of a file (of those that come with Choreo, if none is given), and the mean absolute percentage errors.

    With `leave_one_out` also those of each source when the constants are fitted to the others only.
    """
    from choreo.validate.plan.validate import FILES, validate

    paths = list(FILES) if path is None else [path]
    with Progress("predicting rows") as progress:
        validations = [validate(path, progress=progress) for path in paths]
    if as_json:
        document = _joined(validations)
        if leave_one_out:
            folds, errors = _left_out(paths)
            document["leave_one_out"] = {
                "folds": [
                    {"software": fold.software, "left_out": fold.left_out, "constants": fold.constants}
                    for fold in folds
                ],
                "errors": [group.to_dict() for group in errors],
            }
        echo_json(document)
        return
    for validation in validations:
        _print_rows(validation.rows)
        for skip in validation.skipped[:MOST_SKIPPED]:
            click.echo(f"skipped row {skip.row}: {skip.reason}")
        if len(validation.skipped) > MOST_SKIPPED:
            click.echo(f"skipped {len(validation.skipped) - MOST_SKIPPED} more; --json lists all")
        click.echo()
        _print_groups("mean absolute percentage error", validation.groups)
        click.echo()
        _print_choices(validation.choices)
    if leave_one_out:
        folds, errors = _left_out(paths)
        _print_folds(folds)
        click.echo()
        _print_groups("fitted to other sources (or models) only", errors)


def _joined(validations: list[Validation]) -> dict[str, object]:
    """One file's document as it is; of several, the lists one after another."""
    documents = [validation.to_dict() for validation in validations]
    if len(documents) == 1:
        return documents[0]
    joined: dict[str, object] = {}
    for key in documents[0]:
        joined[key] = [item for document in documents for item in _items(document[key])]
    return joined


def _items(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _left_out(paths: list[Path]) -> tuple[list[Fold], list[GroupError]]:
    from choreo.validate.plan.fit import leave_one_out

    return leave_one_out(paths)


def _print_rows(rows: Iterable[PredictedRow]) -> None:
    echo_table(
        [
            Column("row"),
            Column("software", 3, left=True),
            Column("model", 1, left=True),
            Column("GPU", 2, left=True),
            Column("GPUs", 4),
            Column("plan", 7, left=True),
            Column("measured"),
            Column("predicted"),
            Column("error"),
            Column("GB", 6),
            Column("predicted", 6),
            Column("error", 6),
            Column("fits", 5),
        ],
        [
            [
                str(row.index),
                shown(row.software),
                shown(row.model)[:20],
                shown(row.gpu)[:14],
                str(row.gpus),
                str(row.plan)[:44],
                "" if row.measured_step_s is None else format_time(row.measured_step_s),
                format_time(row.predicted_step_s),
                _percent(row.step_error, sign=True),
                "" if row.measured_mem_bytes is None else f"{row.measured_mem_bytes / 1e9:.1f}",
                f"{row.predicted_mem_bytes / 1e9:.1f}",
                _percent(row.memory_error, sign=True),
                _fits(row),
            ]
            for row in rows
        ],
    )


def _fits(row: PredictedRow) -> str:
    said = "yes" if row.predicted_fits else "no"
    return said if row.fits_right is not False else f"{said}, wrong"


def _print_groups(title: str, groups: Iterable[GroupError]) -> None:
    click.echo(title)
    groups = list(groups)
    echo_table(
        [
            Column("group", wrap=True),
            Column("rows", 2),
            Column("step time"),
            Column("bias", 3),
            Column("memory", 1),
            Column("bias", 3),
            Column("fits-or-not right", 4),
        ],
        [
            [
                f"{group.kind}: {shown(group.name)}" if group.kind != "overall" else "all rows",
                str(group.rows),
                _percent(group.step_mape),
                _percent(group.step_bias, sign=True),
                _percent(group.memory_mape),
                _percent(group.memory_bias, sign=True),
                _percent(group.fits_right),
            ]
            for group in groups
        ],
        styles=["bold" if group.kind == "overall" else None for group in groups],
    )


def _print_choices(choices: Sequence[Choice]) -> None:
    """Print for each group of measured plans how much slower the chosen one is than the best."""
    from choreo.validate.plan.choice import over_best

    if not choices:
        return
    click.echo("the plan chosen of those measured, over the best of them")
    groups = {**grouped(choices, lambda choice: f"source: {shown(choice.source)}"), "all groups": list(choices)}
    lines = []
    for name, members in groups.items():
        (ratio, lost), (rule, rule_lost) = over_best(members), over_best(members, rule=True)
        plans = sum(choice.plans for choice in members)
        lines.append([name, str(len(members)), str(plans), _times(ratio), str(lost), _times(rule), str(rule_lost)])
    echo_table(
        [
            Column("group", wrap=True),
            Column("groups"),
            Column("plans", 2),
            Column("chosen"),
            Column("out of memory"),
            Column("rule of thumb"),
            Column("out of memory", 1),
        ],
        lines,
        styles=["bold" if name == "all groups" else None for name in groups],
    )
    click.echo()


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def _print_folds(folds: Iterable[Fold]) -> None:
    echo_table(
        [
            Column("software", left=True),
            Column("left out", left=True),
            Column("constants fitted to the rest", wrap=True),
        ],
        [
            [
                fold.software,
                shown(fold.left_out),
                ", ".join(f"{name} {value:.3g}" for name, value in fold.constants.items()),
            ]
            for fold in folds
        ],
    )


def _percent(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"
