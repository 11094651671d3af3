"""A workload run slowly: every flow at every moment, with rates by filling all links at once until one is full.

It knows computation and messages only, shares nothing with the product but the graph and the routes, and looks at
everything again at each event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.topology import Topology
from choreo.workload.execution import ExecutionGraph, NodeKind

TINY = 1e-12


@dataclass
class Flow:
    call: int
    left: float
    links: list[tuple[int, float]]
    latency_s: float


def fair_rates(flows: list[Flow], bandwidth: list[float]) -> list[float]:
    rates = [0.0] * len(flows)
    open_ = set(range(len(flows)))
    room = list(bandwidth)
    while open_:
        load = dict[int, float]()
        for flow in open_:
            for link, share in flows[flow].links:
                load[link] = load.get(link, 0.0) + share
        step = min(room[link] / share for link, share in load.items())
        for flow in open_:
            rates[flow] += step
        for link, share in load.items():
            room[link] -= step * share
        full = {link for link in load if room[link] <= bandwidth[link] * TINY}
        open_ = {flow for flow in open_ if not any(link in full for link, _ in flows[flow].links)}
    return rates


class SlowRun:
    """What is known at a moment: which nodes are ready, run, or are on the wire."""

    def __init__(self, graph: ExecutionGraph, topology: Topology) -> None:
        self.graph, self.topology, self.now = graph, topology, 0.0
        self.end = np.full(len(graph), np.inf)
        self.ready_at: dict[int, float] = {}
        self.started: set[int] = set()
        self.running: dict[int, float] = {}  # node -> end
        self.flows: list[Flow] = []
        self.arriving: dict[int, float] = {}  # call -> when its last byte is there

    def run(self) -> np.ndarray:
        bandwidth = self.topology.links.bandwidth_bytes_per_s.tolist()
        while True:
            while self.look() | self.start() | self.stop():
                pass
            rates = fair_rates(self.flows, bandwidth)
            moments = list(self.running.values())
            moments += [self.now + flow.left / rate for flow, rate in zip(self.flows, rates, strict=True)]
            moments += [when for when in self.arriving.values() if when > self.now]
            if not moments:
                return self.end
            self.go_on(min(moments), rates)

    def look(self) -> bool:
        found = [
            node
            for node in range(len(self.graph))
            if node not in self.ready_at and all(self.end[one] <= self.now for one in self.graph.deps_of(node))
        ]
        self.ready_at |= dict.fromkeys(found, self.now)
        return bool(found)

    def start(self) -> bool:
        graph, before = self.graph, len(self.started)
        for node in sorted(self.ready_at, key=lambda one: (self.ready_at[one], one)):
            if node in self.started or graph.kind[node] == NodeKind.RECV:
                continue
            if graph.kind[node] == NodeKind.SEND:
                self.send(node)
            else:
                mine = graph.rank[node], graph.stream[node]
                if any((graph.rank[one], graph.stream[one]) == mine for one in self.running):
                    continue
                self.running[node] = self.now + float(graph.duration_s[node])
            self.started.add(node)
        return len(self.started) > before

    def send(self, node: int) -> None:
        graph = self.graph
        routes = self.topology.routes(np.array([graph.rank[node]]), np.array([graph.peer[node]]))
        links = list(zip(routes.links.tolist(), routes.share.tolist(), strict=True))
        flow = Flow(int(graph.call[node]), float(graph.size_bytes[node]), links, float(routes.latency_s[0]))
        if flow.left > 0:
            self.flows.append(flow)
        else:
            self.end[node], self.arriving[flow.call] = self.now, self.now + flow.latency_s

    def stop(self) -> bool:
        done = [node for node, when in self.running.items() if when <= self.now]
        for node in done:
            self.end[node] = self.running.pop(node)
        got = [
            node
            for node in self.ready_at
            if self.graph.kind[node] == NodeKind.RECV
            and self.end[node] == np.inf
            and self.arriving.get(int(self.graph.call[node]), np.inf) <= self.now
        ]
        self.end[got] = self.now
        return bool(done or got)

    def go_on(self, then: float, rates: list[float]) -> None:
        for flow, rate in zip(self.flows, rates, strict=True):
            flow.left -= rate * (then - self.now)
        self.now = then
        gone = [one for one, rate in zip(self.flows, rates, strict=True) if one.left <= rate * max(then, TINY) * 1e-9]
        for flow in gone:
            self.flows.remove(flow)
            sender = (self.graph.call == flow.call) & (self.graph.kind == NodeKind.SEND)
            self.end[sender] = then
            self.arriving[flow.call] = then + flow.latency_s


def slow_times(graph: ExecutionGraph, topology: Topology) -> np.ndarray:
    """When each node is done."""
    return SlowRun(graph, topology).run()
