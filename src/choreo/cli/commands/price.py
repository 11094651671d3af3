"""`choreo price`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.command import grouped
from choreo.cli.options.common import gamma_option, json_option, parsed, size_option
from choreo.cli.options.made import synthesized_too
from choreo.cli.options.schedule import ScheduleOptions, left_out, schedule_options, trusted
from choreo.cli.options.topology import topology_option
from choreo.cli.output.collective.price import print_prices, print_sweep
from choreo.cli.output.text.table import echo_json
from choreo.cli.progress import waiting
from choreo.cli.recording import Recorded, keep
from choreo.errors import AlgorithmError, ProofError, RefusedError, ScheduleError, UsageError, shown
from choreo.units import parse_bandwidth, parse_size_range, parse_time

if TYPE_CHECKING:
    from choreo.price import Profile


@click.command("price", cls=Recorded)
@schedule_options()
@grouped(
    "What to price",
    size_option,
    click.option(
        "--sweep",
        callback=parsed(parse_size_range),
        metavar="FROM:TO",
        help="Which algorithm wins at which sizes, instead: 8:1GiB.",
    ),
)
@grouped(
    "What a message costs",
    click.option(
        "--alpha",
        callback=parsed(parse_time),
        default="5us",
        show_default=True,
        metavar="TIME",
        help="Latency of a message.",
    ),
    click.option(
        "--bandwidth",
        callback=parsed(parse_bandwidth),
        default="50GB/s",
        show_default=True,
        metavar="RATE",
        help="Bandwidth of a port.",
    ),
    gamma_option,
    click.option(
        "--ports",
        type=click.Choice(["one", "all", "read"]),
        default="one",
        show_default=True,
        help="Each rank has one port each way, one to every peer, or memory that all read.",
    ),
    click.option(
        "--cores", type=click.IntRange(min=1), metavar="C", help="With --ports read: cores that the ranks share."
    ),
)
@grouped("For --algorithm synthesized", topology_option)
@grouped("Output", json_option)
def command(
    *,
    chosen: ScheduleOptions,
    ranks: int | None,
    topology: str | None,
    size: int | None,
    sweep: tuple[int, int] | None,
    alpha: float,
    bandwidth: float,
    gamma: float,
    ports: str,
    cores: int | None,
    as_json: bool,
) -> None:
    """Compare the costs of the algorithms of COLLECTIVE, cheapest first; or price a schedule file.

    \b
    choreo price all_reduce --ranks 8 --size 1MiB --alpha 5us --bandwidth 50GB/s
    choreo price all_reduce --ranks 64 --sweep 8:1GiB

    A message of b bytes takes α + b β, and each byte that is reduced γ more. Messages at one port in one step follow
    one another; a step takes as long as its slowest rank, and the price is the sum of the steps.
    """
    from choreo.price import CostModel, compare, winners

    if chosen.schedule is None and chosen.collective is None:
        raise UsageError("say what to price: COLLECTIVE, or --schedule FILE; see choreo list")
    chosen.check_collective()
    if (size is None) == (sweep is None):
        raise UsageError("give either --size S for a table, or --sweep FROM:TO to see where each algorithm wins")
    ranks = synthesized_too(chosen.collective, chosen.named, topology, size, ranks=ranks, root=chosen.root)
    link = CostModel(alpha, bandwidth, gamma)
    profiles = _profiles(chosen, ranks, ports, cores)
    settings = {"cost_model": link, "ports": ports, "cores": cores, "root": chosen.root, "options": chosen.settings()}
    if size is not None:
        prices = compare(profiles, size, link)
        keep(prices, **settings)
        if as_json:
            echo_json(prices)
        else:
            print_prices(prices, link, ports, cores)
    elif sweep is not None:
        ranges = winners(profiles, sweep[0], sweep[1], link)
        for end in sorted({end for span in ranges for end in (span.from_bytes, span.to_bytes)}):
            keep(compare(profiles, end, link), **settings)
        if as_json:
            echo_json({"ranges": ranges})
        else:
            print_sweep(profiles, ranges, link, ports, cores)


def _profiles(chosen: ScheduleOptions, ranks: int | None, ports: str, cores: int | None) -> list[Profile]:
    """The given schedule, or one for each given algorithm, or one for every algorithm of the collective."""
    from choreo.price import profile
    from choreo.prove.checked import checked

    if chosen.schedule is not None:
        return [profile(checked(chosen.build(ranks), shown(chosen.schedule)), ports, cores=cores)]
    candidates = chosen.candidates(ranks)
    ranks = chosen.need_ranks(ranks)
    if len(candidates) == 1:
        return [profile(trusted(candidates[0], ranks), ports, cores=cores)]
    profiles = []
    for candidate in candidates:
        try:
            with waiting(f"pricing {candidate.algorithms[0]}"):
                schedule = trusted(candidate, ranks)
                # Few networks have switches that reduce: those schedules are priced when they are named.
                if not schedule.switches or chosen.named:
                    profiles.append(profile(schedule, ports, cores=cores))
        except (RefusedError, AlgorithmError, ScheduleError, ProofError) as error:
            left_out(candidate, error)
    if not profiles:
        raise UsageError(f"none of these {chosen.collective} algorithms works with {ranks} ranks; use another number")
    return profiles
