"""Options that describe a network and where the ranks are in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from choreo.cli.command import Option
from choreo.errors import UsageError
from choreo.topology.written import Placement, parse_placement, place, what_if

if TYPE_CHECKING:
    from choreo.topology import Topology

__all__ = [
    "Placement",
    "need_topology",
    "parse_placement",
    "place",
    "placement_option",
    "topology_option",
    "what_if",
    "what_if_options",
]

Function = TypeVar("Function", bound=Callable[..., object])


def topology_option(function: Function) -> Function:
    """The network."""
    return click.option(
        "--topology",
        "-t",
        metavar="T",
        help="Network: a machine like hgx-h100:4 (see choreo list topologies), blocks like 'ring(8, 50GB/s, 500ns)', "
        "or a file.",
    )(function)


def placement_option(function: Function) -> Function:
    """Which device holds each rank."""
    return click.option(
        "--placement",
        metavar="DEVICES",
        help="Device of each rank, by number or name: 0,2,4..7 or a0,a1; or reversed, or random:SEED.",
    )(function)


def what_if_options() -> list[Option]:
    """Links and ranks that are slower than they should be, and how equal paths are used."""
    return [
        click.option(
            "--routing",
            type=click.Choice(["spread", "hashed", "spray", "ecmp"]),
            help="Use all shortest paths (spread), or one per pair of ranks (hashed); with --packets: spray or ecmp.",
        ),
        click.option(
            "--slow-link",
            multiple=True,
            metavar="A-B=0.5",
            help="Links between A and B have half the bandwidth; 'A->B=0.5' is one direction, A-B=0 a dead link, "
            "switch0=0.5 all links of a switch.",
        ),
        click.option("--slow-rank", multiple=True, metavar="R=2x", help="Rank R is 2 times slower."),
    ]


def need_topology(text: str | None) -> Topology:
    """The topology that was asked for."""
    from choreo.topology import get_topology

    if text is None:
        raise UsageError(
            'give a network: --topology "ring(8, 50GB/s, 500ns)" or --topology hgx-h100:4; see choreo list topologies'
        )
    return get_topology(text)
