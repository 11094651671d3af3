"""The runs that `choreo simulate` was asked for: schedules, network, and what runs at the same time."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from choreo.cli.options.implied import check_implied
from choreo.cli.options.schedule import SYNTHESIZED, ScheduleOptions, left_out, trusted
from choreo.cli.options.topology import Placement, parse_placement
from choreo.cli.output.text.table import echo_note
from choreo.cli.progress import Progress, waiting
from choreo.errors import (
    AlgorithmError,
    DeadlockError,
    NoPathError,
    ProofError,
    RefusedError,
    ScheduleError,
    UsageError,
    shown,
)
from choreo.units import counted, parse_size

if TYPE_CHECKING:
    from choreo.schedule import Schedule
    from choreo.simulate import Job, Packets, Simulation
    from choreo.topology import Topology

__all__ = ["Asked", "StoppedError", "parse_beside", "sizes_of"]

# With --algorithm all, a schedule that would take minutes by itself is left out, and a line says so.
MOST_TRANSFERS = 1 << 25


class StoppedError(KeyboardInterrupt):
    """Ctrl-C between several simulations: those that are `done`, of how many that were `asked` for."""

    def __init__(self, done: list[Simulation], asked: int) -> None:
        super().__init__()
        self.done, self.asked = done, asked


@dataclass(frozen=True, slots=True)
class Asked:
    """What to run, before its size is known.

    `file_bytes` is the size of the network's file, if that alone says how many ranks there are. It limits their work.
    """

    chosen: ScheduleOptions
    where: Placement
    gamma: float
    store_and_forward: bool
    beside: tuple[Job, ...]
    packets: Packets | None = None
    file_bytes: int | None = None

    @property
    def many(self) -> bool:
        """Whether several algorithms are to be compared."""
        return "all" in self.chosen.algorithms or len(self.chosen.algorithms) > 1

    @property
    def synthesizes(self) -> bool:
        """Whether a schedule is to be made for the network, beside those of the library or alone."""
        return any(name in ("all", SYNTHESIZED) for name in self.chosen.algorithms)

    @property
    def low_effort(self) -> bool:
        """Whether that schedule is only one of all algorithms, which nobody named."""
        return "all" in self.chosen.algorithms and SYNTHESIZED not in self.chosen.algorithms

    def synthesized(self, size: int) -> Schedule:
        """The schedule made for this network and size; with little effort if it is only one of all algorithms."""
        from choreo.synthesize import synthesize

        assert self.chosen.collective is not None
        if self.chosen.segments is not None and not self.many:
            raise UsageError("a synthesized schedule chooses its own chunks; leave out --segments")
        return synthesize(
            self.chosen.collective,
            self.where.topology,
            size,
            ranks=self.where.all_devices(),
            root=self.chosen.root,
            effort="low" if self.low_effort else "medium",
            packets=self.packets,
        )

    def run(self, schedule: Schedule, size: int, which: str = "") -> Simulation:
        """Run a schedule, and what runs beside it; the progress says `which` of several it is."""
        from choreo.simulate import Job, simulate_together

        if schedule.file_bytes is None and self.file_bytes is not None:
            schedule = replace(schedule, file_bytes=self.file_bytes)
        what = f"{schedule.collective} by {schedule.algorithm}{which}"
        with Progress(what) as progress, waiting(what, progress):
            return simulate_together(
                [Job(schedule, size, self.where.devices), *self.beside],
                self.where.topology,
                gamma_s_per_byte=self.gamma,
                store_and_forward=self.store_and_forward,
                packets=self.packets,
                progress=progress,
            )

    def run_all(self, schedules: list[Schedule], size: int) -> list[Simulation]:
        """Run each schedule that can run on this topology; Ctrl-C leaves those that are done."""
        if len(schedules) == 1 and not self.synthesizes:
            return [self.run(schedules[0], size)]
        runs: list[Simulation] = []
        try:
            self._run_each(sorted(schedules, key=_effort), size, runs)
            if self.synthesizes:
                with waiting("synthesizing"):
                    schedule = self.synthesized(size)
                runs.append(self.run(schedule, size))
        except KeyboardInterrupt:
            raise StoppedError(runs, len(schedules) + self.synthesizes) from None
        places = {schedule.label: place for place, schedule in enumerate(schedules)}
        runs.sort(key=lambda run: places.get(run.jobs[0].schedule.label, len(places)))
        if not runs:
            raise UsageError("none of the algorithms can run on this topology; use another")
        return runs

    def those_that_run(self, schedules: list[Schedule]) -> list[Schedule]:
        """The schedules that can run on this topology; the others are named once."""
        return [run.jobs[0].schedule for run in self._run_each(schedules, 0, [])]

    def _run_each(self, schedules: list[Schedule], size: int, runs: list[Simulation]) -> list[Simulation]:
        """Run one after another, and add to `runs`."""
        unreachable: dict[str, NoPathError] = {}
        for number, schedule in enumerate(schedules, 1):
            try:
                runs.append(self.run(schedule, size, f", {number} of {len(schedules)}"))
            except NoPathError as error:
                unreachable[schedule.algorithm] = error
            except (RefusedError, DeadlockError) as error:
                echo_note(f"left out: {schedule.algorithm}: {error}" if self.packets else f"left out: {error}")
        if unreachable and not runs and not self.synthesizes:  # the network is cut
            raise next(iter(unreachable.values()))
        for name, missing in unreachable.items() if runs else ():
            echo_note(f"left out: {name}: {missing}")
        return runs

    def schedules(self) -> list[Schedule]:
        """One schedule, or one of each algorithm that can be built and is not absurdly long.

        A schedule that is synthesized for a size is not among them.
        """
        if self.chosen.schedule is not None or not self.many:
            return [] if self.synthesizes else [self.schedule(0)]
        found = []
        named = replace(self.chosen, algorithms=tuple(name for name in self.chosen.named if name != SYNTHESIZED))
        for candidate in named.candidates(self.where.ranks):
            try:
                with waiting(f"building {candidate.algorithms[0]}"):
                    schedule = self._built(candidate)
                    _check_length(schedule)
                found.append(schedule)
            except (RefusedError, AlgorithmError, ScheduleError, ProofError, UsageError) as error:
                left_out(candidate, error)
        if not found:
            raise UsageError(f"none of these algorithms works with {counted(self.where.ranks, 'rank')}; use others")
        return found

    def schedule(self, size: int) -> Schedule:
        """The one schedule asked for, or the one that the topology's dimensions suggest."""
        from choreo.prove.checked import checked
        from choreo.simulate import suggested_schedule

        chosen = self.chosen
        if chosen.schedule is not None:
            return checked(chosen.build(None), shown(chosen.schedule))
        assert chosen.collective is not None
        if chosen.algorithms == (SYNTHESIZED,):
            return self.synthesized(size)
        if chosen.algorithms:
            return self._built(chosen)
        if chosen.axes is not None or chosen.rotate:
            return self._built(replace(chosen, algorithms=("hierarchical",)))
        if chosen.option:
            names = " ".join(f"--option {shlex.quote(text)}" for text in chosen.option)
            raise UsageError(f"{names} is for one algorithm; name it with --algorithm")
        return suggested_schedule(
            chosen.collective,
            self.where.topology,
            self.where.ranks,
            root=chosen.root,
            segments=chosen.segments,
            along_dimensions=self.where.devices is None,
        )

    def _built(self, candidate: ScheduleOptions) -> Schedule:
        """The schedule of one algorithm, which keeps its promise."""
        options = self._along_dimensions(candidate)
        check_implied(options, self.where.ranks, self.file_bytes)
        return trusted(options, self.where.ranks)

    def _along_dimensions(self, candidate: ScheduleOptions) -> ScheduleOptions:
        """The options with the topology's dimensions as axes, where the algorithm wants axes and has none."""
        from choreo.algorithms import axes_of, get_algorithm

        assert candidate.collective is not None
        (name,) = candidate.algorithms
        if candidate.axes is not None or "axes" not in get_algorithm(candidate.collective, name).options:
            return candidate
        if self.where.devices is not None or self.where.ranks != self.where.topology.num_devices:
            return candidate
        return replace(candidate, axes=str(axes_of(self.where.topology)))


def parse_beside(text: str, topology: Topology) -> Job:
    """Another collective, from `all_to_all:pairwise=4MiB@0..7`."""
    from choreo.algorithms import build
    from choreo.simulate import Job, suggested_schedule

    what, equals, rest = text.partition("=")
    size, at, where = rest.partition("@")
    if not (equals and size):
        raise UsageError(f"--beside {text!r} is not understood; write all_to_all:pairwise=4MiB@0..7")
    devices = parse_placement(where, topology, "--beside") if at else list(range(topology.num_devices))
    collective, colon, algorithm = what.strip().partition(":")
    if colon:
        schedule = build(collective, algorithm, len(devices))
    else:
        schedule = suggested_schedule(collective, topology, len(devices), along_dimensions=not at)
    return Job(schedule, parse_size(size), devices)


def sizes_of(size: int | None, sweep: tuple[int, int] | None) -> list[int]:
    """One size, or a sweep that doubles from one end to the other."""
    if size is not None:
        return [size]
    first, last = sweep or (0, 0)
    sizes = [first]
    while 2 * sizes[-1] <= last and sizes[-1] > 0:
        sizes.append(2 * sizes[-1])
    return sizes


def _check_length(schedule: Schedule) -> None:
    if _length(schedule) > MOST_TRANSFERS:
        raise RefusedError(f"it has more than {MOST_TRANSFERS} transfers; name it to run it anyway")


def _effort(schedule: Schedule) -> float:
    """What a simulation takes, roughly: every transfer shares links anew with those of its step that end."""
    return float(_length(schedule)) ** 2 / max(1, schedule.num_steps)


# Asked for twice: whether a schedule is too long, and which is quick to simulate. A count may take seconds.
@lru_cache(maxsize=64)
def _length(schedule: Schedule) -> int:
    return schedule.count_transfers(MOST_TRANSFERS)
