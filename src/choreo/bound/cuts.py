"""The heaviest cut: the set S of nodes with the greatest ratio of data that must leave it to the capacity out of it.

A cut question gives every node a weight and names the sinks. If some sink lies outside S, all the weight in S must
leave it. That takes at least w(S) / B(S), where B(S) is the capacity of the links that leave S. All collectives but
all_to_all and send_recv are such questions, on the network or on the network with its links reversed.

The greatest ratio is found by Newton's method on ratios (Dinkelbach 1967), as in ForestColl (2024). For a ratio r, a
source feeds every node its weight, and links carry r times their capacity. If max-flow finds a cut of less than all the
weight, that cut is heavier than r, and its own ratio is the next r. Sinks are searched one after another. A finished
sink becomes part of the source, because the cuts that leave it outside S have been searched; so flows get shorter. All
numbers are whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from choreo.bound.flow import MOST_COMPILED, Arcs, minimum_cut
from choreo.bound.flow_network import FlowNetwork
from choreo.topology.graph import Bools, Floats, Ints

__all__ = [
    "Answer",
    "Question",
    "best_group",
    "best_groups",
    "can_search",
    "capacities",
    "counts_fit",
    "divided",
    "first_of",
    "heaviest_cut",
]

# Sinks times links: for little work plain Python beats importing SciPy; beyond the maximum nothing is searched.
LITTLE_WORK = 30_000
MOST_PLAIN_WORK = 300_000
MOST_WORK = 600_000
MOST_LINKS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """The weight at each node that must reach every sink."""

    network: FlowNetwork
    weight: Ints
    sinks: Ints

    @property
    def total(self) -> int:
        """All the weight."""
        return int(self.weight.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A set of nodes, and its weight per GB/s that leaves it; `exact` if no set has more."""

    ratio: Fraction
    inside: Bools
    exact: bool = False


def ratio_of(question: Question, inside: Bools) -> Fraction:
    """The weight of a set per GB/s that leaves it."""
    carried = question.network.bandwidth(question.network.leaving(inside))
    return int(question.weight[inside].sum()) / carried


def best_group(question: Question, group: Ints) -> Answer | None:
    """The best cut around one of many groups; `group` gives the group of each node, -1 for none.

    Every group is tried as the set and as its complement.
    """
    return max(best_groups(question, group), key=lambda answer: answer.ratio, default=None)


def best_groups(question: Question, group: Ints) -> list[Answer]:
    """The best cut into one of many groups, and the best out of one."""
    count = int(group.max()) + 1
    leaves, enters = capacities(question.network, group, count)
    weight = _summed(group, question.weight, group >= 0, count)
    has_sink = np.bincount(group[question.sinks], minlength=count) > 0
    other_sinks = has_sink.sum() - has_sink > 0
    out = divided(np.where(other_sinks, weight, 0.0), leaves)
    into = divided(np.where(has_sink, question.total - weight, 0.0), enters)
    answers = []
    for ratios, outside in ((into, True), (out, False)):
        best = int(ratios.argmax())
        if ratios[best] > 0:
            inside = (group == best) ^ outside
            answers.append(Answer(ratio_of(question, inside), inside))
    return answers


def can_search(question: Question) -> bool:
    """Whether all cuts can be searched in a second or two."""
    links = len(question.network.src)
    most = MOST_WORK if counts_fit(question.network, question.total) else MOST_PLAIN_WORK
    return links <= MOST_LINKS and links * len(question.sinks) <= most


def heaviest_cut(
    question: Question, start: Answer, known: Fraction = Fraction(0), *, compiled: bool | None = None
) -> Answer:
    """The heaviest of all cuts; the search begins at `start`, which is returned if no cut exceeds the `known` ratio."""
    network, best = question.network, start
    if compiled is None:
        compiled = len(question.sinks) * len(network.src) > LITTLE_WORK
    units = network.each_units()
    label, source = np.arange(network.nodes + 1), network.nodes
    for sink in question.sinks.tolist():
        while True:
            times = max(best.ratio, known) * network.unit  # the weight for each unit of capacity
            value, side = minimum_cut(_arcs(question, units, label, times), source, sink, compiled=compiled)
            if value >= question.total * times.denominator:
                break
            inside = side[label[:-1]]
            best = Answer(ratio_of(question, inside), inside)
        label[sink] = source
    return replace(best, exact=True)


def first_of(answers: Iterable[Answer | None]) -> Answer | None:
    """The answer with the greatest ratio."""
    return max((answer for answer in answers if answer), key=lambda answer: answer.ratio, default=None)


def _arcs(question: Question, units: list[int], label: Ints, times: Fraction) -> Arcs:
    """Links with `times` their capacity, and arcs from the source with the weights, scaled to whole numbers."""
    network, source = question.network, len(label) - 1
    src, dst = label[network.src], label[network.dst]
    kept = np.flatnonzero(src != dst)
    fed = np.flatnonzero((question.weight > 0) & (label[:-1] != source))
    capacity = [units[link] * times.numerator for link in kept.tolist()]
    capacity += [each * times.denominator for each in question.weight[fed].tolist()]
    ends = np.concatenate((src[kept], np.full(len(fed), source))), np.concatenate((dst[kept], fed))
    return Arcs(len(label), *ends, capacity)


def counts_fit(network: FlowNetwork, weight: int) -> bool:
    """Whether compiled flows can hold the numbers: a ratio's terms are at most the total weight and capacity."""
    return 2 * weight * network.units(np.arange(len(network.src))) < MOST_COMPILED


def capacities(network: FlowNetwork, group: Ints, count: int) -> tuple[Floats, Floats]:
    """The approximate capacity out of and into each of many groups of nodes; nodes of group -1 are in none."""
    src, dst = group[network.src], group[network.dst]
    crosses = src != dst
    leaves = _summed(src, network.relative, crosses & (src >= 0), count)
    return leaves, _summed(dst, network.relative, crosses & (dst >= 0), count)


def _summed(group: Ints, values: Ints | Floats, chosen: Bools, count: int) -> Floats:
    """The sum of the chosen values of each group."""
    if not chosen.all():
        group, values = group[chosen], values[chosen]
    return np.bincount(group, values, count).astype(np.float64)


def divided(weight: Floats, capacity: Floats) -> Floats:
    """Weight divided by capacity; zero where either is zero."""
    return np.divide(weight, capacity, out=np.zeros(len(weight)), where=(capacity > 0) & (weight > 0))
