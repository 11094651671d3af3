"""Print two results of `choreo simulate --json` side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from choreo.cli.output.text.table import Column, echo_json, echo_table
from choreo.errors import shown
from choreo.units import counted, format_bytes, format_time

__all__ = ["print_comparison"]

SHOWN_LINKS = 20


def print_comparison(before: Path, after: Path, *, as_json: bool) -> None:
    """Print which settings differ, which results, and which links."""
    from choreo.show.values import value_words
    from choreo.simulate.compare import compare_results, read_result

    found = compare_results(read_result(before), read_result(after))
    if as_json:
        echo_json(found)
        return
    rows = [
        [setting.name, *(shown(value_words(setting.name, value)) for value in (setting.before, setting.after)), ""]
        for setting in found.settings
    ]
    for figure in found.figures:
        ratio = f"{figure.after / figure.before:.3g} x" if figure.before else ""
        rows.append([figure.name, _figure(figure.name, figure.before), _figure(figure.name, figure.after), ratio])
    echo_table([Column("", left=True), Column(shown(before)), Column(shown(after)), Column("ratio", 1)], rows)
    click.echo()
    same = f"{counted(found.same_links, 'link')} as before"
    if not found.links and not found.same_links:
        click.echo("one of the results says nothing about its links")
        return
    if not found.links:
        click.echo(f"no link's load changed; {same}")
        return
    click.echo(f"{counted(len(found.links), 'link')} changed, the largest change in busy time first; {same}")
    echo_table(
        [
            Column("link", left=True),
            Column("bytes", 4),
            Column("then", 4),
            Column("busy"),
            Column("then"),
            Column("used", 2),
            Column("then", 2),
        ],
        [
            [
                f"{shown(link.src)} -> {shown(link.dst)}",
                format_bytes(link.bytes_before),
                format_bytes(link.bytes_after),
                format_time(link.busy_before_s),
                format_time(link.busy_after_s),
                f"{100 * link.utilisation_before:.1f} %",
                f"{100 * link.utilisation_after:.1f} %",
            ]
            for link in found.links[:SHOWN_LINKS]
        ],
    )
    if len(found.links) > SHOWN_LINKS:
        click.echo(f"... and {len(found.links) - SHOWN_LINKS} more; --json has them all")


def _figure(name: str, value: Any) -> str:
    if name.endswith("_s"):
        return format_time(float(value))
    return f"{100 * value:.1f} %" if name == "efficiency" else f"{value:.4g} GB/s"
