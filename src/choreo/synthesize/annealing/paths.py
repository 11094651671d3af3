"""Paths of one device's blocks to all others: straight, or by way of devices that pass several blocks on together."""

from __future__ import annotations

import numpy as np

from choreo.synthesize.annealing.search import LATE, Messages, Plan, Search
from choreo.synthesize.annealing.ways import Ways
from choreo.synthesize.symmetry import Symmetry
from choreo.topology.graph import Floats

__all__ = ["Path", "Paths"]

# The devices that a block visits, its target last.
Path = tuple[int, ...]
# How a path changes: it leaves out a device, or visits one more; otherwise it goes along one dimension after another.
FEWER, MORE = 0.3, 0.4
# How often the device that a path visits is one of the nearest: of so many, and of those as near.
NEAR, NEIGHBOURS = 0.7, 6
# The most messages of a block.
MOST_HOPS = 8


class Paths(Search[tuple[Path, ...]]):
    """A shape is a path to each device but 0."""

    def __init__(self, ways: Ways, symmetry: Symmetry, block_bytes: float) -> None:
        super().__init__(ways, block_bytes)
        self.symmetry = symmetry
        nearest = np.sort(ways.latency_s)[: min(NEIGHBOURS, self.devices - 1)]
        self.near = np.flatnonzero(ways.latency_s <= nearest[-1]) + 1
        self.offset_of: list[list[int]] = ways.offset_of.tolist()

    def direct(self) -> Plan[tuple[Path, ...]]:
        """Every block goes straight to its target, the farthest first."""
        return self.planned(tuple((block,) for block in range(1, self.devices)), -self.ways.latency_s)

    def hop_by_hop(self) -> Plan[tuple[Path, ...]]:
        """Every block goes along one dimension after another."""
        shape = tuple(self._by_dimensions(block) for block in range(1, self.devices))
        away_s = self.ways.latency_s
        order = [hop * away_s.max() - away_s[path[-1] - 1] for path in shape for hop in range(len(path))]
        return self.planned(shape, np.array(order), 2 * float(self.takes_s.max()))

    def messages(self, shape: tuple[Path, ...]) -> Messages:
        """A block's messages wait for one another."""
        way: list[int] = []
        missing: list[int] = []
        after: list[int] = []
        offsets = [0]
        for path in shape:
            here = 0
            for there in path:
                missing.append(1 if here else 0)
                way.append(self.offset_of[there][here] - 1)
                here = there
                if there != path[-1]:
                    after.append(len(way))
                offsets.append(len(after))
        nowhere = np.full(len(way), -1)
        return Messages(np.array(way), np.array(missing), nowhere, np.array(offsets), np.array(after, np.int64))

    def reshaped(self, plan: Plan[tuple[Path, ...]]) -> tuple[tuple[Path, ...], Floats] | None:
        """Another path for one block; None if it is too long, or visits a device twice."""
        rng, shape = self.rng, plan.shape
        ends = np.cumsum([len(path) for path in shape])
        if rng.random() < LATE:
            block = int(np.searchsorted(ends, int(self.arrived_s(plan).argmax()), side="right"))
        else:
            block = int(rng.integers(len(shape)))
        path = self._other(shape[block])
        if len(path) > MOST_HOPS or len({0, *path}) <= len(path):
            return None
        first, last = int(ends[block]) - len(shape[block]), int(ends[block])
        if rng.random() < 0.5:
            moments = np.sort(rng.random(len(path))) * plan.end_s
        else:
            moments = np.interp(np.linspace(0, 1, len(path)), np.linspace(0, 1, last - first), plan.order[first:last])
        order = np.concatenate((plan.order[:first], moments, plan.order[last:]))
        return (*shape[:block], path, *shape[block + 1 :]), order

    def _other(self, path: Path) -> Path:
        """A path that is a little different."""
        rng, chance = self.rng, self.rng.random()
        if len(path) > 1 and chance < FEWER:
            out = int(rng.integers(len(path) - 1))
            return path[:out] + path[out + 1 :]
        if chance >= FEWER + MORE:
            return self._by_dimensions(path[-1])
        at = int(rng.integers(len(path)))
        offset = int(rng.choice(self.near) if rng.random() < NEAR else rng.integers(1, self.devices))
        here = np.array(path[at - 1] if at else 0)
        return (*path[:at], int(self.symmetry.shifted(here, np.array(offset))), *path[at:])

    def _by_dimensions(self, block: int) -> Path:
        """A path along one dimension after another, in any order: along a ring either way round, or straight."""
        rng, symmetry, runs = self.rng, self.symmetry, []
        for dimension, size in enumerate(symmetry.sizes):
            offset = block // symmetry.stride(dimension) % size
            hops = {lane.offsets[0] for lane in symmetry.lanes if lane.dimension == dimension}
            if not offset:
                continue
            up = offset < size - offset or (2 * offset == size and rng.random() < 0.5)
            step = 1 if up else size - 1
            if hops == {1, size - 1} and (not up or rng.random() < 0.5):
                runs.append([step * symmetry.stride(dimension)] * min(offset, size - offset))
            else:
                runs.append([offset * symmetry.stride(dimension)])
        path, here = [], np.array(0)
        for run in rng.permutation(len(runs)).tolist():
            for offset in runs[run]:
                here = symmetry.shifted(here, np.array(offset))
                path.append(int(here))
        return tuple(path)
