"""Relays: devices outside the process group that may forward, add and copy for it.

Two GPUs of different servers have a network port each. The other GPUs of their servers have ports too, which relays put
to use. A schedule has its relays after its ranks, as members without input; they are on the devices without a rank, in
order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

from choreo.schedule import Schedule, Steps
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.problem import Problem
from choreo.topology.graph import Ints

__all__ = ["connects", "free_devices", "group_hops", "relays_of", "settled"]


def free_devices(problem: Problem) -> Ints:
    """The devices without a rank, in order."""
    return np.setdiff1d(np.arange(problem.topology.num_devices), problem.devices)


def relays_of(problem: Problem, most: int) -> Ints:
    """The devices that may relay, in order: of those without a rank, the ones with the shortest detour.

    Path lengths are the times of a short message. There are no relays if the problem allows none.
    """
    free = free_devices(problem) if problem.relays else np.zeros(0, np.int64)
    if len(free) <= most:
        return free
    hops = hops_of(problem.topology)
    hop_s = hops.latency_s + hops.send_s + hops.receive_s
    ways = csr_matrix((np.maximum(hop_s, 1e-12), (hops.src, hops.dst)), shape=(hops.devices,) * 2)
    there = dijkstra(ways, indices=problem.devices)
    back = dijkstra(ways.T.tocsr(), indices=problem.devices)
    detour = np.full(len(free), np.inf)
    for start in range(problem.ranks):
        ends = np.arange(problem.ranks) != start
        longer = there[start, free] + back[ends][:, free] - there[start, problem.devices[ends], None]
        detour = np.minimum(detour, np.nan_to_num(longer, nan=np.inf).min(axis=0, initial=np.inf))
    return np.sort(free[np.argsort(detour, kind="stable")[: max(most, 0)]])


def group_hops(problem: Problem, relays: Ints, *, through_switches: bool = False) -> Hops:
    """The hops among the ranks and these relays, with the ranks as the first members."""
    return hops_of(problem.topology, through_switches=through_switches, devices=problem.devices, relays=relays)


def connects(hops: Hops) -> bool:
    """Whether the hops connect every rank to every other."""
    links = csr_matrix((np.ones(len(hops)), (hops.src, hops.dst)), shape=(hops.members,) * 2)
    label = connected_components(links, connection="strong")[1][: hops.devices]
    return bool((label == label[0]).all())


def settled(schedule: Schedule, problem: Problem, relays: Ints) -> Schedule:
    """A schedule whose relays are these devices, with a relay for every free device up to the last one in use."""
    if not schedule.relays:
        return schedule
    ranks, rows = schedule.ranks, schedule.columns()
    number = np.searchsorted(free_devices(problem), relays)
    used = np.unique(np.concatenate((rows.src, rows.dst)))
    used = used[(used >= ranks) & (used < ranks + schedule.relays)] - ranks
    count = int(number[used].max(initial=-1)) + 1
    member = np.concatenate((np.arange(ranks), ranks + number, ranks + count + np.arange(schedule.switches)))
    moved = replace(rows, src=member[rows.src], dst=member[rows.dst])
    members = ranks + count + schedule.switches
    body = Steps.from_transfers(members, schedule.num_chunks, schedule.num_steps, moved)
    return replace(schedule, body=body, relays=count)
