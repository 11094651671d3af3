"""`choreo bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.command import grouped
from choreo.cli.options.common import json_option, load_option, parsed, ranks_option
from choreo.cli.options.made import synthesized_too
from choreo.cli.options.topology import topology_option
from choreo.cli.output.text.table import echo_json
from choreo.cli.recording import Recorded, keep
from choreo.errors import UsageError
from choreo.units import parse_size

if TYPE_CHECKING:
    from choreo.bench.result import Measurement


@click.command("bench", cls=Recorded)
@click.argument("collective")
@grouped(
    "What to measure",
    ranks_option,
    click.option("-a", "--algorithm", metavar="NAME", help="Algorithm, or all (default: the cheapest by price)."),
    click.option(
        "-d", "--datatype", default="float", show_default=True, metavar="TYPE", help="float, half, int8 and so on."
    ),
    click.option("-o", "--op", default="sum", show_default=True, metavar="OP", help="sum, prod, min, max or avg."),
    click.option("-r", "--root", type=int, metavar="RANK", help="Root of a rooted collective (0)."),
    click.option("--registered", is_flag=True, help="Use arrays that peers can read in place."),
    click.option("--against", default="", metavar="NAME,...", help="Measure other libraries too: gloo,openmpi,ray."),
    load_option,
)
@grouped(
    "Sizes",
    click.option(
        "-b",
        "--minbytes",
        callback=parsed(parse_size),
        default="8",
        show_default=True,
        metavar="S",
        help="Smallest size; 4K is 4 KiB.",
    ),
    click.option(
        "-e",
        "--maxbytes",
        callback=parsed(parse_size),
        default="32M",
        show_default=True,
        metavar="S",
        help="Largest size; 32M is 32 MiB.",
    ),
    click.option("-f", "--stepfactor", type=float, metavar="X", help="Each size is X times the last (4, unless -i)."),
    click.option("-i", "--stepbytes", callback=parsed(parse_size), metavar="S", help="Each size is S bytes more."),
)
@grouped(
    "How to measure",
    click.option("--iters", type=int, metavar="N", help="Calls per round (as many as take 20 ms)."),
    click.option(
        "-w",
        "--warmup_iters",
        "warmup",
        type=int,
        default=5,
        show_default=True,
        metavar="N",
        help="Calls before the first round.",
    ),
    click.option(
        "--rounds", type=int, default=5, show_default=True, metavar="N", help="Rounds; the time is their median."
    ),
    click.option("-c", "--check", type=int, default=1, show_default=True, metavar="N", help="Checked calls per size."),
    click.option(
        "-T", "--timeout", type=float, default=120.0, show_default=True, metavar="SECONDS", help="Limit for a round."
    ),
    click.option("--pin", is_flag=True, help="Pin each rank of each library to a core, in turn."),
)
@grouped("For --algorithm synthesized", topology_option)
@grouped("Output", json_option)
def command(
    *,
    collective: str,
    ranks: int | None,
    topology: str | None,
    minbytes: int,
    maxbytes: int,
    stepbytes: int | None,
    stepfactor: float | None,
    iters: int | None,
    warmup: int,
    rounds: int,
    datatype: str,
    op: str,
    root: int | None,
    check: int,
    timeout: float,
    algorithm: str | None,
    registered: bool,
    pin: bool,
    against: str,
    as_json: bool,
) -> int:
    """Measure COLLECTIVE between local ranks, and compare it with its prediction and with other libraries.

    \b
    choreo bench all_reduce -n 4 -b 8 -e 128M -f 4
    choreo bench all_reduce -n 4 --algorithm all
    choreo bench all_reduce -n 4 -a synthesized -t "switch(4, 10GB/s, 20us)"
    choreo bench broadcast -n 2 --against gloo,openmpi

    128M is 128 MiB, and a GB/s is 1e9 bytes per second. Algorithms and libraries take turns in one run; a time is the
    median of the rounds, and a round takes as long as its slowest rank. A synthesized schedule is made for the largest
    size. The exit code is 1 if a result was wrong.
    """
    import msgspec

    from choreo.bench.bench import measure
    from choreo.bench.options import BenchOptions
    from choreo.cli.output.collective.bench import BenchTable
    from choreo.collectives import get_collective
    from choreo.run.execute.constants import load_constants

    if ranks is None:
        raise UsageError("say how many ranks: --ranks P")
    if iters is not None and iters < 1:
        raise UsageError(f"--iters must be at least 1, not {iters}")
    sizes = _sizes(minbytes, maxbytes, stepbytes, stepfactor)
    root = get_collective(collective).check_root(root, ranks)
    synthesized_too(collective, (algorithm,), topology, maxbytes, ranks=ranks, root=root, relays=False)
    options = BenchOptions(
        collective,
        ranks,
        sizes,
        datatype,
        op,
        root or 0,
        warmup,
        check,
        iters,
        rounds,
        algorithm=algorithm,
        against=tuple(filter(None, (name.strip() for name in against.split(",")))),
        registered=registered,
        pin=pin,
        timeout_s=timeout,
    )
    table = None if as_json else BenchTable(options)
    constants = load_constants()

    def each(row: Measurement) -> None:
        keep(row, constants=msgspec.to_builtins(constants), registered=registered, pin=pin)
        if table is not None:
            table.row(row)

    def say(sentence: str) -> None:
        click.echo(f"choreo: {sentence}", err=True)

    report = measure(options, constants=constants, each=each, say=say)
    if table is None:
        echo_json(report.to_dict())
    else:
        table.end(report, calibrated=bool(constants.host))
    return 1 if any(row.wrong for row in report.results) else 0


def _sizes(least: int, most: int, step: int | None, factor: float | None) -> tuple[int, ...]:
    from choreo.bench.sizes import sizes_between

    if step is not None and factor is not None:
        raise UsageError("give either -i or -f, a step or a factor between sizes")
    return sizes_between(least, most, factor=4.0 if step is None and factor is None else factor, step=step)
