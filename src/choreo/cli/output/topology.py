"""Networks in words, as `choreo topology` prints them."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.output.table import echo_table
from choreo.errors import UsageError, shown
from choreo.topology import Topology, get_topology, list_topologies
from choreo.topology.describe import Ends, Network, diameter, dimensions, ends, kinds, one_line
from choreo.topology.files import TopologyFile
from choreo.units import counted, format_bandwidth, format_time

if TYPE_CHECKING:
    from choreo.topology import Block

__all__ = ["print_machines", "print_network"]


def print_machines() -> None:
    """The catalogue as a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("machine", no_wrap=True)
    table.add_column("devices", justify="right", no_wrap=True)
    table.add_column("links and what each carries a direction")
    for machine in list_topologies():
        devices = get_topology(machine.name).num_devices
        table.add_row(Text(machine.name, "bold"), str(devices), Text(_links_in_words(machine)))
        table.add_row("", "", Text(one_line(machine.description).partition(". ")[0].rstrip("."), "dim"))
    echo_table(table)
    click.echo("\nchoreo topology show NAME says where each figure comes from; NAME:4 is four of them.")


def print_network(network: Network, drawn: Path | None) -> None:
    """The network in words; `drawn` is where its picture is."""
    from rich.table import Table
    from rich.text import Text

    topology = network.topology
    click.secho(shown(topology.name), bold=True)
    _echo_wrapped(network.description)
    click.echo(f"\n{_facts(topology)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("dimension", "joins", "links", "bandwidth", "latency", "medium"):
        table.add_column(name, no_wrap=True, justify="right" if name == "links" else "left")
    for one, alike in zip(dimensions(topology), kinds(topology), strict=True):
        what = counted(one.size, "device") if one.groups_of == 1 else f"{one.size} groups of {one.groups_of}"
        # A graph of devices and switches with links of several kinds has as a rule several media; it names only one.
        mixed = one.kind == "graph" and one.switches > 0 and len(alike) > 1
        medium = "" if mixed else one_line(one.medium)
        for at, (links, bandwidth, latency) in enumerate(alike):
            figures = (str(links), _range(bandwidth, _bandwidth), _range(latency, format_time), medium)
            table.add_row(*map(Text, (*(("", "") if at else (one.kind, what)), *figures)))
    if table.row_count:
        click.echo()
        echo_table(table)
    sources = [source for file in network.files for source in file.sources]
    if sources:
        click.echo("\nwhere the figures come from")
    for source in sources:
        _echo_wrapped(source.figure, indent=2)
        _echo_wrapped(source.source, indent=4, dim=True)
    click.echo("\n--svg FILE draws it" if drawn is None else f"\ndrawn in {shown(drawn)}")


def _facts(topology: Topology) -> str:
    device = f" ({shown(topology.device)})" if topology.device else ""
    told = [f"{counted(topology.num_devices, 'device')}{device}"]
    if topology.num_switches:
        told.append(counted(topology.num_switches, "switch", "switches"))
    told.append(f"{counted(len(topology.links), 'link')} of one direction each")
    far, reducing = diameter(topology), int(topology.reduces.sum())
    lines = [", ".join(told)]
    if far:
        lines.append(f"at most {counted(far, 'link')} from any device to any other")
    if reducing:
        lines.append(f"{counted(reducing, 'switch', 'switches')} can add and multicast what passes")
    return "\n".join(lines)


def _links_in_words(machine: TopologyFile) -> str:
    """A machine's dimensions in a few words, with what joins several of them."""
    one, many = get_topology(machine.name), _two_of(machine)
    told = []
    pairs = zip_longest(one.blocks, many.blocks)
    for (kind, figures, inside), alike in groupby(pairs, lambda pair: (*_figures(pair[1]), _joins_devices(pair[0]))):
        sizes = [str(block.size) for block, _ in alike if block is not None]
        name = {"ring": "torus", "line": "mesh"}.get(kind, kind) if len(sizes) > 1 else kind
        what = f"{name} of {' x '.join(sizes)}" if inside else f"between several a {name}"
        told.append(f"{what} at {figures}")
    return "; ".join(told)


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


def _echo_wrapped(text: str, indent: int = 0, *, dim: bool = False) -> None:
    """Words as wide as the terminal, and no wider than is easy to read."""
    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    for line in textwrap.wrap(one_line(text), max(20, width - indent), break_on_hyphens=False):
        click.secho(f"{' ' * indent}{line}", dim=dim)
