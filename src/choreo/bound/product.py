"""Bounds on all cuts of a topology from its dimensions, at any size.

Let the least cut of a block be the least capacity that leaves any set which splits its ports. Take a set S of nodes
that splits the devices, and let I be the dimensions none of whose lines it splits. Then S is a union of *boxes*: whole
copies of the dimensions in I. So of every other dimension at least |box| lines are split, one for each device of a box,
and each costs at least its least cut:

    B(S) >= sum over dimensions i not in I of the |box| least of its lines' least cuts

while the complement of S holds at least one box. That is a ceiling on the ratio of every cut, one for each I. If a cut
around some box attains the greatest of them, no cut is heavier, and nothing need be searched. It does on rings, tori,
meshes, switches, fully connected blocks and fat trees, and on products of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

import numpy as np

from choreo.bound.cuts import Answer, Question, best_group, can_search, first_of, heaviest_cut
from choreo.bound.flow_network import exact_gigabytes
from choreo.bound.kinds import least_cut
from choreo.topology import Block, Topology
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Dimension", "Product", "answer", "dimensions"]

MOST_DIMENSIONS = 10
MOST_FAMILIES = 32
MOST_SLOWED = 1000
MOST_COUNTED = 1 << 22  # devices times choices of dimensions


@dataclass(frozen=True, slots=True, eq=False)
class Dimension:
    """A block of more than one port, and the numbering of its copies, the lines."""

    block: Block
    stride: int
    lines: int
    first_link: int
    first_switch: int

    def coordinate(self, device: Ints) -> Ints:
        """The port that each device is at in its line."""
        return device // self.stride % self.block.size

    def first_ports(self) -> Ints:
        """The device at port 0 of each line."""
        line = np.arange(self.lines)
        return line // self.stride * self.stride * self.block.size + line % self.stride

    def of_lines(self, values: Floats) -> Floats:
        """A column of the topology's links: a row for each line."""
        links = len(self.block.links)
        return values[self.first_link : self.first_link + self.lines * links].reshape(self.lines, links)


def dimensions(topology: Topology) -> list[Dimension]:
    """The dimensions that have more than one device."""
    found, stride, first_link, first_switch = [], 1, 0, topology.num_devices
    for block in topology.blocks:
        lines = topology.num_devices // block.size
        if block.size > 1:
            found.append(Dimension(block, stride, lines, first_link, first_switch))
        stride *= block.size
        first_link += lines * len(block.links)
        first_switch += lines * block.switches
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A topology's dimensions, the least cut of a line of each, and the least cuts of lines with slower links.

    A least cut of 0 means that it is not known.
    """

    topology: Topology
    dimensions: list[Dimension]
    least: list[Fraction]
    slowed: list[list[Fraction]]

    @staticmethod
    def of_topology(topology: Topology) -> Product:
        """The product of a topology's dimensions."""
        found = dimensions(topology)
        if len(found) > MOST_DIMENSIONS or [dimension.block.kind for dimension in found] == ["graph"]:
            return Product(topology, found, [Fraction(0)] * len(found), [[]] * len(found))
        least: list[Fraction] = []
        slowed: list[list[Fraction]] = []
        for dimension in found:
            lost = _lost(dimension, topology.links.bandwidth_bytes_per_s)
            cut = least_cut(dimension.block) if lost is not None else Fraction(0)
            least.append(cut)
            slowed.append(sorted(max(Fraction(0), cut - each) for each in lost or ()))
        return Product(topology, found, least, slowed)

    @property
    def is_connected(self) -> bool:
        """Whether it is known that every device reaches every other."""
        return all(cut > 0 for cuts in (self.least, *self.slowed) for cut in cuts)

    def unsplit(self) -> list[tuple[int, ...]]:
        """Every choice of dimensions that a cut may leave whole, except all of them; the innermost few first.

        With very many dimensions only the innermost few.
        """
        count = len(self.dimensions)
        inner = [tuple(range(size)) for size in range(count)]
        if count > MOST_DIMENSIONS:
            return inner
        others = (chosen for size in range(1, count) for chosen in combinations(range(count), size))
        return [*inner, *(chosen for chosen in others if chosen not in inner)]

    def smallest_cut(self, unsplit: tuple[int, ...]) -> Fraction:
        """The least capacity out of any set that splits lines of all dimensions but these."""
        box = math.prod(self.dimensions[at].block.size for at in unsplit)
        total = Fraction(0)
        for at, (cut, slowed) in enumerate(zip(self.least, self.slowed, strict=True)):
            if at not in unsplit:
                total += sum(slowed[:box], Fraction(0)) + cut * max(0, box - len(slowed))
        return total

    def box_of_devices(self, unsplit: tuple[int, ...]) -> Ints:
        """The box each device is in, named by its first device."""
        device = np.arange(self.topology.num_devices)
        chosen = (self.dimensions[at] for at in unsplit)
        return device - sum(
            (dimension.coordinate(device) * dimension.stride for dimension in chosen), start=np.zeros_like(device)
        )

    def boxes(self, unsplit: tuple[int, ...]) -> Ints:
        """The box each node is in; a switch is in one if all of its ports are, and otherwise in none: -1."""
        devices = self.box_of_devices(unsplit)
        group = np.full(self.topology.num_nodes, -1)
        group[: len(devices)] = devices
        for at in unsplit:
            dimension = self.dimensions[at]
            inside = np.repeat(devices[dimension.first_ports()], dimension.block.switches)
            group[dimension.first_switch : dimension.first_switch + len(inside)] = inside
        return group

    def lifted(self, at: int, inside: Bools) -> Bools:
        """A set of one block's nodes, repeated in all of its lines, with the switches between the devices in it."""
        dimension = self.dimensions[at]
        lifted = np.zeros(self.topology.num_nodes, np.bool_)
        lifted[: self.topology.num_devices] = inside[dimension.coordinate(np.arange(self.topology.num_devices))]
        for other in self.dimensions:
            if other is dimension:
                switches = np.tile(inside[dimension.block.size :], dimension.lines)
            else:
                switches = np.repeat(inside[dimension.coordinate(other.first_ports())], other.block.switches)
            lifted[other.first_switch : other.first_switch + len(switches)] = switches
        return lifted

    def partition_ceiling(self) -> Fraction | None:
        """A ceiling on what any partition of all devices proves about an all_reduce; None if unknown.

        A copy of a block of n ports that is split into k parts has at least k times its minimum cut between the parts,
        hence (k - 1) n / (n - 1) times that. A line has (k - 1) links both ways, and so has a switch that reduces,
        which is in one of the parts. With these uniform costs all ports are alike, so the best partition is into boxes.
        """
        devices, ceiling = self.topology.num_devices, Fraction(0)
        if not self.is_connected or len(self.dimensions) > MOST_DIMENSIONS:
            return None
        each: list[Fraction] = []
        for dimension, cut, slowed in zip(self.dimensions, self.least, self.slowed, strict=True):
            size, adds = dimension.block.size, dimension.block.reduces.any()
            if adds and dimension.block.kind != "switch":
                return None
            both_ways = not slowed and (dimension.block.kind == "line" or adds)
            each.append(2 * cut * Fraction(size - 1, size) if both_ways else min([cut, *slowed]))
        for unsplit in self.unsplit():
            box = math.prod(self.dimensions[at].block.size for at in unsplit)
            carried = devices * sum((units for at, units in enumerate(each) if at not in unsplit), Fraction(0))
            ceiling = max(ceiling, 2 * (devices // box - 1) / carried)
        return ceiling

    def ceilings(self, question: Question) -> list[tuple[Fraction | None, tuple[int, ...]]]:
        """A ceiling on the ratio of cuts for every choice of unsplit dimensions, None if unknown; greatest first."""
        few = self.topology.num_devices << len(self.dimensions) <= MOST_COUNTED
        known: list[tuple[Fraction, tuple[int, ...]]] = []
        unknown: list[tuple[None, tuple[int, ...]]] = []
        for unsplit in self.unsplit():
            # At least one sink lies outside, with the whole box that contains it.
            outside = question.weight[question.sinks]
            if few:
                box = self.box_of_devices(unsplit)
                outside = np.bincount(box, question.weight[: len(box)])[box[question.sinks]]
            if (cut := self.smallest_cut(unsplit)) > 0:
                known.append(((question.total - int(outside.min())) / cut, unsplit))
            else:
                unknown.append((None, unsplit))
        return [*unknown, *sorted(known, reverse=True)]


def answer(question: Question, product: Product, known: Fraction = Fraction(0)) -> Answer:
    """The heaviest cut: a cut around a box if that is proved best, else searched for if the network is small enough.

    Every sink must be reachable from every weight. The answer is exact if no cut is heavier than both it and the
    `known` ratio.
    """
    ceilings = product.ceilings(question)
    best: Answer | None = None
    for ceiling, unsplit in ceilings[:MOST_FAMILIES]:
        if best is not None and ceiling is not None and max(best.ratio, known) >= ceiling:
            break
        best = first_of((best, best_group(question, product.boxes(unsplit))))
    assert best is not None, "whatever has weight can send it"
    highest = ceilings[0][0]
    if highest is not None and max(best.ratio, known) >= highest:
        return replace(best, exact=True)
    return heaviest_cut(question, best, known) if can_search(question) else best


def _lost(dimension: Dimension, bandwidth: Floats) -> list[Fraction] | None:
    """For each line with slower links, the most capacity that any of its cuts loses; None if there are too many.

    If all slower links touch one node, a cut crosses those that leave it or those that enter it, not both.
    """
    links, now = dimension.block.links, dimension.of_lines(bandwidth)
    meant = links.bandwidth_bytes_per_s
    lines = np.flatnonzero((now < meant).any(axis=1)).tolist()
    if len(lines) > MOST_SLOWED:
        return None
    lost: list[Fraction] = []
    for line in lines:
        slower = np.flatnonzero(now[line] < meant).tolist()
        each = [exact_gigabytes(float(meant[at])) - exact_gigabytes(float(now[line, at])) for at in slower]
        most = sum(each, Fraction(0))
        ends = [{int(links.src[at]), int(links.dst[at])} for at in slower]
        for node in set.intersection(*ends):
            leaving = sum((less for less, at in zip(each, slower, strict=True) if links.src[at] == node), Fraction(0))
            most = max(leaving, sum(each, Fraction(0)) - leaving)
        lost.append(most)
    return lost
