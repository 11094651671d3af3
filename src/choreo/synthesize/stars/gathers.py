"""Stars of an all_gather: every share to its twins in the other servers, and from each of them to its server.

A reduce_scatter is the same backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from choreo.synthesize.stars.plan import Maker, Plan, Servers
from choreo.topology.graph import Floats

__all__ = ["gathers"]

# How many numbers of servers are tried beyond which shares are sent together.
STRAIGHT = 3


def gathers(net: Servers) -> Iterator[tuple[Maker, int]]:
    """The plans, with the number of blocks of each."""
    away = net.servers - 1
    if away:
        fewest = max(0, away - net.gpus)
        for straight in [away, *range(fewest, min(away - 1, fewest + STRAIGHT))]:
            yield partial(_all_gather, straight=straight), net.servers * net.gpus


def _all_gather(plan: Plan, parts: Floats, due_s: Floats, *, straight: int) -> None:
    """Shares cross to the same local rank of other servers, spread there as they come, and spread whole at home.

    To the next `straight` servers every GPU sends its own share. Beyond them it sends to one server only, several
    shares together, once it has them: fewer messages, but later.
    """
    net, count = plan.net, len(parts)
    home: dict[int, list[int]] = {}
    for server in range(net.servers):
        own = {at: (tuple(range(at * count, (at + 1) * count)), ()) for at in net.members(server)}
        home |= plan.spread(server, own, due_s[-1])
    for nth, turn in product(range(count), range(net.servers - 1)):
        held: list[dict[int, tuple[tuple[int, ...], list[int]]]] = [{} for _ in range(net.servers)]
        for server, (carrier, shares) in product(range(net.servers), _carried(net, turn, straight).items()):
            at = server * net.gpus + carrier
            twin = net.twins(at)[turn]
            chunks = tuple((server * net.gpus + share) * count + nth for share in shares)
            after = [] if shares == [carrier] else home[at]
            held[twin // net.gpus][twin] = chunks, [plan.add((at, twin), chunks, after, due_s[nth])]
        for server, those in enumerate(held):
            plan.spread(server, those, due_s[nth])


def _carried(net: Servers, turn: int, straight: int) -> dict[int, list[int]]:
    """By local rank: the shares, by local rank as well, that each GPU sends to the server this many on, less one."""
    if turn < straight:
        return {gpu: [gpu] for gpu in range(net.gpus)}
    carriers = range(turn - straight, net.gpus, net.servers - 1 - straight)
    return {gpu: list(range(number, net.gpus, len(carriers))) for number, gpu in enumerate(carriers)}
