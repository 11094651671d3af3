"""The network under a workload: calls begin at any time, and those that share a link slow each other down.

Calls whose links nobody else uses take the time they take alone, which is worked out once. Calls that meet form an
island. All of it is simulated together, from its first start. That does not change what happened before the newest call
began, so members that are done stay done. Messages that meet no collective are flows, which need no history. So an
island ends when only messages are left of it.

Packets meet in the memory of switches, too, and their answers come back by other links. So of packets all calls that
are under way at once are one island.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from choreo.schedule import Schedule
from choreo.simulate.execution.call import Call, Members
from choreo.simulate.execution.components import Component, Ways, components_of, ways_of
from choreo.simulate.execution.folded import Asymmetry
from choreo.simulate.execution.message_flows import MessageFlows
from choreo.simulate.jobs import Job
from choreo.simulate.packets.report import PacketReport
from choreo.simulate.packets.settings import Packets
from choreo.simulate.simulate import simulate_together
from choreo.topology import Topology

__all__ = ["Network"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
# Members whose ends differ by less than this part of their time differ by rounding.
SAME_END = 1e-9


@dataclass(frozen=True, slots=True)
class _Carried:
    """The links that carried something, and how much, for how long."""

    links: Ints
    bytes: Floats
    busy_s: Floats


# When each node of each call is done, what the links carried, and of packets what happened to them.
_Found = tuple[list[Floats], _Carried, PacketReport | None]


@dataclass(frozen=True, slots=True)
class _Alone:
    """What a call does by itself: when each node is done, and its links as the bits of a number."""

    finish_s: Floats
    links: int
    carried: _Carried
    report: PacketReport | None = None


@dataclass(slots=True)
class _Island:
    """Calls that share links, each with its start."""

    calls: list[tuple[Call, float]]
    links: int
    end_s: float
    carried: _Carried
    report: PacketReport | None = None
    finish_s: dict[int, Floats] = field(default_factory=dict)  # of each call, by its number


@dataclass(slots=True)
class Network:
    """Follows calls on a topology; `link_bytes` and `link_busy_s` grow as calls are done."""

    topology: Topology
    gamma_s_per_byte: float = 0.0
    compiled: bool | None = None
    messages: Sequence[Members] = ()  # that will be sent
    packets: Packets | None = None
    link_bytes: Floats = field(init=False)
    link_busy_s: Floats = field(init=False)
    flows: MessageFlows | None = field(init=False)  # None where messages cost their ranks something, and of packets
    reports: list[PacketReport] = field(default_factory=list)
    _alone: dict[tuple[int, float, int], _Alone] = field(default_factory=dict)
    _together: dict[tuple[object, ...], tuple[list[Floats], _Carried, PacketReport | None]] = field(
        default_factory=dict
    )
    _known: dict[int, Schedule | Members] = field(default_factory=dict)  # kept, so that no other gets its id
    _ways: dict[tuple[int, ...], Ways] = field(default_factory=dict)
    _components: dict[tuple[object, ...], list[Component]] = field(default_factory=dict)
    _islands: list[_Island] = field(default_factory=list)
    _busy: int = 0  # the links of all islands

    def __post_init__(self) -> None:
        links = len(self.topology.links.src)
        self.link_bytes, self.link_busy_s = np.zeros(links), np.zeros(links)
        flows = MessageFlows(self.topology, self.messages)
        self.flows = flows if flows.possible and self.packets is None else None

    def begin(self, calls: Sequence[Call], now_s: float, sent: Sequence[int] = ()) -> list[tuple[Call, Floats]]:
        """Start calls at one moment; returns when the members of these, and of those they affect, are done.

        `sent` are the messages that are out since the last moment.
        """
        self._leave(now_s)
        if self.flows is None:
            return self._begin_calls(calls, now_s)
        others = [call for call in calls if not call.is_message]
        links = self._busy
        for call in others:
            links |= self._found_alone(call).links
        messages = [call for call in calls if call.is_message]
        met, links = self.flows.hand_over(links, now_s) if others else ([], links)
        flowing = [call for call in messages if not self.flows.links_of(call) & links]
        met += [call for call in messages if self.flows.links_of(call) & links]
        changed = self.flows.begin(flowing, sent, now_s)
        return changed + (self._begin_calls([*others, *met], now_s) if others or met else [])

    def _begin_calls(self, calls: Sequence[Call], now_s: float) -> list[tuple[Call, Floats]]:
        """Start calls that are followed as schedules."""
        found = [self._found_alone(call) for call in calls]
        changed = [(call, now_s + alone.finish_s) for call, alone in zip(calls, found, strict=True)]
        new = [
            _Island([(call, now_s)], alone.links, _last(finish_s, now_s), alone.carried, alone.report)
            for (call, finish_s), alone in zip(changed, found, strict=True)
            if alone.links
        ]
        busy, meets = self._busy, False
        for island in new:
            meets = meets or bool(busy & island.links)
            busy |= island.links
        self._busy = busy
        if not meets:  # as is usual
            self._islands += new
            return changed
        apart = {call.number: (call, finish_s) for call, finish_s in changed}
        for group in _meeting(new, self._islands):
            if len(group) == 1:
                self._islands.append(group[0])
                continue
            self._islands = [one for one in self._islands if all(one is not other for other in group)]
            merged, finishes = self._simulated([pair for island in group for pair in island.calls])
            self._islands.append(merged)
            apart |= {call.number: (call, finish_s) for call, finish_s in finishes}
        return list(apart.values())

    def finish(self) -> None:
        """Count what the last calls carried."""
        self._leave(float("inf"))
        if self.flows is not None:
            carried, busy_s = self.flows.carried()
            self.link_bytes += carried
            self.link_busy_s += busy_s

    def _leave(self, now_s: float) -> None:
        """Forget the islands whose calls are all done, or all but messages, which are flows from then on."""
        for island in self._islands:
            self._dissolve(island, now_s)
        if all(island.end_s > now_s for island in self._islands):
            return
        for island in self._islands:
            if island.end_s <= now_s:
                self.link_bytes[island.carried.links] += island.carried.bytes
                self.link_busy_s[island.carried.links] += island.carried.busy_s
                self.reports += [] if island.report is None else [island.report]
        self._islands = [island for island in self._islands if island.end_s > now_s]
        self._busy = 0
        for island in self._islands:
            self._busy |= island.links

    def _dissolve(self, island: _Island, now_s: float) -> None:
        """End an island of several calls if only messages are left of it, and let those flow."""
        if self.flows is None or len(island.calls) < 2 or not now_s < island.end_s < float("inf"):
            return
        left = [call for call, _ in island.calls if _last(island.finish_s[call.number], 0.0) > now_s]
        if all(call.is_message for call in left):
            ends = [(call, float(island.finish_s[call.number][0])) for call in left]
            busy_s = self.flows.adopt([(call, end_s) for call, end_s in ends if end_s > now_s], now_s)
            self.link_busy_s -= busy_s
            island.end_s = now_s

    def _key(self, call: Call) -> tuple[int, float, int]:
        self._known[id(call.schedule)] = call.schedule
        self._known[id(call.members)] = call.members
        return id(call.schedule), call.size_bytes, id(call.members)

    def _found_alone(self, call: Call) -> _Alone:
        key = self._key(call)
        if key not in self._alone:
            finishes, carried, report = self._run([(call, 0.0)])
            used = np.zeros(len(self.link_bytes), bool)
            used[carried.links[carried.bytes > 0]] = True
            used[:] |= self.packets is not None and used.any()
            bits = np.packbits(used, bitorder="little").tobytes()
            self._alone[key] = _Alone(finishes[0], int.from_bytes(bits, "little"), carried, report)
        return self._alone[key]

    def _simulated(self, calls: list[tuple[Call, float]]) -> tuple[_Island, list[tuple[Call, Floats]]]:
        calls.sort(key=lambda pair: (pair[1], pair[0].number))
        first_s = calls[0][1]
        key = tuple((*self._key(call), start_s - first_s) for call, start_s in calls)
        if key not in self._together:
            self._together[key] = self._run([(call, start_s - first_s) for call, start_s in calls])
        finishes, carried, report = self._together[key]
        absolute = [first_s + finish_s for finish_s in finishes]
        links, end_s = 0, first_s
        for (call, start_s), finish_s in zip(calls, absolute, strict=True):
            links |= self._found_alone(call).links
            end_s = max(end_s, _last(finish_s, start_s))
        found = [(call, finish_s) for (call, _), finish_s in zip(calls, absolute, strict=True)]
        by_call = {call.number: one for call, one in found}
        return _Island(calls, links, end_s, carried, report, by_call), found

    def _run(self, calls: Sequence[tuple[Call, float]]) -> _Found:
        """Run calls together. Of their groups that do not meet, those that look the same are run once."""
        finish_s = [np.empty(call.members.devices.shape) for call, _ in calls]
        carried, busy_s, report = np.zeros(len(self.link_bytes)), np.zeros(len(self.link_bytes)), None
        for component in self._components_of([call for call, _ in calls]):
            jobs = [
                Job(call.schedule, call.size_bytes, call.members.groups[row], start_s)
                for (call, start_s), rows in zip(calls, component.rows, strict=True)
                for row in rows.tolist()
            ]
            run = simulate_together(
                jobs,
                self.topology,
                gamma_s_per_byte=self.gamma_s_per_byte,
                packets=self.packets,
                compiled=self.compiled,
            )
            found, report = run.loads, run.packets
            ends = iter(found.rank_finish_s)
            for at, (call, _) in enumerate(calls):
                for number in range(len(component.rows[at])):
                    end_s = next(ends)[: call.schedule.ranks]
                    finish_s[at][[rows[at][number] for rows, _ in component.copies]] = end_s
            for _, links in component.copies:
                carried[links] += found.link_bytes[component.links]
                busy_s[links] += found.link_busy_s[component.links]
        finishes = [
            _by_node(call.members, end_s.ravel(), start_s)
            for (call, start_s), end_s in zip(calls, finish_s, strict=True)
        ]
        links = np.flatnonzero((carried > 0) | (busy_s > 0))
        return finishes, _Carried(links, carried[links], busy_s[links]), report

    def _components_of(self, calls: Sequence[Call]) -> list[Component]:
        if all(len(call.members.devices) == 1 for call in calls) or any(call.schedule.switches for call in calls):
            everything = np.arange(len(self.link_bytes))
            rows = tuple(np.arange(len(call.members.devices)) for call in calls)
            return [Component(rows, everything, ((rows, everything),))]
        key = tuple(self._key(call)[::2] for call in calls)
        if key not in self._components:
            for one, call in zip(key, calls, strict=True):
                if one not in self._ways:
                    self._ways[one] = ways_of(self.topology, call.schedule, call.members)
            self._components[key] = components_of(len(self.link_bytes), [self._ways[one] for one in key])
        return self._components[key]


def _by_node(members: Members, finish_s: Floats, start_s: float) -> Floats:
    """When each node of a call is done: all the members that it stands for are, at the same time."""
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


def _last(finish_s: Floats, start_s: float) -> float:
    return float(finish_s.max(initial=start_s))


def _meeting(new: Sequence[_Island], old: Sequence[_Island]) -> list[list[_Island]]:
    """The new islands, each with all that it meets; old ones that meet no new one are left out."""
    groups: list[tuple[int, list[_Island]]] = []
    for island in new:
        links, together = island.links, [island]
        apart = []
        for mask, group in groups:
            if mask & island.links:
                links |= mask
                together = group + together
            else:
                apart.append((mask, group))
        groups = [*apart, (links, together)]
    for island in old:
        met = [(mask, group) for mask, group in groups if mask & island.links]
        if not met:
            continue
        apart = [(mask, group) for mask, group in groups if not mask & island.links]
        mask, group = island.links, [island]
        for other, more in met:
            mask |= other
            group = group + more
        groups = [*apart, (mask, group)]
    return [group for _, group in groups]
