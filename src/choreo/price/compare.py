"""Algorithms side by side, and exactly where one starts to win over another.

A step's price is the greatest of a few straight lines in n, so a schedule's price is piecewise linear in n. Between
two breakpoints every price is a straight line and the cheapest one is found by intersecting lines, in exact
fractions: no crossover is missed or guessed from samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from typing import ClassVar

from choreo.checks import whole_number
from choreo.errors import UsageError, shown
from choreo.price.price import CostModel, Price, check_cost_model, price_of
from choreo.price.profile import Profile, Terms, profile
from choreo.results import Result, result
from choreo.schedule import Schedule, algorithm_label
from choreo.units import format_bytes, size_of

__all__ = ["WinningRange", "compare", "winners"]


@result
class WinningRange(Result):
    """A range of sizes, `from_bytes` to `to_bytes` inclusive, in which `algorithm` is the cheapest."""

    columns: ClassVar[tuple[str, ...]] = ("from_bytes", "to_bytes", "algorithm")

    from_bytes: int
    to_bytes: int
    algorithm: str
    axes: str | None = None

    @property
    def label(self) -> str:
        """The algorithm, with the axes it was built along, if any."""
        return algorithm_label(self.algorithm, self.axes)

    def summary(self) -> str:
        """The winner and its range of sizes."""
        return f"{shown(self.label)} from {format_bytes(self.from_bytes)} to {format_bytes(self.to_bytes)}"


@dataclass(frozen=True, slots=True)
class _Line:
    """A price that is `fixed` + `slope` n seconds."""

    fixed: Fraction
    slope: Fraction

    def at(self, size: Fraction) -> Fraction:
        return self.fixed + self.slope * size


def compare(
    schedules: Iterable[Schedule | Profile], size_bytes: float | str, cost_model: CostModel, *, ports: str = "one"
) -> list[Price]:
    """Price several schedules, cheapest first. Ties go to the smaller fan-in.

    >>> from choreo import build
    >>> names = ("ring", "naive", "recursive_doubling")
    >>> schedules = [build("all_reduce", name, 8) for name in names]
    >>> [one.algorithm for one in compare(schedules, "1KiB", CostModel("5us", "50GB/s"))]
    ['recursive_doubling', 'ring', 'naive']
    """
    counted = _counted(schedules, ports)
    prices = [price_of(candidate, size_bytes, cost_model) for candidate in sorted(counted, key=_simplicity)]
    return sorted(prices, key=lambda price: price.total_s)


def winners(
    schedules: Iterable[Schedule | Profile],
    from_bytes: int | str,
    to_bytes: int | str,
    cost_model: CostModel,
    *,
    ports: str = "one",
) -> list[WinningRange]:
    """Find the cheapest algorithm for each range of sizes, exactly, from `from_bytes` to `to_bytes`.

    Ties go to the smaller fan-in, then to fewer steps, fewer bytes in total, and last to the first name.

    >>> from choreo import build
    >>> schedules = [build("all_reduce", name, 8) for name in ("ring", "recursive_doubling")]
    >>> for one in winners(schedules, 1, "1GiB", CostModel("5us", "50GB/s")):
    ...     print(one.from_bytes, one.algorithm)
    1 recursive_doubling
    2200001 ring
    """
    check_cost_model(cost_model)
    counted = _counted(schedules, ports)
    from_bytes = whole_number("from_bytes", size_of(from_bytes, "from_bytes"), 0)
    to_bytes = whole_number("to_bytes", size_of(to_bytes, "to_bytes"), 0)
    if from_bytes > to_bytes:
        raise UsageError(f"sizes must run from at least 0 upwards, not from {from_bytes} to {to_bytes}")
    ordered = sorted(counted, key=_simplicity)
    first, last = Fraction(from_bytes), Fraction(to_bytes)
    corners = {first, last}
    for candidate in ordered:
        corners |= {corner for corner in _breakpoints(candidate, cost_model) if first < corner < last}
    changes: set[Fraction] = set(corners)
    for start, end in pairwise(sorted(corners)):
        lines = [_line(candidate, cost_model, (start + end) / 2) for candidate in ordered]
        changes |= set(_lower_envelope(lines, start, end))
    return _ranges(ordered, cost_model, from_bytes, to_bytes, changes)


def _counted(schedules: Iterable[Schedule | Profile], ports: str) -> list[Profile]:
    """The profile of each schedule; all must be of one collective."""
    if isinstance(schedules, Schedule | Profile):
        raise UsageError("give several schedules, in a list, to compare them")
    counted = [s if isinstance(s, Profile) else profile(s, ports) for s in schedules]
    if not counted:
        raise UsageError("there are no schedules to choose from")
    kinds = sorted({f"{candidate.collective} over {candidate.ranks} ranks" for candidate in counted})
    if len(kinds) > 1:
        raise UsageError(f"only schedules of one collective and number of ranks compare, not {', '.join(kinds)}")
    return counted


def _simplicity(candidate: Profile) -> tuple[int, int, float, str]:
    """The order of schedules that cost the same."""
    return (candidate.max_fan_in, candidate.num_steps, int(candidate.sent.sum()) / candidate.units, candidate.label)


def _candidate_lines(candidate: Profile, cost_model: CostModel) -> list[tuple[int, list[_Line]]]:
    alpha, gamma = Fraction(cost_model.alpha_s), Fraction(cost_model.gamma_s_per_byte)
    beta = 1 / Fraction(cost_model.bandwidth_bytes_per_s)

    def line(terms: Terms) -> _Line:
        messages, sent, reduced = map(Fraction, terms)
        return _Line(messages * alpha, (sent * beta + reduced * gamma) / candidate.units)

    return [(kind.num_steps, [line(terms) for terms in kind.candidates]) for kind in candidate.kinds]


def _breakpoints(candidate: Profile, cost_model: CostModel) -> set[Fraction]:
    """Sizes at which the slowest rank of some step may change."""
    found = set()
    for _, lines in _candidate_lines(candidate, cost_model):
        for a, b in combinations(lines, 2):
            if a.slope != b.slope:
                found.add((b.fixed - a.fixed) / (a.slope - b.slope))
    return found


def _line(candidate: Profile, cost_model: CostModel, inside: Fraction) -> _Line:
    """The price as a straight line around a size where no slowest rank changes."""
    fixed = slope = Fraction(0)
    for count, lines in _candidate_lines(candidate, cost_model):
        worst = max(lines, key=lambda line: line.at(inside))
        fixed += count * worst.fixed
        slope += count * worst.slope
    return _Line(fixed, slope)


def _lower_envelope(lines: Sequence[_Line], start: Fraction, end: Fraction) -> list[Fraction]:
    """The sizes at which another line becomes the lowest."""
    at = start
    found: list[Fraction] = []
    now = min(lines, key=lambda line: (line.at(start), line.slope))
    while True:
        crossings = [
            ((line.fixed - now.fixed) / (now.slope - line.slope), line.slope, line.fixed)
            for line in lines
            if line.slope < now.slope
        ]
        later = [crossing for crossing in crossings if at <= crossing[0] < end]
        if not later:
            return found
        at, slope, fixed = min(later)
        now = _Line(fixed, slope)
        found.append(at)


def _ranges(
    ordered: list[Profile], cost_model: CostModel, from_bytes: int, to_bytes: int, changes: set[Fraction]
) -> list[WinningRange]:
    """The winner at each whole size next to a change, and in between, merged into ranges."""

    def winner(size: Fraction) -> Profile:
        return min(ordered, key=lambda candidate: _line(candidate, cost_model, size).at(size))

    around = {math.floor(size) + offset for size in changes for offset in (0, 1)}
    stops = sorted(size for size in around if from_bytes <= size <= to_bytes)
    ranges: list[WinningRange] = []
    for stop, following in zip(stops, [*stops[1:], to_bytes + 1], strict=True):
        parts = [(stop, stop, winner(Fraction(stop)))]
        if following > stop + 1:
            parts.append((stop + 1, following - 1, winner(Fraction(stop + following, 2))))
        for start, end, cheapest in parts:
            first = ranges.pop().from_bytes if ranges and ranges[-1].label == cheapest.label else start
            ranges.append(WinningRange(first, end, cheapest.algorithm, cheapest.axes))
    return ranges
