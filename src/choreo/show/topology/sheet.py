"""A network in words: how many devices, and its kinds of links."""

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
    rows = tuple(
        (str(kind.dim), bandwidth_words(*kind.bandwidth), latency_words(*kind.latency))
        for kind in kinds_of(topology, stages_of(topology))
    )
    links = SheetTable("links by dimension", ("dimension", "bandwidth", "latency"), rows, (0, 1, 2))
    return Sheet(printable(topology.name), tuple(facts), (links,) if rows else ())
