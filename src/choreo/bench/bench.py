"""Benchmark collectives between ranks of this machine: nccl-tests' figures, beside the price and other libraries.

All libraries take part in one run. At each size they take turns, round after round, in an order that rotates. A time is
the median of the rounds, and a round's time that of its slowest rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from choreo.algorithms import build
from choreo.bench.inputs import Case, case_of
from choreo.bench.options import BenchOptions
from choreo.bench.result import Benchmark, Measurement
from choreo.bench.session import BenchSession, Contestant, race
from choreo.bench.sizes import sizes_between
from choreo.collectives import get_collective
from choreo.errors import BenchmarkError
from choreo.price import profile
from choreo.price.price import price_of
from choreo.run.execute.backend import warn_if_slow
from choreo.run.execute.constants import Constants, load_constants
from choreo.units import size_of, time_of

__all__ = ["bench", "measure", "predicted_s"]

MAX_ITERATIONS = 2000
SLOW_S, SLOW_ROUNDS = 0.3, 3
DEFAULT_SIZES = sizes_between(8, 32 << 20, factor=4)


def bench(
    collective: str,
    ranks: int,
    sizes: int | str | Iterable[int | str] = DEFAULT_SIZES,
    *,
    algorithm: str | None = None,
    against: Iterable[str] = (),
    dtype: str = "float",
    op: str = "sum",
    root: int = 0,
    registered: bool = False,
    pin: bool = False,
    rounds: int = 5,
    iterations: int | None = None,
    warmup: int = 5,
    checks: int = 1,
    round_s: float | str = 0.02,
    timeout_s: float | str = 120.0,
) -> Benchmark:
    """Measure a collective between ranks on this machine, which are started for it.

    `sizes` are bytes, or texts such as "4KiB". `algorithm` is a name, "all", or None for the one that Choreo chooses.
    `against` are other libraries that take turns with Choreo: "gloo", "openmpi", and "ray" (the naive way through its
    object store). Types and operations have the names of nccl-tests. `registered` uses arrays that peers can read in
    place. A time is the median of `rounds`; a round has as many calls as fill `round_s` (seconds, or text like "20ms"),
    or `iterations` calls. `checks` calls of each size are checked element by element.

    >>> import choreo
    >>> found = choreo.bench("all_reduce", 2, ["8", "4KiB"], rounds=1, iterations=1)
    >>> [(row.size_bytes, row.wrong) for row in found.results]
    [(8, 0), (4096, 0)]
    """
    several = [sizes] if isinstance(sizes, int | str) else sizes
    options = BenchOptions(
        collective,
        ranks,
        tuple(int(size_of(size, "sizes")) for size in several),
        dtype=dtype,
        op=op,
        root=root,
        warmup=warmup,
        checks=checks,
        iterations=iterations,
        rounds=rounds,
        algorithm=algorithm,
        against=tuple(against),
        registered=registered,
        pin=pin,
        round_s=time_of(round_s, "round_s"),
        timeout_s=time_of(timeout_s, "timeout_s"),
    )
    return measure(options)


def measure(
    options: BenchOptions,
    *,
    constants: Constants | None = None,
    session: BenchSession | None = None,
    each: Callable[[Measurement], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Benchmark:
    """Measure every size. `each` gets every row as soon as it is measured, `say` what could not be measured.

    A given `session` is used, and left open.
    """
    if session is None:
        warn_if_slow()
        constants = load_constants() if constants is None else constants
        with BenchSession(options.ranks, constants, options.against, pin=options.pin) as started:
            return measure(options, session=started, each=each, say=say)
    rows: list[Measurement] = []
    said = 0
    for row in (row for case in _cases(options) for row in _rows(options, session, case)):
        if say is not None:
            for sentence in session.missing[said:]:
                say(sentence)
        said = len(session.missing)
        rows.append(row)
        if each is not None:
            each(row)
    return Benchmark(options, tuple(rows), tuple(session.missing), session.busy_cores)


def _cases(options: BenchOptions) -> Iterable[Case]:
    """A case for each size; sizes that are rounded to the same one are measured once."""
    return dict.fromkeys(
        case_of(options.collective, options.ranks, size, dtype=options.dtype, op=options.op, root=options.root)
        for size in options.sizes
    )


def _rows(options: BenchOptions, session: BenchSession, case: Case) -> Iterator[Measurement]:
    ours = [session.ours(case.collective, name, registered=options.registered) for name in options.algorithms()]
    theirs = {name: Contestant(name, processes) for name, processes in session.peers.items()}
    for name in list(theirs):
        try:
            theirs[name].prepare(case, options.timeout_s)
            _pilot(theirs[name], options)
        except BenchmarkError as error:
            del theirs[name]
            session.drop(name, error)
    for contestant in list(ours):
        try:
            contestant.prepare(case, options.timeout_s)
            _pilot(contestant, options)
        except BenchmarkError as error:
            if options.algorithm != "all":
                raise
            ours.remove(contestant)  # one of many may refuse: naive cannot work in place
            session.missing.append(str(error))
    everybody = [*ours, *theirs.values()]
    # Calls that take long are steady, so fewer rounds are enough.
    slow = max(contestant.iterations == 1 and contestant.first_s > SLOW_S for contestant in everybody)
    race(everybody, min(options.rounds, SLOW_ROUNDS) if slow else options.rounds, options.timeout_s)
    for contestant in ours:
        wrong = None
        for _ in range(options.checks):
            wrong = (wrong or 0) + contestant.check(options.timeout_s)
        peers = {name: contestant.median_s for name, contestant in theirs.items()}
        predicted = predicted_s(case, contestant.algorithm, session.constants, registered=options.registered)
        received = {name: peer.received_bytes for name, peer in theirs.items() if any(peer.received_bytes)}
        yield Measurement(
            case,
            contestant.algorithm,
            contestant.median_s,
            wrong,
            predicted,
            peers,
            contestant.iterations,
            received,
            tuple(contestant.times_s),
            {name: tuple(contestant.times_s) for name, contestant in theirs.items()},
        )
    for processes in {
        id(contestant.processes): contestant.processes for contestant in [*ours, *theirs.values()]
    }.values():
        processes.ask({"do": "forget"}, options.timeout_s)


def _pilot(contestant: Contestant, options: BenchOptions) -> None:
    """Find out how many iterations fill a round."""
    contestant.first_s = contestant.time(1, 1, options.timeout_s)
    if contestant.first_s < options.round_s:
        contestant.first_s = contestant.time(3, options.warmup, options.timeout_s)
    fill = math.ceil(options.round_s / max(contestant.first_s, 1e-7))
    contestant.iterations = options.iterations or min(MAX_ITERATIONS, max(1, fill))


def predicted_s(case: Case, algorithm: str, constants: Constants, *, registered: bool = False) -> float:
    """The price of the algorithm that ran."""
    root = case.root if get_collective(case.collective).rooted else None
    schedule = build(case.collective, algorithm, case.ranks, root=root)
    counted = profile(schedule, "read", cores=constants.cores or None)
    model = constants.cost_model_for(case.size_bytes, case.ranks, buffers="registered" if registered else "private")
    return price_of(counted, case.size_bytes, model).total_s
