"""A network that follows every packet.

Packets also meet in the memory of switches, and their acknowledgements return over other links. So all calls in
progress are simulated together, from their first start. That does not change what happened before the newest began, so
finished members stay finished.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from choreo.simulate.execution.network.call import Call
from choreo.simulate.execution.network.network import Ends
from choreo.simulate.execution.network.runs import Run, Runs
from choreo.simulate.execution.network.shared_calls import Done
from choreo.simulate.packets.report import PacketReport
from choreo.simulate.packets.settings import Packets
from choreo.topology import Topology

__all__ = ["PacketNetwork"]


class PacketNetwork:
    """Follows the packets of calls on a topology; `link_bytes` and `link_busy_s` grow as calls finish."""

    def __init__(
        self, topology: Topology, packets: Packets, gamma_s_per_byte: float = 0.0, compiled: bool | None = None
    ) -> None:
        links = len(topology.links.src)
        self.link_bytes, self.link_busy_s = np.zeros(links), np.zeros(links)
        self.reports: list[PacketReport] = []
        self._runs = Runs(topology, gamma_s_per_byte, compiled, packets)
        self._calls: list[tuple[Call, float]] = []
        self._run: Run | None = None
        self._end_s = float("-inf")

    def begin(self, calls: Sequence[Call], now_s: float, sent: Sequence[int] = ()) -> Ends:
        """Start calls at one moment; returns when the nodes of these, and of those they affect, are done."""
        self._leave(now_s)
        alone: Ends = []
        for call in calls:
            run = self._runs.alone(call)
            if run.links:
                self._calls.append((call, now_s))
            else:
                alone.append((call, now_s + run.finish_s[0]))
        if len(alone) == len(calls):
            return alone
        self._calls.sort(key=lambda pair: (pair[1], pair[0].number))
        first_s = self._calls[0][1]
        if len(self._calls) == 1:
            self._run = self._runs.alone(self._calls[0][0])
        else:
            self._run = self._runs.together([(call, start_s - first_s) for call, start_s in self._calls])
        self._end_s = first_s + self._run.end_s(0.0)
        ends = zip(self._calls, self._run.finish_s, strict=True)
        return alone + [(call, first_s + finish_s) for (call, _), finish_s in ends]

    def advance(self, until_s: float) -> list[Done]:
        """Do nothing: all ends are known."""
        return []

    def finish(self) -> None:
        """Count what the last calls carried."""
        self._leave(float("inf"))

    def _leave(self, now_s: float) -> None:
        if self._run is None or self._end_s > now_s:
            return
        carried = self._run.carried
        self.link_bytes[carried.links] += carried.bytes
        self.link_busy_s[carried.links] += carried.busy_s
        self.reports += [] if self._run.report is None else [self._run.report]
        self._calls, self._run = [], None
