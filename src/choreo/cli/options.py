"""Options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from choreo.units import parse_gamma

__all__ = ["gamma_option", "json_option", "load_option", "parsed", "ranks_option"]

Command = TypeVar("Command", bound=Callable[..., object])


def parsed(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """A callback that reads an option's text with a function that explains what is wrong with it."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> object:
        return None if text is None else parse(text)

    return read


def ranks_option(command: Command) -> Command:
    """One number of ranks."""
    return click.option("--ranks", "-p", type=int, metavar="P", help="How many ranks take part.")(command)


def gamma_option(command: Command) -> Command:
    """What reducing costs a rank."""
    return click.option(
        "--gamma",
        callback=parsed(parse_gamma),
        default="0",
        show_default=True,
        metavar="G",
        help="Seconds a reduced byte (1e-11), or the rate of reduction (100GB/s).",
    )(command)


def json_option(command: Command) -> Command:
    """One JSON document on stdout and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(command)


def load_option(command: Command) -> Command:
    """Load a user's algorithms before anything else."""

    def run(ctx: click.Context, param: click.Parameter, files: tuple[str, ...]) -> None:
        from choreo.algorithms import load_algorithms

        for file in files:
            load_algorithms(file)

    return click.option(
        "--load",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=run,
        metavar="FILE.py",
        help="Load your own algorithms from a Python file.",
    )(command)
