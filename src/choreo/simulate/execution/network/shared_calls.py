"""Calls that share links: one simulation, which others join.

Nothing is simulated twice. A call that was alone so far joins from its start, which is exact because it has met nobody
since. Everything starts over only if a new kind of call shows that groups represented by one do meet.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.simulate.execution.network.call import Call
from choreo.simulate.execution.network.components import Component, Components
from choreo.simulate.execution.network.runs import by_node
from choreo.simulate.flows.running import RunningJobs
from choreo.simulate.jobs import Job, Placed, placed
from choreo.topology import Topology

__all__ = ["Done", "SharedCalls"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
# Moments closer together than this fraction of the time are the same: they differ by rounding.
SAME_MOMENT = 1e-12


@dataclass(frozen=True, slots=True)
class Done:
    """Nodes of a call that are done, by number in the call, with their times; and when all of it is, if it is."""

    call: Call
    nodes: list[int]
    times_s: list[float]
    end_s: float | None


class SharedCalls:
    """The calls that share links, or did."""

    def __init__(
        self, topology: Topology, gamma_s_per_byte: float, compiled: bool | None, components: Components
    ) -> None:
        self._topology, self._gamma_s_per_byte, self._compiled = topology, gamma_s_per_byte, compiled
        self._components = components
        self._joined: list[tuple[Call, float]] = []  # all of them, with their starts
        self._kinds: dict[tuple[int, int], int] = {}
        self._first: list[Call] = []  # of each kind
        self._layout: list[Component] = []
        self._rows: list[Ints] = []  # by kind: the groups that stand for all
        self._places: list[Ints] = []  # and for each group, which of those represents it
        self.in_progress: dict[int, Call] = {}
        self._next_s: float
        self._begin_again()

    def join(self, calls: Iterable[tuple[Call, float]]) -> None:
        """Add calls, each from its start."""
        new = list(calls)
        fresh = [call for call, _ in new if self._add_kind(call)]
        before = self._rows
        if fresh:
            self._layout = self._components.of(self._first)
            kinds = range(len(self._first))
            self._rows = [np.concatenate([entry.rows[kind] for entry in self._layout]) for kind in kinds]
            self._places = [self._place(kind) for kind in kinds]
        self._joined += new
        self.in_progress |= {call.number: call for call, _ in new}
        if all(map(np.array_equal, before, self._rows)):  # kinds that are new have no calls yet
            for call, start_s in new:
                self._add(call, start_s)
        else:
            self._begin_again()

    def advance(self, until_s: float) -> list[Done]:
        """Advance until some node is done, but no further than this."""
        limit_s = until_s + abs(until_s) * SAME_MOMENT
        while self._next_s <= limit_s and self._next_s < float("inf"):
            self._next_s, members, times = self._jobs.advance(until_s)
            found = self._done(members, times)
            if found:
                return found
        return []

    def stop(self, now_s: float) -> tuple[list[tuple[Call, float]], list[tuple[Call, float]]]:
        """Stop when only messages are left: those in flight with the bytes left, and those sent, with the time."""
        receivers, left = self._jobs.stop(now_s)
        left_of = dict(zip(receivers.tolist(), left.tolist(), strict=True))
        going, out = [], []
        for run in self._runs:
            if run.call.number in self.in_progress:
                receiver = run.first + int(run.member[1])
                if receiver in left_of:
                    going.append((run.call, left_of[receiver]))
                else:
                    out.append((run.call, float(run.finish_s[run.member[0]])))
        return going, out

    def carried(self) -> tuple[Floats, Floats]:
        """The bytes that each link has carried, and the time it was busy."""
        total = np.zeros((2, len(self._topology.links.src)))
        sums = np.stack(self._jobs.links())
        for component in self._layout:
            for _, links in component.copies:
                total[:, links] += sums[:, component.links]
        return total[0], total[1]

    def _add_kind(self, call: Call) -> bool:
        key = id(call.schedule), id(call.members)
        if key in self._kinds:
            return False
        self._kinds[key] = len(self._first)
        self._first.append(call)
        return True

    def _begin_again(self) -> None:
        self._jobs = RunningJobs(self._topology, self._compiled)
        self._runs: list[_Running] = []
        self._starts: list[int] = []
        self._next_s = float("inf")
        for call, start_s in self._joined:
            self._add(call, start_s)

    def _add(self, call: Call, start_s: float) -> None:
        kind = self._kinds[id(call.schedule), id(call.members)]
        members = [self._jobs.add(self._placed(call, row, start_s)) for row in self._rows[kind].tolist()]
        self._runs.append(_Running(call, start_s, members[0], self._places[kind]))
        self._starts.append(members[0])
        self._next_s = min(self._next_s, start_s)

    def _placed(self, call: Call, row: int, start_s: float) -> Placed:
        job = Job(call.schedule, call.size_bytes, call.members.groups[row], start_s)
        return placed(job, self._topology, self._gamma_s_per_byte)

    def _place(self, kind: int) -> Ints:
        """For each group of a kind of call, the index of the group that represents it."""
        found, before = np.empty(len(self._first[kind].members.devices), np.int64), 0
        for component in self._layout:
            count = len(component.rows[kind])
            for rows, _ in component.copies:
                found[rows[kind]] = before + np.arange(count)
            before += count
        return found

    def _done(self, members: Ints, times: Floats) -> list[Done]:
        numbers = np.array([bisect.bisect_right(self._starts, member) - 1 for member in members.tolist()], np.int64)
        found = []
        for number in np.unique(numbers).tolist():
            run = self._runs[number]
            mine = numbers == number
            nodes, end_s = run.note(members[mine] - run.first, times[mine])
            if run.call.number not in self.in_progress:
                continue  # already reported before everything started over
            if end_s is not None:
                del self.in_progress[run.call.number]
            if nodes or end_s is not None:
                found.append(Done(run.call, nodes, run.finish_s[run.member[nodes]].tolist(), end_s))
        return found


class _Running:
    """A call in progress: when each member of the groups that stand for all is done."""

    def __init__(self, call: Call, start_s: float, first: int, place: Ints) -> None:
        self.call, self.start_s, self.first = call, start_s, first
        ranks, width = call.schedule.ranks, call.schedule.members
        self._everybody = (place[:, None] * width + np.arange(ranks)).ravel()
        self.member = self._everybody[call.members.first]  # of each node
        self._left = (int(place.max(initial=-1)) + 1) * width
        self.finish_s = np.empty(self._left)

    def note(self, members: Ints, times: Floats) -> tuple[list[int], float | None]:
        """Members are done: returns the finished nodes, and when the call finished, if it has."""
        self.finish_s[members] = times
        self._left -= len(members)
        nodes = np.flatnonzero(np.isin(self.member, members)).tolist()
        if self._left:
            return nodes, None
        by_node(self.call.members, self.finish_s[self._everybody], self.start_s)
        return nodes, float(self.finish_s.max(initial=self.start_s))
