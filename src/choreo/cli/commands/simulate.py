"""`choreo simulate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from choreo.cli.options import gamma_option, json_option, load_option, parsed, ranks_option
from choreo.cli.output.table import echo_json
from choreo.cli.progress import Progress
from choreo.cli.schedule_options import Choice, checked, choice_options, left_out, trusted
from choreo.cli.topology_options import what_if, what_if_options
from choreo.errors import AlgorithmError, ProofError, RefusedError, ScheduleError, UsageError, shown
from choreo.units import counted, parse_size, parse_size_range

if TYPE_CHECKING:
    from choreo.schedule import Schedule
    from choreo.simulate import Job, Simulation
    from choreo.topology import Topology

# What a library's model can be told; the rest would be ignored, and so is refused.
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
# What makes a run another run; `--compare` says which of them differ.
SETTINGS = (
    "placement",
    "slow_link",
    "slow_rank",
    "routing",
    "gamma",
    "store_and_forward",
    "segments",
    "rotate",
    "beside",
)
# With --algorithm all, what would take minutes by itself is left out, and said to be.
MOST_TRANSFERS = 1 << 25


@click.command("simulate")
@choice_options
@click.option("--topology", "-t", metavar="T", help="Blocks, a machine's name like hgx-h100:4, or a file.")
@ranks_option
@click.option("--size", callback=parsed(parse_size), metavar="S", help="The collective's size: 8, 4KiB, 1MB, 64MiB.")
@click.option(
    "--sweep", callback=parsed(parse_size_range), metavar="FROM:TO", help="nccl-tests' table for sizes like 8:1GiB."
)
@click.option("--placement", metavar="DEVICES", help="The device of each rank: 0,2,4..7, reversed or random:SEED.")
@gamma_option
@click.option("--store-and-forward", is_flag=True, help="Switches take a message whole before they send it on.")
@what_if_options
@click.option(
    "--beside",
    multiple=True,
    metavar="COLLECTIVE:ALGORITHM=SIZE@DEVICES",
    help="Another collective at the same time: all_to_all:pairwise=4MiB@0..7.",
)
@click.option("--library", type=click.Choice(["nccl"]), help="What this library would choose, and how long it takes.")
@click.option(
    "--validate",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Predicted against measured, for nccl-tests' figures of real machines.",
)
@click.option("--leave-one-out", is_flag=True, help="With --validate: fit without each table in turn.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="A timeline for Perfetto.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="A page: link load over time.")
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A.json B.json",
    help="What changed between two results written with --json.",
)
@load_option
@json_option
def command(
    *,
    chosen: Choice,
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
    library: str | None,
    validate: Path | None,
    leave_one_out: bool,
    trace: Path | None,
    html: Path | None,
    compare: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    """Run COLLECTIVE on a topology, with contention, or one schedule file, or rank all algorithms.

    \b
    choreo simulate all_reduce --topology "torus(4x4x4, 45GB/s, 1us)" --size 64MiB
    choreo simulate all_gather --topology hgx-h100:4 --size 1GiB --algorithm all
    choreo simulate all_reduce --topology dgx-a100:2 --size 1MiB --html run.html --trace run.json

    Without --algorithm each dimension of the topology gets the one that suits it: rings a ring, fully connected blocks
    direct, switches halving_doubling.
    """
    if compare is not None:
        from choreo.cli.output.comparison import print_comparison

        _refuse_beside("--compare", ("compare", "as_json"))
        print_comparison(*compare, as_json=as_json)
        return
    if validate is not None:
        from choreo.cli.output.nccl_validation import print_validation

        _refuse_beside("--validate", ("validate", "leave_one_out", "as_json"))
        print_validation(validate, leave_one_out=leave_one_out, as_json=as_json)
        return
    if leave_one_out:
        raise UsageError("--leave-one-out goes with --validate FILE.csv; leave it out, or give the file")
    if topology is None:
        raise UsageError('say where: --topology "ring(8, 50GB/s, 500ns)" or --topology hgx-h100:4; see choreo topology')
    if (size is None) == (sweep is None):
        raise UsageError("give either --size S or --sweep FROM:TO")
    if chosen.collective == "barrier" and size:
        raise UsageError(f"a barrier moves no bytes, so --size is 0, not {size}")
    sizes = [size] if size is not None else _sizes(sweep)
    place = _place(topology, placement, ranks, chosen)
    place = replace(place, topology=what_if(place.topology, slow_link, slow_rank, routing, place.placement))
    if library is not None:
        from choreo.cli.output.nccl import print_library

        _refuse_beside(f"--library {library}", KNOWN_TO_LIBRARIES)
        devices = list(range(place.ranks)) if place.placement is None else place.placement
        print_library(chosen, place.topology, devices, sizes, swept=sweep is not None, as_json=as_json)
        return
    others = tuple(_beside(text, place.topology) for text in beside)
    task = _Task(chosen, place, gamma, store_and_forward, others, _settings())
    if (trace is not None or html is not None) and (sweep is not None or _many(chosen)):
        raise UsageError("--trace and --html show one run; give one --size and at most one --algorithm")
    if sweep is not None:
        _sweep(task, sizes, as_json)
    elif _many(chosen):
        _rank_all(task, sizes[0], as_json)
    else:
        _one(task, sizes[0], as_json, trace, html)


@dataclass(frozen=True, slots=True)
class _Place:
    """A topology and which of its devices hold the ranks; None: as many as it has, in order."""

    topology: Topology
    ranks: int
    placement: list[int] | None


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be run, before its size is known."""

    chosen: Choice
    place: _Place
    gamma: float
    store_and_forward: bool
    beside: tuple[Job, ...]
    settings: dict[str, object]

    def run(self, schedule: Schedule, size: int) -> Simulation:
        """Run a schedule, and whatever goes on beside it."""
        from choreo.simulate import Job, simulate_together

        with Progress(f"{schedule.collective} by {schedule.algorithm}") as progress:
            return simulate_together(
                [Job(schedule, size, self.place.placement), *self.beside],
                self.place.topology,
                gamma_s_per_byte=self.gamma,
                store_and_forward=self.store_and_forward,
                progress=progress,
            )

    def schedules(self) -> list[Schedule]:
        """What was asked for: one schedule, or one of each algorithm that can be built and is not absurdly long."""
        if self.chosen.schedule is not None or not _many(self.chosen):
            return [self.schedule()]
        names = () if "all" in self.chosen.algorithms else self.chosen.algorithms
        found = []
        for candidate in replace(self.chosen, algorithms=names).candidates():
            try:
                schedule = trusted(self._along_dimensions(candidate), self.place.ranks)
                _check_length(schedule)
                found.append(schedule)
            except (RefusedError, AlgorithmError, ScheduleError, ProofError, UsageError) as error:
                left_out(candidate, error)
        if not found:
            raise UsageError(f"no algorithm that was asked for can do {counted(self.place.ranks, 'rank')}; use others")
        return found

    def schedule(self) -> Schedule:
        """The one schedule asked for, or what the topology's dimensions suggest."""
        from choreo.simulate import suggested_schedule

        chosen = self.chosen
        if chosen.schedule is not None:
            return checked(chosen.build(None))
        if chosen.collective is None:
            raise UsageError("say what to simulate: COLLECTIVE, or --schedule FILE; see choreo list")
        if chosen.algorithms:
            return trusted(self._along_dimensions(chosen), self.place.ranks)
        if chosen.axes is not None or chosen.rotate:
            return trusted(self._along_dimensions(replace(chosen, algorithms=("hierarchical",))), self.place.ranks)
        return suggested_schedule(
            chosen.collective,
            self.place.topology,
            self.place.ranks,
            root=chosen.root,
            segments=chosen.segments,
            along_dimensions=self.place.placement is None,
        )

    def axes(self, schedule: Schedule) -> str | None:
        """The axes of a hierarchical schedule, which it does not carry itself."""
        if schedule.algorithm != "hierarchical" or self.chosen.schedule is not None:
            return None
        return self._along_dimensions(replace(self.chosen, algorithms=("hierarchical",))).axes

    def _along_dimensions(self, candidate: Choice) -> Choice:
        """The choice with the topology's dimensions as axes, where it wants axes and has none."""
        from choreo.simulate import suggested_axes

        if candidate.algorithms != ("hierarchical",) or candidate.axes is not None:
            return candidate
        if self.place.placement is not None or self.place.ranks != self.place.topology.num_devices:
            return candidate
        return replace(candidate, axes=str(suggested_axes(self.place.topology)))


def _one(task: _Task, size: int, as_json: bool, trace: Path | None, html: Path | None) -> None:
    from choreo.cli.output.simulation import print_simulation
    from choreo.simulate.details import details

    schedule = task.schedule()
    simulation = task.run(schedule, size)
    axes = task.axes(schedule)
    if as_json:
        echo_json(simulation.to_dict() | {"axes": axes, "settings": task.settings} | details(simulation))
    else:
        print_simulation(simulation, axes)
    if html is not None:
        from choreo.show import simulation_html

        try:
            html.write_text(simulation_html(simulation), "utf-8")
        except OSError as error:
            raise UsageError(f"{shown(html)} cannot be written: {error.strerror or error}") from None
        click.echo(f"wrote {html}: open it in a browser", err=True)
    if trace is not None:
        from choreo.show import write_trace

        write_trace(simulation, trace)
        click.echo(f"wrote {trace}: open it in ui.perfetto.dev or chrome://tracing", err=True)


def _rank_all(task: _Task, size: int, as_json: bool) -> None:
    from choreo.cli.output.simulation import print_ranking

    simulations = _runs(task, task.schedules(), size)
    simulations.sort(key=lambda one: one.job_time_s(0))
    if as_json:
        echo_json(simulations)
    else:
        print_ranking(simulations)


def _sweep(task: _Task, sizes: list[int], as_json: bool) -> None:
    """One run a size; of several algorithms the fastest at each."""
    from choreo.cli.output.simulation import print_sweep

    schedules = task.schedules()
    if len(schedules) > 1:  # what cannot run here is said once
        schedules = [one.jobs[0].schedule for one in _runs(task, schedules, 0)]
    best = [min(_runs(task, schedules, size), key=lambda one: one.job_time_s(0)) for size in sizes]
    if as_json:
        echo_json(best)
    else:
        print_sweep(best)


def _runs(task: _Task, schedules: list[Schedule], size: int) -> list[Simulation]:
    """A run of each schedule that this topology can run."""
    if len(schedules) == 1:
        return [task.run(schedules[0], size)]
    runs = []
    for schedule in schedules:
        try:
            runs.append(task.run(schedule, size))
        except RefusedError as error:
            click.echo(f"left out: {error}", err=True)
    if not runs:
        raise UsageError("none of the algorithms can run on this topology; use another")
    return runs


def _refuse_beside(what: str, known: tuple[str, ...]) -> None:
    """Refuse options that were given and would be ignored."""
    context = click.get_current_context()
    names = {parameter.name: parameter for parameter in context.command.params if parameter.name is not None}
    given = [
        parameter.opts[0] if isinstance(parameter, click.Option) else str(parameter.name).upper()
        for name, parameter in names.items()
        if name not in known and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(f"{what} does not go with {', '.join(given)}; leave out one or the other")


def _settings() -> dict[str, object]:
    """What was said on the command line that makes this run another one."""
    options = click.get_current_context().params
    return {name: options[name] for name in SETTINGS if options[name]}


def _many(chosen: Choice) -> bool:
    return "all" in chosen.algorithms or len(chosen.algorithms) > 1


def _check_length(schedule: Schedule) -> None:
    transfers = 0
    for block in schedule.blocks():
        transfers += len(block)
        if transfers > MOST_TRANSFERS:
            raise RefusedError(f"it has more than {MOST_TRANSFERS} transfers; name it to run it all the same")


def _sizes(sweep: tuple[int, int] | None) -> list[int]:
    first, last = sweep or (0, 0)
    sizes = [first]
    while 2 * sizes[-1] <= last and sizes[-1] > 0:
        sizes.append(2 * sizes[-1])
    return sizes


def _place(text: str, placement: str | None, ranks: int | None, chosen: Choice) -> _Place:
    """Which devices hold the ranks: the placement's, the first so many, or all."""
    from choreo.cli.topology_options import parse_placement
    from choreo.topology import get_topology

    topology = get_topology(text)
    devices = None if placement is None else parse_placement(placement, topology.num_devices)
    if ranks is None and chosen.schedule is not None:
        from choreo.schedule import load

        ranks = load(chosen.schedule).ranks
    if ranks is None and chosen.axes is not None:
        from choreo.algorithms import parse_axes

        ranks = parse_axes(chosen.axes).ranks
    if devices is not None:
        if ranks is not None and ranks > len(devices):
            raise UsageError(f"--placement gives {counted(len(devices), 'device')} for {counted(ranks, 'rank')}")
        return _Place(topology, len(devices) if ranks is None else ranks, devices[:ranks])
    return _Place(topology, topology.num_devices if ranks is None else ranks, None)


def _beside(text: str, topology: Topology) -> Job:
    """Another collective, from `all_to_all:pairwise=4MiB@0..7`."""
    from choreo.algorithms import build
    from choreo.cli.topology_options import parse_placement
    from choreo.simulate import Job, suggested_schedule

    what, equals, rest = text.partition("=")
    size, at, where = rest.partition("@")
    if not (equals and size):
        raise UsageError(f"--beside {text!r} is not understood; write all_to_all:pairwise=4MiB@0..7")
    devices = parse_placement(where, topology.num_devices) if at else list(range(topology.num_devices))
    collective, colon, algorithm = what.strip().partition(":")
    if colon:
        schedule = build(collective, algorithm, len(devices))
    else:
        schedule = suggested_schedule(collective, topology, len(devices), along_dimensions=not at)
    return Job(schedule, parse_size(size), devices)
