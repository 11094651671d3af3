"""Topologies from a text, the name of a machine, or a file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from choreo.errors import TopologyError, UnknownNameError, UsageError, shown
from choreo.topology.blocks import Block, check_links
from choreo.topology.files import TopologyFile, graph_block, read_file
from choreo.topology.language import parse_blocks
from choreo.topology.topology import Topology, compose

__all__ = ["get_topology", "list_topologies", "machine_file", "names_file"]

CATALOGUE = Path(__file__).parent / "catalogue"
SUFFIXES = (".json", ".toml", ".xml", ".yml", ".yaml")
# The placeholder for the number of nodes in a file's text, or for a multiple of it.
NODES = re.compile(r"\{(?:([0-9]{1,6})\*)?nodes\}")


def names_file(text: str) -> bool:
    """Whether a text is the path of a file, which its suffix says.

    >>> names_file("racks/pod.yml"), names_file("hgx-h100:4")
    (True, False)
    """
    return Path(text).suffix.lower() in SUFFIXES


def get_topology(text: str | Path | Topology) -> Topology:
    """A topology from its text: blocks, a machine's name such as `hgx-h100:4`, or the path of a file.

    >>> get_topology("hgx-h100:4").num_devices
    32
    >>> get_topology("ring(4, 200GB/s, 50ns) x switch(8, 50GB/s, 1us)").num_devices
    32
    """
    if isinstance(text, Topology):
        return text
    if not isinstance(text, str | Path):
        raise UsageError(f"a topology is a text, a path or a Topology, not {type(text).__name__}")
    if isinstance(text, Path) or names_file(text):
        return _from_file(Path(text))
    found: list[TopologyFile] = []

    def machine(name: str, nodes: int | None) -> tuple[Block, ...]:
        found.append(machine_file(name))
        return _blocks(found[-1], nodes)

    blocks = parse_blocks(text, machine)
    device, routing = (found[0].device, found[0].routing) if found else ("", "spread")
    return _composed(" ".join(text.split()), blocks, device, routing)


@cache
def list_topologies() -> tuple[TopologyFile, ...]:
    """Every machine of the catalogue.

    >>> "hgx-h100" in [machine.name for machine in list_topologies()]
    True
    """
    return tuple(read_file(path) for path in sorted(CATALOGUE.glob("*.toml"), key=lambda path: path.stem))


def machine_file(name: str) -> TopologyFile:
    """The catalogue's entry for a machine.

    >>> machine_file("hgx-h100").device
    'H100-SXM5-80GB'
    """
    paths = {path.stem: path for path in CATALOGUE.glob("*.toml")}
    if name.lower() in paths:
        return read_file(paths[name.lower()])
    others = {other: machine for machine in list_topologies() for other in machine.names}
    if name.lower() in others:
        return others[name.lower()]
    see = "see choreo list topologies, or give a .json, .toml, .xml or .yml file"
    raise UnknownNameError("machine", name, sorted([*paths, *others]), see)


def _from_file(path: Path) -> Topology:
    if path.suffix.lower() == ".xml":
        from choreo.topology.nccl_xml import read_nccl_xml

        return read_nccl_xml(path)
    found = read_file(path)
    try:
        return _composed(found.name, _blocks(found, None), found.device, found.routing)
    except (UsageError, TopologyError) as error:
        raise TopologyError(f"{shown(path)}: {error}") from None


def _blocks(found: TopologyFile, nodes: int | None) -> tuple[Block, ...]:
    """The blocks of a file for a number of nodes."""
    nodes = found.nodes if nodes is None else nodes
    if nodes < 1:
        raise UsageError(f"{found.name}:{nodes} has no nodes; write {found.name}:1 or more")

    def refuse(name: str, nodes: int | None) -> tuple[Block, ...]:
        raise TopologyError(f"{found.name}: a file's text is made of blocks, not of the machine {name!r}")

    text = found.topology if found.topology is not None else found.across
    if nodes > 1 and (text is None or NODES.search(text) is None):
        raise UsageError(f"{found.name} is one machine; it does not say how {nodes} of them are joined")
    inner = () if found.links is None else (replace(graph_block(found), medium=found.medium),)
    if text is None or (inner and nodes == 1):
        return inner
    return (*inner, *parse_blocks(NODES.sub(lambda match: str(int(match[1] or 1) * nodes), text), refuse))


def _composed(name: str, blocks: Sequence[Block], device: str, routing: str) -> Topology:
    devices = math.prod(block.size for block in blocks)
    links = sum(devices // block.size * len(block.links) for block in blocks)
    check_links(name, devices, links)
    return compose(name, blocks, device=device, routing=routing)
