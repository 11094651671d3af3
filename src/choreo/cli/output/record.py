"""Print what the store holds, and the answers to questions."""

from __future__ import annotations

import click

from choreo.cli.output.sweep import cell
from choreo.cli.output.table import Column, echo_json, echo_line, echo_table
from choreo.errors import shown
from choreo.record.ask.answer import Answer
from choreo.record.summary import Summary
from choreo.units import counted

__all__ = ["print_answer", "print_summary"]


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """The rows of an answer; times and sizes are as they are stored where JSON is asked for."""
    if as_json:
        echo_json(answer.to_dicts())
        return
    if not answer.rows:
        click.echo("no rows")
        return
    columns = [
        Column(name, drop=place, left=isinstance(answer.rows[0][place], str))
        for place, name in enumerate(answer.columns)
    ]
    rows = [[cell(name, value) for name, value in zip(answer.columns, row, strict=True)] for row in answer.rows]
    echo_table(columns, rows)


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
