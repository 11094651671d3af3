"""The libraries of a benchmark: their ranks are started once, and take turns."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from choreo.algorithms import get_algorithm
from choreo.bench.busy import busy_cores
from choreo.bench.inputs import Case
from choreo.bench.processes import Message, RankProcesses
from choreo.errors import BenchmarkError, ChoreoError
from choreo.run.execute.constants import Constants

__all__ = ["BenchSession", "Contestant", "race"]


@dataclass(slots=True)
class Contestant:
    """A contestant on a case: the ranks of a library, and the library's name for the case."""

    label: str
    processes: RankProcesses
    library: str = ""
    algorithm: str = ""
    times_s: list[float] = field(default_factory=list)
    iterations: int = 1
    first_s: float = 0.0
    received_bytes: tuple[float, ...] = ()  # a call, by rank, where the library counts them

    def prepare(self, case: Case, timeout_s: float) -> None:
        """Allocate the arrays, and find out which algorithm runs."""
        request: Message = {name: getattr(case, name) for name in Case.__dataclass_fields__}
        request |= {"do": "prepare", "name": self.label, "library": self.library}
        answer = self.processes.ask(request, timeout_s)[0]
        self.algorithm = answer.get("algorithm", "")
        self.times_s = []

    def time(self, iterations: int, warmup: int, timeout_s: float) -> float:
        """Seconds per call of the slowest rank."""
        request: Message = {"do": "time", "name": self.label, "library": self.library}
        answers = self.processes.ask(request | {"iterations": iterations, "warmup": warmup}, timeout_s)
        self.received_bytes = tuple(answer["received_bytes"] / iterations for answer in answers)
        return max(float(answer["time_s"]) for answer in answers) / iterations

    def timelines(self, calls: int, warmup: int, timeout_s: float) -> list[list[Message]]:
        """For some calls, by rank, when each message was sent or received; only Choreo's own ranks can tell."""
        request: Message = {"do": "timeline", "name": self.label, "library": self.library}
        reports = self.processes.ask(request | {"calls": calls, "warmup": warmup}, timeout_s)
        return [[report["calls"][nth] for report in reports] for nth in range(calls)]

    def check(self, timeout_s: float) -> int:
        """The number of wrong elements over all ranks."""
        return sum(
            int(answer["wrong"]) for answer in self.processes.ask({"do": "check", "name": self.label}, timeout_s)
        )

    @property
    def median_s(self) -> float:
        """The median of its rounds."""
        return statistics.median(self.times_s)


class BenchSession:
    """The ranks of all libraries of a benchmark, started once.

    `missing` says which libraries are not installed, `busy_cores` how many cores others kept busy before the start.
    """

    def __init__(self, ranks: int, constants: Constants, peers: Sequence[str] = (), *, pin: bool = False) -> None:
        self.ranks, self.constants = ranks, constants
        self.busy_cores = busy_cores()
        self.missing: list[str] = []
        self.peers: dict[str, RankProcesses] = {}
        self._exit = contextlib.ExitStack()
        try:
            self.choreo = self._exit.enter_context(RankProcesses("choreo", ranks, pin=pin))
            for name in peers:
                try:
                    processes = self._exit.enter_context(RankProcesses(name, ranks, pin=pin))
                    processes.ask({"do": "open"})
                    self.peers[name] = processes
                except BenchmarkError as error:
                    self.missing.append(str(error))
        except BaseException:
            self._exit.close()
            raise

    def ours(self, collective: str, algorithm: str | None, *, registered: bool = False) -> Contestant:
        """Choreo as a contestant: with the algorithm that is chosen, or a given one."""
        name = f"{collective if algorithm else ''}:{algorithm or ''}:{'registered' if registered else ''}"
        request: Message = {"do": "open", "name": name, "collective": collective, "algorithm": algorithm}
        if algorithm is not None:
            found = get_algorithm(collective, algorithm)
            request["load"] = "" if found.in_library else found.source
        self.choreo.ask(request | {"registered": registered, "constants": self.constants.encoded()})
        return Contestant(f"choreo {name}", self.choreo, name)

    def drop(self, name: str, why: ChoreoError) -> None:
        """Leave out a peer that failed; the others go on."""
        self.missing.append(str(why))
        self.peers.pop(name).close()

    def close(self) -> None:
        """Stop all ranks."""
        self._exit.close()

    def __enter__(self) -> BenchSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def race(contestants: Sequence[Contestant], rounds: int, timeout_s: float) -> None:
    """Time contestants in turns, round after round; the first one rotates."""
    for number in range(rounds):
        first = number % len(contestants)
        for contestant in [*contestants[first:], *contestants[:first]]:
            contestant.times_s.append(contestant.time(contestant.iterations, 1, timeout_s))
