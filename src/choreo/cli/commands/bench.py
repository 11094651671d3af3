"""`choreo bench`."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

import click

from choreo.cli.options import json_option, load_option, parsed
from choreo.cli.output.table import echo_json
from choreo.errors import SizeError, UsageError, shown
from choreo.units import counted, parse_size

if TYPE_CHECKING:
    from choreo.bench.bench import Measured, Options, Report

BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_nccl_size(text: str) -> int:
    """Bytes in `8`, `4K`, `128M` (binary, as nccl-tests has them), or `64MiB`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT])", text.strip())
    if match is None:
        return parse_size(text)
    size = float(match[1]) * BINARY[match[2].lower()]
    if size != int(size):
        raise SizeError(f"{text!r} is not a whole number of bytes")
    return int(size)


@click.command("bench")
@click.argument("collective")
@click.option("-n", "--ranks", type=int, required=True, metavar="P", help="How many local ranks to start.")
@click.option("-b", "--minbytes", callback=parsed(parse_nccl_size), default="8", show_default=True, metavar="S")
@click.option(
    "-e",
    "--maxbytes",
    callback=parsed(parse_nccl_size),
    default="32M",
    show_default=True,
    metavar="S",
    help="M is MiB.",
)
@click.option("-i", "--stepbytes", callback=parsed(parse_nccl_size), metavar="S", help="Added from size to size.")
@click.option("-f", "--stepfactor", type=float, metavar="X", help="From size to size (4, unless -i).")
@click.option("--iters", type=int, metavar="N", help="Calls a round (as many as take 20 ms).")
@click.option("-w", "--warmup_iters", "warmup", type=int, default=5, show_default=True, metavar="N")
@click.option("--rounds", type=int, default=5, show_default=True, metavar="N", help="Of which the median is taken.")
@click.option("-d", "--datatype", default="float", show_default=True, metavar="TYPE")
@click.option("-o", "--op", default="sum", show_default=True, metavar="OP", help="sum, prod, min, max or avg.")
@click.option("-r", "--root", type=int, default=0, show_default=True, metavar="RANK")
@click.option("-c", "--check", type=int, default=1, show_default=True, metavar="N", help="Checked calls a size.")
@click.option("-T", "--timeout", type=float, default=120.0, show_default=True, metavar="SECONDS", help="For a round.")
@click.option("-a", "--algorithm", metavar="NAME", help="Instead of the one chosen; all races them.")
@click.option("--registered", is_flag=True, help="Arrays that peers can read where they are.")
@click.option("--pin", is_flag=True, help="Each rank of each library to a core, in turn.")
@click.option("--against", default="", metavar="NAME,...", help="Other libraries in turn: gloo,openmpi.")
@load_option
@json_option
def command(
    *,
    collective: str,
    ranks: int,
    minbytes: int,
    maxbytes: int,
    stepbytes: int | None,
    stepfactor: float | None,
    iters: int | None,
    warmup: int,
    rounds: int,
    datatype: str,
    op: str,
    root: int,
    check: int,
    timeout: float,
    algorithm: str | None,
    registered: bool,
    pin: bool,
    against: str,
    as_json: bool,
) -> int:
    """Measure COLLECTIVE between local ranks: the table of nccl-tests, and what price predicted beside it.

    \b
    choreo bench all_reduce -n 4 -b 8 -e 128M -f 4
    choreo bench all_reduce -n 4 --algorithm all
    choreo bench broadcast -n 2 --against gloo,openmpi

    Sizes are binary: 128M is 128 MiB; bandwidth is in 1e9 bytes a second. Contestants take turns in one run; a time is
    the median of the rounds, a round's that of its slowest rank. The exit code is 1 if a result was wrong.
    """
    from choreo.bench.bench import Options, bench, sizes_between

    if iters is not None and iters < 1:
        raise UsageError(f"--iters must be at least 1, not {iters}")
    if stepbytes is not None and stepfactor is not None:
        raise UsageError("give either -i or -f, a step or a factor between sizes")
    factor = None if stepbytes is not None else (stepfactor or 4.0)
    sizes = sizes_between(minbytes, maxbytes, factor=factor, step=stepbytes)
    options = Options(
        collective,
        ranks,
        sizes if collective != "barrier" else (0,),
        datatype,
        op,
        root,
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
    say = lambda sentence: click.echo(f"choreo: {sentence}", err=True)  # noqa: E731 - one line, used once
    if as_json:
        report = bench(options, say=say)
        echo_json(report.document())
    else:
        _head(options)
        report = bench(options, each=lambda row: _row(options, row), say=say)
        _foot(report)
    return 1 if any(row.wrong for row in report.rows) else 0


def _head(options: Options) -> None:
    in_place = options.collective in ("all_reduce", "broadcast", "reduce")
    click.echo(
        f"# {options.collective} over {counted(options.ranks, 'rank')} of this machine, "
        f"{'in place' if in_place else 'out of place'}{', registered' if options.registered else ''}"
    )
    head = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "priced")
    units = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)")
    for words, last in ((head, True), (units, False)):
        columns = "".join(f"{word:>9}" for word in words[2:])
        theirs = "".join(f"{name if last else '(us)':>11}{'ratio' if last else '':>9}" for name in options.against)
        click.echo(f"#{words[0]:>12}{words[1]:>13}{columns}{theirs}  {'algorithm' if last else ''}".rstrip())


def _row(options: Options, row: Measured) -> None:
    from choreo.collectives import get_collective

    contract = get_collective(options.collective)
    redop, root = options.op if contract.reduces else "none", row.case.root if contract.rooted else -1
    wrong = "N/A" if row.wrong is None else str(row.wrong)
    theirs = "".join(
        f"{row.peers[name] * 1e6:>11.2f}{row.ratio(name):>8.2f}x" if name in row.peers else f"{'-':>11}{'':>9}"
        for name in options.against
    )
    click.echo(
        f"{row.case.size_bytes:>13}{row.case.count:>13}{row.case.dtype:>9}{redop:>9}{root:>9}"
        f"{row.time_s * 1e6:>9.2f}{row.algbw_bytes_per_s / 1e9:>9.2f}{row.busbw_bytes_per_s / 1e9:>9.2f}{wrong:>9}"
        f"{row.predicted_s * 1e6:>9.2f}{theirs}  {shown(row.algorithm)}"
    )


def _foot(report: Report) -> None:
    from choreo.bench.bench import geometric_mean

    wrong = sum(row.wrong or 0 for row in report.rows)
    click.echo(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    click.echo(f"# Avg bus bandwidth    : {statistics.fmean(r.busbw_bytes_per_s for r in report.rows) / 1e9:.6g}")
    off = statistics.median(abs(row.predicted_s / row.time_s - 1) for row in report.rows)
    click.echo(f"# Price is off by      : {100 * off:.0f} % in the median row")
    for name in report.options.against:
        ratios = [row.ratio(name) for row in report.rows if name in row.peers]
        if ratios:
            click.echo(
                f"# {name + ' takes':<20} : {geometric_mean(ratios):.2f} times as long in the geometric mean, "
                f"{min(ratios):.2f} at least"
            )
