"""Links that carry the same part of every message of a folded graph: one of them stands for all.

Flows and links are distinguished by what they meet, until nothing changes. If all flows of each call then look the
same, they share their links in the same way, and so have the same rate: max-min shares are unique.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from choreo.simulate.execution.classes import classes_of, hashed, summed
from choreo.simulate.execution.network.call import Asymmetry, Members
from choreo.topology import Topology

__all__ = ["link_classes"]

Ints = npt.NDArray[np.int64]


def link_classes(topology: Topology, messages: Sequence[Members]) -> Ints:
    """For each link the first one of its class. Raises Asymmetry if the flows of a call differ."""
    links = len(topology.links.src)
    if all(len(message.devices) == 1 for message in messages):
        return np.arange(links)
    ends = np.concatenate([message.devices for message in messages])
    call = np.repeat(np.arange(len(messages)), [len(message.devices) for message in messages])
    routes = topology.routes(ends[:, 0], ends[:, 1])
    flow = np.repeat(np.arange(len(ends)), np.diff(routes.offsets))
    link, share = routes.links.astype(np.int64), routes.share
    found = classes_of(hashed(topology.links.bandwidth_bytes_per_s))
    flows = classes_of(hashed(call, routes.latency_s))
    while True:
        finer_flows = classes_of(hashed(flows, summed(hashed(found[link], share), flow, len(ends))))
        finer = classes_of(hashed(found, summed(hashed(finer_flows[flow], share), link, links)))
        if _count(finer) == _count(found) and _count(finer_flows) == _count(flows):
            break
        found, flows = finer, finer_flows
    first = np.searchsorted(call, call)
    if (flows != flows[first]).any():
        other = int(call[np.flatnonzero(flows != flows[first])[0]])
        raise Asymmetry(messages[other].devices.ravel(), np.repeat(flows[call == other], 2))
    return found


def _count(labels: Ints) -> int:
    return len(np.unique(labels))
