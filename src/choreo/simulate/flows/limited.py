"""Simulate a schedule up to a time limit: a run that exceeds it stops early."""

from __future__ import annotations

import math

import numpy as np

from choreo.simulate.flows.backend import core_type
from choreo.simulate.flows.engine import begin_job, columns_of, figures_of
from choreo.simulate.jobs import Placed
from choreo.topology import Topology

__all__ = ["busiest_link_s", "time_within"]


def time_within(job: Placed, topology: Topology, until_s: float = math.inf) -> float:
    """The finish time of a job if it is at most `until_s`; otherwise a lower bound on it, later than `until_s`.

    >>> from choreo import build, get_topology
    >>> from choreo.simulate.jobs import Job, placed
    >>> ring = get_topology("ring(8, 50GB/s, 1us)")
    >>> job = placed(Job(build("all_reduce", "ring", 8), "1MiB"), ring, 0.0)
    >>> f"{time_within(job, ring) * 1e6:.1f} us"
    '50.7 us'
    >>> time_within(job, ring, 20e-6) > 20e-6
    True
    """
    if until_s < math.inf:
        least_s = busiest_link_s(job, topology)
        if least_s > until_s:
            return least_s
    alone_s = _alone(job, topology, until_s)
    return _shared(job, topology, until_s) if alone_s is None else alone_s


def busiest_link_s(job: Placed, topology: Topology) -> float:
    """The time of the link with the most to carry relative to its bandwidth."""
    nodes = topology.num_nodes
    pairs, carried = [], []
    for rows in job.schedule.blocks():
        pair = job.node[rows.src] * nodes + job.node[rows.dst]
        distinct, which = np.unique(pair, return_inverse=True)
        pairs.append(distinct)
        carried.append(np.bincount(which, job.schedule.weights_of(rows)) * job.unit_bytes)
    if not pairs:
        return 0.0
    distinct, which = np.unique(np.concatenate(pairs), return_inverse=True)
    size = np.bincount(which, np.concatenate(carried))
    routes = topology.routes(*np.divmod(distinct, nodes))
    on_route = np.repeat(size, np.diff(routes.offsets)) * routes.share
    load = np.bincount(routes.links, on_route, minlength=len(topology.links.bandwidth_bytes_per_s))
    used = load > 0
    return float((load[used] / topology.links.bandwidth_bytes_per_s[used]).max(initial=0.0))


def _alone(job: Placed, topology: Topology, until_s: float) -> float | None:
    """One pass over the steps, as long as no two messages meet; None if they do."""
    core = core_type(None)(*figures_of(topology), False, None)
    begin_job(core, job, topology, alone=True, keep=False)
    time_s = job.start_s
    for rows in job.schedule.blocks():
        if not core.alone(*columns_of(core, job, topology, rows, in_order=job.schedule.receive_in_order)):
            return None
        time_s = float(np.frombuffer(core.finish(), np.float64).max())
        if time_s > until_s:
            break
    return time_s


def _shared(job: Placed, topology: Topology, until_s: float) -> float:
    """All messages at once, sharing links."""
    core = core_type(None)(*figures_of(topology), False, None)
    begin_job(core, job, topology, alone=False, keep=False)
    for rows in job.schedule.blocks():
        core.gather(*columns_of(core, job, topology, rows, in_order=job.schedule.receive_in_order))
    last_s, next_s = job.start_s, job.start_s
    while next_s <= until_s and next_s < math.inf:
        next_s, _, times = core.advance(until_s)
        last_s = max(last_s, float(np.frombuffer(times, np.float64).max(initial=0.0)))
    return last_s if next_s == math.inf else max(next_s, math.nextafter(until_s, math.inf))
