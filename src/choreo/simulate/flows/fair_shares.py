"""Max-min fair sharing of links by flows: for the simulator's twin, as `core/fair_shares.h` in C."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass

__all__ = ["Flow", "SharedLinks"]

SAME_RATE = 1e-14
NONE = -1


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes in flight over links; `share` is the fraction of them on each link."""

    links: list[int]
    share: list[float]
    remaining: float
    since: float
    rate: float = 0.0
    finish: float = math.inf
    bottleneck: int = NONE


class SharedLinks:
    """Links, the flows on each, and what each has carried.

    >>> links = SharedLinks([10.0, 4.0])
    >>> over_both, over_one = Flow([0, 1], [1.0, 1.0], 8.0, 0.0), Flow([0], [1.0], 12.0, 0.0)
    >>> links.add(over_both), links.add(over_one), links.share(0.0)
    (None, None, None)
    >>> over_both.rate, over_one.rate, over_one.finish
    (4.0, 6.0, 2.0)
    """

    def __init__(self, bandwidth: list[float]) -> None:
        self.bandwidth = bandwidth
        self.bytes = [0.0] * len(bandwidth)
        self.busy_s = [0.0] * len(bandwidth)
        self._busy_since = [0.0] * len(bandwidth)
        self._on: dict[int, dict[Flow, float]] = defaultdict(dict)
        self._touched: dict[int, None] = {}

    def add(self, flow: Flow) -> None:
        """A flow starts."""
        for link, share in zip(flow.links, flow.share, strict=True):
            self.bytes[link] += flow.remaining * share
            if not self._on[link]:
                self._busy_since[link] = flow.since
            self._on[link][flow] = share
            self._touched[link] = None

    def remove(self, flow: Flow) -> None:
        """A flow has ended."""
        for link in flow.links:
            del self._on[link][flow]
            if not self._on[link]:
                self.busy_s[link] += flow.finish - self._busy_since[link]
            self._touched[link] = None

    def share(self, now: float) -> None:
        """Max-min fair rates for every flow that shares a link, directly or through others, with a changed one."""
        links, flows = self._changed()
        self._touched.clear()
        left = {link: self.bandwidth[link] for link in links}
        weight = {link: math.fsum(self._on[link].values()) for link in links}
        unsettled = {link: len(self._on[link]) for link in links}
        heap = [(left[link] / weight[link], link) for link in links if unsettled[link]]
        heapq.heapify(heap)
        while heap:
            rate, link = heapq.heappop(heap)
            if not unsettled[link]:
                continue
            # Shares that rounding reduces to nothing stay where they are.
            fair = max(left[link], 0.0) / weight[link] if weight[link] > 0 else 0.0
            if fair > rate * (1 + SAME_RATE):
                heapq.heappush(heap, (fair, link))
                continue
            for flow in [number for number in self._on[link] if number in flows]:
                del flows[flow]
                for other, share in zip(flow.links, flow.share, strict=True):
                    left[other] -= rate * share
                    weight[other] -= share
                    unsettled[other] -= 1
                _give_rate(flow, rate, link, now)

    def _changed(self) -> tuple[dict[int, None], dict[Flow, None]]:
        links, flows = dict(self._touched), dict[Flow, None]()
        waiting = list(links)
        while waiting:
            for flow in self._on[waiting.pop()]:
                if flow not in flows:
                    flows[flow] = None
                    fresh = [link for link in flow.links if link not in links]
                    links.update(dict.fromkeys(fresh))
                    waiting += fresh
        return links, flows


def _give_rate(flow: Flow, rate: float, link: int, now: float) -> None:
    flow.bottleneck = link
    if abs(rate - flow.rate) <= SAME_RATE * rate:
        return
    if flow.rate > 0:
        flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.since))
        flow.since = now
    flow.rate = rate
    flow.finish = flow.since + flow.remaining / rate
