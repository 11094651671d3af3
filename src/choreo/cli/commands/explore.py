"""`choreo explore`."""

from __future__ import annotations

import click

from choreo.cli.command import Command

__all__ = ["command"]


@click.command("explore", cls=Command)
@click.option("--port", type=int, default=0, metavar="PORT", help="Where to listen; without it, on any free port.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Whom to listen for: this machine."
)
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening it.")
def command(*, port: int, host: str, no_browser: bool) -> None:
    """Open a page in which schedules, networks, algorithms and plans can be seen at work and changed.

    \b
    choreo explore
    choreo explore --no-browser --port 8080

    The page is served from this machine, to this machine, until Ctrl-C. It asks nothing of anybody else.
    """
    from choreo.explore import explore

    def ready(address: str) -> None:
        click.echo(f"the page is at {address}\npress Ctrl-C to end it", err=False)

    explore(host=host, port=port, browser=not no_browser, ready=ready)
