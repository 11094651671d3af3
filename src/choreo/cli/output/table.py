"""A JSON document or a table on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.results import plain

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["echo_json", "echo_table"]


def echo_json(document: object) -> None:
    """Print a document as JSON."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(plain(document)), indent=2).decode())


def echo_table(table: Table, width: int | None = None) -> None:
    """Print a table; not by rich itself, which ends the process when nobody reads."""
    from rich.console import Console

    console = Console(highlight=False, width=width)
    with console.capture() as printed:
        console.print(table)
    click.echo(printed.get(), nl=False)
