"""The profile of a schedule: messages, bytes and reduced bytes of each step, before any link or size is known.

In one step a rank's ports carry messages out and in, and what it receives may be reduced. Its time is

    M alpha + B n beta + R n gamma

with M messages and B n bytes at the busier of its two ports and R n reduced bytes; the step takes as long as its
slowest rank. Which rank and port is slowest depends on the link and on n, so a step is stored as its few candidates:
those (M, B, R) that no other exceeds in all three. Steps with the same candidates are counted, not repeated. Shares of
n are exact: integers over one denominator.

A switch that reduces always has a port to every peer, and adds as fast as bytes arrive. So only its largest message
counts, and it has no gamma.

Where ranks share memory (`ports="read"`) sending is free: a rank reads its messages itself, from one peer after
another. It waits once per step, until everything has arrived, so M is 1 for any number of messages. In the end it
copies its own part of the input to its result, unless the collective works in place.

If they share cores as well (`cores`, fewer than the ranks), a step takes at least as long as the cores need for the
work of all ranks. This adds a candidate, whose terms are the sums over all ranks divided by the number of cores.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from choreo.collectives import Layout
from choreo.errors import UsageError, excerpt
from choreo.schedule import Schedule, Transfers, algorithm_label, check_schedule, first_rows, message_of

__all__ = ["PORTS", "Profile", "StepKind", "Terms", "profile"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PORTS = ("one", "all", "read")

# Keep an entry for every step and rank while that is at most this many times the rows.
DENSE = 4


class Terms(NamedTuple):
    """The work of one port of one rank in one step; bytes are in the profile's units.

    The terms are whole numbers, unless several ranks share a core.
    """

    messages: float
    sent: float
    reduced: float


class StepKind(NamedTuple):
    """Steps with the same work: how many there are, and the candidates for their slowest rank."""

    num_steps: int
    candidates: tuple[Terms, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The counts of a schedule that its price depends on.

    A unit of bytes is n / `units`, where n is the collective's size; a schedule that moves no bytes (a barrier, or
    any collective of one rank) has units 1 and zeros. `sent` and `received` are the units of each rank over all steps.
    """

    collective: str
    algorithm: str
    ranks: int
    num_steps: int
    units: int
    kinds: tuple[StepKind, ...]
    sent: Ints
    received: Ints
    max_fan_in: int
    axes: str | None = None

    @property
    def label(self) -> str:
        """The algorithm, with the axes it was built along, if any."""
        return algorithm_label(self.algorithm, self.axes)


def profile(schedule: Schedule, ports: str = "one", *, cores: int | None = None) -> Profile:
    """Count the work of the ranks in every step.

    `ports` is "one" (one port per direction), "all" (a port to every peer) or "read" (all ranks share memory). `cores`,
    if given, is how many cores the ranks share.

    >>> from choreo import build
    >>> profile(build("all_reduce", "ring", 4)).num_steps
    6
    """
    check_schedule(schedule, "has a price")
    if ports not in PORTS:
        raise UsageError(f"ports must be one of {', '.join(PORTS)}, not {ports!r}")
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int) or cores < 1):
        raise UsageError(f"cores must be a number of at least 1, not {excerpt(cores)}")
    if cores is not None and ports != "read":
        raise UsageError(f"cores goes with ports 'read', not {ports!r}; leave it out")
    ranks, members = schedule.ranks, schedule.members
    # All chunks together are `multiple` times n bytes, so one unit of weight is n / (total weight / multiple).
    multiple = round(schedule.contract.total_bytes(1, ranks))
    kinds: Counter[tuple[Terms, ...]] = Counter()
    sent, received = np.zeros(members, np.int64), np.zeros(members, np.int64)
    max_fan_in = 0
    for rows in schedule.blocks():
        sizes = schedule.weights_of(rows) * multiple
        block = _Block(rows, sizes, members - schedule.switches, members)
        sent += block.total(rows.src, sizes)
        received += block.total(rows.dst, sizes)
        max_fan_in = max(max_fan_in, block.max_fan_in())
        block.count_kinds(kinds, ports, cores if cores is not None and cores < ranks else None)
    if ports == "read" and (kept := _kept(schedule, cores)):
        kinds[(Terms(0, kept * multiple, 0),)] += 1
    counted = tuple(StepKind(count, candidates) for candidates, count in kinds.items())
    return Profile(
        schedule.collective,
        schedule.algorithm,
        ranks,
        schedule.num_steps,
        schedule.total_weight,
        counted,
        sent[:ranks],
        received[:ranks],
        max_fan_in,
        schedule.axes,
    )


def _kept(schedule: Schedule, cores: int | None) -> float:
    """The most weight that a rank copies from its input to its result, or the load per core if that is more."""
    contract, ranks = schedule.contract, schedule.ranks
    if contract.reduces or (contract.after is Layout.EVERYWHERE and contract.before is Layout.ROOT):  # in place
        return 0
    own = (schedule.held_before() & schedule.held_after())[:ranks]
    weights = np.ones(schedule.num_chunks, np.int64) if schedule.weights is None else schedule.weights
    copied = own @ weights
    most, shared = int(copied.max()), int(copied.sum()) / (cores or ranks)
    return most if shared <= most else shared


class _Block:
    """Some whole steps, as flat arrays with one entry for each step and member.

    If most members idle in most steps, only the entries that occur are kept. `starts` is where each step begins.
    `of_switch` marks the entries of switches; it is None if there are none.
    """

    def __init__(self, rows: Transfers, sizes: Ints, devices: int, members: int) -> None:
        self.members = members
        num_steps = int(rows.step[-1] - rows.step[0]) + 1
        at = (rows.step - rows.step[0]) * members
        out_port, in_port = at + rows.src, at + rows.dst
        present = None
        if num_steps * members <= DENSE * len(rows):
            self.entries, self.starts = num_steps * members, np.arange(num_steps) * members
        else:
            present, index = np.unique(np.concatenate((out_port, in_port)), return_inverse=True)
            self.entries, self.starts = len(present), np.searchsorted(present, np.arange(num_steps) * members)
            out_port, in_port = index[: len(rows)], index[len(rows) :]
        self.reduced = self._sum(in_port[rows.reduce], sizes[rows.reduce])
        self.of_switch: Bools | None = None
        if members > devices:
            self.of_switch = (np.arange(self.entries) if present is None else present) % members >= devices
            self.reduced[self.of_switch] = 0
        message = message_of(rows)
        if message.max() + 1 < len(rows):
            first = first_rows(message)
            sizes = np.bincount(message, weights=sizes).astype(np.int64)
            out_port, in_port = out_port[first], in_port[first]
        self.sizes, self.out_port, self.in_port = sizes, out_port, in_port

    def _sum(self, port: Ints, values: Ints) -> Ints:
        # bincount adds doubles; a sum of weights is at most 2**53 and so exact.
        return np.bincount(port, weights=values, minlength=self.entries).astype(np.int64)

    def total(self, member: Ints, sizes: Ints) -> Ints:
        """Units by member over all the block's steps."""
        return np.bincount(member, weights=sizes, minlength=self.members).astype(np.int64)

    def max_fan_in(self) -> int:
        """The most messages any rank receives in one step."""
        count = np.bincount(self.in_port, minlength=self.entries)
        return int(count.max() if self.of_switch is None else count[~self.of_switch].max(initial=0))

    def count_kinds(self, kinds: Counter[tuple[Terms, ...]], ports: str, cores: int | None) -> None:
        """Add each step's candidates to the count."""
        busy = (self.in_port, self.in_port) if ports == "read" else (self.out_port, self.in_port)
        sides = [(*self._port(port, ports), self.reduced) for port in busy]
        # Nearly always one candidate has the maximum of all three terms, and is the slowest on any link.
        most = np.maximum(*(np.stack([np.maximum.reduceat(v, self.starts) for v in side]) for side in sides))
        lengths = np.diff(np.append(self.starts, self.entries))
        highest = np.repeat(most, lengths, axis=1)
        has_most = np.logical_or(*((np.stack(side) == highest).all(axis=0) for side in sides))
        simple = np.logical_or.reduceat(has_most, self.starts)
        shared = None
        if cores is not None:
            at_ranks = np.ones(self.entries, np.bool_) if self.of_switch is None else ~self.of_switch
            shared = np.stack([np.add.reduceat(v * at_ranks, self.starts) for v in sides[1]]) / cores
            simple &= (shared <= most).all(axis=0)
            above = (shared >= most).all(axis=0)
            simple, most = simple | above, np.where(above, shared, most)
        alike = most[:, simple]
        if alike.shape[1] and (alike == alike[:, :1]).all():
            kinds[(Terms(*alike[:, 0].tolist()),)] += alike.shape[1]
        else:
            for terms in alike.T.tolist():
                kinds[(Terms(*terms),)] += 1
        for step in np.flatnonzero(~simple).tolist():
            inside = slice(self.starts[step], self.starts[step] + lengths[step])
            candidates = np.concatenate([np.stack([v[inside] for v in side], axis=1) for side in sides])
            if shared is not None:
                candidates = np.concatenate((candidates, shared[:, step : step + 1].T))
            kinds[_undominated(candidates)] += 1

    def _port(self, port: Ints, ports: str) -> tuple[Ints, Ints]:
        """Messages and units that one direction's port (or the busiest of its ports) carries."""
        count = np.bincount(port, minlength=self.entries)
        if ports == "one" and self.of_switch is None:
            return count, self._sum(port, self.sizes)
        if ports == "read" and self.of_switch is None:
            return np.minimum(count, 1), self._sum(port, self.sizes)
        largest = np.zeros(self.entries, np.int64)
        np.maximum.at(largest, port, self.sizes)
        if ports == "all" or self.of_switch is None:
            return np.minimum(count, 1), largest
        total, messages = self._sum(port, self.sizes), count if ports == "one" else np.minimum(count, 1)
        return np.where(self.of_switch, np.minimum(count, 1), messages), np.where(self.of_switch, largest, total)


def _undominated(candidates: Ints | Floats) -> tuple[Terms, ...]:
    """The candidates that no other one equals or exceeds in all three terms."""
    kept: list[Terms] = []
    for terms in sorted({Terms(*row) for row in candidates.tolist()}, reverse=True):
        if not any(all(a >= b for a, b in zip(other, terms, strict=True)) for other in kept):
            kept.append(terms)
    return tuple(kept)
