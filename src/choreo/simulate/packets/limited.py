"""Simulate with packets up to a time limit: a run that exceeds it stops early."""

from __future__ import annotations

import math

import numpy as np

from choreo.simulate.flows.backend import core_type as flows_core
from choreo.simulate.jobs import Placed
from choreo.simulate.packets.backend import core_type
from choreo.simulate.packets.engine import NEVER, begin, deadlock_of
from choreo.simulate.packets.graph import PICO
from choreo.simulate.packets.settings import Packets
from choreo.topology import Topology

__all__ = ["packet_time_within"]


def packet_time_within(job: Placed, topology: Topology, settings: Packets, until_s: float = math.inf) -> float:
    """The finish time of a job if it is at most `until_s`; otherwise a lower bound on it, later than `until_s`.

    >>> from choreo import build, get_topology
    >>> from choreo.simulate.jobs import Job, placed
    >>> switch = get_topology("switch(8, 50GB/s, 1us)")
    >>> job = placed(Job(build("all_reduce", "ring", 8), "1MiB"), switch, 0.0)
    >>> f"{packet_time_within(job, switch, Packets()) * 1e6:.1f} us"
    '65.8 us'
    >>> packet_time_within(job, switch, Packets(), 20e-6) > 20e-6
    True
    """
    begun = begin(
        [job],
        topology,
        settings,
        flows_core=flows_core(),
        make_core=core_type(),
        progress=None,
        whole=job.schedule.switches > 0,
    )
    core = begun.core
    until = NEVER if until_s == math.inf else round(until_s * PICO)
    for opens, block in begun.feed.blocks:
        next_ps, _ = core.run(opens, until)
        if until < next_ps < NEVER:
            return next_ps / PICO
        core.add(block)
    next_ps, finished = core.run(NEVER, until)
    if finished:
        return float(np.frombuffer(core.found()["finish"], np.int64).max(initial=0)) / PICO
    if next_ps == NEVER:
        raise deadlock_of(core, topology)
    return next_ps / PICO
