"""Greedy, rarest chunk first: for short messages, where a few hops decide the time rather than the busiest link.

At every moment, each free link takes the rarest chunk that its source has and its target lacks. Links with the least
choice choose first. A slow link leaves a chunk alone if a much faster path could deliver it. Chunks that are much
shorter than a hop's latency and overhead may travel together as one message.

In reverse on the reversed network an all_gather is a reduce_scatter, a broadcast is a reduce, and the two together are
an all_reduce.

Source: W. Won, M. Elavazhagan, S. Srinivasan, S. Gupta, T. Krishna, "TACOS: Topology-aware collective algorithm
synthesizer for distributed machine learning", MICRO 2024; rarest first is as in BitTorrent.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from choreo.schedule import Schedule, Steps, Transfers, backwards, then
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.topology.graph import Floats, Ints

__all__ = ["greedy"]

# Above this size the busiest link decides, and other generators are near the bound.
MOST_BYTES = 4 << 20
# The most chunks per share, or per vector of a rooted collective.
SHARE_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16)
VECTOR_CHUNKS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# How many times as fast another path must be for a link to leave a chunk to it.
FASTER = 2.5
# How long a message of several chunks may occupy a link, in multiples of its latency and overhead.
TOGETHER = (0.0, 0.3, 1.0)
# Also used for long messages where there are too many devices to pack trees, and few hops each.
MANY_DEVICES, FEW_HOPS = 80, 16
# The most hop checks: the outgoing hops of a device, for every message. For few hops, and for many.
MOST_LOOKS = {True: 5_000_000, False: 100_000}
# With many devices, the rarest of only this many chunks is taken.
SAMPLE = 12
# More chunks are tried while plans stay within this factor of the best.
NEAR = 1.2
# Events: a sender may send again, the links of a hop are free again, chunks have arrived.
SENT, OUT, WRITTEN = range(3)
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")


def greedy(problem: Problem) -> Iterator[Candidate]:
    """Short messages on any network, in more and more chunks while that helps."""
    if problem.collective not in KINDS or not problem.in_order or problem.weights is not None:
        return
    if not problem.size_bytes or problem.ranks < 2:
        return
    long = problem.size_bytes > MOST_BYTES and problem.effort != "fast"
    if long and problem.ranks <= MANY_DEVICES:
        return
    hops = hops_of(problem.topology)
    few = len(hops) <= FEW_HOPS * problem.ranks
    if long and not few:
        return
    shared = problem.root is None
    whole = problem.size_bytes / (problem.ranks if shared else 1)
    best_s = np.inf
    for chunks in SHARE_CHUNKS if shared else VECTOR_CHUNKS:
        owner = np.repeat(np.arange(problem.ranks), chunks) if shared else np.full(chunks, problem.root)
        messages = len(owner) * (problem.ranks - 1)
        if messages * len(hops) / problem.ranks > MOST_LOOKS[few] or (
            chunks > 1 and whole / chunks < LEAST_CHUNK_BYTES
        ):
            break
        timed = [_made(problem, hops, owner, whole / chunks, most) for most in _most(hops, whole / chunks)]
        end_s = min(end_s for end_s, _ in timed)
        if end_s > NEAR * best_s:
            break
        for time_s, schedule in timed:
            if time_s <= NEAR * min(end_s, best_s):
                yield Candidate("greedy", schedule)
        best_s = min(best_s, end_s)


def _most(hops: Hops, chunk_bytes: float) -> list[list[int]]:
    """The most chunks in a message over each hop; several alternatives."""
    costs_s = hops.send_s + hops.latency_s + hops.receive_s
    chunks = costs_s * hops.bandwidth_bytes_per_s / chunk_bytes
    tables = [np.maximum(together * chunks, 1.0).astype(np.int64).tolist() for together in TOGETHER]
    return [table for number, table in enumerate(tables) if table not in tables[:number]]


def _made(problem: Problem, hops: Hops, owner: Ints, chunk_bytes: float, most: list[int]) -> tuple[float, Schedule]:
    """The planned time, and the schedule."""
    kind = "all_gather" if problem.root is None else "broadcast"
    parts, time_s = [], 0.0
    if problem.collective in ("reduce_scatter", "all_reduce", "reduce"):
        steps, time_s = _Growth(hops.turned(), owner, chunk_bytes, most).run()
        parts.append(backwards(Schedule(kind, steps, problem.root, "greedy")))
    if problem.collective in ("all_gather", "all_reduce", "broadcast"):
        steps, away_s = _Growth(hops, owner, chunk_bytes, most).run()
        time_s += away_s
        parts.append(Schedule(kind, steps, problem.root, "greedy"))
    return time_s, then(*parts) if len(parts) > 1 else parts[0]


class _Growth:
    """Who has which chunk, which links are free, and what is in flight. Sets of chunks are bit masks."""

    def __init__(self, hops: Hops, owner: Ints, chunk_bytes: float, most: list[int]) -> None:
        self.hops, self.owner = hops, owner
        self.src, self.dst = hops.src.tolist(), hops.dst.tolist()
        by_hop = hops.load.tocsc()
        self.links: list[list[int]] = [
            by_hop.indices[a:b].tolist() for a, b in zip(by_hop.indptr[:-1], by_hop.indptr[1:], strict=True)
        ]
        self.most = most
        self.takes_s: list[float] = (chunk_bytes / hops.bandwidth_bytes_per_s).tolist()
        self.send_s: list[float] = hops.send_s.tolist()
        self.latency_s: list[float] = hops.latency_s.tolist()
        self.busy_s: list[list[float]] = [hops.send_busy_s.tolist(), hops.receive_busy_s.tolist()]
        self.receive_s: list[float] = hops.receive_s.tolist()
        self.faster = _faster(hops, chunk_bytes)
        self.hops_at: list[list[int]] = [[] for _ in hops.capacity]
        self.hops_from: list[list[int]] = [[] for _ in range(hops.devices)]
        for hop, links in enumerate(self.links):
            self.hops_from[self.src[hop]].append(hop)
            for link in links:
                self.hops_at[link].append(hop)
        self.has: list[int] = [0] * hops.devices
        self.wanted = [(1 << len(owner)) - 1] * hops.devices  # neither here nor in flight
        self.copies = [1] * len(owner)
        self.with_copies = [0] * (hops.devices + 1)  # chunks by number of copies
        self.with_copies[1] = (1 << len(owner)) - 1
        for chunk, device in enumerate(owner.tolist()):
            self.has[device] |= 1 << chunk
            self.wanted[device] &= ~(1 << chunk)

    def run(self) -> tuple[Steps, float]:
        """Run until every device has everything; returns the steps, and the time."""
        self.free = [True] * len(self.hops.capacity)
        self.sender_free = [0.0] * self.hops.devices
        self.receiver_free = [0.0] * self.hops.devices
        self.events: list[tuple[float, int, int, int]] = []  # time, event, hop or device, chunks
        self.rows: list[tuple[float, int, int]] = []
        self.end_s = now = 0.0
        self.left = len(self.owner) * (self.hops.devices - 1)
        touched = set(range(len(self.links)))
        while self.left:
            choices = [(self._may_take(hop).bit_count(), hop) for hop in touched if self._is_free(hop, now)]
            for count, hop in sorted(choices):
                if count and self._is_free(hop, now):
                    self._send(hop, now)
            touched.clear()
            now = self.events[0][0]
            while self.events and self.events[0][0] <= now * (1 + 1e-12):
                now, kind, where, chunks = heapq.heappop(self.events)
                if kind == OUT:
                    for link in self.links[where]:
                        self.free[link] = True
                        touched.update(self.hops_at[link])
                else:
                    self.has[where] |= chunks
                    touched.update(self.hops_from[where])
        return self._steps(), self.end_s

    def _is_free(self, hop: int, now: float) -> bool:
        return self.sender_free[self.src[hop]] <= now and all(self.free[link] for link in self.links[hop])

    def _send(self, hop: int, now: float) -> None:
        """Send the rarest chunks over a hop, if any are left."""
        src, dst = self.src[hop], self.dst[hop]
        may = self._may_take(hop)
        taken = 0
        for _ in range(min(self.most[hop], may.bit_count())):
            chunk = self._rarest(may & ~taken, dst)
            taken |= 1 << chunk
            self.rows.append((now, hop, chunk))
        if not taken:
            return
        self.left -= taken.bit_count()
        for link in self.links[hop]:
            self.free[link] = False
        self.sender_free[src] = now + self.busy_s[0][hop]
        out_s = now + self.send_s[hop] + taken.bit_count() * self.takes_s[hop]
        arrived_s = max(out_s + self.latency_s[hop], self.receiver_free[dst])
        self.receiver_free[dst] = arrived_s + self.busy_s[1][hop]
        written_s = arrived_s + self.receive_s[hop]
        self.end_s = max(self.end_s, written_s)
        heapq.heappush(self.events, (self.sender_free[src], SENT, src, 0))
        heapq.heappush(self.events, (out_s, OUT, hop, 0))
        heapq.heappush(self.events, (written_s, WRITTEN, dst, taken))

    def _may_take(self, hop: int) -> int:
        """The chunks that the hop's source has, its target lacks, and no much faster path could deliver."""
        may: int = self.has[self.src[hop]] & self.wanted[self.dst[hop]]
        for device in self.faster[hop] if may else ():
            may &= self.wanted[device]
        return may

    def _rarest(self, may: int, dst: int) -> int:
        """Take the rarest chunk; of equally rare ones, the first after the target's own."""
        turn = dst * len(self.owner) // self.hops.devices
        if self.hops.devices <= MANY_DEVICES:
            copies = next(count for count, chunks in enumerate(self.with_copies) if chunks & may)
            rare = self.with_copies[copies] & may
            first = rare >> turn << turn or rare
            lowest = first & -first
            self.with_copies[copies] &= ~lowest
            self.with_copies[copies + 1] |= lowest
        else:
            lowest = self._rarest_of_some(may >> turn << turn or may)
        chunk = lowest.bit_length() - 1
        self.copies[chunk] += 1
        self.wanted[dst] &= ~lowest
        return chunk

    def _rarest_of_some(self, may: int) -> int:
        best, copies = 0, self.hops.devices + 1
        for _ in range(SAMPLE):
            lowest = may & -may
            count = self.copies[lowest.bit_length() - 1]
            if count < copies:
                best, copies = lowest, count
            may ^= lowest
            if not may:
                break
        return best

    def _steps(self) -> Steps:
        rows = self.rows
        start_s = np.array([row[0] for row in rows])
        hop, chunk = (np.array([row[column] for row in rows], np.int64) for column in (1, 2))
        moments, step = np.unique(start_s, return_inverse=True)
        nothing = np.zeros(len(rows), np.bool_)
        ends = self.hops.src[hop], self.hops.dst[hop]
        table = Transfers(step.astype(np.int64), *ends, chunk, np.ones(len(rows), np.int64), nothing, nothing)
        return Steps.from_transfers(self.hops.devices, len(self.owner), len(moments), table.by_step())


def _faster(hops: Hops, chunk_bytes: float) -> list[list[int]]:
    """For each hop, the devices from which a chunk reaches the hop's target much sooner than over the hop."""
    hop_s: Floats = hops.send_s + hops.receive_s + hops.latency_s + chunk_bytes / hops.bandwidth_bytes_per_s
    away = dijkstra(csr_matrix((hop_s, (hops.src, hops.dst)), shape=(hops.devices,) * 2))
    near = away[:, hops.dst] * FASTER < hop_s
    near[hops.dst, np.arange(len(hops))] = False
    return [np.flatnonzero(column).tolist() for column in near.T]
