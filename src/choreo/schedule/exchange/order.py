"""Assign steps to messages under two kinds of constraint: strictly earlier, or not later."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

__all__ = ["Order", "UnorderedError"]


class UnorderedError(Exception):
    """No steps keep the order; `message` is one that cannot be placed."""

    def __init__(self, message: int) -> None:
        super().__init__(message)
        self.message = message


@dataclass(slots=True)
class Order:
    """The order constraints among `count` messages.

    >>> exchange = Order(3)
    >>> exchange.not_after(0, 1), exchange.not_after(1, 0), exchange.strictly(1, 2)
    (None, None, None)
    >>> exchange.steps()
    [0, 0, 1]
    """

    count: int
    edges: list[tuple[int, int, int]] = field(default_factory=list)  # first, second, 1 if strictly

    def strictly(self, first: int, second: int) -> None:
        """The second comes in a later step."""
        self.edges.append((first, second, 1))

    def not_after(self, first: int, second: int) -> None:
        """The first comes in the step of the second, or earlier."""
        self.edges.append((first, second, 0))

    def holds(self, steps: list[int]) -> bool:
        """Whether these steps keep the order."""
        return all(steps[first] + least <= steps[second] for first, second, least in self.edges)

    def steps(self) -> list[int]:
        """The earliest step of each message: longest paths, where cycles of weak edges share a step."""
        group = _circles(self)
        later: dict[int, list[tuple[int, int]]] = defaultdict(list)
        waits: dict[int, int] = defaultdict(int)
        for first, second, least in self.edges:
            a, b = group[first], group[second]
            if a == b:
                if least:
                    raise UnorderedError(second)
                continue
            later[a].append((b, least))
            waits[b] += 1
        step = dict.fromkeys(group, 0)
        ready = [g for g in step if not waits[g]]
        while ready:
            a = ready.pop()
            for b, least in later[a]:
                step[b] = max(step[b], step[a] + least)
                waits[b] -= 1
                if not waits[b]:
                    ready.append(b)
        return [step[g] for g in group]


def _circles(order: Order) -> list[int]:
    """The strongly connected component of each message, by Tarjan's algorithm without recursion."""
    then: list[list[int]] = [[] for _ in range(order.count)]
    for first, second, _ in order.edges:
        then[first].append(second)
    index, low, group = [-1] * order.count, [0] * order.count, [-1] * order.count
    stack: list[int] = []
    work: list[tuple[int, int]] = []
    counter = 0
    for start in range(order.count):
        if index[start] < 0:
            work.append((start, 0))
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = counter
                counter += 1
                stack.append(node)
            elif group[then[node][at - 1]] < 0:  # back from a neighbour whose cycle is not closed
                low[node] = min(low[node], low[then[node][at - 1]])
            if at < len(then[node]):
                work.append((node, at + 1))
                if index[then[node][at]] < 0:
                    work.append((then[node][at], 0))
            elif low[node] == index[node]:
                while group[node] < 0:
                    group[stack.pop()] = node
    return group
