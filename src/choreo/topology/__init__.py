"""Networks: devices, switches, links and routes; building blocks and a catalogue of real machines."""

from choreo.topology.blocks import Block, fully_connected, graph, line, ring, switch
from choreo.topology.catalogue import get_topology, list_topologies, machine_file
from choreo.topology.graph import Links
from choreo.topology.placement import devices_of
from choreo.topology.topology import Routes, Topology, compose
from choreo.topology.trees import fat_tree

__all__ = [
    "Block",
    "Links",
    "Routes",
    "Topology",
    "compose",
    "devices_of",
    "fat_tree",
    "fully_connected",
    "get_topology",
    "graph",
    "line",
    "list_topologies",
    "machine_file",
    "ring",
    "switch",
]
