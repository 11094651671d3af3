"""The alpha, beta and gamma that explain measured probes best.

A probe is a collective by a given algorithm. Its price is M alpha + B beta + R gamma with known M, B and R: steps and
bytes as `ports="read"` counts them, because ranks read what they receive, with the `cores` that they share. At one
number of ranks and one size several probes are timed, from one step in which all read from one rank to exchanges
between all, with and without reductions. The fit is the least sum of relative errors with constants of at least 0. It
is found by iteratively reweighted least squares: a sample that is further off weighs less. Neighbouring sizes take part
with half the weight. Below a page only alpha is fitted: 8 bytes say nothing about beta, so bytes cost what they cost
just above.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from choreo.algorithms import build
from choreo.price import Profile, Terms, profile
from choreo.price.price import CostModel, slowest
from choreo.run.execute.constants import FASTEST_BYTES_PER_S, LEAST_ALPHA_S, Band, Buffers

__all__ = ["Sample", "fit"]

NEIGHBOUR = 0.5
# Rounds of the fit, and the relative error below which all samples weigh the same.
ROUNDS, NEGLIGIBLE = 8, 0.05
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of a probe. `near_bytes` is the size asked for, `size_bytes` that size in whole shares."""

    collective: str
    algorithm: str
    ranks: int
    size_bytes: int
    near_bytes: int
    time_s: float
    buffers: Buffers = "private"


def fit(samples: Sequence[Sample], cores: int) -> list[Band]:
    """A band for each size that was measured, up to the geometric mean with the next; all for one number of ranks."""
    sizes = sorted({sample.near_bytes for sample in samples})
    bands: list[Band] = []
    larger: CostModel | None = None
    for number, size in reversed(list(enumerate(sizes))):
        near = {size: 1.0} | {other: NEIGHBOUR for other in sizes[max(0, number - 1) : number + 2] if other != size}
        alone = larger is not None and size < PAGE_BYTES
        rows = [sample for sample in samples if sample.near_bytes in ({size} if alone else near)]
        larger = _solve(rows, [near[row.near_bytes] for row in rows], larger if alone else None, cores)
        here = [row for row in rows if row.near_bytes == size]
        predicted = _terms(here, larger, cores) @ _constants(larger)
        errors = [abs(float(time_s) / sample.time_s - 1) for time_s, sample in zip(predicted, here, strict=True)]
        to_bytes = round(math.sqrt(size * sizes[number + 1])) if number + 1 < len(sizes) else 1 << 62
        alpha, bandwidth, gamma = larger.alpha_s, larger.bandwidth_bytes_per_s, larger.gamma_s_per_byte
        residual = statistics.median(errors)
        bands.append(Band(rows[0].ranks, to_bytes, alpha, bandwidth, gamma, rows[0].buffers, residual))
    return bands[::-1]


def _solve(rows: Sequence[Sample], near: Sequence[float], bytes_as: CostModel | None, cores: int) -> CostModel:
    """The constants that explain these samples best; with `bytes_as` only alpha is fitted."""
    from scipy.optimize import nnls

    times = np.array([row.time_s for row in rows])
    even = weights = np.array(near) / times
    # The constants depend on which rank is slowest in a step, and that on the constants.
    link = bytes_as or CostModel(1e-6, 1e10, 1e-11)
    for number in range(ROUNDS):
        terms = _terms(rows, link, cores)
        if number:
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


# The constants are of very different magnitudes, so they are solved for in these units.
_SCALE = np.array([1e-6, 1e-10, 1e-10])


def _terms(rows: Sequence[Sample], link: CostModel, cores: int) -> npt.NDArray[np.float64]:
    """The messages, bytes and reduced bytes of every sample."""
    found = np.empty((len(rows), 3))
    for number, row in enumerate(rows):
        counted = _counted(row.collective, row.algorithm, row.ranks, cores)
        terms: Terms = slowest(counted, row.size_bytes, link)
        share = row.size_bytes / counted.units
        found[number] = terms.messages, terms.sent * share, terms.reduced * share
    return found


@lru_cache
def _counted(collective: str, algorithm: str, ranks: int, cores: int) -> Profile:
    return profile(build(collective, algorithm, ranks), "read", cores=cores)
