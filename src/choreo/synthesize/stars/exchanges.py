"""Stars of an all_to_all: everything for a server to the twin there, which passes it on with its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from choreo.synthesize.stars.plan import Maker, Plan, Servers
from choreo.topology.graph import Floats, Ints

__all__ = ["exchanges"]


def exchanges(net: Servers) -> Iterator[tuple[Maker, int]]:
    """The plan, with its number of blocks."""
    if net.servers > 1 or net.switch:
        yield _all_to_all, (net.servers * net.gpus) ** 2


def _all_to_all(plan: Plan, parts: Floats, due_s: Floats) -> None:
    """To each peer go the blocks for its server, its neighbour's first; it forwards them together with its own.

    Inside a server they go from GPU to GPU, or through a switch that takes all that a GPU has in a few messages.
    """
    net, ranks = plan.net, plan.net.servers * plan.net.gpus
    edges = np.unique(np.round(np.concatenate(([0.0], np.cumsum(parts))) * net.gpus).astype(np.int64))
    arrived: dict[tuple[int, int], list[int]] = {}
    for device in range(ranks):
        for low, high in pairwise(edges.tolist()):
            for twin in net.twins(device):
                ends = [*net.others(twin), twin][low:high]
                blocks = tuple(device * ranks + end for end in ends)
                message = plan.add((device, twin), blocks, (), high / net.gpus * due_s[-1])
                for end in ends:
                    arrived.setdefault((twin, end), []).append(message)
    if net.switch:
        _through_switches(plan, edges, arrived, due_s[-1])
        return
    for device in range(ranks):
        for turn, end in enumerate(net.others(device)):
            blocks = tuple(source * ranks + end for source in [device, *net.twins(device)])
            plan.add((device, end), blocks, arrived.get((device, end), ()), (turn + 1) / net.gpus * due_s[-1])


def _through_switches(plan: Plan, edges: Ints, arrived: dict[tuple[int, int], list[int]], due_s: float) -> None:
    """What a GPU has for those at some distances goes up as one message; what is for a GPU comes down as one."""
    net, ranks = plan.net, plan.net.servers * plan.net.gpus
    for low, high in pairwise(edges.tolist()):
        coming: dict[int, list[tuple[int, int]]] = {}  # by GPU: from whom, and the message to the switch
        for device in range(ranks):
            ends = net.others(device)[low:high]
            blocks = tuple(source * ranks + end for end in ends for source in [device, *net.twins(device)])
            if blocks:
                after = {message for end in ends for message in arrived.get((device, end), ())}
                up = plan.add((device, net.switch[device // net.gpus]), blocks, sorted(after), high / net.gpus * due_s)
                for end in ends:
                    coming.setdefault(end, []).append((device, up))
        for end, those in coming.items():
            blocks = tuple(source * ranks + end for device, _ in those for source in [device, *net.twins(device)])
            ends_here = net.switch[end // net.gpus], end
            plan.add(ends_here, blocks, [up for _, up in those], high / net.gpus * due_s)
