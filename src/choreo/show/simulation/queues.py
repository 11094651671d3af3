"""The longest queues of a run with packets, for its page."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from choreo.show.simulation.words import link_names
from choreo.simulate import Simulation

__all__ = ["QueueData", "queues_of"]

MOST_QUEUES = 8


class QueueData(TypedDict):
    """A port's queue: the most bytes in each of `bins` parts of the time, and what happened there."""

    name: str
    peak_bytes: int
    bytes: list[int]
    marks: int
    drops: int
    pauses: int


def queues_of(simulation: Simulation, bins: int) -> list[QueueData]:
    """The ports with the longest queues, the longest first; none where there are no packets."""
    report = simulation.packets
    if report is None or not simulation.time_s:
        return []
    ports = [port for port in report.ports if port.link in report.queues]
    ports.sort(key=lambda port: (-port.peak_queue_bytes, port.link))
    ports = ports[:MOST_QUEUES]
    names = link_names(simulation, np.array([port.link for port in ports], np.int64))
    part = (np.arange(bins) * (simulation.time_s / bins / report.part_s)).astype(np.int64)
    queues: list[QueueData] = []
    for port, name in zip(ports, names, strict=True):
        queue = np.append(report.queues[port.link], 0)  # after the last part there is nothing
        queues.append(
            {
                "name": name,
                "peak_bytes": port.peak_queue_bytes,
                "bytes": queue[np.minimum(part, len(queue) - 1)].tolist(),
                "marks": port.marks,
                "drops": port.drops,
                "pauses": port.pauses,
            }
        )
    return queues
