"""Synthesize a schedule for a collective and a network: every generator tries, the fastest by simulation wins."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from choreo.errors import ChoreoError, DeadlockError, NoPathError, RefusedError, UsageError, shown
from choreo.prove import prove
from choreo.results import Result, result
from choreo.schedule import Schedule
from choreo.simulate import Packets
from choreo.simulate.flows.limited import time_within
from choreo.simulate.jobs import Job, Placed, placed
from choreo.simulate.packets.limited import packet_time_within
from choreo.synthesize.generators.annealed import annealed
from choreo.synthesize.generators.exact import exact
from choreo.synthesize.generators.forested import forested
from choreo.synthesize.generators.greedy import greedy
from choreo.synthesize.generators.layered import layered
from choreo.synthesize.generators.library import busiest_link_s, library
from choreo.synthesize.generators.matched import matched
from choreo.synthesize.generators.overlapped import overlapped
from choreo.synthesize.generators.packed import packed
from choreo.synthesize.generators.railed import railed
from choreo.synthesize.generators.routed import routed
from choreo.synthesize.generators.translated import translated
from choreo.synthesize.improvers.refined import refined
from choreo.synthesize.improvers.regrown import regrown
from choreo.synthesize.improvers.rerouted import rerouted
from choreo.synthesize.problem import Candidate, Generator, Problem, UnsolvedError, read_problem
from choreo.synthesize.shares import evener
from choreo.topology import Topology
from choreo.topology.graph import Floats
from choreo.units import counted, format_bytes, format_time

__all__ = ["Synthesis", "search", "synthesize"]

# The search ends at this share of the bound, by effort.
ENOUGH = {"fast": 0.95, "low": 0.95, "medium": 0.98, "high": 0.995, "exact": 0.995}
# With more ranks the library comes last: it is slow to simulate there, and mostly far from the best.
FEW_RANKS = 128
# There an algorithm of the library is not simulated if its busiest link alone allows no more than this gain.
ALMOST = 1.001
# The shares with the least bound may leave ports no slack, so less uneven and equal shares are tried too.
EVENER = (0.7, 0.5)
# In this order; of equally fast schedules the first wins.
GENERATORS: tuple[Generator, ...] = (
    translated,
    overlapped,
    railed,
    packed,
    routed,
    matched,
    layered,
    greedy,
    forested,
    annealed,
)
# The most schedules that are rerouted and refined, all of them no slower than the best by more than this factor.
IMPROVED, NEARLY = 6, 1.15
# Efforts with which nothing is rerouted or refined: that takes seconds.
UNREFINED = ("fast", "low")
# Generators that solve no linear programs and do not try hundreds of schedules.
FAST: tuple[Generator, ...] = (translated, greedy)
# The generators by effort; the other efforts use all of them.
ASKED = {"fast": FAST, "exact": (exact, *GENERATORS)}


class _Timed(NamedTuple):
    """A schedule with its simulated time, or with a lower bound on it."""

    time_s: float
    candidate: Candidate
    at_least: bool


@result(eq=False)
class Synthesis(Result):
    """A synthesized schedule, the share of the bound it reaches, and the best of the library beside it.

    `generator` says how the schedule was made; `library` is the best algorithm of the library with its time, None if
    none could be tried. On large networks its simulation stops once it is slower, or does not begin if its busiest link
    allows no real gain: `at_least` then says that it takes this time or more. `made_in_s` is the time that the search
    took, in seconds.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "collective",
        "topology",
        "ranks",
        "size_bytes",
        "generator",
        "time_s",
        "bound_s",
        "efficiency",
        "library",
        "made_in_s",
    )

    problem: Problem
    schedule: Schedule
    generator: str
    time_s: float
    best_of_library: _Timed | None
    made_in_s: float
    best_in_steps: _Timed | None = None

    @property
    def collective(self) -> str:
        """The collective."""
        return self.problem.collective

    @property
    def topology(self) -> str:
        """The network's name."""
        return self.problem.topology.name

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.problem.ranks

    @property
    def size_bytes(self) -> float:
        """The collective's size."""
        return self.problem.size_bytes

    @cached_property
    def bound_s(self) -> float:
        """The least time that any schedule could take."""
        return self.problem.bound().bound_s

    @property
    def efficiency(self) -> float:
        """The share of the bound that the schedule reaches."""
        return self._share(self.time_s)

    @property
    def shares(self) -> list[float] | None:
        """The fraction of all data in each rank's block; None if all are equal or there are no blocks."""
        weights = self.problem.weights
        return None if weights is None or self.collective == "all_to_all" else (weights / weights.sum()).tolist()

    @property
    def library(self) -> dict[str, Any] | None:
        """The best algorithm of the library on this network."""
        if self.best_of_library is None:
            return None
        time_s, candidate, at_least = self.best_of_library
        found = {"algorithm": candidate.generator, "time_s": time_s, "efficiency": self._share(time_s)}
        return found | {"at_least": True} if at_least else found

    @property
    def proved(self) -> str | None:
        """What an exact search has proved about this schedule, or about the best in synchronous steps."""
        if self.best_in_steps is None:
            return None
        time_s, candidate, _ = self.best_in_steps
        if candidate.schedule.body is self.schedule.body:
            return f"optimal: {candidate.proved}"
        return f"in synchronous steps the best takes {format_time(time_s)}: {candidate.proved}"

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values.

        Unequal `shares`, the settings of packets, and what an exact search `proved` are there where there are any.
        """
        packets = None if self.problem.packets is None else dataclasses.asdict(self.problem.packets)
        some = {"shares": self.shares, "packets": packets, "proved": self.proved}
        return super().to_dict() | {name: value for name, value in some.items() if value is not None}

    def summary(self) -> str:
        """What was made, how, and what it reaches."""
        return (
            f"{self.collective} of {format_bytes(self.size_bytes)} over {counted(self.ranks, 'rank')} on "
            f"{shown(self.topology)}: {format_time(self.time_s)} by {self.generator}, "
            f"{100 * self.efficiency:.1f} % of the bound"
        )

    def _share(self, time_s: float) -> float:
        return self.bound_s / time_s if time_s > 0 else 1.0


def synthesize(
    collective: str,
    topology: Topology | str | Path,
    size_bytes: float | str,
    *,
    ranks: int | Sequence[int | str] | None = None,
    root: int | None = None,
    traffic: Sequence[Sequence[float]] | Floats | None = None,
    shares: Sequence[float] | Floats | str | None = None,
    relays: bool = True,
    effort: str = "medium",
    packets: Packets | None = None,
) -> Schedule:
    """The fastest schedule that can be found for a collective of a given size on a topology.

    It is proved, and never slower than the best of the library there. `ranks` is their number, or the device of each;
    all devices by default. `traffic` says how much each rank (rows) sends to each other in an all_to_all, and `shares`
    how large each rank's block is, both in any unit; "auto" finds the shares with the least bound, or more even ones if
    these are faster. With `relays`, devices without a rank and switches that reduce may forward, add and copy: they are
    members of the schedule, after its ranks. Without, only ranks do, as other tools' files need it. `effort` is fast,
    low, medium, high or exact. Low to high limit how large a schedule may be, and set the share of the bound that is
    enough; medium and above also refine the best. Fast tries only the quick generators. Exact also searches, on a small
    network, for a schedule that is optimal in synchronous steps, and proves that it is. With `packets` schedules are
    judged by packets through switches with finite buffers, not by flows.

    >>> synthesize("all_gather", "torus(4x4, 50GB/s, 500ns)", "1MiB").algorithm
    'synthesized'
    """
    return search(
        collective,
        topology,
        size_bytes,
        ranks=ranks,
        root=root,
        traffic=traffic,
        shares=shares,
        relays=relays,
        effort=effort,
        packets=packets,
    ).schedule


def search(
    collective: str,
    topology: Topology | str | Path,
    size_bytes: float | str,
    *,
    ranks: int | Sequence[int | str] | None = None,
    root: int | None = None,
    traffic: Sequence[Sequence[float]] | Floats | None = None,
    shares: Sequence[float] | Floats | str | None = None,
    relays: bool = True,
    effort: str = "medium",
    packets: Packets | None = None,
) -> Synthesis:
    """Like `synthesize`, but returns what was reached and how.

    >>> search("all_gather", "ring(8, 50GB/s, 500ns)", "1MiB").library["algorithm"]
    'ring_bidirectional'
    """
    started = time.process_time()
    problem = read_problem(
        collective,
        topology,
        size_bytes,
        ranks=ranks,
        root=root,
        traffic=traffic,
        shares=shares,
        relays=relays,
        effort=effort,
        packets=packets,
    )
    problems = [problem]
    if isinstance(shares, str) and problem.weights is not None:
        problems += [dataclasses.replace(problem, weights=evener(problem.weights, part)) for part in EVENER]
        problems.append(dataclasses.replace(problem, weights=None))
    return min((_searched(one, started) for one in reversed(problems)), key=lambda found: found.time_s)


def _searched(problem: Problem, started: float) -> Synthesis:
    """The result for a problem; `started` is when the search began."""
    enough_s = problem.bound().bound_s / ENOUGH[problem.effort]
    generators = ASKED.get(problem.effort, GENERATORS)
    tried: list[_Timed] = []
    of_library: list[_Timed] = []
    for generator in (*generators, library) if problem.ranks > FEW_RANKS else (library, *generators):
        best_s = min((one.time_s for one in tried), default=math.inf)
        if generator is library:
            of_library = list(_timed(problem, library, best_s))
            tried += (one for one in of_library if not one.at_least)
        elif generator is exact:  # it proves something, whatever is known already
            tried += _timed(problem, exact, math.inf)
        elif best_s > enough_s:
            tried += _timed(problem, generator, best_s, enough_s)
    for improve in (rerouted, regrown, refined) if problem.effort not in UNREFINED else ():
        best_s = min((one.time_s for one in tried), default=math.inf)
        if best_s > enough_s:
            best = _worth_improving(tried, best_s)
            tried += _timed(problem, functools.partial(improve, candidates=best), best_s, enough_s)
    tried.sort(key=lambda one: one.time_s)
    best_of_library = min(of_library, key=lambda one: one.time_s, default=None)
    for one in tried:
        try:
            prove(one.candidate.schedule)
        except ChoreoError:  # a generator's mistake must never get out
            continue
        return Synthesis(
            problem,
            one.candidate.schedule.named("synthesized"),
            one.candidate.generator,
            one.time_s,
            best_of_library,
            time.process_time() - started,
            min((other for other in tried if other.candidate.proved), key=lambda other: other.time_s, default=None),
        )
    raise UsageError(
        f"no schedule was found for {problem.collective} over {counted(problem.ranks, 'rank')} on "
        f"{problem.topology.name}; try more effort"
    )


def _worth_improving(tried: Sequence[_Timed], best_s: float) -> list[Candidate]:
    """The best schedule of each generator and number of chunks, if it is nearly as fast as the best of all."""
    kinds: dict[tuple[str, int], _Timed] = {}
    for one in sorted(tried, key=lambda one: one.time_s):
        if one.time_s <= NEARLY * best_s:
            kinds.setdefault((one.candidate.generator.split()[0], one.candidate.schedule.num_chunks), one)
    return [one.candidate for one in list(kinds.values())[:IMPROVED]]


def _timed(problem: Problem, generator: Generator, best_s: float, enough_s: float = -1.0) -> Iterator[_Timed]:
    """A generator's schedules with their simulated times, until one is fast enough.

    Schedules that cannot run on the network, or whose packets deadlock, are left out. The simulation of one that is
    slower than the best stops early; its time is then a lower bound.
    """
    for candidate in _made(problem, generator):
        if generator is library and problem.ranks > FEW_RANKS:
            least_s = busiest_link_s(candidate.schedule, problem)
            if best_s <= least_s * ALMOST:
                yield _Timed(least_s, candidate, at_least=True)
                continue
        try:
            job = placed(Job(candidate.schedule, problem.size_bytes, problem.devices.tolist()), problem.topology, 0.0)
            time_s = _time_within(problem, candidate, job, best_s)
        except (RefusedError, DeadlockError, NoPathError):  # the first one, if it needs switches that reduce
            continue
        planned = candidate.time_s is not None and problem.packets is None
        yield _Timed(time_s, candidate, at_least=not planned and time_s > best_s)
        best_s = min(best_s, time_s)
        if time_s <= enough_s:
            break


def _made(problem: Problem, generator: Generator) -> Iterator[Candidate]:
    """A generator's schedules, up to where its solver fails."""
    with contextlib.suppress(UnsolvedError):
        yield from generator(problem)


def _time_within(problem: Problem, candidate: Candidate, job: Placed, until_s: float) -> float:
    """The time of a candidate by packets or by flows; a plan's own time is that of flows."""
    if problem.packets is not None:
        return packet_time_within(job, problem.topology, problem.packets, until_s)
    return time_within(job, problem.topology, until_s) if candidate.time_s is None else candidate.time_s
