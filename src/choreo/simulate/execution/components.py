"""Groups of a folded call that never meet, and look the same to the network: one of them is simulated for all.

Groups that run together are joined by the links and devices that they share. Two such components are the same if
a renaming of devices and links takes one to the other: each message has links of the same bandwidth, with the same
share, and the same latency. The renaming tried is the one that keeps the order of groups; if it does not work, both
are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.schedule import Schedule
from choreo.simulate.execution.call import Members
from choreo.topology import Topology

__all__ = ["Component", "Ways", "components_of", "ways_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Component:
    """Groups that meet: for each call its rows; and those that are the same, with their links in the same order."""

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


def components_of(links: int, ways: Sequence[Ways]) -> list[Component]:
    """The components of calls that run together, those that are the same once."""
    first = np.cumsum([0, *(one.groups for one in ways)])
    part = np.concatenate([one.group + start for one, start in zip(ways, first, strict=False)])
    link = np.concatenate([one.link for one in ways])
    figures = np.concatenate([one.figures for one in ways], axis=1)
    label = _joined(part, link, int(first[-1]))
    order = np.argsort(label[part], kind="stable")
    edges = np.flatnonzero(np.diff(label[part][order], prepend=-1, append=-1))
    call_of = np.searchsorted(first, np.arange(int(first[-1])), side="right") - 1
    found: list[tuple[tuple[Ints, ...], Ints, Floats, list[tuple[tuple[Ints, ...], Ints]]]] = []
    parts_by_label = np.argsort(label, kind="stable")
    _, starts = np.unique(label[parts_by_label], return_index=True)
    for parts, here, there in zip(np.split(parts_by_label, starts[1:]), edges[:-1], edges[1:], strict=True):
        rows = tuple(parts[call_of[parts] == call] - first[call] for call in range(len(ways)))
        mine, told = link[order[here:there]], figures[:, order[here:there]]
        for other_rows, others, figure, copies in found:
            if [len(one) for one in rows] == [len(one) for one in other_rows] and _same(others, mine, figure, told):
                copies.append((rows, mine))
                break
        else:
            found.append((rows, mine, told, [(rows, mine)]))
    made = []
    for rows, mine, _, copies in found:
        real, at = np.unique(np.where(mine < links, mine, links), return_index=True)
        at = at[real < links]
        made.append(Component(rows, mine[at], tuple((those, others[at]) for those, others in copies)))
    return made


def ways_of(topology: Topology, schedule: Schedule, members: Members) -> Ways:
    """How the messages of a schedule travel in each of its groups."""
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
    """Who sends to whom in a schedule."""
    found = [np.unique(block.src.astype(np.int64) * schedule.ranks + block.dst) for block in schedule.blocks()]
    pairs = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return pairs // schedule.ranks, pairs % schedule.ranks


def _joined(part: Ints, link: Ints, parts: int) -> Ints:
    """For each part the first one that it meets, directly or through others."""
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


def _same(one: Ints, other: Ints, figures: Floats, others: Floats) -> bool:
    """Whether taking each link of one to that of the other is a renaming that changes no figure."""
    if len(one) != len(other) or not np.array_equal(figures, others):
        return False
    pairs = np.unique(np.stack((one, other)), axis=1).shape[1]
    return bool(pairs == len(np.unique(one)) == len(np.unique(other)))
