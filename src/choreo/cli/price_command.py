"""`choreo price`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.options import (
    Choice,
    choice_options,
    echo_json,
    json_option,
    load_option,
    parsed,
    ranks_option,
)
from choreo.errors import RefusedError, UsageError
from choreo.units import parse_bandwidth, parse_gamma, parse_size, parse_size_range, parse_time

if TYPE_CHECKING:
    from choreo.price import Link, Price, Profile, WinningRange

COLUMNS = (
    "algorithm",
    "steps",
    "alpha_s",
    "beta_s",
    "gamma_s",
    "total_s",
    "max_bytes_sent",
    "max_bytes_received",
    "max_fan_in",
    "total_bytes",
)


@click.command("price")
@choice_options
@ranks_option
@click.option(
    "--size", callback=parsed(parse_size), metavar="S", help="The whole vector, n bytes: 8, 4KiB, 1MB, 64MiB."
)
@click.option(
    "--sweep", callback=parsed(parse_size_range), metavar="FROM:TO", help="Who wins at which sizes, like 8:1GiB."
)
@click.option(
    "--alpha", callback=parsed(parse_time), default="5us", show_default=True, metavar="TIME", help="Time a message."
)
@click.option(
    "--bandwidth",
    callback=parsed(parse_bandwidth),
    default="50GB/s",
    show_default=True,
    metavar="RATE",
    help="Of a port.",
)
@click.option(
    "--gamma",
    callback=parsed(parse_gamma),
    default="0",
    show_default=True,
    metavar="G",
    help="Seconds a reduced byte (1e-11), or the rate of reduction (100GB/s).",
)
@click.option(
    "--ports",
    type=click.Choice(["one", "all"]),
    default="one",
    show_default=True,
    help="One port a rank each way, or one to every peer.",
)
@load_option
@json_option
def command(
    *,
    chosen: Choice,
    ranks: int | None,
    size: int | None,
    sweep: tuple[int, int] | None,
    alpha: float,
    bandwidth: float,
    gamma: float,
    ports: str,
    as_json: bool,
) -> None:
    """Price the algorithms of COLLECTIVE side by side, cheapest first, or one of them, or a schedule file.

    \b
    choreo price all_reduce --ranks 8 --size 1MiB --alpha 5us --bandwidth 50GB/s
    choreo price all_reduce --ranks 64 --sweep 8:1GiB

    A message of b bytes takes α + b β; a reduced byte γ more. The messages at a port in one step follow one another,
    a step takes what its slowest rank takes, and the price is the sum of the steps.
    """
    from choreo.price import Link, compare, winners

    if (size is None) == (sweep is None):
        raise UsageError("give either --size S for a table or --sweep FROM:TO for who wins where")
    link = Link(alpha, bandwidth, gamma)
    counted = _profiles(chosen, ranks, ports)
    if size is not None:
        prices = compare(counted, size, link)
        if as_json:
            echo_json([{name: getattr(one, name) for name in COLUMNS} for one in prices])
        else:
            _print_table(prices, link)
    elif sweep is not None:
        ranges = winners(counted, sweep[0], sweep[1], link)
        if as_json:
            echo_json({"ranges": ranges})
        else:
            _print_sweep(counted, ranges, link)


def _profiles(chosen: Choice, ranks: int | None, ports: str) -> list[Profile]:
    """The one schedule asked for, or one of every algorithm that does the collective at this number of ranks."""
    from choreo.price import profile

    if chosen.schedule is not None or chosen.algorithm is not None:
        return [profile(chosen.build(ranks), ports)]
    if chosen.collective is None:
        raise UsageError("say what to price: COLLECTIVE, or --schedule FILE; see choreo list")
    ranks = chosen.need_ranks(ranks)
    counted = []
    for candidate in chosen.candidates():
        try:
            counted.append(profile(candidate.build(ranks), ports))
        except RefusedError as error:
            click.echo(f"left out: {error}", err=True)
    if not counted:
        raise UsageError(f"no {chosen.collective} algorithm can do {ranks} ranks; use another number of ranks")
    return counted


def _print_table(prices: list[Price], link: Link) -> None:
    from rich.console import Console
    from rich.table import Table

    from choreo.units import format_bandwidth, format_bytes, format_time

    first = prices[0]
    gamma = "" if not link.gamma_s_per_byte else f", {format_bandwidth(1 / link.gamma_s_per_byte)} reduced"
    table = Table(
        title=f"{first.collective} of {format_bytes(first.size_bytes)} over {first.ranks} ranks, "
        f"{format_time(link.alpha_s)} a message, {format_bandwidth(link.bandwidth_bytes_per_s)}{gamma}",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    table.add_column("algorithm")
    for name in (
        "steps",
        "latency α",
        "bytes β",
        "reduce γ",
        "total",
        "most sent",
        "most received",
        "fan-in",
        "traffic",
    ):
        table.add_column(name, justify="right")
    for one in prices:
        best = one is first and len(prices) > 1
        table.add_row(
            f"{one.algorithm} ← best" if best else one.algorithm,
            str(one.steps),
            format_time(one.alpha_s),
            format_time(one.beta_s),
            format_time(one.gamma_s),
            format_time(one.total_s),
            format_bytes(one.max_bytes_sent),
            format_bytes(one.max_bytes_received),
            str(one.max_fan_in),
            format_bytes(one.total_bytes),
            style="bold green" if best else None,
        )
    console = Console(highlight=False)
    console.width = max(console.width, 130) if not console.is_terminal else console.width
    console.print(table)


def _print_sweep(counted: list[Profile], ranges: list[WinningRange], link: Link) -> None:
    from choreo.cli.plot import plot
    from choreo.price import compare
    from choreo.units import format_bytes

    for one in ranges:
        ends = f"{one.from_bytes:>17,} to {one.to_bytes:>17,} bytes"
        click.echo(f"{one.algorithm:<20}{ends}   up to {format_bytes(one.to_bytes)}")
    first, last = max(ranges[0].from_bytes, 1), max(ranges[-1].to_bytes, 1)
    if first == last:
        return
    columns = 72
    sizes = [first * (last / first) ** (column / (columns - 1)) for column in range(columns)]
    tables = [{one.algorithm: one.total_s for one in compare(counted, size, link)} for size in sizes]
    won = dict.fromkeys(one.algorithm for one in ranges)
    runners = [name for name in _by_nearness(tables) if name not in won]
    shown = [*won, *runners[: 8 - len(won)]]
    times = {name: [max(table[name], 1e-12) for table in tables] for name in shown}
    best = [next(one.algorithm for one in ranges if size <= one.to_bytes + 1) for size in sizes]
    click.echo()
    click.echo("\n".join(plot(sizes, times, best, columns)))


def _by_nearness(tables: list[dict[str, float]]) -> list[str]:
    """The algorithms by how close they come to the best anywhere."""
    nearest = {name: min(table[name] / max(min(table.values()), 1e-30) for table in tables) for name in tables[0]}
    return sorted(nearest, key=lambda name: (nearest[name], name))
