"""Prices as a table, or as a plot with the sizes at which each algorithm wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.labels import print_axes, row_label
from choreo.cli.output.text.plot import plot
from choreo.cli.output.text.table import Column, echo_line, echo_table, width
from choreo.units import counted, format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.price import CostModel, Price, Profile, WinningRange

__all__ = ["print_prices", "print_sweep"]

COLUMNS = (
    Column("algorithm", left=True),
    Column("steps", 1),
    Column("latency α", 3),
    Column("bytes β", 2),
    Column("reduce γ", 4),
    Column("total"),
    Column("most sent", 6),
    Column("most received", 8),
    Column("fan-in", 7),
    Column("traffic", 9),
)
PLOT_COLUMNS, PLOT_MARGIN = 72, 12
PLOTTED = 8


def print_prices(prices: list[Price], link: CostModel, ports: str, cores: int | None) -> None:
    """Print the prices side by side; the best is marked, and so is every algorithm that costs the same."""
    first, binary = prices[0], prices[0].size_bytes % 1024 == 0
    size = "" if first.collective == "barrier" else f" of {format_bytes(first.size_bytes)}"
    echo_line(_title(f"{first.collective}{size}", first.ranks, link, ports, cores))
    print_axes(prices)
    reduces = any(price.gamma_s for price in prices)
    columns = [column for column in COLUMNS if reduces or column.name != "reduce γ"]
    rows, styles = [], []
    for price in prices:
        best = len(prices) > 1 and price.total_s == first.total_s
        mark = (" ← best" if price is first else " = best") if best else ""
        gamma = [format_time(price.gamma_s)] if reduces else []
        rows.append(
            [
                f"{row_label(price)}{mark}",
                str(price.steps),
                format_time(price.alpha_s),
                format_time(price.beta_s),
                *gamma,
                format_time(price.total_s),
                format_bytes(price.max_bytes_sent, binary=binary),
                format_bytes(price.max_bytes_received, binary=binary),
                str(price.max_fan_in),
                format_bytes(price.total_bytes, binary=binary),
            ]
        )
        styles.append("bold green" if best else None)
    echo_table(columns, rows, styles=styles)


def print_sweep(
    profiles: list[Profile], ranges: list[WinningRange], link: CostModel, ports: str, cores: int | None
) -> None:
    """Print which algorithm is cheapest from which size to which, and plot the best few."""
    from choreo.price import compare

    rows = []
    for span in ranges:
        ends = [{row_label(p): p.total_s for p in compare(profiles, n, link)} for n in (span.from_bytes, span.to_bytes)]
        ties = [
            name for name in ends[0] if name != row_label(span) and all(e[name] == e[row_label(span)] for e in ends)
        ]
        rows.append([row_label(span), f"{span.from_bytes:,}", f"{span.to_bytes:,}", ", ".join(ties)])
    columns = [Column("cheapest", left=True), Column("from (bytes)"), Column("to (bytes)")]
    if any(row[3] for row in rows):
        columns.append(Column("same price", left=True, wrap=True))
    echo_line(_title(profiles[0].collective, profiles[0].ranks, link, ports, cores))
    print_axes(profiles)
    echo_table(columns, [row[: len(columns)] for row in rows])
    first, last = max(ranges[0].from_bytes, 1), max(ranges[-1].to_bytes, 1)
    across = min(PLOT_COLUMNS, width() - PLOT_MARGIN)
    sizes = [first * (last / first) ** (column / (across - 1)) for column in range(across)]
    tables = [{row_label(price): price.total_s for price in compare(profiles, size, link)} for size in sizes]
    if first == last or min(min(table.values()) for table in tables) <= 0:
        return
    won = dict.fromkeys(row_label(span) for span in ranges)
    shown_names = [*won, *(name for name in _by_nearness(tables) if name not in won)][:PLOTTED]
    best = [next(row_label(span) for span in ranges if size <= span.to_bytes + 1) for size in sizes]
    click.echo()
    click.echo("\n".join(plot(sizes, {name: [table[name] for table in tables] for name in shown_names}, best)))


def _title(what: str, ranks: int, link: CostModel, ports: str, cores: int | None) -> str:
    gamma = f", {format_bandwidth(1 / link.gamma_s_per_byte)} reduced" if link.gamma_s_per_byte > 1e-300 else ""
    a_port = {"one": "one port each way", "all": "a port to every peer", "read": "in shared memory"}[ports]
    if cores is not None and cores < ranks:
        a_port += f", {counted(cores, 'core')} for all"
    return (
        f"{what} over {counted(ranks, 'rank')}: {format_time(link.alpha_s)} per message, "
        f"{format_bandwidth(link.bandwidth_bytes_per_s)}{gamma}, {a_port}"
    )


def _by_nearness(tables: list[dict[str, float]]) -> list[str]:
    """The algorithms by how close they come to the best anywhere."""
    nearest = {name: min(table[name] / min(table.values()) for table in tables) for name in tables[0]}
    return sorted(nearest, key=lambda name: (nearest[name], name))
