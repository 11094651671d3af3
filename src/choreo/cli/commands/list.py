"""`choreo list`."""

from __future__ import annotations

import click

from choreo.cli.command import Command
from choreo.cli.options.common import json_option, load_option
from choreo.errors import UnknownNameError, UsageError

CATALOGUES = ("algorithms", "models", "devices", "software", "topologies")


@click.command("list", cls=Command)
@click.argument("what", required=False)
@click.argument("collective", required=False)
@load_option
@json_option
def command(what: str | None, collective: str | None, as_json: bool) -> None:
    """List the catalogues: algorithms (default), models, devices, training software, topologies.

    \b
    choreo list                  every collective's algorithms, and their costs
    choreo list all_reduce       those of one, with a sentence about each
    choreo list models           for choreo plan MODEL
    choreo list devices          for choreo plan --device
    choreo list software         for choreo plan --software
    choreo list topologies       for --topology and --cluster

    Costs are exact at the number of ranks they are stated for: α seconds per message, β seconds per byte, γ
    seconds per reduced byte, n bytes, p ranks, lg the logarithm to base 2, k segments.
    """
    from choreo.cli.output.catalogue import print_algorithms, print_devices, print_models, print_software
    from choreo.collectives import COLLECTIVES

    if what not in CATALOGUES:
        if collective is not None:
            raise UsageError(f"choreo list takes one of {', '.join(CATALOGUES)}, or one collective, not two names")
        if what is not None and what not in COLLECTIVES:
            close = UnknownNameError("collective or list", what, [*COLLECTIVES, *CATALOGUES])
            if close.suggestions:
                raise close
            raise UsageError(
                f"there is no collective or list {what!r}; lists: {', '.join(CATALOGUES)}; "
                f"collectives: {', '.join(COLLECTIVES)}"
            )
        print_algorithms(what, as_json)
    elif what == "algorithms":
        print_algorithms(collective, as_json)
    elif collective is not None:
        raise UsageError(f"choreo list {what} takes no other name; leave out {collective!r}")
    elif what == "topologies":
        from choreo.cli.output.topology import print_topologies

        print_topologies(as_json)
    else:
        {"models": print_models, "devices": print_devices, "software": print_software}[what](as_json)
