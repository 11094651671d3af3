"""A simulation in detail, as plain data: by rank, by link, along the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from choreo.results import plain_size
from choreo.simulate.jobs import are_few

if TYPE_CHECKING:
    from choreo.simulate.result import Simulation

__all__ = ["details_of", "is_followed"]

# Of more links, ranks or messages than this, only the busiest, the first and the last are listed.
MOST_LINKS = 4096
MOST_RANKS = 16384
MOST_LEGS = 1000


def details_of(simulation: Simulation) -> dict[str, Any]:
    """Everything beyond the summary: by rank, by link, along the critical path, and the other collectives.

    Long lists are cut; `left_out` says how many entries are missing.
    """
    carried = int((simulation.loads.link_bytes > 0).sum())
    legs = _path(simulation) if is_followed(simulation) else None
    return {
        "rank_finish_s": simulation.rank_finish_s[:MOST_RANKS].tolist(),
        "links": _links(simulation),
        "critical_path": legs,
        "beside": [
            {
                "collective": job.schedule.collective,
                "algorithm": job.schedule.algorithm,
                "ranks": job.schedule.ranks,
                "size_bytes": plain_size(job.size_bytes),
                "time_s": simulation.job_time_s(number),
            }
            for number, job in enumerate(simulation.jobs[1:], 1)
        ],
        "left_out": {
            "rank_finish_s": max(0, len(simulation.rank_finish_s) - MOST_RANKS),
            "links": max(0, carried - MOST_LINKS),
            "critical_path": 0 if legs is None else len(simulation.critical_path) - len(legs),
        },
    }


def is_followed(simulation: Simulation) -> bool:
    """Whether the messages are known already, or few enough to follow them now."""
    return simulation.kept is not None or are_few(simulation.jobs)


def _links(simulation: Simulation) -> list[dict[str, Any]]:
    carried = np.flatnonzero(simulation.loads.link_bytes > 0)
    order = np.argsort(-simulation.utilisation[carried], kind="stable")
    name, links = simulation.topology.node_name, simulation.topology.links
    return [
        {
            "from": name(int(links.src[link])),
            "to": name(int(links.dst[link])),
            "bytes": float(simulation.loads.link_bytes[link]),
            "busy_s": float(simulation.loads.link_busy_s[link]),
            "utilisation": float(simulation.utilisation[link]),
        }
        for link in carried[order][:MOST_LINKS].tolist()
    ]


def _path(simulation: Simulation) -> list[dict[str, Any]]:
    names = ("step", "src", "dst", "size_bytes", "start_s", "out_s", "arrived_s", "written_s", "shared_s", "waited_for")
    return [{name: getattr(leg, name) for name in names} for leg in simulation.critical_path[:MOST_LEGS]]
