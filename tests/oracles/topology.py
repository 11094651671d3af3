"""Routes judged by hand: distances by plain search, and what must hold of a route in any network."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
import pytest

from choreo.topology import Topology

# One of everything that can be typed, small enough to look at every pair.
MANY = [
    "ring(1)",
    "ring(2, 50GB/s, 500ns)",
    "ring(3, 50GB/s, 500ns)",
    "ring(5, 50GB/s, 500ns)",
    "ring(6, 50GB/s, 500ns)",
    "line(1)",
    "line(2)",
    "line(5, 50GB/s, 500ns)",
    "torus(3x4, 45GB/s, 1us)",
    "torus(2x2x2, 45GB/s, 1us)",
    "torus(4x4x4, 45GB/s, 1us)",
    "torus(1x3x1)",
    "mesh(3x4, 45GB/s, 1us)",
    "mesh(2x3x2, 45GB/s, 1us)",
    "fully_connected(1)",
    "fully_connected(2, 10GB/s, 1us)",
    "fully_connected(6, 10GB/s, 1us)",
    "switch(1, 10GB/s, 1us)",
    "switch(2, 10GB/s, 1us)",
    "switch(7, 10GB/s, 1us)",
    "switch(6, 10GB/s, 1us, reduces)",
    "switch(6, 10GB/s, 1us, oversubscribed=3)",
    "fat_tree(5, 10GB/s, 1us)",
    "fat_tree(1x4, 10GB/s, 1us)",
    "fat_tree(4x1, 10GB/s, 1us, spines=3)",
    "fat_tree(4x3, 10GB/s, 1us)",
    "fat_tree(4x3, 10GB/s, 1us, spines=2)",
    "fat_tree(2x3x2, 10GB/s, 1us, oversubscribed=2, spines=3)",
    "fat_tree(2x2x2x2, 10GB/s, 1us, spines=2)",
    "ring(4, 200GB/s, 50ns) x fully_connected(4, 100GB/s, 500ns) x switch(4, 50GB/s, 2us)",
    "ring(4) x line(3) x fat_tree(2x2, 10GB/s, 1us, spines=2)",
    "switch(3, 10GB/s, 1us, oversubscribed=2) x fat_tree(2x2, 10GB/s, 2us, spines=2) x ring(3, 1GB/s, 3us)",
    "dgx-1",
    "dgx-1:2",
    "dgx-1-p100:3",
    "dgx-a100:3",
    "hls-1:2",
    "wormhole-galaxy",
    "cerebras-swarmx:5",
]


@dataclass(frozen=True)
class Route:
    """One message's way: the links it crosses with the part of it on each, its latency, and its speed if alone."""

    src: int
    dst: int
    links: list[int]
    share: list[float]
    latency_s: float
    bandwidth: float


def all_pairs(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Every ordered pair of devices, each also with itself."""
    devices = topology.num_devices
    src, dst = np.divmod(np.arange(devices * devices), devices)
    return src, dst


def routes(topology: Topology, src: np.ndarray | list[int], dst: np.ndarray | list[int]) -> list[Route]:
    """The routes of many pairs, taken apart."""
    found = topology.routes(np.asarray(src, np.int64), np.asarray(dst, np.int64))
    ends = found.offsets.tolist()
    assert len(ends) == len(src) + 1
    assert ends[0] == 0
    assert ends[-1] == len(found.links) == len(found.share)
    return [
        Route(
            int(src[at]),
            int(dst[at]),
            found.links[ends[at] : ends[at + 1]].tolist(),
            found.share[ends[at] : ends[at + 1]].tolist(),
            float(found.latency_s[at]),
            float(found.bandwidth_bytes_per_s[at]),
        )
        for at in range(len(src))
    ]


def route(topology: Topology, src: int, dst: int) -> Route:
    """One route."""
    return routes(topology, [src], [dst])[0]


def named(topology: Topology, way: Route) -> list[str]:
    """A route's links as `0>switch0`."""
    ends = zip(topology.links.src[way.links].tolist(), topology.links.dst[way.links].tolist(), strict=True)
    return [f"{topology.node_name(here)}>{topology.node_name(there)}" for here, there in ends]


def distances(topology: Topology) -> list[list[int | None]]:
    """How many links of some bandwidth each device (rows) is from each node; None where there is no way."""
    leaving: dict[int, list[int]] = defaultdict(list)
    links = topology.links
    for here, there, speed in zip(
        links.src.tolist(), links.dst.tolist(), links.bandwidth_bytes_per_s.tolist(), strict=True
    ):
        if speed > 0:
            leaving[here].append(there)
    table: list[list[int | None]] = []
    for device in range(topology.num_devices):
        away: list[int | None] = [None] * topology.num_nodes
        away[device], waiting = 0, deque([device])
        while waiting:
            node = waiting.popleft()
            for there in leaving[node]:
                if away[there] is None:
                    away[there] = (away[node] or 0) + 1
                    waiting.append(there)
        table.append(away)
    return table


def check_route(topology: Topology, way: Route, away: list[list[int | None]]) -> None:
    """All of the message leaves its source, nothing is lost on the way, all of it arrives, and no way is a detour."""
    links = topology.links
    if way.src == way.dst:
        assert (way.links, way.latency_s, way.bandwidth) == ([], 0.0, float("inf"))
        return
    assert len(set(way.links)) == len(way.links)
    balance: dict[int, float] = defaultdict(float)
    late, hops = {way.src: 0.0}, {way.src: 0}
    speed = float("inf")
    for link, part in zip(way.links, way.share, strict=True):
        here, there = int(links.src[link]), int(links.dst[link])
        assert 0 < part <= 1 + 1e-12
        assert links.bandwidth_bytes_per_s[link] > 0
        assert here in late, "a link is crossed before anything got to where it starts"
        assert hops.setdefault(there, hops[here] + 1) == hops[here] + 1, "two ways to a node differ in length"
        balance[here] += part
        balance[there] -= part
        late[there] = max(late.get(there, 0.0), late[here] + float(links.latency_s[link]))
        speed = min(speed, float(links.bandwidth_bytes_per_s[link]) / part)
    assert balance.pop(way.src) == pytest.approx(1)
    assert balance.pop(way.dst) == pytest.approx(-1)
    assert list(balance.values()) == pytest.approx([0] * len(balance), abs=1e-9)
    assert hops[way.dst] == away[way.src][way.dst], "there is a shorter way"
    assert way.latency_s == pytest.approx(late[way.dst])
    assert way.bandwidth == pytest.approx(speed)


def check_all_routes(topology: Topology) -> None:
    """Every pair of devices."""
    away = distances(topology)
    for way in routes(topology, *all_pairs(topology)):
        check_route(topology, way, away)


def is_one_sentence(message: str) -> bool:
    """Whether an error can be printed as it is: on one line, and not a page of it."""
    return message.isprintable() and message.strip() == message != "" and len(message) < 700
