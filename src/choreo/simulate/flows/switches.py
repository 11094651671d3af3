"""Map the switches of a schedule to switches of a topology."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.errors import RefusedError, shown
from choreo.schedule import Schedule
from choreo.topology import Topology

__all__ = ["switch_nodes"]

Ints = npt.NDArray[np.int64]

# How many ranks a refusal lists by name.
NAMED = 4


def switch_nodes(schedule: Schedule, devices: Ints, topology: Topology) -> Ints:
    """The node of each of the schedule's switches, when its ranks and relays are on `devices`.

    The node must be a switch that reduces, linked both ways with the device of every rank that the schedule's switch
    exchanges messages with. Of those, the one linked with most of its peer switches placed so far is taken, and of
    equals a free one before one in use. Several of the schedule's switches may share a node.
    """
    ranks, peers_of = schedule.members - schedule.switches, _peers(schedule)
    near = _linked(topology)
    beside: dict[int, list[int]] = {}
    for switch, there in near.items():
        for node in there:
            beside.setdefault(node, []).append(switch)
    node_of = dict(enumerate(devices.tolist()))
    taken: set[int] = set()
    # Switches linked only with switches come last: their place depends on where the others are.
    for number in sorted(range(schedule.switches), key=lambda number: bool((peers_of[number] >= ranks).all())):
        peers = peers_of[number].tolist()
        must = [node_of[peer] for peer in peers if peer < ranks]
        wish = [node_of[peer] for peer in peers if peer >= ranks and peer in node_of]
        candidates = beside.get(must[0], []) if must else beside.get(wish[0], list(near)) if wish else list(near)
        fitting = [switch for switch in candidates if near[switch].issuperset(must)]
        if not fitting and peers:
            raise RefusedError(_refusal(schedule, number, [peer for peer in peers if peer < ranks], topology))
        # A switch without messages may be anywhere.
        chosen = fitting[0] if fitting else 0
        if peers and len(fitting) > 1:
            chosen = min(fitting, key=lambda switch: (len({*wish} - near[switch]), switch in taken))
        taken.add(chosen)
        node_of[ranks + number] = chosen
    return np.array([node_of[member] for member in range(ranks, schedule.members)], np.int64)


def _peers(schedule: Schedule) -> list[Ints]:
    """The members that each switch exchanges messages with, in order."""
    ranks, members = schedule.members - schedule.switches, schedule.members
    found = [np.zeros(0, np.int64)]
    for rows in schedule.blocks():
        for here, there in ((rows.src, rows.dst), (rows.dst, rows.src)):
            at_switch = here >= ranks
            found.append(np.unique(here[at_switch] * members + there[at_switch]))
    switch, peer = np.divmod(np.unique(np.concatenate(found)), members)
    return np.split(peer, np.searchsorted(switch, np.arange(ranks + 1, members)))


def _linked(topology: Topology) -> dict[int, set[int]]:
    """For each switch that reduces, the nodes it is linked with both ways by live links."""
    links, nodes, reduces = topology.links, topology.num_nodes, topology.reduces
    alive = links.bandwidth_bytes_per_s > 0
    to, away = alive & reduces[links.dst], alive & reduces[links.src]
    pairs = np.intersect1d(links.dst[to] * nodes + links.src[to], links.src[away] * nodes + links.dst[away])
    linked: dict[int, set[int]] = {}
    for switch, node in zip(*(column.tolist() for column in np.divmod(pairs, nodes)), strict=True):
        linked.setdefault(switch, set()).add(node)
    return linked


def _refusal(schedule: Schedule, number: int, ranks: list[int], topology: Topology) -> str:
    few = ", ".join(map(str, ranks[:NAMED])) + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")
    who = f" and is linked with rank{'s' * (len(ranks) > 1)} {few}" if ranks else ""
    examples = [f"'switch({max(2, len(ranks))}, 450GB/s, 500ns, reduces)'", *(["hgx-h100"] if len(ranks) <= 8 else [])]
    which = f", for its switch {number}" if schedule.switches > 1 else ""
    return (
        f"{schedule.collective} by {shown(schedule.algorithm)} needs a switch that reduces{who}{which}; "
        f"{shown(topology.name)} has none; use a network that has one, like {' or '.join(examples)}, or another "
        "algorithm"
    )
