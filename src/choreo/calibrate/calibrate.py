"""Calibrate alpha, beta and gamma between ranks of this machine, measured with the executor itself."""

from __future__ import annotations

import datetime
import math
import os
import socket
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from choreo.algorithms import build
from choreo.bench.inputs import case_of
from choreo.bench.session import BenchSession, race
from choreo.calibrate.fit import Sample, fit
from choreo.checks import whole_number
from choreo.errors import CalibrationError, ChoreoError, UsageError, shown
from choreo.results import Result, result
from choreo.run.execute.backend import warn_if_slow
from choreo.run.execute.constants import Band, Buffers, Constants, default_constants, save_constants
from choreo.units import counted, size_of, time_of

__all__ = ["MAX_ERROR", "PROBES", "Calibration", "calibrate"]

# With and without reductions, in one step and in several; mostly those that are chosen in shared memory.
PROBES = (
    ("broadcast", "linear"),
    ("all_gather", "direct"),
    ("reduce_scatter", "direct"),
    ("all_reduce", "direct"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "parameter_server"),
)
SIZES = tuple(8 << (3 * power) for power in range(8))  # 8 B to 16 MiB; beyond, bytes cost the same
CACHED_BYTES, MEMORY_BYTES = 32 << 10, 64 << 20
# A fit that is off by more than this, in the median probe of its band, says nothing about the machine.
MAX_ERROR = 0.5


@result
class Calibration(Result):
    """The constants of this machine, the samples that they were fitted to, and the error of the fit.

    Bands of sizes whose error is above `MAX_ERROR` are not kept. A number of ranks is left out entirely if that holds
    for most of its bands. `load_average` is the load of the machine before the measurement.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "format",
        "host",
        "date",
        "cores",
        "error",
        "left_out",
        "load_average",
        "bands",
        "rates_bytes_per_s",
    )

    constants: Constants
    samples: tuple[Sample, ...]
    load_average: float

    @property
    def error(self) -> float:
        """The relative error of the median probe, in the band of sizes and ranks where that is largest."""
        return max(band.residual for band in self.constants.bands)

    @property
    def left_out(self) -> list[int]:
        """The numbers of ranks whose fit says nothing about the machine: most of its bands are off by `MAX_ERROR`."""
        bands = Counter(band.ranks for band in self.constants.bands)
        off = Counter(band.ranks for band in self.constants.bands if band.residual > MAX_ERROR)
        return sorted(ranks for ranks, count in bands.items() if 2 * off[ranks] > count)

    @property
    def kept(self) -> tuple[Band, ...]:
        """The bands whose fit says something about the machine."""
        left_out = self.left_out
        return tuple(band for band in self.constants.bands if band.residual <= MAX_ERROR and band.ranks not in left_out)

    @property
    def format(self) -> str:
        """The format of the file of constants."""
        return self.constants.format

    @property
    def host(self) -> str:
        """The name of this machine."""
        return self.constants.host

    @property
    def date(self) -> str:
        """The date of the measurement: ISO 8601, UTC."""
        return self.constants.date

    @property
    def cores(self) -> int:
        """The number of cores."""
        return self.constants.cores

    @property
    def bands(self) -> list[dict[str, Any]]:
        """Alpha, bandwidth and gamma by number of ranks and size."""
        found: list[dict[str, Any]] = msgspec.to_builtins(self.constants.bands)
        return found

    @property
    def rates_bytes_per_s(self) -> dict[str, float]:
        """Bytes a second that one rank, or all at once, copy and add, in cache and in memory."""
        return self.constants.rates_bytes_per_s

    def summary(self) -> str:
        """The calibration in one line: the machine, and the error."""
        ranks = sorted({band.ranks for band in self.constants.bands})
        return f"{shown(self.host)}, {', '.join(map(str, ranks))} ranks, error {100 * self.error:.0f} %"

    def check(self) -> None:
        """Raise `CalibrationError` if no number of ranks has a fit whose error is at most `MAX_ERROR`."""
        if self.kept:
            return
        worst = max(self.constants.bands, key=lambda band: band.residual)
        raise CalibrationError(
            f"not kept: the error of the fit is {100 * worst.residual:.0f} % at {worst.ranks} ranks, where at most "
            f"{100 * MAX_ERROR:.0f} % is kept; the load average is {self.load_average:.1f} on "
            f"{counted(self.cores, 'core')}: measure again on an idle machine, with fewer ranks or more rounds, or "
            "keep it anyway (--force, force=True)"
        )

    def save(self, *, force: bool = False) -> Path:
        """Keep the constants for every later run of this user, and return the file.

        Numbers of ranks that are `left_out` use the constants of the nearest that is kept, and sizes that are those of
        the next larger; `force` keeps all.
        """
        if force:
            return save_constants(self.constants)
        self.check()
        return save_constants(msgspec.structs.replace(self.constants, bands=self.kept))


def calibrate(
    ranks: Sequence[int] = (2, 4, 8),
    *,
    most_bytes: int | str = SIZES[-1],
    rounds: int = 3,
    round_s: float | str = 0.01,
    pin: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measure alpha, beta and gamma between these numbers of ranks, at sizes up to `most_bytes`.

    A probe is timed `rounds` times, for about `round_s` (seconds, or text like "10ms") each.

    Nothing is kept until `save()` is called on the result, which refuses a bad fit. `progress` gets the number of sizes
    done, and of all. The defaults take about a minute on an idle machine.

    >>> import choreo
    >>> found = choreo.calibrate([2], most_bytes=8, rounds=1)
    >>> found.bands[0]["ranks"], found.error >= 0
    (2, True)
    """
    if not ranks or min(ranks) < 2:
        raise UsageError(f"calibrating needs at least 2 ranks, which send messages, not {min(ranks, default=0)}")
    rounds = whole_number("rounds", rounds)
    warn_if_slow()
    most, round_s = size_of(most_bytes, "most_bytes"), time_of(round_s, "round_s")
    sizes = [size for size in SIZES if size <= most]
    if not sizes:
        raise UsageError(f"most_bytes (--most) must be at least {SIZES[0]}, not {most:g}")
    load_average = os.getloadavg()[0]
    samples: list[Sample] = []
    cores = os.cpu_count() or 1
    rates: dict[str, float] = {}
    done, total = 0, len(ranks) * len(sizes)
    for count in ranks:
        with BenchSession(count, default_constants(), pin=pin) as session:
            for size in sizes:
                kinds: tuple[Buffers, ...] = ("private", "registered") if size >= 1 << 18 else ("private",)
                for buffers in kinds:
                    samples += _measure(session, size, buffers, rounds, round_s)
                done += 1
                if progress is not None:
                    progress(done, total)
            rates |= _rates(session, count)
    bands = [
        band
        for count in ranks
        for buffers in ("private", "registered")
        for band in fit([sample for sample in samples if sample.ranks == count and sample.buffers == buffers], cores)
    ]
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    host = socket.gethostname()
    constants = Constants(tuple(bands), host=host, date=now, cores=cores, rates_bytes_per_s=rates)
    return Calibration(constants, tuple(samples), load_average)


def _measure(session: BenchSession, size: int, buffers: Buffers, rounds: int, round_s: float) -> list[Sample]:
    """Time every probe at one size, in turns."""
    ranks, contestants, cases = session.ranks, [], []
    for collective, algorithm in PROBES:
        try:
            build(collective, algorithm, ranks)
        except ChoreoError:
            continue
        case = case_of(collective, ranks, size)
        contestant = session.ours(collective, algorithm, registered=buffers == "registered")
        contestant.prepare(case, 60.0)
        first_s = contestant.time(1, 2, 60.0)
        contestant.iterations = min(1000, max(1, math.ceil(round_s / max(first_s, 1e-7))))
        contestants.append(contestant)
        cases.append((algorithm, case))
    race(contestants, rounds, 60.0)
    session.choreo.ask({"do": "forget"})
    return [
        Sample(case.collective, algorithm, ranks, case.size_bytes, size, contestant.median_s, buffers)
        for contestant, (algorithm, case) in zip(contestants, cases, strict=True)
    ]


def _rates(session: BenchSession, ranks: int) -> dict[str, float]:
    """Bytes a second that a rank copies and adds while all ranks do."""
    answers = session.choreo.ask({"do": "rates", "sizes": [CACHED_BYTES, MEMORY_BYTES]})
    found: dict[str, float] = {}
    for verb in ("copy", "add"):
        for place, size in (("cache", CACHED_BYTES), ("memory", MEMORY_BYTES)):
            rate = statistics.median(float(answer["rates"][f"{verb} {size}"]) for answer in answers)
            found[f"{verb} in {place}, {ranks} ranks"] = rate
    return found
