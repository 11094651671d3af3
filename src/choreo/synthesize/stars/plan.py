"""Star-shaped messages: from a GPU to all others of its server or back, and to the same local rank of other servers.

Inside a server a star goes from the sender to each of the others, or through a switch that adds and multicasts. What
all GPUs of a server spread at once comes from the switch as one message to each, and so do sums. The GPUs of the same
local rank in different servers are called twins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from choreo.synthesize.network import Hops
from choreo.synthesize.problem import Problem
from choreo.synthesize.timeline import Tasks, in_time
from choreo.topology.graph import Floats

__all__ = ["Maker", "Plan", "Servers"]

Chunks = tuple[int, ...]
# What adds the messages of a plan, given the parts in which it is sent and when each is due.
Maker = Callable[["Plan", Floats, Floats], None]


@dataclass(frozen=True, slots=True, eq=False)
class Servers:
    """Servers of equal size, the hops between members, and each server's reducing switch if it is used."""

    servers: int
    gpus: int
    hops: Hops
    number: dict[tuple[int, int], int]
    switch: tuple[int, ...]

    @staticmethod
    def of(problem: Problem, hops: Hops) -> Servers | None:
        """As the outermost dimension divides them; None if a member cannot be reached."""
        blocks, ranks = problem.topology.blocks, problem.ranks
        gpus = ranks // blocks[-1].size if len(blocks) > 1 else ranks
        number = {pair: hop for hop, pair in enumerate(zip(hops.src.tolist(), hops.dst.tolist(), strict=True))}
        above = {src: dst for src, dst in number if src < ranks <= dst}
        switch = tuple(above.get(first, -1) for first in range(0, ranks, gpus)) if hops.members > ranks else ()
        found = Servers(ranks // gpus, gpus, hops, number, switch)
        return found if all(found.reaches(device) for device in range(ranks)) else None

    def reaches(self, device: int) -> bool:
        """Whether a device has hops to its twins, and to the others of its server or to its switch."""
        ends = [self.switch[device // self.gpus]] if self.switch else self.others(device)
        ends += self.twins(device)
        return all((device, end) in self.number and (end, device) in self.number for end in ends)

    @property
    def carriers(self) -> int:
        """How many GPUs of a server can send to each other server, if each GPU sends to one of them only."""
        return self.gpus // max(1, self.servers - 1)

    @property
    def has_carriers(self) -> bool:
        """Whether carriers are of use: behind switches that multicast."""
        return bool(self.switch) and self.servers > 1 and self.carriers > 0

    def members(self, server: int) -> range:
        """The devices of a server."""
        return range(server * self.gpus, (server + 1) * self.gpus)

    def others(self, device: int) -> list[int]:
        """The other devices of its server, the next one first."""
        first = device - device % self.gpus
        return [first + (device + turn) % self.gpus for turn in range(1, self.gpus)]

    def twins(self, device: int) -> list[int]:
        """The same local rank of the other servers, the next one first."""
        ranks = self.servers * self.gpus
        return [(device + turn * self.gpus) % ranks for turn in range(1, self.servers)]


@dataclass(slots=True, eq=False)
class Plan:
    """Messages, each of some chunks, ordered so that none waits for a later one."""

    net: Servers
    chunk_bytes: Sequence[float]
    hop: list[int] = field(default_factory=list)
    chunks: list[Chunks] = field(default_factory=list)
    due_s: list[float] = field(default_factory=list)
    adds: list[bool] = field(default_factory=list)
    before: list[tuple[int, int]] = field(default_factory=list)
    joint: list[tuple[int, ...]] = field(default_factory=list)

    def add(
        self, ends: tuple[int, int], chunks: Chunks, after: Sequence[int], due_s: float, *, adds: bool = False
    ) -> int:
        """Add a message that waits for others; returns its number."""
        self.before += [(first, len(self.hop)) for first in after]
        self.hop.append(self.net.number[ends])
        self.chunks.append(chunks)
        self.due_s.append(due_s)
        self.adds.append(adds)
        return len(self.hop) - 1

    def exchange(self, ends: tuple[int, int], chunks: Chunks, after: Sequence[int], due_s: float) -> list[int]:
        """Two members send each other what they have, and both add: the messages leave together, with the old data."""
        pair = self.add(ends, chunks, after, due_s, adds=True), self.add(ends[::-1], chunks, after, due_s, adds=True)
        self.joint.append(pair)
        return list(pair)

    def spread(
        self, server: int, held: Mapping[int, tuple[Chunks, Sequence[int]]], due_s: float
    ) -> dict[int, list[int]]:
        """Some GPUs of a server send what they hold to all others, once they have received some messages.

        Returns the messages that each one receives.
        """
        got: dict[int, list[int]] = {}
        if not self.net.switch:
            for src, (chunks, after) in held.items():
                for dst in self.net.others(src):
                    got.setdefault(dst, []).append(self.add((src, dst), chunks, after, due_s))
            return got
        switch = self.net.switch[server]
        up = {src: self.add((src, switch), chunks, after, due_s) for src, (chunks, after) in held.items()}
        for dst in self.net.members(server):
            chunks = tuple(chunk for src, (those, _) in held.items() if src != dst for chunk in those)
            if chunks:
                after = [message for src, message in up.items() if src != dst]
                got[dst] = [self.add((switch, dst), chunks, after, due_s)]
        return got

    def sum_up(self, server: int, wanted: Mapping[int, Chunks], due_s: float) -> dict[int, list[int]]:
        """Some GPUs of a server get the sums of chunks from all others; returns the messages each must wait for."""
        if not self.net.switch:
            return {
                dst: [self.add((src, dst), chunks, (), due_s, adds=True) for src in self.net.others(dst)]
                for dst, chunks in wanted.items()
            }
        switch = self.net.switch[server]
        up = []
        for src in self.net.members(server):
            chunks = tuple(chunk for dst, those in wanted.items() if dst != src for chunk in those)
            if chunks:
                up.append(self.add((src, switch), chunks, (), due_s, adds=True))
        return {dst: [self.add((switch, dst), those, up, due_s, adds=True)] for dst, those in wanted.items()}

    def in_time(self, *, busiest_first: bool) -> tuple[Tasks, Floats, float]:
        """A task for every chunk of every message, when it starts, and when the last has arrived."""
        size = np.array([sum(self.chunk_bytes[chunk] for chunk in chunks) for chunks in self.chunks])
        order = np.array(self.before, np.int64).reshape(-1, 2)
        hop, adds, due = np.array(self.hop), np.array(self.adds), np.array(self.due_s)
        messages = Tasks(hop, np.array([chunks[0] for chunks in self.chunks]), size, adds, order, due)
        found, end = in_time(messages, self.net.hops, busiest_first=busiest_first)
        start = found.copy()
        for together in self.joint:
            start[list(together)] = start[list(together)].min()
        of = np.repeat(np.arange(len(hop)), [len(chunks) for chunks in self.chunks])
        chunk = np.concatenate([np.array(chunks) for chunks in self.chunks])
        return Tasks(hop[of], chunk, size[of], adds[of], order[:0], due[of]), start[of], end
