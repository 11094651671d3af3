"""Known results for each kind of block: its minimum cut, and the cuts that bind an all_to_all among its ports.

`telling_cuts` are sets of nodes. For blocks of that kind they include the set of least capacity that splits the ports,
and the heaviest set for all_to_all. Between any two ports there are paths with as much capacity as the least of them:

    ring             both ways round                                 one port; half of the ring
    line             the line                                        the port at its end; half of the line
    fully_connected  the link, and a way over each other port        one port
    switch           up and down                                     one port; all but one, and the fabric's input
    fat_tree         up, spread evenly over all planes, and down     one port; the group of each level

An all_to_all on shortest paths, spread evenly over equal ones, loads no link more than the heaviest of these cuts:
docs/explanation/bound.md says why. A block that is a general graph is searched.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from choreo.bound.cuts import Question, best_group, can_search, heaviest_cut
from choreo.bound.flow_network import FlowNetwork, reached_from
from choreo.topology import Block
from choreo.topology.graph import Bools

__all__ = ["has_fabric", "least_cut", "telling_cuts"]


def least_cut(block: Block) -> Fraction:
    """The least capacity out of any set that splits the ports, in GB/s; 0 if the search would take too long."""
    network = FlowNetwork.of_block(block)
    cuts = telling_cuts(block)
    if cuts is None:
        return _searched(network, block.size)
    return min(network.bandwidth(network.leaving(inside)) for inside in cuts)


def telling_cuts(block: Block) -> list[Bools] | None:
    """The sets of nodes that limit what a block of this kind can carry; None if they must be searched for."""
    size, cuts = block.size, [_first(block, 1)]
    if block.kind == "fat_tree":
        return [*cuts, *_groups(block)]
    bandwidth = block.links.bandwidth_bytes_per_s[: 2 * size if block.kind == "switch" else None]
    if block.kind not in ("ring", "line", "fully_connected", "switch") or (bandwidth != bandwidth[0]).any():
        return None
    if block.kind in ("ring", "line"):
        cuts.append(_first(block, size // 2))
    elif has_fabric(block):
        cuts.append(_first(block, size - 1))
        cuts[-1][size] = True
    return cuts


def has_fabric(block: Block) -> bool:
    """Whether a block is an oversubscribed switch: two nodes, joined by the block's last link."""
    return block.kind == "switch" and block.switches == 2


def _first(block: Block, ports: int) -> Bools:
    return np.arange(block.nodes) < ports


def _groups(block: Block) -> list[Bools]:
    """For every level of a fat tree below the top, the ports of one group and the switches above them."""
    links, size = block.links, block.size
    # How many links a node is above the ports, and the first port below it.
    level, first = np.full(block.nodes, -1), np.arange(block.nodes)
    level[:size] = 0
    above = 0
    while (rising := (level[links.src] == above) & ((level[links.dst] < 0) | (level[links.dst] == above + 1))).any():
        level[links.dst[rising]] = above + 1
        np.minimum.at(first, links.dst[rising], first[links.src[rising]])
        above += 1
    found = []
    for height in range(1, above):
        ports = size // len(np.unique(first[level == height]))
        found.append((first < ports) & (level <= height))
    return found


def _searched(network: FlowNetwork, ports: int) -> Fraction:
    """The least cut of any graph, by max-flow from its first port and back."""
    ratio = Fraction(0)
    for way in (network, network.backwards()):
        if not reached_from(way, 0)[:ports].all():
            return Fraction(0)
        weight = np.zeros(network.nodes, np.int64)
        weight[0] = 1
        question = Question(way, weight, np.arange(1, ports))
        start = best_group(question, np.where(np.arange(network.nodes) < ports, np.arange(network.nodes), -1))
        if not can_search(question) or start is None:
            return Fraction(0)
        ratio = max(ratio, heaviest_cut(question, start).ratio)
    return 1 / ratio
