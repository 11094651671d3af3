"""A network in words: its number of devices, and its kinds of links."""

from __future__ import annotations

from choreo.show.schedule.words import printable
from choreo.show.sheet import Sheet, SheetTable
from choreo.show.topology.kinds import bandwidth_words, kinds_of, latency_words
from choreo.show.topology.stages import stages_of
from choreo.topology import Topology

__all__ = ["topology_sheet"]


def topology_sheet(topology: Topology) -> Sheet:
    """Its size and its links."""
    facts = [("devices", f"{topology.num_devices:,}")]
    facts += [("each", printable(topology.device))] if topology.device else []
    facts += [("switches", f"{topology.num_switches:,}")] if topology.num_switches else []
    facts.append(("links", f"{len(topology.links):,}"))
    rows: tuple[tuple[str, ...], ...] = tuple(
        (str(kind.dim), bandwidth_words(*kind.bandwidth), latency_words(*kind.latency), latency_words(*kind.overhead))
        for kind in kinds_of(topology, stages_of(topology))
    )
    names: tuple[str, ...] = ("dimension", "bandwidth", "latency", "overhead")
    if not topology.links.overhead_s.any():
        rows, names = tuple(row[:3] for row in rows), names[:3]
    links = SheetTable("links by dimension", names, rows, tuple(range(len(names))))
    return Sheet(printable(topology.name), tuple(facts), (links,) if rows else ())
