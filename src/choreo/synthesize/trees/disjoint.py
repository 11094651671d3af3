"""Arc-disjoint trees from one root: as many as the root can feed at once, each on links of its own.

A link is cut into slots, each as wide as one tree. All trees grow from the root at the same time, always by the hop
that arrives first. A hop is taken only if all trees can still be completed. Edmonds' theorem on disjoint branchings
turns that into a flow problem: every device must have slot-disjoint paths from each of the trees. A pipeline along such
trees never waits for another.

Source: J. Edmonds, "Edge-disjoint branchings", in Combinatorial Algorithms, 1973; L. Lovász, "On two minimax theorems
in graph", Journal of Combinatorial Theory B 21, 1976.
"""

from __future__ import annotations

import heapq

import numpy as np

from choreo.synthesize.network import Hops
from choreo.synthesize.trees.shallow import shallower
from choreo.topology.graph import Floats, Ints

__all__ = ["disjoint_trees"]

# The most trees, and the share of the best possible speed that is enough to settle for fewer trees.
MOST_TREES, NEAR = 16, 0.98
# How many hop checks a search may take: every tree considers every hop, and each check looks at all trees.
MOST_LOOKS = 1 << 24


def disjoint_trees(hops: Hops, root: int, hop_s: Floats, s_a_byte: float) -> list[Ints]:
    """The hop into each member of each tree, -1 for the root; none where hops share links or many trees are needed.

    `hop_s` is the time of a chunk over each hop, and `s_a_byte` the least time for a byte of the root's data.

    >>> from choreo.synthesize.network import hops_of
    >>> from choreo.topology import get_topology
    >>> hops = hops_of(get_topology("ring(4, 50GB/s, 1us)"))
    >>> [len(set(into.tolist())) for into in disjoint_trees(hops, 0, np.ones(8), 1e-11)]
    [4, 4]
    """
    if hops.members > hops.devices or (np.diff(hops.load.indptr) > 1).any():
        return []
    for trees in range(1, MOST_TREES + 1):
        slots = np.floor(hops.bandwidth_bytes_per_s * s_a_byte * trees / NEAR).astype(np.int64)
        into = np.bincount(hops.dst, slots, minlength=hops.members)
        out = np.bincount(hops.src, slots, minlength=hops.members)
        into[root] = trees
        if min(into.min(), out[root]) < trees:
            continue
        if (trees * len(hops)) ** 2 > MOST_LOOKS:
            break
        growth = _Growth(hops, root, slots, trees)
        if all(growth.can_complete(device) for device in range(hops.members)):
            return shallower(growth.run(hop_s), hops, root, hop_s, slots)
    return []


class _Growth:
    """Growing trees: `has` is a bit mask of the trees that a device is in, and `left` the free slots of each hop."""

    def __init__(self, hops: Hops, root: int, slots: Ints, trees: int) -> None:
        self.src, self.dst = hops.src.tolist(), hops.dst.tolist()
        self.left = slots.tolist()
        self.trees, self.root = trees, root
        self.has = [0] * hops.members
        self.has[root] = (1 << trees) - 1
        self.into: list[list[int]] = [[] for _ in range(hops.members)]
        self.out: list[list[int]] = [[] for _ in range(hops.members)]
        for hop, slot in enumerate(self.left):
            if slot:
                self.into[self.dst[hop]].append(hop)
                self.out[self.src[hop]].append(hop)

    def run(self, hop_s: Floats) -> list[Ints]:
        """Grow all trees until they reach every device."""
        takes = hop_s.tolist()
        found = [np.full(len(self.has), -1) for _ in range(self.trees)]
        waiting = [(takes[hop], hop, tree) for hop in self.out[self.root] for tree in range(self.trees)]
        heapq.heapify(waiting)
        while waiting:
            at, hop, tree = heapq.heappop(waiting)
            device = self.dst[hop]
            if self.has[device] >> tree & 1 or not self.left[hop] or not self._may_take(hop, tree):
                continue  # what cannot be completed now never will be
            found[tree][device] = hop
            for onward in self.out[device]:
                heapq.heappush(waiting, (at + takes[onward], onward, tree))
        return found

    def _may_take(self, hop: int, tree: int) -> bool:
        device = self.dst[hop]
        self.left[hop] -= 1
        self.has[device] |= 1 << tree
        if self.can_complete(device):
            return True
        self.left[hop] += 1
        self.has[device] ^= 1 << tree
        return False

    def can_complete(self, device: int) -> bool:
        """Whether slot-disjoint paths lead to a device from all trees that lack it: a flow of that size exists."""
        lacking = self.trees - self.has[device].bit_count()
        flow: dict[int, int] = {}
        leaves_at: dict[int, int] = {tree: device for tree in range(self.trees) if self.has[device] >> tree & 1}
        return all(self._augment(device, flow, leaves_at) for _ in range(lacking))

    def _augment(self, device: int, flow: dict[int, int], leaves_at: dict[int, int]) -> bool:
        """Find one more path, searching backwards from the device; other paths may be rerouted.

        `flow` has the slots in use on each hop, and `leaves_at` where each tree's path begins.
        """
        # By device: the hop that led to it and its direction, or -2 - tree and which device asked where that tree's
        # path began.
        came: dict[int, tuple[int, int]] = {device: (-1, 0)}
        queue = [device]
        asked = 0  # trees, as bits
        for here in queue:
            for tree in _bits(self.has[here] & ~asked):
                asked |= 1 << tree
                if tree not in leaves_at:
                    self._take(tree, here, came, flow, leaves_at)
                    return True
                begins = leaves_at[tree]
                if begins not in came:
                    came[begins] = (-2 - tree, here)
                    queue.append(begins)
            for hop in self.into[here]:
                if self.left[hop] > flow.get(hop, 0) and self.src[hop] not in came:
                    came[self.src[hop]] = (hop, 1)
                    queue.append(self.src[hop])
            for hop in self.out[here]:
                if flow.get(hop, 0) and self.dst[hop] not in came:
                    came[self.dst[hop]] = (hop, -1)
                    queue.append(self.dst[hop])
        return False

    def _take(
        self, tree: int, here: int, came: dict[int, tuple[int, int]], flow: dict[int, int], leaves_at: dict[int, int]
    ) -> None:
        """Apply the search result: this tree's path begins here, and each path in its way begins elsewhere."""
        leaves_at[tree] = here
        while True:
            hop, sense = came[here]
            if hop == -1:
                return
            if hop < -1:  # that tree's path began here, and now begins where it was asked for
                here = sense
                leaves_at[-2 - hop] = here
                continue
            flow[hop] = flow.get(hop, 0) + sense
            here = self.dst[hop] if sense > 0 else self.src[hop]


def _bits(number: int) -> list[int]:
    found = []
    while number:
        lowest = number & -number
        found.append(lowest.bit_length() - 1)
        number ^= lowest
    return found
