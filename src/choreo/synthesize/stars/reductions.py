"""Stars of an all_reduce: sums inside every server, their exchange between servers, and the result back inside."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from choreo.synthesize.stars.plan import Maker, Plan, Servers
from choreo.topology.graph import Floats

__all__ = ["reductions"]


def reductions(net: Servers) -> Iterator[tuple[Maker, int]]:
    """The plans, with the number of blocks of each."""
    if net.servers & (net.servers - 1) == 0:
        yield partial(_all_reduce, exchanging=True), net.gpus
    if net.servers > 1:
        yield partial(_all_reduce, exchanging=False), net.servers * net.gpus
    if net.servers > 2 and net.has_carriers:
        yield _all_reduce_by_carriers, net.carriers


def _all_reduce(plan: Plan, parts: Floats, due_s: Floats, *, exchanging: bool) -> None:
    """A GPU reduces its part inside its server; then the servers exchange theirs, or one server reduces it for all."""
    net = plan.net
    a_piece = 1 if exchanging else net.servers
    for nth in range(len(parts)):
        chunks = [
            tuple(range(first * a_piece, (first + 1) * a_piece))
            for first in range(nth * net.gpus, (nth + 1) * net.gpus)
        ]
        summed: dict[int, list[int]] = {}
        for server in range(net.servers):
            wanted = dict(zip(net.members(server), chunks, strict=True))
            summed |= plan.sum_up(server, wanted, due_s[nth])
        ready: dict[int, list[int]] = {}
        for gpu in range(net.gpus):
            holders = list(range(gpu, net.servers * net.gpus, net.gpus))
            across = _exchanged if exchanging else _by_owners
            ready |= across(plan, holders, chunks[gpu], summed, due_s[nth])
        for server in range(net.servers):
            held = {at: (those, ready[at]) for at, those in zip(net.members(server), chunks, strict=True)}
            plan.spread(server, held, due_s[nth])


def _all_reduce_by_carriers(plan: Plan, parts: Floats, due_s: Floats) -> None:
    """All servers send each other their sums at once, and their switches add what has come to their own.

    A GPU sends a part of the sum to one other server only, so it sends one message of each piece.
    """
    net = plan.net
    for nth in range(len(parts)):
        chunks = tuple(range(nth * net.carriers, (nth + 1) * net.carriers))
        summed = [
            [plan.add((at, switch), chunks, (), due_s[nth], adds=True) for at in net.members(server)]
            for server, switch in enumerate(net.switch)
        ]
        come: list[list[int]] = [[] for _ in net.switch]
        for turn, (number, chunk) in product(range(net.servers - 1), enumerate(chunks)):
            local = turn * net.carriers + number
            carriers = range(local, net.servers * net.gpus, net.gpus)
            own = [
                plan.add((switch, carrier), (chunk,), summed[server], due_s[nth])
                for server, (switch, carrier) in enumerate(zip(net.switch, carriers, strict=True))
            ]
            sent = {
                net.twins(carrier)[turn]: plan.add((carrier, net.twins(carrier)[turn]), (chunk,), [down], due_s[nth])
                for carrier, down in zip(carriers, own, strict=True)
            }
            plan.joint.append(tuple(sent.values()))  # a sum must be sent before another is written over it
            for server, (switch, carrier) in enumerate(zip(net.switch, carriers, strict=True)):
                after = [sent[carrier], sent[net.twins(carrier)[turn]]]
                come[server].append(plan.add((carrier, switch), (chunk,), after, due_s[nth], adds=True))
        for server, switch in enumerate(net.switch):
            for at in net.members(server):
                plan.add((switch, at), chunks, come[server], due_s[nth])


def _exchanged(
    plan: Plan, holders: list[int], chunks: tuple[int, ...], summed: dict[int, list[int]], due_s: float
) -> dict[int, list[int]]:
    """Servers at distance 1, 2, 4, ... send each other what they have, and both add."""
    ready = {holder: summed[holder] for holder in holders}
    distance = 1
    while distance < len(holders):
        for number, here in enumerate(holders):
            there = holders[number ^ distance]
            if here < there:
                # Data must be sent before anything is added to it.
                ready[here] = ready[there] = plan.exchange((here, there), chunks, ready[here] + ready[there], due_s)
        distance *= 2
    return ready


def _by_owners(
    plan: Plan, holders: list[int], chunks: tuple[int, ...], summed: dict[int, list[int]], due_s: float
) -> dict[int, list[int]]:
    """Every server reduces one of the chunks, and sends the sum to the others."""
    ready: dict[int, list[int]] = {holder: [] for holder in holders}
    for owner, chunk in zip(holders, chunks, strict=True):
        others = [holder for holder in holders if holder != owner]
        whole = [plan.add((other, owner), (chunk,), summed[other], due_s, adds=True) for other in others]
        whole += summed[owner]
        ready[owner] += whole
        for other in others:
            ready[other].append(plan.add((owner, other), (chunk,), whole, due_s))
    return ready
