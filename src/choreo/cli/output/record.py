"""Print what the store holds, and the answers to questions."""

from __future__ import annotations

import click

from choreo.cli.output.sweep import cell
from choreo.cli.output.text.table import Column, echo_json, echo_line, echo_table
from choreo.errors import shown
from choreo.record.ask.answer import Answer
from choreo.record.summary import Summary
from choreo.record.validation import StoreValidation
from choreo.units import counted

__all__ = ["print_answer", "print_questions", "print_store_validation", "print_summary"]


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """The rows of an answer; with JSON, times and sizes are as stored."""
    if as_json:
        echo_json(answer.to_dicts())
        return
    if not answer.rows:
        click.echo("no rows")
        return
    # A column without a value says nothing; of the others the widest text goes first where there is no room.
    kept = [place for place in range(len(answer.columns)) if any(row[place] is not None for row in answer.rows)]
    cells = [[cell(answer.columns[place], row[place]) for place in kept] for row in answer.rows]
    texts = [any(isinstance(row[place], str) for row in answer.rows) for place in kept]
    wide = [max(len(row[number]) for row in cells) for number in range(len(kept))]
    columns = [
        Column(answer.columns[place], drop=wide[number] if texts[number] else 1, left=texts[number])
        for number, place in enumerate(kept)
    ]
    echo_table(columns, cells)


def print_store_validation(found: StoreValidation, *, as_json: bool) -> None:
    """Every case that was predicted and measured, and the mean errors."""
    if as_json:
        echo_json(found.to_dict())
        return
    names = ("what", "library", "topology", "ranks", "size_bytes", "algorithm", "measured_s", "predicted_s")
    titles = ("what", "library", "on", "ranks", "size", "algorithm", "measured", "predicted", "error")
    drops = (0, 2, 3, 1, 0, 4, 0, 0, 0)
    columns = [
        Column(title, drop, left=title in ("what", "library", "on", "algorithm"))
        for title, drop in zip(titles, drops, strict=True)
    ]
    rows = [[*(cell(name, getattr(row, name)) for name in names), f"{100 * row.error:+.1f} %"] for row in found.rows]
    echo_table(columns, rows)
    for reason in found.skipped:
        click.echo(f"skipped {reason}")
    click.echo()
    click.echo("mean absolute percentage error")
    echo_table(
        [Column("of", left=True), Column("cases", 1), Column("below 1 MiB"), Column("1 MiB and up")],
        [
            [
                group.group,
                str(group.cases),
                *(_percent(error) for error in (group.mape_below_1MiB, group.mape_from_1MiB)),
            ]
            for group in found.groups
        ],
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def print_questions(*, as_json: bool) -> None:
    """The named questions."""
    from choreo.record.ask.questions import QUESTIONS

    if as_json:
        echo_json(
            {name: {"question": question.summary, "takes": question.takes} for name, question in QUESTIONS.items()}
        )
        return
    for name, question in QUESTIONS.items():
        options = " ".join(
            f"--{option} VALUE" if option in question.needs else f"[--{option}]" for option in question.takes
        )
        echo_line(question.summary, label=name, indent=11)
        echo_line(f"choreo record questions {name} {options}", indent=11)


def print_summary(found: Summary) -> None:
    """The rows of each table, and the last runs."""
    counts = ", ".join(counted(found.rows[table], name) for table, name in NAMES.items())
    echo_line(f"{shown(found.folder)}: {counts}")
    if found.unfinished:
        echo_line(f"{counted(found.unfinished, 'run')} without an end: still running, or killed")
    if not found.runs:
        return
    click.echo()
    echo_table(
        [
            Column("run"),
            Column("began", 3, left=True),
            Column("status", left=True),
            Column("predicted", 1),
            Column("samples", 1),
            Column("commit", 4, left=True),
            Column("command", wrap=True),
        ],
        [
            [
                str(run["id"]),
                str(run["began"])[:19].replace("T", " "),
                str(run["status"]),
                str(run["predictions"]),
                str(run["measurements"]),
                f"{str(run['commit'] or '')[:8]}{'+' if run['dirty'] else ''}",
                _shortened(str(run["argv"])),
            ]
            for run in found.runs
        ],
    )


NAMES = {"run": "run", "case_": "case", "prediction": "prediction", "measurement": "sample", "machine": "machine"}


def _shortened(argv: str) -> str:
    import json
    import shlex

    text = shlex.join(json.loads(argv))
    return text if len(text) <= 60 else f"{text[:57]}..."
