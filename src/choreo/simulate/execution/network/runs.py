"""Calls that are simulated together, from start to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.schedule import Schedule, Steps, Transfers
from choreo.simulate.execution.network.call import Asymmetry, Call, Members
from choreo.simulate.execution.network.components import Components
from choreo.simulate.jobs import Job
from choreo.simulate.packets.report import PacketReport
from choreo.simulate.packets.settings import Packets
from choreo.simulate.simulate import simulate_together
from choreo.topology import Topology

__all__ = ["Carried", "Run", "Runs", "by_node"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
# Ends that differ by less than this fraction of the time differ by rounding.
SAME_END = 1e-9
# A schedule with more rows generates them each time.
MOST_HELD = 1 << 16


@dataclass(frozen=True, slots=True)
class Carried:
    """The links that carried something, and how much, for how long."""

    links: Ints
    bytes: Floats
    busy_s: Floats


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a joint simulation: when each node of each call ended, the load of links, and the packet report."""

    finish_s: list[Floats]
    carried: Carried
    links: int  # the links that carried something, as a bit mask
    report: PacketReport | None

    def end_s(self, start_s: float) -> float:
        """The time at which everything is done."""
        return max((float(times_s.max(initial=start_s)) for times_s in self.finish_s), default=start_s)


class Runs:
    """Simulates calls on a topology; results are cached."""

    def __init__(
        self, topology: Topology, gamma_s_per_byte: float, compiled: bool | None, packets: Packets | None
    ) -> None:
        self._topology, self._gamma_s_per_byte = topology, gamma_s_per_byte
        self._compiled, self._packets = compiled, packets
        self.components = Components(topology)
        self._found: dict[tuple[tuple[int, float, int, int], ...], Run] = {}
        self._held: dict[int, Schedule] = {}
        self._kept: list[Call] = []  # keeps the ids of schedules and members from being reused

    def alone(self, call: Call) -> Run:
        """A call by itself, starting at 0 s."""
        return self.together([(call, 0.0)])

    def together(self, calls: Sequence[tuple[Call, float]]) -> Run:
        """Run calls, each with its start in whole picoseconds; repeated layers come from the cache."""
        starts = [round(start_s * 1e12) for _, start_s in calls]
        key = tuple(
            (id(call.schedule), call.size_bytes, id(call.members), start)
            for (call, _), start in zip(calls, starts, strict=True)
        )
        if key not in self._found:
            self._kept += [call for call, _ in calls]
            self._found[key] = self._run([(call, start / 1e12) for (call, _), start in zip(calls, starts, strict=True)])
        return self._found[key]

    def _run(self, calls: Sequence[tuple[Call, float]]) -> Run:
        """Of the calls' groups that do not meet, identical ones are run once."""
        links = len(self._topology.links.src)
        finish_s = [np.empty(call.members.devices.shape) for call, _ in calls]
        carried, busy_s, report = np.zeros(links), np.zeros(links), None
        for component in self.components.of([call for call, _ in calls]):
            jobs = [
                Job(self._with_rows(call.schedule), call.size_bytes, call.members.groups[row], start_s)
                for (call, start_s), rows in zip(calls, component.rows, strict=True)
                for row in rows.tolist()
            ]
            run = simulate_together(
                jobs,
                self._topology,
                gamma_s_per_byte=self._gamma_s_per_byte,
                packets=self._packets,
                compiled=self._compiled,
            )
            found, report = run.loads, run.packets
            ends = iter(found.rank_finish_s)
            for at, (call, _) in enumerate(calls):
                for number in range(len(component.rows[at])):
                    end_s = next(ends)[: call.schedule.ranks]
                    finish_s[at][[rows[at][number] for rows, _ in component.copies]] = end_s
            for _, those in component.copies:
                carried[those] += found.link_bytes[component.links]
                busy_s[those] += found.link_busy_s[component.links]
        finishes = [
            by_node(call.members, end_s.ravel(), start_s)
            for (call, start_s), end_s in zip(calls, finish_s, strict=True)
        ]
        used = np.flatnonzero((carried > 0) | (busy_s > 0))
        bits = int.from_bytes(np.packbits(carried > 0, bitorder="little").tobytes(), "little")
        return Run(finishes, Carried(used, carried[used], busy_s[used]), bits, report)

    def _with_rows(self, schedule: Schedule) -> Schedule:
        """The schedule with its rows generated once, unless there are many: it runs again whenever a call joins."""
        key = id(schedule)
        if key not in self._held:
            rows, blocks = 0, []
            for block in schedule.blocks():
                blocks.append(block)
                rows += len(block)
                if rows > MOST_HELD:
                    break
            short = rows <= MOST_HELD
            self._held[key] = _held(schedule, Transfers.join(blocks)) if short else schedule
        return self._held[key]


def _held(schedule: Schedule, rows: Transfers) -> Schedule:
    steps = Steps.from_transfers(schedule.members, schedule.num_chunks, schedule.num_steps, rows)
    return replace(schedule, body=steps)


def by_node(members: Members, finish_s: Floats, start_s: float) -> Floats:
    """The end of each node of a call. All members that it stands for must end at the same time."""
    node = members.node.ravel()
    found: Floats = finish_s[members.first]
    if len(found) == len(finish_s):
        return found
    differ = np.abs(finish_s - found[node]) > (finish_s - start_s) * SAME_END
    if differ.any():
        ranked = np.argsort(finish_s, kind="stable")
        steps = np.diff(finish_s[ranked]) > (finish_s[ranked][1:] - start_s) * SAME_END
        label = np.empty(len(ranked), np.int64)
        label[ranked] = np.concatenate((np.zeros(1, np.int64), np.cumsum(steps)))
        raise Asymmetry(members.devices.ravel(), label)
    return found
