"""How fast collectives run between local ranks: nccl-tests' figures, the price beside them, and other libraries.

All contestants take part in one run. At each size they take turns, round after round, in an order that rotates; a
contestant's time is the median of its rounds, a round's time that of its slowest rank.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from choreo.algorithms import build, get_algorithm, list_algorithms
from choreo.bench.inputs import OPERATIONS, Case, case_of, dtype_of
from choreo.bench.job import Job, Message
from choreo.collectives import get_collective
from choreo.errors import BenchmarkError, ChoreoError, UsageError
from choreo.price import profile
from choreo.price.price import price_of
from choreo.results import drawn
from choreo.run.execute.constants import Constants, load_constants

__all__ = ["PEERS", "Contestant", "Measured", "Options", "Report", "Stage", "bench", "geometric_mean", "sizes_between"]

PEERS = ("gloo", "openmpi")
MOST_ITERATIONS = 2000
MOST_SIZES = 1000
SLOW_S, SLOW_ROUNDS = 0.3, 3


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, in the words of nccl-tests; times in seconds."""

    collective: str
    ranks: int
    sizes: tuple[int, ...]
    dtype: str = "float"
    op: str = "sum"
    root: int = 0
    warmup: int = 5
    checks: int = 1
    iterations: int | None = None  # as many as fill `round_s`, unless told
    rounds: int = 5
    round_s: float = 0.02
    algorithm: str | None = None  # "all" races them
    against: tuple[str, ...] = ()
    registered: bool = False
    pin: bool = False  # each rank of each library to a core, in turn: without the scheduler's luck
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        contract = get_collective(self.collective)
        dtype_of(self.dtype)
        if self.op not in OPERATIONS:
            raise UsageError(f"there is no operation {self.op!r}; use one of {', '.join(OPERATIONS)}")
        if self.ranks < 1:
            raise UsageError(f"there must be at least 1 rank, not {self.ranks}")
        if contract.rooted:
            contract.check_root(self.root, self.ranks)
        if self.algorithm not in (None, "all"):
            get_algorithm(self.collective, str(self.algorithm))
        for name in self.against:
            if name not in PEERS:
                raise UsageError(f"there is no library {name!r} to run against; use {' or '.join(PEERS)}")
        if self.rounds < 1 or self.warmup < 0 or self.checks < 0 or not self.sizes:
            raise UsageError("there must be at least one round and one size, and nothing can be done less than 0 times")


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: a size, the algorithm that ran, its time, and what the peers took."""

    case: Case
    algorithm: str
    time_s: float
    wrong: int | None  # None: not checked
    predicted_s: float
    peers: dict[str, float] = field(default_factory=dict)
    iterations: int = 1

    @property
    def algbw_bytes_per_s(self) -> float:
        """Size over time."""
        return self.case.size_bytes / self.time_s

    @property
    def busbw_bytes_per_s(self) -> float:
        """What nccl-tests makes of it, to be held against a link's bandwidth."""
        return self.algbw_bytes_per_s * get_collective(self.case.collective).bus_factor(self.case.ranks)

    def ratio(self, peer: str) -> float:
        """How many times longer a peer took."""
        return self.peers[peer] / self.time_s


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, and what could not be done."""

    options: Options
    rows: tuple[Measured, ...]
    missing: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        return drawn(self)

    def document(self) -> dict[str, object]:
        """As --json prints it; GBps is 1e9 bytes a second."""
        return {
            "collective": self.options.collective,
            "ranks": self.options.ranks,
            "dtype": dtype_of(self.options.dtype).name,
            "results": [
                {
                    "size_bytes": row.case.size_bytes,
                    "algorithm": row.algorithm,
                    "time_us": row.time_s * 1e6,
                    "algbw_GBps": row.algbw_bytes_per_s / 1e9,
                    "busbw_GBps": row.busbw_bytes_per_s / 1e9,
                    "wrong": row.wrong,
                    "predicted_us": row.predicted_s * 1e6,
                    "peers": {name: {"time_us": time_s * 1e6} for name, time_s in row.peers.items()},
                }
                for row in self.rows
            ],
        }


@dataclass(slots=True)
class Contestant:
    """Whom to time on a case: ranks of a job, and under which name they know it."""

    label: str
    job: Job
    library: str = ""
    algorithm: str = ""
    times_s: list[float] = field(default_factory=list)
    iterations: int = 1
    first_s: float = 0.0

    def prepare(self, case: Case, timeout_s: float) -> None:
        """Get the arrays ready."""
        request: Message = {name: getattr(case, name) for name in Case.__dataclass_fields__}
        request |= {"do": "prepare", "name": self.label, "library": self.library}
        answer = self.job.ask(request, timeout_s)[0]
        self.algorithm = answer.get("algorithm", "")
        self.times_s = []

    def time(self, iterations: int, warmup: int, timeout_s: float) -> float:
        """Seconds a call, of the slowest rank."""
        request: Message = {"do": "time", "name": self.label, "library": self.library}
        answers = self.job.ask(request | {"iterations": iterations, "warmup": warmup}, timeout_s)
        return max(float(answer["time_s"]) for answer in answers) / iterations

    def check(self, timeout_s: float) -> int:
        """Wrong elements over all ranks."""
        return sum(int(answer["wrong"]) for answer in self.job.ask({"do": "check", "name": self.label}, timeout_s))

    @property
    def median_s(self) -> float:
        """The median of its rounds."""
        return statistics.median(self.times_s)


class Stage:
    """The jobs of a run, started once and stopped together. A peer that is not there is said so, once."""

    def __init__(self, ranks: int, constants: Constants, peers: Sequence[str] = (), *, pin: bool = False) -> None:
        self.ranks, self.constants = ranks, constants
        self.missing: list[str] = []
        self.peers: dict[str, Job] = {}
        self._exit = contextlib.ExitStack()
        try:
            self.choreo = self._exit.enter_context(Job("choreo", ranks, pin=pin))
            for name in peers:
                try:
                    job = self._exit.enter_context(Job(name, ranks, pin=pin))
                    job.ask({"do": "open"})
                    self.peers[name] = job
                except BenchmarkError as error:
                    self.missing.append(str(error))
        except BaseException:
            self._exit.close()
            raise

    def ours(self, collective: str, algorithm: str | None, *, registered: bool = False) -> Contestant:
        """A communicator of our own, which forces an algorithm if there is one to force."""
        name = f"{collective if algorithm else ''}:{algorithm or ''}:{'registered' if registered else ''}"
        request: Message = {"do": "open", "name": name, "collective": collective, "algorithm": algorithm}
        if algorithm is not None:
            found = get_algorithm(collective, algorithm)
            request["load"] = "" if found.in_library else found.source
        self.choreo.ask(request | {"registered": registered, "constants": self.constants.encoded()})
        return Contestant(f"choreo {name}", self.choreo, name)

    def drop(self, name: str, why: ChoreoError) -> None:
        """A peer that failed does not end the run."""
        self.missing.append(str(why))
        self.peers.pop(name).close()

    def close(self) -> None:
        """Stop everybody."""
        self._exit.close()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bench(
    options: Options,
    *,
    constants: Constants | None = None,
    stage: Stage | None = None,
    each: Callable[[Measured], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Measure every size; `each` is told of a row as soon as it is there, `say` of what could not be done.

    A `stage` that is already there is used, and left as it is.
    """
    if stage is None:
        constants = load_constants() if constants is None else constants
        with Stage(options.ranks, constants, options.against, pin=options.pin) as started:
            return bench(options, stage=started, each=each, say=say)
    rows: list[Measured] = []
    told = 0
    for size in options.sizes:
        for row in _rows(options, stage, size):
            rows.append(row)
            if each is not None:
                each(row)
        for sentence in stage.missing[told:]:
            if say is not None:
                say(sentence)
        told = len(stage.missing)
    return Report(options, tuple(rows), tuple(stage.missing))


def _rows(options: Options, stage: Stage, size: int) -> Iterator[Measured]:
    case = case_of(options.collective, options.ranks, size, dtype=options.dtype, op=options.op, root=options.root)
    ours = [stage.ours(case.collective, name, registered=options.registered) for name in _algorithms(options)]
    theirs = {name: Contestant(name, job) for name, job in stage.peers.items()}
    for name in list(theirs):
        try:
            theirs[name].prepare(case, options.timeout_s)
            _pilot(theirs[name], options)
        except BenchmarkError as error:
            del theirs[name]
            stage.drop(name, error)
    for contestant in list(ours):
        try:
            contestant.prepare(case, options.timeout_s)
            _pilot(contestant, options)
        except BenchmarkError as error:
            if options.algorithm != "all":
                raise
            ours.remove(contestant)  # of many, one may refuse: naive cannot work in place
            stage.missing.append(str(error))
    everybody = [*ours, *theirs.values()]
    # Where a call takes long enough to be steady, or patience is at stake, fewer rounds do.
    slow = max(one.iterations == 1 and one.first_s > SLOW_S for one in everybody)
    race(everybody, min(options.rounds, SLOW_ROUNDS) if slow else options.rounds, options.timeout_s)
    for one in ours:
        wrong = None
        for _ in range(options.checks):
            wrong = (wrong or 0) + one.check(options.timeout_s)
        peers = {name: contestant.median_s for name, contestant in theirs.items()}
        predicted = predicted_s(case, one.algorithm, stage.constants, registered=options.registered)
        yield Measured(case, one.algorithm, one.median_s, wrong, predicted, peers, one.iterations)
    for job in {id(one.job): one.job for one in [*ours, *theirs.values()]}.values():
        job.ask({"do": "forget"}, options.timeout_s)


def _pilot(contestant: Contestant, options: Options) -> None:
    """How many iterations fill a round."""
    contestant.first_s = contestant.time(1, 1, options.timeout_s)
    if contestant.first_s < options.round_s:
        contestant.first_s = contestant.time(3, options.warmup, options.timeout_s)
    fill = math.ceil(options.round_s / max(contestant.first_s, 1e-7))
    contestant.iterations = options.iterations or min(MOST_ITERATIONS, max(1, fill))


def race(contestants: Sequence[Contestant], rounds: int, timeout_s: float) -> None:
    """Rounds in turns; who begins rotates."""
    for number in range(rounds):
        first = number % len(contestants)
        for one in [*contestants[first:], *contestants[:first]]:
            one.times_s.append(one.time(one.iterations, 1, timeout_s))


def predicted_s(case: Case, algorithm: str, constants: Constants, *, registered: bool = False) -> float:
    """What `price` says of the algorithm that ran."""
    root = case.root if get_collective(case.collective).rooted else None
    schedule = build(case.collective, algorithm, case.ranks, root=root)
    counted = profile(schedule, "read", cores=constants.cores or None)
    link = constants.link_for(case.size_bytes, case.ranks, buffers="registered" if registered else "private")
    return price_of(counted, case.size_bytes, link).total_s


def _algorithms(options: Options) -> list[str | None]:
    if options.algorithm != "all":
        return [options.algorithm]
    found: list[str | None] = []
    for algorithm in list_algorithms(options.collective):
        try:
            schedule = build(options.collective, algorithm.name, options.ranks)
        except ChoreoError:
            continue
        if not schedule.switches:
            found.append(algorithm.name)
    return found


def sizes_between(first: int, last: int, *, factor: float | None = None, step: int | None = None) -> tuple[int, ...]:
    """From first to last, times a factor or plus a step; nccl-tests' -b, -e, -f and -i."""
    if not 0 <= first <= last:
        raise UsageError(f"the smallest size, {first}, must be at least 0 and at most the largest, {last}")
    if factor is not None and not (factor > 1 and math.isfinite(factor)):
        raise UsageError(f"the factor between sizes must be more than 1, not {factor:g}")
    if step is not None and step < 1:
        raise UsageError(f"the step between sizes must be at least 1 byte, not {step}")
    found, size = [], first
    while size <= last:
        found.append(size)
        if len(found) > MOST_SIZES:
            raise UsageError(f"more than {MOST_SIZES} sizes from {first} to {last}; take a larger factor or step")
        size = max(size + 1, math.floor(size * factor)) if factor is not None else size + (step or 1)
        if factor is None and step is None:
            break
    return tuple(found)


def geometric_mean(values: Sequence[float]) -> float:
    """Of ratios."""
    return math.exp(statistics.fmean(math.log(value) for value in values))
