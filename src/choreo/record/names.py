"""Names that identify schedules and networks: with a hash, where the name alone is ambiguous."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from choreo.record.case import Case

if TYPE_CHECKING:
    from choreo.schedule import Schedule
    from choreo.topology import Topology

__all__ = ["schedule_case", "topology_figures", "topology_name", "typed"]

FIGURES = ("bandwidth_bytes_per_s", "latency_s", "overhead_s", "gap_s")
MOST_TRANSFERS = 1 << 20  # hash at most this many transfers to name a schedule from outside the library


def schedule_case(schedule: Schedule, options: Mapping[str, object] | None = None) -> Case:
    """The case of a schedule, before its size and place are known."""
    more = dict(options or {})
    known = _in_library(schedule)
    if schedule.num_chunks != (known or schedule.num_chunks):
        more["chunks"] = schedule.num_chunks
    if known is None:
        more["schedule"] = _schedule_digest(schedule)
    return Case(
        schedule.collective,
        schedule.algorithm,
        schedule.ranks,
        root=schedule.root,
        axes=schedule.axes,
        options=more,
    )


def _in_library(schedule: Schedule) -> int | None:
    """The chunks that the library's algorithm of this name has; None if the schedule is from elsewhere."""
    from choreo.algorithms import build, get_algorithm
    from choreo.errors import ChoreoError

    try:
        if not get_algorithm(schedule.collective, schedule.algorithm).in_library:
            return None
        axes: dict[str, Any] = {} if schedule.axes is None else {"axes": schedule.axes}
        return build(schedule.collective, schedule.algorithm, schedule.ranks, root=schedule.root, **axes).num_chunks
    except ChoreoError:
        return None


def _schedule_digest(schedule: Schedule) -> str:
    parts, rows = hashlib.sha256(), 0
    for block in schedule.blocks():
        for name in ("step", "src", "dst", "chunk", "count", "reduce", "from_input"):
            parts.update(getattr(block, name).tobytes())
        rows += len(block)
        if rows > MOST_TRANSFERS:
            break
    return parts.hexdigest()[:16]


def topology_name(topology: str | Topology) -> str:
    """A network as typed, followed by a hash if the text alone does not define it: a file, a slow link.

    >>> import choreo
    >>> topology_name("torus(4x4,45GB/s,1us)"), topology_name(choreo.get_topology(" ring( 8 )"))
    ('torus(4x4, 45GB/s, 1us)', 'ring(8)')
    """
    from choreo.errors import ChoreoError
    from choreo.topology import get_topology

    network = get_topology(topology)
    name, found = typed(network.name), _topology_digest(network)
    try:
        same = _digest_of_text(name) == found
    except ChoreoError:
        same = False
    return name if same else f"{name}#{found[:12]}"


def typed(text: str) -> str:
    """A network's text with the spaces that people write.

    >>> typed("ring( 4,200GB/s )x switch(8)")
    'ring(4, 200GB/s) x switch(8)'
    """
    close = re.sub(r"\s*([(),])\s*", r"\1", " ".join(text.split()))
    return re.sub(r"\)\s*x\s*", ") x ", close.replace(",", ", "))


def topology_figures(topology: str | Topology) -> dict[str, object]:
    """Bandwidth and latency of the links of each dimension: the slowest and the fastest."""
    from choreo.topology import get_topology

    network = get_topology(topology)
    return {
        "blocks": [
            {
                "kind": block.kind,
                "size": block.size,
                **{name: _ends(getattr(block.links, name)) for name in FIGURES},
            }
            for block in network.blocks
        ]
    }


def _ends(values: Any) -> list[float]:
    return sorted({float(values.min()), float(values.max())}) if len(values) else []


@lru_cache(maxsize=256)
def _digest_of_text(text: str) -> str:
    from choreo.topology import get_topology

    return _topology_digest(get_topology(text))


def _topology_digest(topology: Topology) -> str:
    parts = hashlib.sha256(f"{topology.sizes} {topology.num_switches} {topology.routing}".encode())
    for field in fields(topology.links):
        parts.update(getattr(topology.links, field.name).tobytes())
    parts.update(topology.slowdown.tobytes())
    parts.update(topology.reduces.tobytes())
    return parts.hexdigest()
