"""Topologies in files: JSON or TOML, one format for a user's own network and for the catalogue.

A file gives either a text in the topology language, or a graph, and optionally how copies of that graph are joined:

    name = "four"                               what it is called
    topology = "ring(4, 50GB/s, 500ns)"         a text; {nodes} stands for the number after the colon in name:4, and
                                                {8*nodes} for eight times that
    nodes = 2                                   the default for that number

    devices = ["a", "b", "c", "d"]              or a graph: names, or how many there are
    switches = ["s"]
    reducing_switches = ["s"]                   those that can add and multicast
    across = "switch({nodes}, 25GB/s, 2us)"     how several such graphs are joined
    medium = "nvlink"                           what the graph's links are

    [[links]]                                   both ways unless one_way = true
    from = "a"
    to = "s"
    bandwidth = "50GB/s"
    latency = "500ns"
    overhead = "1us"                            of a message over it, at the device that sends and the one that receives
    message_rate = "200M/s"                     how many messages a second a device sends or receives over it

Beside these: names (others that the catalogue knows it by), description, device (the accelerator), routing ("spread" or
"hashed") and sources, a list of {figure, source}. A .yml file is a network of ASTRA-sim.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from choreo.errors import TopologyError, UsageError, shown
from choreo.files import check_work, convert, parse_json, parse_toml, read_text
from choreo.topology.astra_sim import network_text
from choreo.topology.blocks import NODE_BYTES, Block, graph, message_figures, one_link
from choreo.topology.graph import ROUTINGS, Links
from choreo.topology.topology import MAX_DEVICES

__all__ = ["LinkEntry", "Source", "TopologyFile", "graph_block", "read_file"]

MAX_FILE_BYTES = 64 << 20
YAML = (".yml", ".yaml")
MAX_NAME = 200  # characters


Name = Annotated[str, Meta(max_length=MAX_NAME)]


class LinkEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a file's links: both ways, unless it says otherwise."""

    from_: Name | int = msgspec.field(name="from")
    to: Name | int
    bandwidth: Name | int | float
    latency: Name | int | float = 0
    overhead: Name | int | float = 0
    message_rate: Name | int | float | None = None
    one_way: bool = False


class Source(msgspec.Struct, forbid_unknown_fields=True):
    """The source of a figure."""

    figure: str
    source: str


class TopologyFile(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a topology file."""

    name: Name
    names: list[Name] = []
    description: str = ""
    device: Name = ""
    topology: str | None = None
    devices: int | list[Name] | None = None
    switches: int | list[Name] = []
    reducing_switches: list[Name] = []
    links: list[LinkEntry] | None = None
    across: str | None = None
    medium: Name = ""
    nodes: int = 1
    routing: Name = "spread"
    sources: list[Source] = []

    def __repr__(self) -> str:
        said = textwrap.shorten(self.description or self.topology or "a graph", 100, placeholder=" ...")
        return f"<TopologyFile {shown(self.name)}: {shown(said)}>"


def read_file(path: Path) -> TopologyFile:
    """A file's contents, checked field by field."""
    text = read_text(path, MAX_FILE_BYTES, "a topology file", TopologyError)
    if path.suffix.lower() in YAML:
        return TopologyFile(shown(path.stem), topology=network_text(text, path), description="A network of ASTRA-sim.")
    parse = parse_toml if path.suffix.lower() == ".toml" else parse_json
    document = parse(text, path, TopologyError)
    found = convert(document, TopologyFile, path, "a topology file", TopologyError)
    _check(path, found)
    return found


def _check(path: Path, found: TopologyFile) -> None:
    """Refuse fields that contradict each other, or hold what no network has."""
    if (found.topology is None) == (found.links is None):
        raise TopologyError(f"{shown(path)} must have either `topology`, a text, or `devices` and `links`, a graph")
    graph_only = ("devices", "switches", "reducing_switches", "across", "medium")
    if found.topology is not None and (given := [name for name in graph_only if getattr(found, name)]):
        raise TopologyError(f"{shown(path)} has `topology`, a text, so `{given[0]}` of a graph must be left out")
    if not found.name.isprintable() or not found.name.strip():
        raise TopologyError(f"{shown(path)}: `name` must be a name on one line, not {found.name!r}")
    if found.routing not in ROUTINGS:
        raise TopologyError(f"{shown(path)}: `routing` must be {' or '.join(ROUTINGS)}, not {found.routing!r}")


def graph_block(found: TopologyFile) -> Block:
    """The graph that a file's devices, switches and links make."""
    for field, least, given in (("devices", 1, found.devices or 0), ("switches", 0, found.switches)):
        if not least <= (given if isinstance(given, int) else len(given)) <= MAX_DEVICES:
            raise TopologyError(f"{found.name}: `{field}` must be {least} to {MAX_DEVICES} names, or their number")
    nodes = sum(count for count in (found.devices, found.switches) if isinstance(count, int))
    check_work(f"{found.name}: a graph of {nodes} nodes", nodes * NODE_BYTES, refuse=TopologyError)
    devices, switches = _names(found.devices or 0, ""), _names(found.switches, "switch")
    names = (*devices, *switches)
    node = {name: number for number, name in enumerate(names)}
    for name in names:
        if not name.isprintable() or not name.strip():
            raise TopologyError(f"{found.name}: a node must have a name on one line, not {name!r}")
    if len(node) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise TopologyError(f"{found.name}: two nodes are called {twice!r}; give each its own name")
    for name in found.reducing_switches:
        if node.get(name, 0) < len(devices):
            raise TopologyError(f"{found.name}: reducing_switches has {name!r}, which is not one of the switches")
    ends: list[tuple[int, int]] = []
    figures: list[tuple[float, ...]] = []
    for at, entry in enumerate(found.links or []):
        here, there, *numbers = _link(found.name, at, entry, node)
        ends += [(here, there)] if entry.one_way else [(here, there), (there, here)]
        figures += [tuple(numbers)] * (1 if entry.one_way else 2)
    src_dst, columns = np.array(ends, np.int64).reshape(-1, 2), np.array(figures, np.float64).reshape(-1, 4)
    links = Links(*src_dst.T.copy(), *columns.T.copy())
    reducing = set(found.reducing_switches)
    reduces = np.array([name in reducing for name in switches], np.bool_)
    return graph(len(devices), links, len(switches), reduces=reduces, names=names, text=found.name)


def _names(given: int | list[str], prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(given)] if isinstance(given, int) else given


def _link(name: str, at: int, entry: LinkEntry, node: dict[str, int]) -> tuple[int, int, float, float, float, float]:
    where = f"{name}: links[{at}]"
    for end in (entry.from_, entry.to):
        if str(end) not in node:
            raise TopologyError(f"{where} joins {end!r}, which is neither a device nor a switch")
    if str(entry.from_) == str(entry.to):
        raise TopologyError(f"{where} goes from {entry.to!r} to itself; leave it out")
    try:
        figures = one_link(entry.bandwidth, entry.latency)
        costs = message_figures(entry.overhead, entry.message_rate)
    except UsageError as error:
        raise TopologyError(f"{where}: {error}") from None
    return node[str(entry.from_)], node[str(entry.to)], *figures, *costs
