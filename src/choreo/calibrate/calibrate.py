"""Measures this machine: probes through the executor itself, and the alpha, beta and gamma that explain them best.

A probe is a collective by a given algorithm, whose price is M alpha + B beta + R gamma with known M, B and R: steps and
bytes as `ports="read"` counts them, since ranks read what they receive, with the `cores` that they share. At one number
of ranks and one size several probes are timed, from one step in which all read from one to exchanges between all with
and without reductions; the three constants are then those, at least 0, for which the relative errors are least in sum:
found by least squares in which a sample that is further off has less say. Neighbouring sizes join in with half the
weight. Below a page bytes cost what they cost just above, and only alpha is fitted: nothing can be said of beta from 8
bytes.
"""

from __future__ import annotations

import datetime
import math
import os
import socket
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from choreo.algorithms import build
from choreo.bench.bench import Stage, race
from choreo.bench.inputs import case_of
from choreo.errors import ChoreoError, UsageError
from choreo.price import Profile, Terms, profile
from choreo.price.price import CostModel, slowest
from choreo.run.execute.constants import FASTEST_BYTES_PER_S, LEAST_ALPHA_S, Band, Buffers, Constants, default_constants
from choreo.units import counted

__all__ = ["PROBES", "Sample", "calibrate", "fit", "why_not_kept"]

# With and without reductions, in one step and in several; mostly of those that are chosen in shared memory.
PROBES = (
    ("broadcast", "linear"),
    ("all_gather", "direct"),
    ("reduce_scatter", "direct"),
    ("all_reduce", "direct"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "parameter_server"),
)
SIZES = tuple(8 << (3 * power) for power in range(8))  # 8 B to 16 MiB; beyond, bytes cost the same
NEIGHBOUR = 0.5
# Turns of the fit, and the relative error below which all samples have the same say.
TURNS, NEGLIGIBLE = 8, 0.05
PAGE_BYTES = 4096
CACHED_BYTES, MEMORY_BYTES = 32 << 10, 64 << 20
# A fit that is off by more than this in the median probe says nothing about the machine.
MOST_ERROR = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """What a probe took. `near_bytes` is the size asked for, `size_bytes` that in whole shares."""

    collective: str
    algorithm: str
    ranks: int
    size_bytes: int
    near_bytes: int
    time_s: float
    buffers: Buffers = "private"


def calibrate(
    ranks: Sequence[int],
    *,
    most_bytes: int = SIZES[-1],
    rounds: int = 3,
    round_s: float = 0.01,
    pin: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Constants, list[Sample]]:
    """Measure, and fit; the constants, and the samples they come from."""
    if not ranks or min(ranks) < 2:
        raise UsageError(f"calibrating takes at least 2 ranks, which send messages, not {min(ranks, default=0)}")
    sizes = [size for size in SIZES if size <= most_bytes]
    samples: list[Sample] = []
    cores = os.cpu_count() or 1
    rates: dict[str, float] = {}
    done, total = 0, len(ranks) * len(sizes)
    for count in ranks:
        with Stage(count, default_constants(), pin=pin) as stage:
            for size in sizes:
                kinds: tuple[Buffers, ...] = ("private", "registered") if size >= 1 << 18 else ("private",)
                for buffers in kinds:
                    samples += _measure(stage, size, buffers, rounds, round_s)
                done += 1
                if progress is not None:
                    progress(done, total)
            rates |= _rates(stage, count)
    bands = [
        band
        for count in ranks
        for buffers in ("private", "registered")
        for band in fit([one for one in samples if one.ranks == count and one.buffers == buffers], cores)
    ]
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Constants(
        tuple(bands),
        host=socket.gethostname(),
        date=now,
        cores=cores,
        rates_bytes_per_s=rates,
    ), samples


def why_not_kept(constants: Constants) -> str | None:
    """Why these constants should not be kept: their fit is too far off. None where it is good enough."""
    worst = max(constants.bands, key=lambda band: band.residual)
    if worst.residual <= MOST_ERROR:
        return None
    cores = os.cpu_count() or 1
    return (
        f"not kept: the error of the fit is {100 * worst.residual:.0f} % at {worst.ranks} ranks, where at most "
        f"{100 * MOST_ERROR:.0f} % is kept; the load average is {os.getloadavg()[0]:.1f} on "
        f"{counted(cores, 'core')}: measure again on an idle machine, with fewer --ranks or more --rounds, or keep it "
        "all the same with --force"
    )


def fit(samples: Sequence[Sample], cores: int) -> list[Band]:
    """A band for each size measured, up to halfway (as a ratio) to the next; all of one number of ranks."""
    sizes = sorted({one.near_bytes for one in samples})
    bands: list[Band] = []
    larger: CostModel | None = None
    for number, size in reversed(list(enumerate(sizes))):
        near = {size: 1.0} | {other: NEIGHBOUR for other in sizes[max(0, number - 1) : number + 2] if other != size}
        alone = larger is not None and size < PAGE_BYTES
        rows = [one for one in samples if one.near_bytes in ({size} if alone else near)]
        larger = _solve(rows, [near[one.near_bytes] for one in rows], larger if alone else None, cores)
        here = [one for one in rows if one.near_bytes == size]
        predicted = _terms(here, larger, cores) @ _constants(larger)
        errors = [abs(float(time_s) / one.time_s - 1) for time_s, one in zip(predicted, here, strict=True)]
        to_bytes = round(math.sqrt(size * sizes[number + 1])) if number + 1 < len(sizes) else 1 << 62
        alpha, bandwidth, gamma = larger.alpha_s, larger.bandwidth_bytes_per_s, larger.gamma_s_per_byte
        residual = statistics.median(errors)
        bands.append(Band(rows[0].ranks, to_bytes, alpha, bandwidth, gamma, rows[0].buffers, residual))
    return bands[::-1]


def _solve(rows: Sequence[Sample], near: Sequence[float], bytes_as: CostModel | None, cores: int) -> CostModel:
    """The constants that explain these samples best; with `bytes_as` given, only alpha is open."""
    times = np.array([one.time_s for one in rows])
    even = weights = np.array(near) / times
    # Which rank is slowest in a step depends on the constants, and they on it.
    link = bytes_as or CostModel(1e-6, 1e10, 1e-11)
    for turn in range(TURNS):
        terms = _terms(rows, link, cores)
        if turn:
            off = np.abs(terms @ _constants(link) / times - 1)
            weights = even / np.sqrt(np.maximum(off, NEGLIGIBLE))
        if bytes_as is not None:
            left = times - terms[:, 1:] @ _constants(bytes_as)[1:]
            column = terms[:, 0] * weights
            alpha = max(LEAST_ALPHA_S, float(column @ (left * weights) / (column @ column)))
            link = CostModel(alpha, bytes_as.bandwidth_bytes_per_s, bytes_as.gamma_s_per_byte)
        else:
            found = nnls(terms * weights[:, None] * _SCALE, times * weights)[0] * _SCALE
            alpha = max(float(found[0]), LEAST_ALPHA_S)
            link = CostModel(alpha, 1 / max(float(found[1]), 1 / FASTEST_BYTES_PER_S), float(found[2]))
    return link


def _constants(link: CostModel) -> npt.NDArray[np.float64]:
    return np.array([link.alpha_s, link.beta_s_per_byte, link.gamma_s_per_byte])


# The unknowns are of very different magnitudes; solved for in these units.
_SCALE = np.array([1e-6, 1e-10, 1e-10])


def _terms(rows: Sequence[Sample], link: CostModel, cores: int) -> npt.NDArray[np.float64]:
    """Messages, bytes and reduced bytes of every sample."""
    found = np.empty((len(rows), 3))
    for number, one in enumerate(rows):
        counted = _counted(one.collective, one.algorithm, one.ranks, cores)
        terms: Terms = slowest(counted, one.size_bytes, link)
        share = one.size_bytes / counted.units
        found[number] = terms.messages, terms.sent * share, terms.reduced * share
    return found


@lru_cache
def _counted(collective: str, algorithm: str, ranks: int, cores: int) -> Profile:
    return profile(build(collective, algorithm, ranks), "read", cores=cores)


def _measure(stage: Stage, size: int, buffers: Buffers, rounds: int, round_s: float) -> list[Sample]:
    """Every probe at one size, taking turns."""
    ranks, contestants, cases = stage.ranks, [], []
    for collective, algorithm in PROBES:
        try:
            build(collective, algorithm, ranks)
        except ChoreoError:
            continue
        case = case_of(collective, ranks, size)
        one = stage.ours(collective, algorithm, registered=buffers == "registered")
        one.prepare(case, 60.0)
        first_s = one.time(1, 2, 60.0)
        one.iterations = min(1000, max(1, math.ceil(round_s / max(first_s, 1e-7))))
        contestants.append(one)
        cases.append((algorithm, case))
    race(contestants, rounds, 60.0)
    stage.choreo.ask({"do": "forget"})
    return [
        Sample(case.collective, algorithm, ranks, case.size_bytes, size, one.median_s, buffers)
        for one, (algorithm, case) in zip(contestants, cases, strict=True)
    ]


def _rates(stage: Stage, ranks: int) -> dict[str, float]:
    """What a rank copies and adds a second while all do."""
    answers = stage.choreo.ask({"do": "rates", "sizes": [CACHED_BYTES, MEMORY_BYTES]})
    found: dict[str, float] = {}
    for verb in ("copy", "add"):
        for place, size in (("cache", CACHED_BYTES), ("memory", MEMORY_BYTES)):
            rate = statistics.median(float(one["rates"][f"{verb} {size}"]) for one in answers)
            found[f"{verb} in {place}, {ranks} ranks"] = rate
    return found
