"""A JSON document or a table on stdout. A table is as wide as the terminal at most."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "Column",
    "NcclTable",
    "echo_comment",
    "echo_json",
    "echo_line",
    "echo_nccl_table",
    "echo_note",
    "echo_table",
    "echo_wrapped",
    "width",
]

GAP = 2  # spaces between two columns


class Column(NamedTuple):
    """A column of a table.

    Where the terminal is too narrow, the column with the highest `drop` is left out first; one with 0 always stays.
    Text is broken into lines only where `wrap` says so.
    """

    name: str
    drop: int = 0
    left: bool = False
    wrap: bool = False


def width(piped: int = 80) -> int:
    """The width of the terminal: from the COLUMNS variable, from stdout, or `piped` if that is not a terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return max(20, int(columns))
    try:
        found = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        found = 0
    return max(20, found or piped)


def echo_line(text: str, *, label: str = "", indent: int = 0, hang: int = 0, bold: bool = False) -> None:
    """Print a line, wrapped to the width of the terminal.

    The text begins at the column `indent`, after the `label`; later lines are indented by `hang` more.
    """
    head, below = label.ljust(indent), " " * (indent + hang)
    lines = textwrap.wrap(head + text, width(piped=1 << 20), subsequent_indent=below, break_on_hyphens=False)
    click.secho("\n".join(lines or [head.rstrip()]), bold=bold)


def echo_note(text: str) -> None:
    """Print a note on stderr, wrapped to the width of the terminal."""
    lines = textwrap.wrap(text, width(piped=1 << 20), subsequent_indent="  ", break_on_hyphens=False)
    click.echo("\n".join(lines), err=True)


def echo_wrapped(text: str, indent: int = 0, *, dim: bool = False) -> None:
    """Print text as wide as the terminal, and at most 100 columns wide."""
    for line in textwrap.wrap(text, max(20, min(100, width()) - indent), break_on_hyphens=False):
        click.secho(f"{' ' * indent}{line}", dim=dim)


def echo_json(document: object) -> None:
    """Print a document as JSON."""
    import msgspec

    from choreo.results import plain

    click.echo(msgspec.json.format(msgspec.json.encode(plain(document)), indent=2).decode())


def echo_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    *,
    styles: Sequence[str | None] | None = None,
    header: bool = True,
) -> None:
    """Print a table that fits the terminal, and below it which columns it left out."""
    kept = _fitting(columns, rows, width())
    told = [None] * len(rows) if styles is None else styles
    # What still does not fit is wrapped by the terminal rather than cut.
    if any(columns[number].wrap for number in kept):
        _echo_wrapped_table(
            [columns[number] for number in kept], [[row[at] for at in kept] for row in rows], told, header
        )
    else:
        wide = {number: _cell_width(columns, rows, number) for number in kept}
        if header:
            click.secho(_laid_out(columns, [column.name for column in columns], wide), bold=True)
        for row, style in zip(rows, told, strict=True):
            colour = (style or "").removeprefix("bold").strip() or None
            click.secho(_laid_out(columns, row, wide), bold="bold" in (style or ""), fg=colour)
    _echo_left_out([column.name for number, column in enumerate(columns) if number not in kept])


def _laid_out(columns: Sequence[Column], row: Sequence[str | Text], wide: Mapping[int, int]) -> str:
    from rich.cells import cell_len

    cells = []
    for number, room in wide.items():
        text = str(row[number])
        space = " " * (room - cell_len(text))
        cells.append(text + space if columns[number].left else space + text)
    return (" " * GAP).join(cells).rstrip()


def _echo_wrapped_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], styles: Sequence[str | None], header: bool
) -> None:
    """Print a table some of whose cells are broken into lines."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=header)
    for column in columns:
        side: Literal["left", "right"] = "left" if column.left or column.wrap else "right"
        table.add_column(column.name, justify=side, no_wrap=not column.wrap)
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*row, style=style)
    console = Console(highlight=False, markup=False, width=width())
    with console.capture() as printed:
        console.print(table)
    # Not by rich itself, which ends the process when nobody reads.
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def echo_comment(text: str) -> None:
    """Print a line that begins with #, as nccl-tests does, broken where the terminal is too narrow for it."""
    lines = textwrap.wrap(f"# {text}", width(piped=1 << 20), subsequent_indent="#   ", break_on_hyphens=False)
    click.echo("\n".join(lines))


def echo_nccl_table(columns: Sequence[Column], units: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as nccl-tests does: the head in lines that begin with #.

    A pipe gets every column, since scripts read these tables.
    """
    printer = NcclTable(columns, units, [max(map(len, cells)) for cells in zip(*rows, strict=True)])
    for row in rows:
        printer.row(row)
    printer.end()


class NcclTable:
    """A table as nccl-tests prints it, row by row while they are measured."""

    def __init__(self, columns: Sequence[Column], units: Sequence[str], widths: Sequence[int]) -> None:
        """Print the head; `widths` is what the widest cell of each column will need."""
        self.columns = columns
        self.widths = [
            max(wide, len(column.name), len(unit)) for wide, column, unit in zip(widths, columns, units, strict=True)
        ]
        self.kept = _dropped(columns, [GAP + wide for wide in self.widths], width(piped=1 << 20) - 1)
        self.row([column.name for column in columns], "#")
        self.row(units, "#")

    def row(self, cells: Sequence[str], first: str = " ") -> None:
        """Print one row."""
        padded = [
            cells[at].ljust(self.widths[at]) if self.columns[at].left else cells[at].rjust(self.widths[at])
            for at in self.kept
        ]
        click.echo(f"{first}{''.join(' ' * GAP + cell for cell in padded)}".rstrip())

    def end(self) -> None:
        """Say which columns there was no room for."""
        names = [column.name for number, column in enumerate(self.columns) if number not in self.kept]
        _echo_left_out(names, "# ")


def _echo_left_out(names: Sequence[str], before: str = "") -> None:
    if names:
        hidden = f"columns hidden at width {width()}: {', '.join(dict.fromkeys(names))}"
        lines = textwrap.wrap(hidden, width() - len(before), break_on_hyphens=False)
        for line in [*lines, "(--json has everything)"]:
            click.secho(f"{before}{line}", dim=True)


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], available: int) -> list[int]:
    """The numbers of the columns that fit."""
    wide = [_cell_width(columns, rows, number) for number in range(len(columns))]
    # A column whose text is broken needs room for a few words only.
    needed = [min(24, wide[number]) if column.wrap else wide[number] for number, column in enumerate(columns)]
    return _dropped(columns, [GAP + width for width in needed], available + GAP)


def _dropped(columns: Sequence[Column], needed: Sequence[int], available: int) -> list[int]:
    kept = list(range(len(columns)))
    while sum(needed[number] for number in kept) > available:
        least = max(kept, key=lambda number: columns[number].drop)
        if columns[least].drop == 0:
            break
        kept.remove(least)
    return kept


def _cell_width(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], number: int) -> int:
    from rich.cells import cell_len

    cells = [columns[number].name, *(row[number] for row in rows)]
    return max(cell_len(cell if isinstance(cell, str) else cell.plain) for cell in cells)
