"""Stars of a broadcast: a part of the vector to every GPU of the root's server, to its twins, and to their servers.

A reduce is the same backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from choreo.synthesize.stars.plan import Maker, Plan, Servers
from choreo.topology.graph import Floats

__all__ = ["broadcasts"]

# Pieces in which the root sends the vector, if each carrier sends one chunk of it.
CARRIED_IN = (1, 2, 3, 4, 6, 8, 12)


def broadcasts(net: Servers, root: int) -> Iterator[tuple[Maker, int]]:
    """The plans, with the number of blocks of each."""
    yield partial(_broadcast, root=root), net.gpus if net.servers > 1 else net.gpus - 1
    if net.has_carriers:
        for blocks in dict.fromkeys(max(1, net.carriers // pieces) for pieces in CARRIED_IN):
            yield partial(_broadcast_by_carriers, root=root, blocks=blocks), blocks


def _broadcast(plan: Plan, parts: Floats, due_s: Floats, *, root: int) -> None:
    """Every GPU of the root's server gets a part, and passes it on there and to its peers, which do the same."""
    net = plan.net
    others = net.others(root)
    carriers = [*others, root] if net.servers > 1 else others
    home = root // net.gpus
    for nth in range(len(parts)):
        chunks = {carrier: nth * len(carriers) + number for number, carrier in enumerate(carriers)}
        got: dict[int, list[int]] = {root: []}
        if net.switch:
            got |= plan.spread(home, {root: (tuple(chunks.values()), ())}, due_s[nth])
        else:
            for carrier, chunk in chunks.items():
                # What the root itself sends over the network is spread inside its server by another GPU.
                inside = carrier if carrier != root else others[nth % len(others)]
                given = plan.add((root, inside), (chunk,), (), due_s[nth])
                if carrier != root:
                    got[carrier] = [given]
                for other in net.others(inside):
                    if other != root:
                        plan.add((inside, other), (chunk,), [given], due_s[nth])
        held: list[dict[int, tuple[tuple[int, ...], list[int]]]] = [{} for _ in range(net.servers)]
        for carrier, chunk in chunks.items():
            for twin in net.twins(carrier):
                arrived = plan.add((carrier, twin), (chunk,), got[carrier], due_s[nth])
                held[twin // net.gpus][twin] = (chunk,), [arrived]
        for server, those in enumerate(held):
            if those:
                plan.spread(server, those, due_s[nth])


def _broadcast_by_carriers(plan: Plan, parts: Floats, due_s: Floats, *, root: int, blocks: int) -> None:
    """The root's switch copies pieces of so many chunks to its server; a GPU sends a chunk to one other server only."""
    net, home = plan.net, root // plan.net.gpus
    switch, others = net.switch[home], net.others(root)
    for nth in range(len(parts)):
        chunks = tuple(range(nth * blocks, (nth + 1) * blocks))
        up = plan.add((root, switch), chunks, (), due_s[nth])
        got: dict[int, list[int]] = {root: []}
        got |= {at: [plan.add((switch, at), chunks, [up], due_s[nth])] for at in others}
        for turn in range(net.servers - 1):
            held: dict[int, tuple[tuple[int, ...], list[int]]] = {}
            for chunk in chunks:
                carrier = [*others, root][turn * net.carriers + chunk % net.carriers]
                twin = net.twins(carrier)[turn]
                held[twin] = (chunk,), [plan.add((carrier, twin), (chunk,), got[carrier], due_s[nth])]
            plan.spread((home + turn + 1) % net.servers, held, due_s[nth])
