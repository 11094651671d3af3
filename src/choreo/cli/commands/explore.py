"""`choreo explore`."""

from __future__ import annotations

from pathlib import Path

import click

from choreo.cli.command import Command
from choreo.cli.output.text.files import write_page
from choreo.errors import UsageError

__all__ = ["command"]


@click.command("explore", cls=Command)
@click.option("--port", type=int, default=0, metavar="PORT", help="Port to listen on (default: any free port).")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address to listen on.",
)
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening it.")
@click.option(
    "--static",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a view to a self-contained file, without starting a server.",
)
@click.option(
    "--at",
    "link",
    default="",
    metavar="LINK",
    help="With --static: the view, as the part after # in the page's address.",
)
def command(*, port: int, host: str, no_browser: bool, static: Path | None, link: str) -> None:
    """Explore schedules, networks, algorithms and plans on a page in your browser.

    \b
    choreo explore
    choreo explore --no-browser --port 8080
    choreo explore --static torus.html --at "ranks=64&topology=torus&versus=swing"

    This machine serves the page, to itself only, until Ctrl-C. The page loads nothing from the internet.
    """
    if static is not None:
        from choreo.explore.static import static_page

        write_page(static, static_page(link))
        return
    if link:
        raise UsageError("--at goes with --static FILE; without it, open the page and go there")
    from choreo.explore import explore

    def ready(address: str) -> None:
        click.echo(f"the page is at {address}\npress Ctrl-C to end it")

    explore(host=host, port=port, browser=not no_browser, ready=ready)
