"""Arc-disjoint trees made less deep: two trees exchange the hops by which they enter a device, or one takes a free one.

Trees that grow together leave the longest ways to the last of them. A change is kept if the deep devices come nearer,
and at first also if they move away a little (simulated annealing). On a torus of 16 x 16 four trees go from 23 hops to
18, where 16 are the least for any tree.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from choreo.synthesize.network import Hops
from choreo.topology.graph import Floats, Ints

__all__ = ["shallower"]

# The most changes, and the most devices whose depth is computed for them.
CHANGES, MOST_DEPTHS = 30_000, 1 << 23
# A tree is as deep as its devices in the mean of this power: the deepest count most.
POWER = 12
# The part of a hop by which trees may become deeper at first.
WARM = 0.02


def shallower(trees: Sequence[Ints], hops: Hops, root: int, hop_s: Floats, slots: Ints) -> list[Ints]:
    """Trees over the same slots that bring a chunk to the last device earlier.

    `hop_s` is the time of a chunk over each hop, and `slots` says how many trees may take a hop.
    """
    search = _Search(trees, hops, root, hop_s / max(float(hop_s.max()), 1e-300), slots)
    search.run(min(CHANGES, MOST_DEPTHS // (2 * hops.members)))
    return [np.array(into) for into in search.into]


class _Search:
    """The trees as the hop into each device, the depth of each, and the slots in use."""

    def __init__(self, trees: Sequence[Ints], hops: Hops, root: int, takes: Floats, slots: Ints) -> None:
        self.src, self.takes, self.root = hops.src.tolist(), takes.tolist(), root
        self.into = [into.tolist() for into in trees]
        self.hops_to = [np.flatnonzero((hops.dst == member) & (slots > 0)).tolist() for member in range(hops.members)]
        taken = np.bincount(np.concatenate([into[into >= 0] for into in trees]), minlength=len(hops))
        self.free = (slots - taken).tolist()
        self.depth = [self._depth(into) for into in self.into]
        self.random = random.Random(hops.members)

    def run(self, changes: int) -> None:
        """Try so many changes."""
        for number in range(changes):
            self._change(WARM * (1 - number / changes))

    def _change(self, warmth: float) -> None:
        """Let a tree enter a device by another hop; the tree that enters by it takes the first one's in exchange."""
        device, tree = self.random.randrange(len(self.hops_to)), self.random.randrange(len(self.into))
        if device == self.root:
            return
        before, hop = self.into[tree][device], self.random.choice(self.hops_to[device])
        others = [other for other, into in enumerate(self.into) if other != tree and into[device] == hop]
        exchanged = [(tree, before, hop)]
        if self.free[hop] <= 0 and others:
            exchanged.append((self.random.choice(others), hop, before))
        if hop == before or any(self._is_behind(self.into[one], device, self.src[new]) for one, _, new in exchanged):
            return
        for one, _, new in exchanged:
            self.into[one][device] = new
        depths = {one: self._depth(self.into[one]) for one, *_ in exchanged}
        deeper = sum(depths.values()) - sum(self.depth[one] for one in depths)
        if deeper > 0 and self.random.random() >= math.exp(-deeper / max(warmth, 1e-9)):
            for one, old, _ in exchanged:
                self.into[one][device] = old
            return
        for one, depth in depths.items():
            self.depth[one] = depth
        if len(exchanged) == 1:
            self.free[before] += 1
            self.free[hop] -= 1

    def _is_behind(self, into: list[int], device: int, there: int) -> bool:
        """Whether the way to a device in a tree leads through another one."""
        while there != self.root:
            if there == device:
                return True
            there = self.src[into[there]]
        return False

    def _depth(self, into: list[int]) -> float:
        """How long a chunk is on its way, in a mean over the devices that counts the farthest most."""
        depth = [-1.0] * len(into)
        depth[self.root] = 0.0
        for device in range(len(into)):
            way, here = [], device
            while depth[here] < 0:
                way.append(here)
                here = self.src[into[here]]
            for there in reversed(way):
                depth[there] = depth[here] + self.takes[into[there]]
                here = there
        return math.pow(sum(one**POWER for one in depth), 1 / POWER)
