"""Prices as a person reads them: a table, and who wins where with a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.plot import plot
from choreo.cli.output.table import echo_table
from choreo.errors import shown
from choreo.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.price import Link, Price, Profile, WinningRange

__all__ = ["print_prices", "print_sweep"]

# With fewer columns than these the table leaves out what is least asked for; names are never cut.
WIDE, MEDIUM = 118, 94
PLOT_COLUMNS = 72
PLOTTED = 8


def print_prices(prices: list[Price], link: Link, ports: str, cores: int | None) -> None:
    """The prices side by side, the best marked, and so is whoever costs the same."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = Console()
    width = terminal.width if terminal.is_terminal else max(terminal.width, 130)
    first, binary = prices[0], prices[0].size_bytes % 1024 == 0
    columns = _columns(prices, width)
    click.echo(_title(first, link, ports, cores))
    table = Table(box=None, pad_edge=False)
    table.add_column("algorithm", no_wrap=True, min_width=max(len(shown(one.algorithm)) for one in prices) + 7)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for one in prices:
        values = {
            "steps": str(one.steps),
            "latency α": format_time(one.alpha_s),
            "bytes β": format_time(one.beta_s),
            "reduce γ": format_time(one.gamma_s),
            "total": format_time(one.total_s),
            "most sent": format_bytes(one.max_bytes_sent, binary=binary),
            "most received": format_bytes(one.max_bytes_received, binary=binary),
            "fan-in": str(one.max_fan_in),
            "traffic": format_bytes(one.total_bytes, binary=binary),
        }
        best = len(prices) > 1 and one.total_s == first.total_s
        mark = (" ← best" if one is first else " = best") if best else ""
        called = Text(f"{shown(one.algorithm)}{mark}")
        table.add_row(called, *(values[column] for column in columns), style="bold green" if best else None)
    echo_table(table, width)


def print_sweep(profiles: list[Profile], ranges: list[WinningRange], link: Link) -> None:
    """Who wins where, who costs the same all the way, and a plot of the best few."""
    from choreo.price import compare

    for one in ranges:
        ends = [{p.algorithm: p.total_s for p in compare(profiles, n, link)} for n in (one.from_bytes, one.to_bytes)]
        ties = [name for name in ends[0] if name != one.algorithm and all(e[name] == e[one.algorithm] for e in ends)]
        also = f"   (as much: {', '.join(map(shown, ties))})" if ties else ""
        click.echo(f"{shown(one.algorithm):<20}{one.from_bytes:>17,} to {one.to_bytes:>17,} bytes{also}")
    first, last = max(ranges[0].from_bytes, 1), max(ranges[-1].to_bytes, 1)
    sizes = [first * (last / first) ** (column / (PLOT_COLUMNS - 1)) for column in range(PLOT_COLUMNS)]
    tables = [{one.algorithm: one.total_s for one in compare(profiles, size, link)} for size in sizes]
    if first == last or min(min(table.values()) for table in tables) <= 0:
        return
    won = dict.fromkeys(one.algorithm for one in ranges)
    shown_names = [*won, *(name for name in _by_nearness(tables) if name not in won)][:PLOTTED]
    best = [next(one.algorithm for one in ranges if size <= one.to_bytes + 1) for size in sizes]
    click.echo()
    click.echo("\n".join(plot(sizes, {name: [table[name] for table in tables] for name in shown_names}, best)))


def _title(first: Price, link: Link, ports: str, cores: int | None) -> str:
    size = "" if first.collective == "barrier" else f" of {format_bytes(first.size_bytes)}"
    gamma = f", {format_bandwidth(1 / link.gamma_s_per_byte)} reduced" if link.gamma_s_per_byte > 1e-300 else ""
    a_port = {"one": "one port each way", "all": "a port to every peer", "read": "in shared memory"}[ports]
    if cores is not None and cores < first.ranks:
        a_port += f", {cores} core{'s' if cores > 1 else ''} for all"
    return (
        f"{first.collective}{size} over {first.ranks} ranks: {format_time(link.alpha_s)} a message, "
        f"{format_bandwidth(link.bandwidth_bytes_per_s)}{gamma}, {a_port}"
    )


def _columns(prices: list[Price], width: int) -> list[str]:
    reduces = ["reduce γ"] if any(one.gamma_s for one in prices) else []
    terms = ["steps", "latency α", "bytes β", *reduces, "total"]
    if width < MEDIUM:
        return terms
    traffic = ["most sent", "most received", "fan-in", "traffic"] if width >= WIDE else ["most sent", "fan-in"]
    return [*terms, *traffic]


def _by_nearness(tables: list[dict[str, float]]) -> list[str]:
    """The algorithms by how close they come to the best anywhere."""
    nearest = {name: min(table[name] / min(table.values()) for table in tables) for name in tables[0]}
    return sorted(nearest, key=lambda name: (nearest[name], name))
