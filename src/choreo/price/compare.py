"""Algorithms side by side, and exactly where one starts to win over another.

A step's price is the greatest of a few straight lines in n, so a schedule's price is piecewise linear in n. Between
two breakpoints every price is a straight line and the cheapest one is found by intersecting lines, in exact
fractions: no crossover is missed or guessed from samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise

from choreo.algorithms import build as build_schedule
from choreo.algorithms import list_algorithms
from choreo.errors import RefusedError, UsageError
from choreo.price.cost import Link, Price, price_of
from choreo.price.profile import Profile, profile
from choreo.schedule import Schedule

__all__ = ["WinningRange", "compare", "profiles", "winners"]


@dataclass(frozen=True, slots=True)
class WinningRange:
    """For sizes of `from_bytes` to `to_bytes`, both included, `algorithm` is the cheapest."""

    from_bytes: int
    to_bytes: int
    algorithm: str


@dataclass(frozen=True, slots=True)
class _Line:
    """A price that is `fixed` + `slope` n seconds."""

    fixed: Fraction
    slope: Fraction

    def at(self, size: Fraction) -> Fraction:
        return self.fixed + self.slope * size


def profiles(collective: str, ranks: int, *, root: int | None = None, ports: str = "one") -> list[Profile]:
    """What every algorithm for a collective asks of the ranks; those that refuse this number of ranks are left out."""
    counted = []
    for found in list_algorithms(collective):
        try:
            schedule = build_schedule(collective, found.name, ranks, root=root)
        except RefusedError:
            continue
        counted.append(profile(schedule, ports))
    return counted


def compare(
    schedules: Iterable[Schedule | Profile], size_bytes: float, link: Link, *, ports: str = "one"
) -> list[Price]:
    """The prices of several schedules, cheapest first."""
    counted = [s if isinstance(s, Profile) else profile(s, ports) for s in schedules]
    return sorted((price_of(one, size_bytes, link) for one in counted), key=_preference)


def winners(
    schedules: Iterable[Schedule | Profile], from_bytes: int, to_bytes: int, link: Link, *, ports: str = "one"
) -> list[WinningRange]:
    """Who is cheapest for which sizes, exactly, from `from_bytes` to `to_bytes`.

    Where two cost the same, the one with fewer steps wins, then fewer bytes in all, then the first by name.
    """
    counted = [s if isinstance(s, Profile) else profile(s, ports) for s in schedules]
    if not counted:
        raise UsageError("there are no schedules to choose from")
    if not 0 <= from_bytes <= to_bytes:
        raise UsageError(f"sizes must run from at least 0 upwards, not from {from_bytes} to {to_bytes}")
    ordered = sorted(counted, key=lambda one: (one.num_steps, int(one.sent.sum()) / one.units, one.algorithm))
    first, last = Fraction(from_bytes), Fraction(to_bytes)
    corners = {first, last}
    for one in ordered:
        corners |= {corner for corner in _breakpoints(one, link) if first < corner < last}
    corner_list = sorted(corners)
    intervals = list(pairwise(corner_list)) or [(first, last)]
    changes: list[tuple[Fraction, str]] = []
    for start, end in intervals:
        lines = [_line(one, link, (start + end) / 2) for one in ordered]
        for size, index in _lower_envelope(lines, start, end):
            name = ordered[index].algorithm
            if not changes or changes[-1][1] != name:
                changes.append((size, name))
    return _whole_bytes(changes, from_bytes, to_bytes, ordered)


def _preference(one: Price) -> tuple[float, int, float, str]:
    return (one.total_s, one.steps, one.total_bytes, one.algorithm)


def _candidate_lines(one: Profile, link: Link) -> list[tuple[int, list[_Line]]]:
    alpha, gamma = Fraction(link.alpha_s), Fraction(link.gamma_s_per_byte)
    beta = 1 / Fraction(link.bandwidth_bytes_per_s)
    return [
        (
            kind.num_steps,
            [_Line(t.messages * alpha, (t.sent * beta + t.reduced * gamma) / one.units) for t in kind.candidates],
        )
        for kind in one.kinds
    ]


def _breakpoints(one: Profile, link: Link) -> set[Fraction]:
    """Sizes at which the slowest rank of some step may change."""
    found = set()
    for _, lines in _candidate_lines(one, link):
        for a, b in combinations(lines, 2):
            if a.slope != b.slope:
                found.add((b.fixed - a.fixed) / (a.slope - b.slope))
    return found


def _line(one: Profile, link: Link, inside: Fraction) -> _Line:
    """The price as a straight line around a size where no slowest rank changes."""
    fixed = slope = Fraction(0)
    for count, lines in _candidate_lines(one, link):
        worst = max(lines, key=lambda line: line.at(inside))
        fixed += count * worst.fixed
        slope += count * worst.slope
    return _Line(fixed, slope)


def _lower_envelope(lines: Sequence[_Line], start: Fraction, end: Fraction) -> list[tuple[Fraction, int]]:
    """From which size on which line is lowest; of equal lines the first."""
    at = start
    best = min(range(len(lines)), key=lambda i: (lines[i].at(start), lines[i].slope, i))
    envelope = [(start, best)]
    while True:
        now = lines[best]
        crossings = [
            ((line.fixed - now.fixed) / (now.slope - line.slope), line.slope, index)
            for index, line in enumerate(lines)
            if line.slope < now.slope
        ]
        later = [crossing for crossing in crossings if at <= crossing[0] < end]
        if not later:
            return envelope
        at, _, best = min(later)
        envelope.append((at, best))


def _whole_bytes(
    changes: list[tuple[Fraction, str]], from_bytes: int, to_bytes: int, ordered: list[Profile]
) -> list[WinningRange]:
    """The changes as ranges of whole bytes; at a size where two are equal the preferred one keeps it."""
    place = {one.algorithm: index for index, one in enumerate(ordered)}
    ranges: list[WinningRange] = []
    starts = [from_bytes]
    for (_, before), (size, after) in pairwise(changes):
        first_whole = -(-size.numerator // size.denominator)
        tie_kept = size.denominator == 1 and place[before] < place[after]
        starts.append(first_whole + 1 if tie_kept else first_whole)
    for index, (start, (_, name)) in enumerate(zip(starts, changes, strict=True)):
        end = starts[index + 1] - 1 if index + 1 < len(starts) else to_bytes
        if start > end:
            continue
        if ranges and ranges[-1].algorithm == name:
            ranges[-1] = WinningRange(ranges[-1].from_bytes, end, name)
        else:
            ranges.append(WinningRange(start, end, name))
    return ranges
