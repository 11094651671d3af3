"""A simulation in words: its title, its ranks and links, and what messages waited for."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from choreo.show.schedule.words import printable
from choreo.simulate import Simulation
from choreo.topology import Topology
from choreo.topology.graph import Ints
from choreo.units import format_bytes

__all__ = ["WAITED", "link_names", "node_name", "rank_names", "title", "whole"]

LONGEST_NAME = 200
# What a leg of the critical path waited for, in words.
WAITED = {
    "nothing": "nothing",
    "data": "its data",
    "port": "its port",
    "sender": "its sender",
    "reader": "the last reader of its place",
    "writer": "the write before it",
}


def title(simulation: Simulation) -> str:
    """What ran, how, where and how much of it."""
    first = f"{simulation.collective} by {printable(simulation.algorithm)}, {format_bytes(simulation.size_bytes)}"
    more = len(simulation.jobs) - 1
    others = f", with {more} more" if more else ""
    return f"{first}{others} on {whole(simulation.topology.name)}"


def whole(name: str) -> str:
    """A topology's name, printable. It is often the whole text of the topology, so it may be long."""
    clean = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)
    return clean if len(clean) <= LONGEST_NAME else f"{clean[: LONGEST_NAME - 1]}…"


def node_name(simulation: Simulation, node: int) -> str:
    """The name of a device or switch."""
    return printable(simulation.topology.node_name(node))


@lru_cache(maxsize=4)
def _by_ends(topology: Topology) -> tuple[Ints, Ints]:
    """A number for the two ends of each link, and the links in order of that."""
    ends = topology.links.src * topology.num_nodes + topology.links.dst
    return ends, np.argsort(ends, kind="stable")


def link_names(simulation: Simulation, links: Ints, arrow: str = "→") -> list[str]:
    """Names for links: their ends, and a number where several links have the same ends."""
    table = simulation.topology.links
    ends, order = _by_ends(simulation.topology)
    first = np.searchsorted(ends[order], ends[links])
    alike = np.searchsorted(ends[order], ends[links], side="right") - first
    names = []
    for link, start, count in zip(links.tolist(), first.tolist(), alike.tolist(), strict=True):
        here, there = (node_name(simulation, int(side[link])) for side in (table.src, table.dst))
        which = f" #{int(np.searchsorted(order[start : start + count], link))}" if count > 1 else ""
        names.append(f"{here} {arrow} {there}{which}")
    return names


def rank_names(simulation: Simulation) -> list[list[str]]:
    """By job, a name for each rank: its number, with its job and its device where they differ."""
    several = len(simulation.jobs) > 1
    return [
        [f"job {number} {name}" if several else name for name in names]
        for number, job in enumerate(simulation.jobs)
        for names in [_names(simulation.topology, job.node.tobytes(), job.schedule.ranks)]
    ]


@lru_cache(maxsize=8)
def _names(topology: Topology, nodes: bytes, ranks: int) -> list[str]:
    """The names of the members of a job at these nodes; another size does not change them."""
    names = []
    for member, node in enumerate(np.frombuffer(nodes, np.int64).tolist()):
        device = printable(topology.node_name(node))
        where = f" on {device}" if device != str(member) else ""
        # A switch that reduces takes part as a rank beyond the others.
        names.append(f"rank {member}{where}" if member < ranks else device)
    return names
