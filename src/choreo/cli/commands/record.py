"""`choreo record`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from choreo.cli.command import Command
from choreo.cli.options.common import json_option
from choreo.cli.output.text.table import echo_json
from choreo.cli.recording import arguments_given, store_option
from choreo.errors import UnknownNameError, UsageError, shown
from choreo.units import counted

Function = Callable[..., object]


class _Record(click.Group):
    """The commands of the store; an unknown name is answered with the nearest ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise UnknownNameError("command of choreo record", args[0], self.commands)
        return super().resolve_command(ctx, args)


@click.group("record", cls=_Record, invoke_without_command=True)
@click.option(
    "--runs", type=click.IntRange(min=0), metavar="N", default=10, show_default=True, help="How many runs to list."
)
@json_option
@click.pass_context
def command(ctx: click.Context, runs: int, as_json: bool) -> None:
    """Query the results that --record and choreo sweep stored; without a command, summarise the store.

    \b
    choreo price all_reduce --ranks 8 --size 1MiB --record
    choreo record sql "select algorithm, min(time_s) from result group by 1"
    choreo record questions
    choreo record import nccl-tests.txt --topology hgx-h100:2

    The store is a folder: --store DIR, else CHOREO_STORE, else choreo in your data folder. Results are written to
    SQLite. load copies new rows to Parquet files, from which DuckDB answers queries (pip install 'choreo[record]').
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


oltp_option = click.option("--oltp", is_flag=True, help="Query SQLite directly, without DuckDB.")


@_command("load", "Add new rows to the Parquet files.")
@json_option
def load_command(*, as_json: bool) -> None:
    """Add the store's new rows to its Parquet files.

    `sql` and `questions` do this automatically. Other programs can read the files: STORE/columns/files.json lists them.
    """
    from choreo.record.load import load
    from choreo.record.store.place import COLUMNS, store_path

    folder = store_path(_store())
    found = load(folder)
    if as_json:
        echo_json({"new": found.new, "rows": found.rows})
        return
    new = ", ".join(f"{count} {table}" for table, count in found.new.items() if count) or "nothing"
    click.echo(f"loaded {new} into {shown(folder / COLUMNS)}; there are {counted(sum(found.rows.values()), 'row')}")


@_command("sql", "Answer a read-only query.")
@click.argument("query")
@oltp_option
@json_option
def sql_command(*, query: str, oltp: bool, as_json: bool) -> None:
    """Answer a read-only QUERY on the tables, or on the views result and compared.

    \b
    choreo record sql "select source, count(*) from result group by source"
    choreo record sql "select * from compared order by ratio desc limit 10"
    choreo record sql --oltp "select verb, began from run where ended is null"

    `result` has a row for each prediction and each sample that was measured; `compared` predicted beside measured.
    """
    from choreo.cli.output.record import print_answer
    from choreo.record import sql

    print_answer(sql(query, store=_store(), oltp=oltp), as_json=as_json)


@_command("questions", "Answer a named question, or list them.")
@click.argument("name", required=False)
@click.option("--commit", metavar="C", help="For slower: the commit to compare with, or a prefix of it.")
@click.option("--p", type=float, metavar="P", help="For slower: significance level (0.01).")
@click.option("--machine", metavar="ID", help="For slower: a machine (default: this one).")
@click.option("--algorithm", metavar="NAME", help="For crossover: the algorithm (ring).")
@click.option("--case", metavar="HASH", help="For constants: the hash of the case, or a prefix of it.")
@click.option("--prediction", type=int, metavar="N", help="For constants: the number of the prediction.")
@click.option("--model", metavar="NAME", help="For pareto: only plans of this model.")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Number of rows at most (20).")
@click.option("--sql", "show_sql", is_flag=True, help="Print the query instead of its answer.")
@oltp_option
@json_option
def questions_command(*, name: str | None, show_sql: bool, oltp: bool, as_json: bool, **values: object) -> None:
    """Answer the named question NAME; without NAME, list the questions.

    \b
    choreo record questions worst
    choreo record questions slower --commit 1f33dc5
    choreo record questions crossover --algorithm ring
    choreo record questions constants --case 3fa2
    choreo record questions pareto --model llama3-8b
    """
    from choreo.cli.output.record import print_answer, print_questions
    from choreo.record.ask.questions import QUESTIONS, ask

    if name is None:
        print_questions(as_json=as_json)
        return
    if name not in QUESTIONS:
        raise UnknownNameError("question", name, QUESTIONS)
    if show_sql:
        click.echo(QUESTIONS[name].sql.strip())
        return
    given = {option: value for option, value in values.items() if value is not None}
    print_answer(ask(name, store=_store(), oltp=oltp, **given), as_json=as_json)


@contextmanager
def _readable(file: Path) -> Iterator[Path]:
    """A file that can be read more than once; for -, a copy of stdin."""
    if str(file) != "-":
        yield file
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, "stdin")
        path.write_bytes(sys.stdin.buffer.read())
        try:
            yield path
        except UsageError as error:
            raise UsageError(str(error).replace(shown(path), "-")) from error


@_command("import", "Store measurements of nccl-tests (text or JSON) and of NCCL's Inspector.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--topology", "-t", metavar="T", help="Topology of the measurements, like hgx-h100:2.")
@click.option("--collective", metavar="NAME", help="The collective, if the file does not say it.")
@click.option(
    "--ranks",
    "-p",
    "-n",
    type=click.IntRange(min=1),
    metavar="P",
    help="Number of ranks, if the file does not say it.",
)
@click.option("--again", is_flag=True, help="Import a file again that was imported before.")
@json_option
def import_command(
    *,
    files: tuple[Path, ...],
    topology: str | None,
    collective: str | None,
    ranks: int | None,
    again: bool,
    as_json: bool,
) -> None:
    """Store measurements of nccl-tests: its output, or the JSON file of its option -J.

    \b
    choreo record import all_reduce.txt --topology hgx-h100:2
    all_reduce_perf -b 1M -e 8G -f 2 | choreo record import - -t hgx-h100:1
    choreo validate --store

    With -I, nccl-tests writes the time of every iteration to its JSON file; all of them are stored. The output of
    NCCL's Inspector plugin is read, too: every call of every communicator of a real job is a sample.
    """
    from choreo.record.importing import import_nccl_tests

    found = []
    for file in files:
        with _readable(file) as path:
            imported = import_nccl_tests(
                path,
                topology=topology,
                collective=collective,
                ranks=ranks,
                store=_store(),
                argv=arguments_given(click.get_current_context()),
                again=again,
            )
        tests = [{"collective": test.collective, "ranks": test.ranks, "hosts": test.hosts} for test in imported.tests]
        found.append({"file": str(file), "rows": imported.rows, "samples": imported.samples, "tests": tests})
        if not as_json:
            what = ", ".join(
                f"{test.collective} over {counted(int(test.ranks or 0), 'rank')}" for test in imported.tests
            )
            click.echo(f"{shown(file)}: {what}; {counted(imported.rows, 'row')}, {counted(imported.samples, 'sample')}")
    if as_json:
        echo_json(found)
    elif topology is None:
        click.echo("choreo: without --topology there are no predictions for these", err=True)


@_command("export", "Write a table, a view or an answer to a file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--table", default="result", show_default=True, metavar="NAME", help="A table or view.")
@click.option("--query", metavar="SQL", help="Write the result of a query instead: select ...")
@oltp_option
def export_command(*, file: Path, table: str, query: str | None, oltp: bool) -> None:
    """Write results to FILE, which ends in .csv, .json or .parquet.

    \b
    choreo record export results.csv
    choreo record export compared.parquet --table compared
    choreo record export mine.json --query "select * from result where ranks = 8"
    """
    from choreo.record import sql
    from choreo.record.ask.export import check_format, write_answer
    from choreo.record.store.schema import TABLES, VIEWS

    check_format(file)
    if query is None:
        if table not in (*VIEWS, *TABLES):
            raise UnknownNameError("table", table, (*VIEWS, *TABLES))
        query = f"select * from {table}"
    answer = sql(query, store=_store(), oltp=oltp)
    write_answer(answer, file)
    click.echo(f"wrote {shown(file)}: {counted(len(answer.rows), 'row')}", err=True)
