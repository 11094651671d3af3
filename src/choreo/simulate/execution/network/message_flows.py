"""Messages on links that only messages use: each is a flow, and rates are recomputed when one begins or ends.

A flow has no state but the bytes that are left. So it can be handed over half-way, to be simulated together with a
collective that reaches its links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.simulate.execution.network.call import Call, Members
from choreo.simulate.execution.network.link_classes import link_classes
from choreo.simulate.flows.fair_shares import Flow, SharedLinks
from choreo.topology import Topology

__all__ = ["MessageFlows"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Way:
    """The route of a message: classes of links, the fraction of it on a link of each class, and the latency.

    `mask` is a bit mask of the links of all its groups.
    """

    links: list[int]
    share: list[float]
    mask: int
    latency_s: float


class MessageFlows:
    """The messages in flight; one flow stands for those of all groups that send at the same time."""

    def __init__(self, topology: Topology, messages: Sequence[Members] = ()) -> None:
        self._topology = topology
        self._class = link_classes(topology, messages)
        self._wires = SharedLinks(topology.links.bandwidth_bytes_per_s.tolist())
        self._ways: dict[Members, _Way] = {}
        self._flows: dict[int, tuple[Call, Flow]] = {}
        self._announced: dict[int, float] = {}  # the end of each flow, as last announced
        costs = topology.links.overhead_s, topology.links.gap_s
        self.possible = not any(cost.any() for cost in costs)  # flows do not include what a message costs its ranks

    def links_of(self, call: Call) -> int:
        """The links of a message, as a bit mask."""
        return self._way(call).mask

    def begin(self, calls: Iterable[Call], ended: Iterable[int], now_s: float) -> list[tuple[Call, Floats]]:
        """Some messages end and others begin; returns when these, and those they affect, are sent and arrive."""
        changed = []
        for number in ended:
            found = self._flows.pop(number, None)
            if found is not None:
                self._wires.remove(found[1])
                del self._announced[number]
        for call in calls:
            way = self._way(call)
            if call.size_bytes > 0 and way.links:
                flow = self._flow(call, call.size_bytes, now_s)
                self._flows[call.number] = call, flow
                self._wires.add(flow)
            else:
                changed.append((call, np.array([now_s, now_s + way.latency_s])))
        self._wires.share(now_s)
        return changed + self._changed()

    def hand_over(self, links: int, now_s: float) -> tuple[list[Call], int]:
        """Give up the messages that share these links, directly or through others: what is left of each.

        Returns them, and the links of all of them together.
        """
        taken: list[Call] = []
        while True:
            met = [number for number, (call, _) in self._flows.items() if self._way(call).mask & links]
            if not met:
                break
            for number in met:
                call, flow = self._flows.pop(number)
                self._announced.pop(number, None)  # one that was adopted at this moment is not announced yet
                left = max(0.0, flow.remaining - flow.rate * (now_s - flow.since))
                flow.finish = now_s
                self._wires.remove(flow)
                for link, share in zip(flow.links, flow.share, strict=True):
                    self._wires.bytes[link] -= left * share
                taken.append(replace(call, size_bytes=left))
                links |= self._way(call).mask
        return taken, links

    def adopt(self, calls: Sequence[tuple[Call, float]], now_s: float) -> None:
        """Take over messages in flight, each with the bytes that are left of it."""
        for call, left in calls:
            flow = self._flow(call, left, now_s)
            self._flows[call.number] = call, flow
            self._wires.add(flow)
            for link, share in zip(flow.links, flow.share, strict=True):
                self._wires.bytes[link] -= left * share  # already counted by the previous owner

    def latency_of(self, call: Call) -> float:
        """The time from when a message is sent completely until it arrives."""
        return self._way(call).latency_s

    def _flow(self, call: Call, size_bytes: float, now_s: float) -> Flow:
        way = self._way(call)
        return Flow(way.links, way.share, size_bytes, now_s)

    def carried(self) -> tuple[Floats, Floats]:
        """Bytes by link, and seconds that it was busy."""
        return np.array(self._wires.bytes)[self._class], np.array(self._wires.busy_s)[self._class]

    def _changed(self) -> list[tuple[Call, Floats]]:
        found = []
        for number, (call, flow) in self._flows.items():
            if self._announced.get(number) != flow.finish:
                self._announced[number] = flow.finish
                found.append((call, np.array([flow.finish, flow.finish + self._way(call).latency_s])))
        return found

    def _way(self, call: Call) -> _Way:
        way = self._ways.get(call.members)
        if way is None:
            ends = call.members.devices
            routes = self._topology.routes(ends[:, 0], ends[:, 1])
            load = np.bincount(routes.links, routes.share, minlength=len(self._class))
            own = routes.links[: routes.offsets[1]]  # the first group, which stands for all
            classes, first = np.unique(self._class[own], return_index=True)
            mask = 0
            for link in routes.links.tolist():
                mask |= 1 << link
            way = _Way(classes.tolist(), load[own[first]].tolist(), mask, float(routes.latency_s[0]))
            self._ways[call.members] = way
        return way
