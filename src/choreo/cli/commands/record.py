"""`choreo record`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from choreo.cli.command import Command
from choreo.cli.options import json_option
from choreo.cli.output.table import echo_json
from choreo.cli.recording import store_option
from choreo.errors import UnknownNameError, shown
from choreo.units import counted

Function = Callable[..., object]


class _Record(click.Group):
    """The commands of the store; a name that is none gets the nearest ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise UnknownNameError("command of choreo record", args[0], self.commands)
        return super().resolve_command(ctx, args)


@click.group("record", cls=_Record, invoke_without_command=True)
@click.option("--runs", type=click.IntRange(min=0), default=10, show_default=True, help="How many runs to list.")
@json_option
@click.pass_context
def command(ctx: click.Context, runs: int, as_json: bool) -> None:
    """Ask what was recorded, by --record or choreo sweep; by itself, say what there is.

    \b
    choreo price all_reduce --ranks 8 --size 1MiB --record
    choreo record sql "select algorithm, min(time_s) from result group by 1"
    choreo record questions
    choreo record import nccl-tests.txt --topology hgx-h100:2

    The store is a folder: --store DIR, CHOREO_STORE, or choreo in your data folder. Work writes rows to SQLite; load
    puts what is new into columns, Parquet files, which DuckDB answers from (pip install 'choreo[record]').
    """
    if ctx.invoked_subcommand is not None:
        return
    from choreo.cli.output.record import print_summary
    from choreo.record.summary import summary

    found = summary(_store(), runs=runs)
    if as_json:
        echo_json(found.to_dict())
    else:
        print_summary(found)


command.params.append(store_option())


def _command(name: str, summary: str) -> Callable[[Function], click.Command]:
    """A command of the store, which takes --store as well."""

    def made(function: Function) -> click.Command:
        found = click.command(name, cls=Command, short_help=summary)(function)
        found.params.append(store_option())
        command.add_command(found)
        return found

    return made


def _store() -> Path | None:
    """The folder that was given, before or after the command's name."""
    context: click.Context | None = click.get_current_context()
    found: Path | None = context.meta.get("choreo.store") if context is not None else None
    return found


oltp_option = click.option("--oltp", is_flag=True, help="Ask the rows in SQLite, which needs no further package.")


@_command("load", "Put what is new into columns.")
@json_option
def load_command(*, as_json: bool) -> None:
    """Put what is new in the store into columns: Parquet files, from the last load's high-water mark on.

    `sql` and `questions` do it by themselves. Other programs can read the files: STORE/columns/files.json lists them.
    """
    from choreo.record.load import load
    from choreo.record.place import COLUMNS, store_path

    folder = store_path(_store())
    found = load(folder)
    if as_json:
        echo_json({"new": found.new, "rows": found.rows})
        return
    told = ", ".join(f"{count} {table}" for table, count in found.new.items() if count) or "nothing"
    click.echo(f"loaded {told} into {shown(folder / COLUMNS)}; there are {counted(sum(found.rows.values()), 'row')}")


@_command("sql", "Answer a query, which only reads.")
@click.argument("query")
@oltp_option
@json_option
def sql_command(*, query: str, oltp: bool, as_json: bool) -> None:
    """Answer QUERY, which only reads: `select ...` on the tables, or the views result and compared.

    \b
    choreo record sql "select source, count(*) from result group by source"
    choreo record sql "select * from compared order by ratio desc limit 10"
    choreo record sql --oltp "select verb, began from run where ended is null"

    `result` has a row for each prediction and each sample that was measured; `compared` predicted beside measured.
    """
    from choreo.cli.output.record import print_answer
    from choreo.record import sql

    print_answer(sql(query, store=_store(), oltp=oltp), as_json=as_json)
