"""The bytes that a training step sends, by axis and collective, counted by the communicators of its process groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from choreo.run.communicator import Communicator
from choreo.train.parallel.mesh import Mesh

__all__ = ["take_traffic", "total_traffic"]

Counts = dict[str, list[int]]  # by "AXIS COLLECTIVE": messages and bytes that a rank sent


def take_traffic(mesh: Mesh) -> Counts:
    """The bytes that this rank has sent since the last call; nothing if the backend does not count."""
    found: Counts = {}
    groups = {id(group): group for group in (*mesh.groups.values(), dist.group.WORLD)}
    for group in groups.values():
        for comm in _communicators(group):
            for row in comm.stats(reset=True):
                if row.sent_messages:
                    sums = found.setdefault(f"{mesh.axis_of(group, row.collective)} {row.collective}", [0, 0])
                    sums[0] += row.sent_messages
                    sums[1] += row.sent_bytes
    return found


def _communicators(group: Any) -> Iterator[Communicator]:
    for one in (group, *(getattr(other, "host", other) for other in getattr(group, "others", {}).values())):
        if isinstance(comm := getattr(one, "comm", None), Communicator):
            yield comm


def total_traffic(ranks: list[Counts], steps: int = 1) -> list[dict[str, Any]]:
    """A row for each axis and collective: messages and bytes of all ranks in a step, and bytes of the busiest rank.

    >>> total_traffic([{"dp all_reduce": [2, 800]}, {"dp all_reduce": [2, 600]}])
    [{'axis': 'dp', 'collective': 'all_reduce', 'messages': 4, 'bytes': 1400, 'busiest_rank_bytes': 800}]
    """
    rows = []
    for name in sorted({name for rank in ranks for name in rank}):
        axis, collective = name.split()
        counts = [rank.get(name, [0, 0]) for rank in ranks]
        messages, sent = (sum(count[at] for count in counts) // steps for at in (0, 1))
        busiest = max(count[1] for count in counts) // steps
        rows.append(
            {"axis": axis, "collective": collective, "messages": messages, "bytes": sent, "busiest_rank_bytes": busiest}
        )
    return rows
