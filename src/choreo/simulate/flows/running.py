"""A shared run that advances in parts, so that jobs can join it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.simulate.flows.backend import core_type
from choreo.simulate.flows.engine import begin_job, columns_of, figures_of
from choreo.simulate.jobs import Placed
from choreo.topology import Topology

__all__ = ["RunningJobs"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class RunningJobs:
    """Jobs in progress. Members are numbered over all jobs, in the order in which they were added.

    >>> from choreo import build, get_topology
    >>> from choreo.simulate.jobs import Job, placed
    >>> wire = get_topology("switch(2, 1GB/s, 0s)")
    >>> message = placed(Job(build("broadcast", "linear", 2), 1e9), wire, 0.0)
    >>> jobs = RunningJobs(wire)
    >>> jobs.add(message), jobs.add(message)
    (0, 2)
    >>> [found.tolist() for found in jobs.advance(5.0)[1:]]
    [[0, 2, 1, 3], [2.0, 2.0, 2.0, 2.0]]
    """

    def __init__(self, topology: Topology, compiled: bool | None = None) -> None:
        self._topology = topology
        self._core = core_type(compiled)(*figures_of(topology), False, None)
        self._members = 0

    def add(self, job: Placed) -> int:
        """Add a job at its start; returns the number of its first member.

        It may have started in the past, if it has met nobody since.
        """
        first = self._members
        begin_job(self._core, job, self._topology, alone=False, keep=False)
        for rows in job.schedule.blocks():
            self._core.gather(*columns_of(self._core, job, self._topology, rows, in_order=False))
        self._members += len(job.node)
        return first

    def advance(self, until_s: float) -> tuple[float, Ints, Floats]:
        """Advance until some members are done, or to this time.

        Returns when something happens next, and the finished members with their times.
        """
        next_s, members, times = self._core.advance(until_s)
        return next_s, np.frombuffer(members, np.int64), np.frombuffer(times, np.float64)

    def stop(self, now_s: float) -> tuple[Ints, Floats]:
        """Stop all messages in flight: the receiver of each, and the bytes left."""
        members, left = self._core.stop(now_s)
        return np.frombuffer(members, np.int64), np.frombuffer(left, np.float64)

    def links(self) -> tuple[Floats, Floats]:
        """The bytes that each link has carried or is about to, and how long it was busy."""
        carried, busy_s = (np.frombuffer(values, np.float64) for values in self._core.links())
        return carried, busy_s
