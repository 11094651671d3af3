"""`choreo topology list` and `choreo topology show`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from choreo.cli.command import Command
from choreo.cli.options.common import json_option
from choreo.cli.output.text.files import check_picture, check_stdout, on_stdout, write_picture
from choreo.cli.output.text.table import echo_json
from choreo.errors import UsageError, shown


class _Topology(click.Group):
    """A group that knows what a network's name in place of a command means."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            from choreo.topology.catalogue import list_topologies

            machines = {machine.name for machine in list_topologies()}
            if args[0].partition(":")[0] in machines or set(args[0]) & set("(."):
                name = shlex.quote(shown(args[0]))
                raise UsageError(f"{name} is a network, not a command; write choreo topology show {name}")
        return super().resolve_command(ctx, args)


@click.group("topology", cls=_Topology, epilog="Both take --json for one JSON document on stdout.")
def command() -> None:
    """List and show networks: building blocks, real machines, your own files.

    \b
    choreo topology list
    choreo topology show hgx-h100:4 --svg hgx.svg
    choreo topology show "ring(4, 200GB/s, 50ns) x switch(8, 50GB/s, 2us)"
    choreo topology show mine.toml
    """


@command.command("list", cls=Command)
@json_option
def list_machines(as_json: bool) -> None:
    """List the machines of the catalogue, like choreo list topologies.

    NAME:4 is four of one, joined as its description says.
    """
    from choreo.cli.output.topology import print_topologies

    print_topologies(as_json)


@command.command("show", cls=Command)
@click.argument("topology")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Draw the network into an SVG file.")
@json_option
def show(topology: str, svg: Path | None, as_json: bool) -> None:
    """Show a TOPOLOGY in words, and draw it.

    TOPOLOGY is a machine's name like hgx-h100:4, blocks joined by x, or a .json, .toml, .xml or .yml file. Printed are
    its devices, switches and the links of every dimension, and where each figure comes from.
    """
    from choreo.cli.output.topology import print_network
    from choreo.topology.describe import document, find

    check_picture(svg, ".svg")
    check_stdout(as_json=as_json, svg=svg)
    network = find(topology)
    if svg is not None:
        from choreo.show import topology_svg

        write_picture(svg, topology_svg(network.topology))
    if as_json:
        echo_json(document(network))
    elif not on_stdout(svg):
        print_network(network, drawn=svg)
