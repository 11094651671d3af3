"""Two results of `choreo simulate --json` side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from choreo.cli.output.table import echo_json, echo_table
from choreo.errors import shown
from choreo.units import format_bytes, format_time

__all__ = ["print_comparison"]

SHOWN_LINKS = 20


def print_comparison(before: Path, after: Path, *, as_json: bool) -> None:
    """What was asked differently, what came of it, and on which links."""
    from choreo.simulate.compare import compare_results, read_result

    found = compare_results(read_result(before), read_result(after))
    if as_json:
        echo_json(found)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for path in (before, after):
        table.add_column(Text(shown(path)), justify="right")
    table.add_column("ratio", justify="right")
    for one in found.settings:
        table.add_row(one.name, Text(shown(str(one.before))), Text(shown(str(one.after))), "")
    for one in found.figures:
        ratio = f"{one.after / one.before:.3g} x" if one.before else ""
        table.add_row(one.name, _figure(one.name, one.before), _figure(one.name, one.after), ratio)
    echo_table(table, 120)
    click.echo()
    same = f"{found.same_links} links carry as much and are busy as long as before"
    if not found.links and not found.same_links:
        click.echo("one of the results says nothing of its links")
        return
    if not found.links:
        click.echo(f"no link's load changed; {same}")
        return
    click.echo(f"{len(found.links)} links changed, those first whose busy time changed most; {same}")
    links = Table(box=None, pad_edge=False)
    for name in ("link", "bytes", "then", "busy", "then", "used", "then"):
        links.add_column(name, justify="left" if name == "link" else "right", no_wrap=True)
    for link in found.links[:SHOWN_LINKS]:
        links.add_row(
            Text(f"{shown(link.src)} -> {shown(link.dst)}"),
            format_bytes(link.bytes_before),
            format_bytes(link.bytes_after),
            format_time(link.busy_before_s),
            format_time(link.busy_after_s),
            f"{100 * link.utilisation_before:.1f} %",
            f"{100 * link.utilisation_after:.1f} %",
        )
    echo_table(links, 120)
    if len(found.links) > SHOWN_LINKS:
        click.echo(f"... and {len(found.links) - SHOWN_LINKS} more; --json has them all")


def _figure(name: str, value: Any) -> str:
    if name.endswith("_s"):
        return format_time(float(value))
    return f"{100 * value:.1f} %" if name == "efficiency" else f"{value:.4g} GB/s"
