"""`choreo validate`."""

from __future__ import annotations

from pathlib import Path

import click

from choreo.cli.command import Command
from choreo.cli.options.common import json_option
from choreo.cli.recording import arguments_given
from choreo.errors import UsageError


@click.command("validate", cls=Command)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--store",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[DIR]",
    help="What the store has measured, instead of a file.",
)
@click.option("--leave-one-out", is_flag=True, help="With a file: fit without each table or source in turn.")
@json_option
def command(*, file: Path | None, store: str | None, leave_one_out: bool, as_json: bool) -> None:
    """Compare predictions with published measurements in FILE.csv, or with your own in the store.

    \b
    choreo record import all_reduce.txt --topology hgx-h100:2
    choreo validate --store
    choreo validate nccl_measured.csv

    A file with a column "collective" holds times of NCCL, as nccl-tests prints them; any other file holds training
    steps. NCCL's measured times are predicted with this version's model, and the predictions are stored beside them.
    """
    if (file is None) == (store is None):
        raise UsageError("say which measurements: FILE.csv, or --store for what was recorded or imported")
    if store is not None:
        from choreo.cli.output.record import print_store_validation
        from choreo.record.validation import validate_store

        if leave_one_out:
            raise UsageError("--leave-one-out is for a file; leave it out")
        found = validate_store(store or None, argv=arguments_given(click.get_current_context()))
        print_store_validation(found, as_json=as_json)
        return
    from choreo.validate.rows import read_columns

    assert file is not None
    if "collective" in read_columns(file):
        from choreo.cli.output.nccl_validation import print_validation

        print_validation(file, leave_one_out=leave_one_out, as_json=as_json)
    else:
        from choreo.cli.output.plan.validation import print_plan_validation

        print_plan_validation(file, leave_one_out=leave_one_out, as_json=as_json)
