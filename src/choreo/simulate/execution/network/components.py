"""Groups of a folded call that never meet, and look the same to the network: one of them is simulated for all.

Groups that run at the same time are connected by the links and devices that they share. Two such components are the
same if a renaming of devices and links maps one to the other: each message has links of the same bandwidth, with the
same share, and the same latency. Only the renaming that keeps the order of groups is tried; if it fails, both are
simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.schedule import Schedule
from choreo.simulate.execution.network.call import Call, Members
from choreo.topology import Topology

__all__ = ["Component", "Components"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Component:
    """Connected groups: the rows of each call; and the identical components, with their links in the same order."""

    rows: tuple[Ints, ...]
    links: Ints
    copies: tuple[tuple[tuple[Ints, ...], Ints], ...]  # itself included


@dataclass(frozen=True, slots=True)
class Ways:
    """The messages of a call, group by group: the links and devices that each crosses, and figures to compare."""

    groups: int
    group: Ints
    link: Ints  # or device, numbered after the links
    figures: Floats


class Components:
    """Finds the components of calls that run at the same time; results are cached."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ways: dict[tuple[int, int], Ways] = {}
        self._found: dict[tuple[tuple[int, int], ...], list[Component]] = {}
        self._kept: list[Call] = []  # keeps the ids of schedules and members from being reused

    def of(self, calls: Sequence[Call]) -> list[Component]:
        """The components of these calls, one for each set of identical ones."""
        links = len(self._topology.links.src)
        if all(len(call.members.devices) == 1 for call in calls) or any(call.schedule.switches for call in calls):
            everything = np.arange(links)
            rows = tuple(np.arange(len(call.members.devices)) for call in calls)
            return [Component(rows, everything, ((rows, everything),))]
        key = tuple((id(call.schedule), id(call.members)) for call in calls)
        if key not in self._found:
            self._kept += calls
            for one, call in zip(key, calls, strict=True):
                if one not in self._ways:
                    self._ways[one] = ways_of(self._topology, call.schedule, call.members)
            self._found[key] = components_of(links, [self._ways[one] for one in key])
        return self._found[key]


def components_of(links: int, ways: Sequence[Ways]) -> list[Component]:
    """The components of calls that run at the same time, one for each set of identical ones."""
    first = np.cumsum([0, *(way.groups for way in ways)])
    part = np.concatenate([way.group + start for way, start in zip(ways, first, strict=False)])
    label = _joined(part, np.concatenate([way.link for way in ways]), int(first[-1]))
    order = np.argsort(label[part], kind="stable")
    link = np.concatenate([way.link for way in ways])[order]
    figures = np.concatenate([way.figures for way in ways], axis=1).T[order]
    edges = np.flatnonzero(np.diff(label[part][order], prepend=-1, append=-1))
    seen_at = _first_places(link)
    call_of = np.searchsorted(first, np.arange(int(first[-1])), side="right") - 1
    parts_by_label = np.argsort(label, kind="stable")
    _, starts = np.unique(label[parts_by_label], return_index=True)
    found: dict[tuple[object, ...], list[tuple[tuple[Ints, ...], Ints]]] = {}
    for parts, here, there in zip(np.split(parts_by_label, starts[1:]), edges[:-1], edges[1:], strict=True):
        calls = np.searchsorted(call_of[parts], np.arange(len(ways) + 1))
        rows = tuple(parts[calls[call] : calls[call + 1]] - first[call] for call in range(len(ways)))
        # The renaming maps each link to the one at the position where the other first occurs.
        alike = calls.tobytes(), (seen_at[here:there] - here).tobytes(), figures[here:there].tobytes()
        found.setdefault(alike, []).append((rows, link[here:there]))
    components = []
    for copies in found.values():
        rows, mine = copies[0]
        real, at = np.unique(np.where(mine < links, mine, links), return_index=True)
        at = at[real < links]
        components.append(Component(rows, mine[at], tuple((those, others[at]) for those, others in copies)))
    return components


def _first_places(values: Ints) -> Ints:
    """For each value the position of its first occurrence.

    >>> _first_places(np.array([7, 3, 7])).tolist()
    [0, 1, 0]
    """
    first = np.empty(int(values.max(initial=0)) + 1, np.int64)
    first[values[::-1]] = np.arange(len(values))[::-1]
    return first[values]


def ways_of(topology: Topology, schedule: Schedule, members: Members) -> Ways:
    """The routes of a schedule's messages in each of its groups."""
    src, dst = _pairs(schedule)
    count, links = len(members.devices), topology.links
    senders, receivers = members.devices[:, src].ravel(), members.devices[:, dst].ravel()
    routes = topology.routes(senders, receivers)
    message = np.repeat(np.arange(len(senders)), np.diff(routes.offsets))
    costs = (routes.latency_s, routes.overhead_s, routes.gap_s)
    crossed = (routes.share, links.bandwidth_bytes_per_s[routes.links], *(cost[message] for cost in costs))
    slow = topology.slowdown[members.devices].ravel()
    devices = members.devices.ravel()
    part = np.concatenate((message // max(len(src), 1), np.repeat(np.arange(count), members.devices.shape[1])))
    link = np.concatenate((routes.links.astype(np.int64), len(links.src) + devices))
    figures = np.concatenate((np.stack(crossed), np.tile(slow, (len(crossed), 1))), axis=1)
    order = np.argsort(part, kind="stable")
    return Ways(count, part[order], link[order], figures[:, order])


def _pairs(schedule: Schedule) -> tuple[Ints, Ints]:
    """The pairs of sender and receiver in a schedule."""
    found = [np.unique(block.src.astype(np.int64) * schedule.ranks + block.dst) for block in schedule.blocks()]
    pairs = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return pairs // schedule.ranks, pairs % schedule.ranks


def _joined(part: Ints, link: Ints, parts: int) -> Ints:
    """For each part the first one that it is connected to, directly or through others."""
    label = np.arange(parts)
    while True:
        least = np.full(int(link.max(initial=0)) + 1, parts)
        np.minimum.at(least, link, label[part])
        found = label.copy()
        np.minimum.at(found, part, least[link])
        found = found[found]
        if (found == label).all():
            return found
        label = found
