"""`choreo simulate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from choreo.cli.command import grouped, refuse_beside
from choreo.cli.options.common import NewFile, gamma_option, json_option, parsed, size_option
from choreo.cli.options.implied import implied_by
from choreo.cli.options.packets import PACKET_OPTIONS, packet_options, packets_of
from choreo.cli.options.schedule import ScheduleOptions, schedule_options
from choreo.cli.options.simulate import Asked, parse_beside, sizes_of
from choreo.cli.options.topology import (
    need_topology,
    place,
    placement_option,
    topology_option,
    what_if,
    what_if_options,
)
from choreo.cli.output.text.files import check_stdout
from choreo.cli.recording import Recorded
from choreo.cli.simulations import rank_all, simulate_one, simulate_sweep
from choreo.errors import UsageError
from choreo.units import parse_size_range

# The options that a library's model uses; the others would be ignored, and so are refused.
KNOWN_TO_LIBRARIES = (
    "collective",
    "algorithms",
    "root",
    "topology",
    "ranks",
    "size",
    "sweep",
    "placement",
    "slow_link",
    "slow_rank",
    "routing",
    "library",
    "as_json",
)
# The options that a workload uses.
KNOWN_TO_WORKLOADS = (
    "algorithms",
    "topology",
    "ranks",
    "placement",
    "gamma",
    "slow_link",
    "slow_rank",
    "routing",
    "workload",
    "groups",
    "device",
    "order",
    "at_once",
    "as_json",
    "trace",
    "html",
    "kernels",
    "packets",
    *PACKET_OPTIONS,
)


@click.command("simulate", cls=Recorded)
@schedule_options()
@grouped(
    "What to run, and where",
    topology_option,
    size_option,
    click.option(
        "--sweep",
        callback=parsed(parse_size_range),
        metavar="FROM:TO",
        help="Simulate sizes like 8:1GiB, and print a table like that of nccl-tests.",
    ),
    placement_option,
    gamma_option,
    click.option("--store-and-forward", is_flag=True, help="Switches receive a whole message before they send it on."),
)
@grouped(
    "A whole workload instead",
    click.option(
        "--workload",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A trace of a training step: its files, their folder, or their common prefix; or the output of choreo "
        "plan --json.",
    ),
    click.option("--groups", type=click.Path(path_type=Path), metavar="FILE.json", help="The ranks of each group."),
    click.option(
        "--device", metavar="NAME", help="Time kernels for this device, if the trace says how much work they do."
    ),
    click.option(
        "--kernels",
        type=click.Choice(["roofline", "curve"]),
        default="roofline",
        help="Speed of that device: its peaks (roofline), or its measured efficiency (curve).",
    ),
    click.option(
        "--order",
        type=click.Choice(["fifo", "lifo"]),
        default="fifo",
        help="Which collective of a group goes first: the oldest or the newest.",
    ),
    click.option("--at-once", type=int, default=1, metavar="K", help="Collectives of one group that run at once (1)."),
)
@grouped(
    "What if",
    *what_if_options(),
    click.option(
        "--beside",
        multiple=True,
        metavar="COLLECTIVE:ALGORITHM=SIZE@DEVICES",
        help="Run another collective at the same time: all_to_all:pairwise=4MiB@0..7.",
    ),
)
@grouped("Packets", *packet_options())
@grouped(
    "Libraries and measurements",
    click.option(
        "--library", type=click.Choice(["nccl"]), help="Predict what this library would choose, and its time."
    ),
    click.option(
        "--validate",
        type=click.Path(path_type=Path),
        metavar="FILE.csv",
        help="Compare predictions with nccl-tests measured on real machines.",
    ),
    click.option("--leave-one-out", is_flag=True, help="With --validate: fit without each table in turn."),
)
@grouped(
    "Output",
    json_option,
    click.option("--trace", type=NewFile(stdout=False), metavar="FILE", help="Write a timeline for Perfetto."),
    click.option(
        "--html",
        type=NewFile(),
        metavar="FILE",
        help="Write a page that shows the load of links over time.",
    ),
    click.option(
        "--compare",
        nargs=2,
        type=click.Path(path_type=Path),
        metavar="A.json B.json",
        help="Compare two results that were written with --json.",
    ),
)
def command(
    *,
    chosen: ScheduleOptions,
    topology: str | None,
    ranks: int | None,
    size: int | None,
    sweep: tuple[int, int] | None,
    placement: str | None,
    gamma: float,
    store_and_forward: bool,
    slow_link: tuple[str, ...],
    slow_rank: tuple[str, ...],
    routing: str | None,
    beside: tuple[str, ...],
    workload: tuple[Path, ...],
    library: str | None,
    validate: Path | None,
    leave_one_out: bool,
    trace: Path | None,
    html: Path | None,
    compare: tuple[Path, Path] | None,
    as_json: bool,
    **others: Any,
) -> None:
    """Simulate COLLECTIVE, or a schedule file, on a network with contention; compare algorithms.

    \b
    choreo simulate all_reduce --topology "torus(4x4x4, 45GB/s, 1us)" --size 64MiB
    choreo simulate all_gather --topology hgx-h100:4 --size 1GiB --algorithm all
    choreo simulate all_reduce --topology dgx-a100:2 --size 1MiB \\
        --html run.html --trace run.json
    choreo simulate all_to_all -t "fat_tree(8x4, 50GB/s, 500ns, spines=8)" \\
        --size 8MiB --packets --buffer 1MiB --routing spray

    Without --algorithm, what --load brought is run; without that, each dimension of the topology gets the algorithm
    that suits it: ring for rings, direct for fully connected blocks, halving_doubling for switches. With several, or
    with --algorithm all, they are ranked; in a sweep, --algorithm all prints the fastest at each size.
    """
    check_stdout(as_json=as_json, html=html)
    if workload:
        from choreo.cli.workload import simulate_files

        refuse_beside("--workload", KNOWN_TO_WORKLOADS)
        where = place(need_topology(topology), placement, ranks)
        simulate_files(
            workload,
            replace(where, topology=what_if(where, slow_link, slow_rank, routing)),
            others["groups"],
            ranks,
            gamma=gamma,
            as_json=as_json,
            pictures={"trace": trace, "html": html},
            options=_workload_options(chosen, routing, others),
        )
        return
    if compare is not None:
        from choreo.cli.output.collective.comparison import print_comparison

        refuse_beside("--compare", ("compare", "as_json"))
        print_comparison(*compare, as_json=as_json)
        return
    if validate is not None:
        from choreo.cli.output.nccl_validation import print_validation

        refuse_beside("--validate", ("validate", "leave_one_out", "as_json"))
        print_validation(validate, leave_one_out=leave_one_out, as_json=as_json)
        return
    if leave_one_out:
        raise UsageError("--leave-one-out goes with --validate FILE.csv; leave it out, or give the file")
    if chosen.schedule is None and chosen.collective is None:
        raise UsageError("say what to simulate: COLLECTIVE, or --schedule FILE; see choreo list")
    chosen.check_collective()
    network = need_topology(topology)
    sizes = _sizes(chosen, size, sweep)
    where = place(network, placement, _ranks(chosen, ranks))
    where = replace(where, topology=what_if(where, slow_link, slow_rank, routing))
    if library is not None:
        from choreo.cli.output.collective.nccl import print_library

        refuse_beside(f"--library {library}", KNOWN_TO_LIBRARIES)
        print_library(chosen, where, sizes, swept=sweep is not None, as_json=as_json)
        return
    beside_it = tuple(parse_beside(text, where.topology) for text in beside)
    file_bytes = implied_by(topology, ranks, placement)
    chosen = chosen.or_loaded()
    asked = Asked(chosen, where, gamma, store_and_forward, beside_it, packets_of(others, routing), file_bytes)
    if (trace is not None or html is not None) and (sweep is not None or asked.many):
        raise UsageError("--trace and --html show one run; give one --size and at most one --algorithm")
    if sweep is not None:
        simulate_sweep(asked, sizes, as_json)
    elif asked.many:
        rank_all(asked, sizes[0], as_json)
    else:
        simulate_one(asked, sizes[0], as_json, trace, html)


def _workload_options(chosen: ScheduleOptions, routing: str | None, others: dict[str, Any]) -> dict[str, Any]:
    """How a workload's kernels are timed and its collectives are run."""
    options = {name: others[name] for name in ("device", "kernels", "order", "at_once")}
    return options | {
        "algorithm": ",".join(chosen.algorithms) or "suggested",
        "packets": packets_of(others, routing),
    }


def _sizes(chosen: ScheduleOptions, size: int | None, sweep: tuple[int, int] | None) -> list[int]:
    """The size, or those of a sweep; a barrier has none."""
    if chosen.collective == "barrier" and size is None and sweep is None:
        size = 0
    if (size is None) == (sweep is None):
        raise UsageError("give either --size S or --sweep FROM:TO")
    if chosen.collective == "barrier" and size:
        raise UsageError(f"a barrier moves no bytes, so --size is 0, not {size}")
    return sizes_of(size, sweep)


def _ranks(chosen: ScheduleOptions, ranks: int | None) -> int | None:
    """The number of ranks, if anything gives it."""
    if ranks is None and chosen.schedule is not None:
        from choreo.schedule import load

        return load(chosen.schedule).ranks
    return chosen.need_ranks(None) if ranks is None and chosen.axes is not None else ranks
