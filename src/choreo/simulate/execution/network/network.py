"""The network below a workload: calls begin at any time, and calls that share a link slow each other down.

Calls whose links nobody else uses take their time alone, which is computed once. Calls that meet run in one simulation,
which others join. Messages that meet no collective are flows, which need no history. So when only messages are left in
a simulation, they become flows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.simulate.execution.network.call import Call, Members
from choreo.simulate.execution.network.message_flows import MessageFlows
from choreo.simulate.execution.network.runs import Carried, Runs
from choreo.simulate.execution.network.shared_calls import Done, SharedCalls
from choreo.simulate.packets.report import PacketReport
from choreo.topology import Topology

__all__ = ["Ends", "Network"]

Floats = npt.NDArray[np.float64]
# Calls, and when their nodes will be done if nothing else begins; None if that is not known yet.
Ends = list[tuple[Call, Floats | None]]


@dataclass(frozen=True, slots=True)
class _Lone:
    """A call that meets no other: its links as a bit mask, and when it ends."""

    call: Call
    start_s: float
    links: int
    end_s: float
    carried: Carried


class Network:
    """Follows calls on a topology; `link_bytes` and `link_busy_s` grow as calls finish.

    `messages` are the members of the messages that will be sent.
    """

    def __init__(
        self,
        topology: Topology,
        gamma_s_per_byte: float = 0.0,
        compiled: bool | None = None,
        messages: Sequence[Members] = (),
    ) -> None:
        links = len(topology.links.src)
        self.link_bytes, self.link_busy_s = np.zeros(links), np.zeros(links)
        self.reports: list[PacketReport] = []
        flows = MessageFlows(topology, messages)
        self.flows = flows if flows.possible else None  # None if messages cost their ranks something
        self._topology, self._gamma_s_per_byte, self._compiled = topology, gamma_s_per_byte, compiled
        self._runs = Runs(topology, gamma_s_per_byte, compiled, None)
        self._lone: list[_Lone] = []
        self._shared: SharedCalls | None = None
        self._shared_links = 0

    def begin(self, calls: Sequence[Call], now_s: float, sent: Sequence[int] = ()) -> Ends:
        """Start calls at one moment; returns those whose ends are now known, or no longer known.

        `sent` are the messages that were sent since the last moment.
        """
        changed = self._leave(now_s)
        if self.flows is None:
            return changed + self._begin_calls(calls, now_s)
        others = [call for call in calls if not call.is_message]
        links = self._busy
        for call in others:
            links |= self._links_of(call)
        messages = [call for call in calls if call.is_message]
        met, links = self.flows.hand_over(links, now_s) if others else ([], links)
        flowing = [call for call in messages if not self.flows.links_of(call) & links]
        met += [call for call in messages if self.flows.links_of(call) & links]
        changed += self.flows.begin(flowing, sent, now_s)
        return changed + (self._begin_calls([*others, *met], now_s) if others or met else [])

    def advance(self, until_s: float) -> list[Done]:
        """Follow the calls that share links until one of their nodes is done, but no further than this."""
        return [] if self._shared is None else self._shared.advance(until_s)

    def finish(self) -> None:
        """Count what the last calls carried."""
        self._leave(float("inf"))
        if self.flows is not None:
            self._count(*self.flows.carried())

    @property
    def _busy(self) -> int:
        """The links of all calls except messages that are flows."""
        links = self._shared_links
        for alone in self._lone:
            links |= alone.links
        return links

    def _begin_calls(self, calls: Sequence[Call], now_s: float) -> Ends:
        """Start calls that run as schedules: alone, or with those they meet."""
        links = [self._links_of(call) for call in calls]
        once, twice = self._shared_links, 0
        for mask in (*(alone.links for alone in self._lone), *links):
            twice |= once & mask
            once |= mask
        meets = [bool(mask & (twice | self._shared_links)) for mask in links]
        joining = [(call, now_s) for call, met in zip(calls, meets, strict=True) if met]
        if joining:
            theirs = 0
            for mask, met in zip(links, meets, strict=True):
                theirs |= mask if met else 0
            joined = [alone for alone in self._lone if alone.links & theirs]
            self._lone = [alone for alone in self._lone if not alone.links & theirs]
            joining = [*((alone.call, alone.start_s) for alone in joined), *joining]
            if self._shared is None:
                self._shared = SharedCalls(
                    self._topology, self._gamma_s_per_byte, self._compiled, self._runs.components
                )
            self._shared.join(joining)
            self._find_shared_links()
        changed: Ends = [(call, None) for call, _ in joining]
        for call, mask, met in zip(calls, links, meets, strict=True):
            if not met:
                run = self._runs.alone(call)
                changed.append((call, now_s + run.finish_s[0]))
                if mask:
                    self._lone.append(_Lone(call, now_s, mask, now_s + run.end_s(0.0), run.carried))
        return changed

    def _leave(self, now_s: float) -> Ends:
        """Forget finished calls. When only messages are left of those that share links, they become flows again."""
        if any(alone.end_s <= now_s for alone in self._lone):
            for alone in self._lone:
                if alone.end_s <= now_s:
                    self.link_bytes[alone.carried.links] += alone.carried.bytes
                    self.link_busy_s[alone.carried.links] += alone.carried.busy_s
            self._lone = [alone for alone in self._lone if alone.end_s > now_s]
        if self._shared is None:
            return []
        left = self._shared.in_progress.values()
        flows = self.flows
        if left and (flows is None or not all(call.is_message for call in left)):
            self._find_shared_links()
            return []
        going, out = self._shared.stop(now_s)
        self._count(*self._shared.carried())
        self._shared, self._shared_links = None, 0
        if flows is None:
            return []
        flows.adopt(going, now_s)
        return [(call, np.array([out_s, out_s + flows.latency_of(call)])) for call, out_s in out]

    def _find_shared_links(self) -> None:
        self._shared_links = 0
        for call in self._shared.in_progress.values() if self._shared else ():
            self._shared_links |= self._links_of(call)

    def _links_of(self, call: Call) -> int:
        """The links of a call, as a bit mask."""
        if call.is_message and self.flows is not None:
            return self.flows.links_of(call) if call.size_bytes > 0 else 0
        return self._runs.alone(call).links

    def _count(self, carried: Floats, busy_s: Floats) -> None:
        self.link_bytes += carried
        self.link_busy_s += busy_s
