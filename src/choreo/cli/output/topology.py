"""Print a network in words, or the catalogue of networks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.output.text.table import Column, echo_json, echo_line, echo_table, echo_wrapped
from choreo.errors import UsageError, shown
from choreo.topology import Topology, get_topology, list_topologies
from choreo.topology.describe import (
    DescribedTopology,
    Ends,
    cut_off,
    diameter,
    dimensions,
    ends,
    kinds,
    listed,
    one_line,
)
from choreo.topology.files import TopologyFile
from choreo.units import counted, format_bandwidth, format_count, format_time

if TYPE_CHECKING:
    from choreo.topology import Block

__all__ = ["print_network", "print_topologies"]


def print_topologies(as_json: bool) -> None:
    """Print the catalogue of machines."""
    if as_json:
        echo_json(listed())
        return
    from rich.text import Text

    rows: list[list[str | Text]] = []
    for machine in list_topologies():
        devices = get_topology(machine.name).num_devices
        rows.append([Text(machine.name, "bold"), str(devices), _links_in_words(machine)])
        rows.append(["", "", Text(one_line(machine.description).partition(". ")[0].rstrip("."), "dim")])
    columns = [Column("topology", left=True), Column("devices"), Column("links, with bandwidth each way", wrap=True)]
    echo_table(columns, rows)
    click.echo()
    echo_wrapped("choreo topology show NAME says where each figure comes from; NAME:4 is four of them.")


def print_network(network: DescribedTopology, drawn: Path | None) -> None:
    """Print a network in words; `drawn` is the file of its picture."""
    topology = network.topology
    echo_line(shown(topology.name), bold=True)
    echo_wrapped(one_line(network.description))
    click.echo()
    for fact in _facts(topology):
        echo_wrapped(fact)
    rows = []
    charged, limited = bool(topology.links.overhead_s.any()), bool(topology.links.gap_s.any())
    for dimension, alike in zip(dimensions(topology), kinds(topology), strict=True):
        what = (
            counted(dimension.size, "device")
            if dimension.groups_of == 1
            else f"{dimension.size} groups of {dimension.groups_of}"
        )
        # A graph with switches and links of several kinds usually has several media; its file names only one.
        mixed = dimension.kind == "graph" and dimension.switches > 0 and len(alike) > 1
        medium = "" if mixed else one_line(dimension.medium)
        for at, links in enumerate(alike):
            figures = [str(links.links), _range(links.bandwidth, _bandwidth), _range(links.latency, format_time)]
            figures += [_range(links.overhead, format_time)] if charged else []
            figures += [_rate(links.gap)] if limited else []
            rows.append([*(("", "") if at else (dimension.kind, what)), *figures, medium])
    if rows:
        click.echo()
        echo_table(
            [
                Column("dimension", left=True),
                Column("joins", 2, left=True),
                Column("links", 1),
                Column("bandwidth", left=True),
                Column("latency", left=True),
                *([Column("overhead", 4, left=True)] if charged else []),
                *([Column("messages", 5, left=True)] if limited else []),
                Column("medium", 3, left=True),
            ],
            rows,
        )
    sources = [source for file in network.files for source in file.sources]
    if sources:
        click.echo("\nwhere the figures come from")
    for source in sources:
        echo_wrapped(one_line(source.figure), indent=2)
        echo_wrapped(one_line(source.source), indent=4, dim=True)
    click.echo("\n--svg FILE draws it" if drawn is None else f"\ndrawn in {shown(drawn)}")


def _rate(gap: Ends) -> str:
    """Messages a second, by the longest gap between two."""
    return f"{format_count(1 / gap[1])}/s" if gap[1] else ""


def _facts(topology: Topology) -> list[str]:
    device = f" ({shown(topology.device)})" if topology.device else ""
    counts = [f"{counted(topology.num_devices, 'device')}{device}"]
    if topology.num_switches:
        counts.append(counted(topology.num_switches, "switch", "switches"))
    counts.append(counted(len(topology.links), "unidirectional link"))
    far, reducing = diameter(topology), int(topology.reduces.sum())
    lines = [", ".join(counts)]
    if far:
        lines.append(f"at most {counted(far, 'link')} from any device to any other")
    elif (pair := cut_off(topology)) is not None:
        src, dst = map(topology.node_name, pair)
        lines.append(f"there is no way from device {shown(src)} to device {shown(dst)}")
    if reducing:
        lines.append(f"{counted(reducing, 'switch', 'switches')} can reduce and multicast in flight")
    return [*lines, *_switches(topology)]


def _switches(topology: Topology) -> list[str]:
    """Which switch is of which dimension, where several have some: their names are needed to point at a link."""
    told, first = [], 0
    for dimension in dimensions(topology):
        if dimension.switches:
            last = first + dimension.switches - 1
            what = (
                counted(dimension.size, "device")
                if dimension.groups_of == 1
                else f"{dimension.size} groups of {dimension.groups_of}"
            )
            several = f"switch{first} {'and' if last == first + 1 else 'to'} switch{last} each join"
            told.append(f"{several if dimension.switches > 1 else f'switch{first} joins'} {what}")
            first = last + 1
    return [", ".join(told)] if len(told) > 1 else []


def _links_in_words(machine: TopologyFile) -> str:
    """A machine's dimensions in a few words, with what joins several machines."""
    single, pair = get_topology(machine.name), _two_of(machine)
    parts = []
    pairs = zip_longest(single.blocks, pair.blocks)
    for (kind, figures, inside), alike in groupby(pairs, lambda pair: (*_figures(pair[1]), _joins_devices(pair[0]))):
        sizes = [str(block.size) for block, _ in alike if block is not None]
        name = {"ring": "torus", "line": "mesh"}.get(kind, kind) if len(sizes) > 1 else kind
        what = f"{name} of {' x '.join(sizes)}" if inside else f"between machines, a {name}"
        parts.append(f"{what} at {figures}")
    return "; ".join(parts)


def _joins_devices(block: Block | None) -> bool:
    """Whether a block of the machine by itself joins anything."""
    return block is not None and block.size > 1


def _two_of(machine: TopologyFile) -> Topology:
    try:
        return get_topology(f"{machine.name}:2")
    except UsageError:
        return get_topology(machine.name)


def _figures(block: Block) -> tuple[str, str]:
    words = _range(ends(block.links.bandwidth_bytes_per_s), _bandwidth)
    return block.kind, f"{words}{f' ({block.medium})' if block.medium else ''}"


def _range(figures: Ends, words: Callable[[float], str]) -> str:
    """`50.0 GB/s`, or `25.0 to 50.0 GB/s`."""
    low, high = (words(figure) for figure in figures)
    if low == high:
        return high
    return f"{low.partition(' ')[0] if low.partition(' ')[2] == high.partition(' ')[2] else low} to {high}"


def _bandwidth(bytes_per_s: float) -> str:
    return format_bandwidth(bytes_per_s) if bytes_per_s else "down"
