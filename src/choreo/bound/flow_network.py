"""A topology's live links with exact capacities: whole numbers of one unit of bandwidth.

A bandwidth is a float that stands for a decimal or a ratio. The simplest fraction that rounds to it is taken, so that a
third of 50 GB/s is 50/3 and not a number over two to the fiftieth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from choreo.topology import Block, Topology
from choreo.topology.graph import Bools, Floats, Ints, Links

__all__ = ["FlowNetwork", "exact_gigabytes", "reached_from", "shortest_ways"]

SIMPLE_DENOMINATOR = 10**6
ROUNDING = Fraction(1, 2**50)
LEAST = 1e-300
SMALL_NODES = 512


def exact_gigabytes(bandwidth_bytes_per_s: float) -> Fraction:
    """A bandwidth in GB/s as a simple fraction within rounding of the float, or else as the float's exact value."""
    exact = Fraction(bandwidth_bytes_per_s) / 10**9
    simple = exact.limit_denominator(SIMPLE_DENOMINATOR)
    return simple if abs(simple - exact) <= exact * ROUNDING else exact


@dataclass(frozen=True, slots=True, eq=False)
class FlowNetwork:
    """The live links, from src to dst; link k is link `number[k]` of the topology.

    The capacity of link k is values[code[k]] units, and a unit is `unit` GB/s. `relative` is the capacity as a float,
    with the widest link as 1: good enough to choose between cuts before one is computed exactly.
    """

    nodes: int
    src: Ints
    dst: Ints
    number: Ints
    code: npt.NDArray[np.int32]
    values: tuple[int, ...]
    unit: Fraction
    relative: Floats

    @staticmethod
    def of_topology(topology: Topology) -> FlowNetwork:
        """The live links of a topology."""
        return _network(topology.num_nodes, topology.links)

    @staticmethod
    def of_block(block: Block) -> FlowNetwork:
        """The live links of one block."""
        return _network(block.nodes, block.links)

    def backwards(self) -> FlowNetwork:
        """The network with every link reversed."""
        return replace(self, src=self.dst, dst=self.src)

    def is_balanced(self) -> bool:
        """Whether every node has the same links in as out. Then every set of nodes has equal capacity in and out."""
        if (self.code == 0).all():
            return bool(
                (np.bincount(self.src, minlength=self.nodes) == np.bincount(self.dst, minlength=self.nodes)).all()
            )
        out, into = (np.sort(self.code * np.int64(self.nodes) + end) for end in (self.src, self.dst))
        return bool((out == into).all())

    def leaving(self, inside: Bools) -> Ints:
        """The links from a set of nodes to the others."""
        return np.flatnonzero(inside[self.src] & ~inside[self.dst])

    def units(self, links: Ints) -> int:
        """The joint capacity of links, exactly."""
        counts = np.bincount(self.code[links], minlength=len(self.values)).tolist()
        return sum(count * value for count, value in zip(counts, self.values, strict=True))

    def bandwidth(self, links: Ints) -> Fraction:
        """The joint capacity of links, in GB/s."""
        return self.units(links) * self.unit

    def each_units(self) -> list[int]:
        """The capacity of every link."""
        return [self.values[code] for code in self.code.tolist()]


def _network(nodes: int, links: Links) -> FlowNetwork:
    bandwidth = links.bandwidth_bytes_per_s
    number = np.flatnonzero(bandwidth > 0)
    src, dst = links.src, links.dst
    if len(number) < len(links):
        src, dst, bandwidth = src[number], dst[number], bandwidth[number]
    if not len(number):
        return FlowNetwork(nodes, src, dst, number, np.zeros(0, np.int32), (), Fraction(1), np.zeros(0))
    code = np.zeros(len(number), np.int32)
    distinct = bandwidth[:1]
    if (bandwidth != bandwidth[0]).any():
        distinct, inverse = np.unique(bandwidth, return_inverse=True)
        code = inverse.astype(np.int32)
    figures = [exact_gigabytes(value) for value in distinct.tolist()]
    below = math.lcm(*(figure.denominator for figure in figures))
    scaled = [int(figure * below) for figure in figures]
    unit = math.gcd(*scaled)
    values = tuple(value // unit for value in scaled)
    relative = np.maximum(bandwidth / bandwidth.max(), LEAST)
    return FlowNetwork(nodes, src, dst, number, code, values, Fraction(unit, below), relative)


def reached_from(network: FlowNetwork, node: int) -> Bools:
    """A mask of the nodes that can be reached from one."""
    reached = np.zeros(network.nodes, np.bool_)
    reached[node] = True
    if network.nodes <= SMALL_NODES:
        while not reached[onward := network.dst[reached[network.src]]].all():
            reached[onward] = True
        return reached
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    ones = np.ones(len(network.src), np.int32)
    graph = csr_array((ones, (network.src, network.dst)), shape=(network.nodes, network.nodes))
    reached[breadth_first_order(graph, node, return_predecessors=False)] = True
    return reached


def shortest_ways(network: FlowNetwork, length: Floats) -> Floats:
    """The distance of every node (rows) from every other (columns) when links have lengths (Floyd 1962)."""
    away = np.full((network.nodes, network.nodes), np.inf)
    np.minimum.at(away, (network.src, network.dst), length)
    np.fill_diagonal(away, 0.0)
    for node in range(network.nodes):
        np.minimum(away, away[:, node, None] + away[node], out=away)
    return away
