"""`choreo list`."""

from __future__ import annotations

import click

from choreo.cli.options import json_option, load_option
from choreo.cli.output.table import echo_json, echo_table
from choreo.errors import shown


@click.command("list")
@click.argument("collective", required=False)
@load_option
@json_option
def command(collective: str | None, as_json: bool) -> None:
    """List the algorithms, of one COLLECTIVE with what each does, or of all, and what each costs.

    Costs are exact at the number of ranks they are stated for: α seconds a message, β seconds a byte, γ seconds a
    reduced byte, n bytes, p ranks, lg the logarithm to base 2, k segments.
    """
    from choreo.algorithms import list_algorithms
    from choreo.collectives import COLLECTIVES

    found = list_algorithms(collective)
    if as_json:
        echo_json(
            [
                {
                    "collective": a.collective,
                    "algorithm": a.name,
                    "any_ranks": a.requires is None,
                    "requires": None if a.requires is None else a.requires.text,
                    "cost": None if a.cost is None else str(a.cost),
                }
                for a in found
            ]
        )
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    table.add_column("cost")
    if any(a.requires for a in found):
        table.add_column("needs")
    for name, contract in COLLECTIVES.items():
        rows = [a for a in found if a.collective == name]
        if rows:
            table.add_row(Text(name, "bold"), Text(contract.summary, "dim"))
            for a in rows:
                needs = [] if a.requires is None else [Text(a.requires.text)]
                table.add_row(Text(f"  {shown(a.name)}"), Text(str(a.cost or "not stated")), *needs)
                if collective is not None and a.summary:
                    table.add_row("", Text(shown(a.summary), "dim"))
    echo_table(table)
