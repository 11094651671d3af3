"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from choreo.cli.command import Option
from choreo.errors import UsageError, shown
from choreo.units import parse_gamma, parse_rank_range, parse_size

__all__ = [
    "LOADED",
    "NewFile",
    "gamma_option",
    "json_option",
    "load_option",
    "needed_size",
    "parsed",
    "rank_range_option",
    "ranks_option",
    "size_option",
]

# Where a click context keeps the algorithms that --load brought.
LOADED = "choreo.loaded"

Function = TypeVar("Function", bound=Callable[..., object])


class NewFile(click.Path):
    """A file to write, refused before the work if it could not be written after it; - is stdout, if allowed."""

    def __init__(self, *, stdout: bool = True) -> None:
        super().__init__(path_type=Path)
        self.stdout = stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, whose folder is there and can be written to."""
        path = Path(value)
        if not str(value):
            raise UsageError(f"{param.opts[0] if param else 'this'} needs the name of a file")
        if str(path) == "-":
            if self.stdout:
                return path
            raise UsageError(f"{param.opts[0] if param else 'this'} needs the name of a file, not -")
        if path.is_dir():
            raise UsageError(f"{shown(path)}: cannot be written: Is a directory")
        if not path.parent.is_dir():
            raise UsageError(f"{shown(path)}: cannot be written: No such file or directory")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"{shown(path)}: cannot be written: Permission denied")
        return path


def parsed(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """A callback that reads an option's text with a function that explains what is wrong with it."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> object:
        return None if text is None else parse(text)

    return read


def ranks_option(function: Function) -> Function:
    """One number of ranks."""
    return click.option("--ranks", "-p", "-n", type=int, metavar="P", help="Number of ranks.")(function)


def rank_range_option(default: str | None = None) -> Option:
    """One or more numbers of ranks."""
    return click.option(
        "--ranks",
        "-p",
        "-n",
        callback=parsed(parse_rank_range),
        default=default,
        show_default=default is not None,
        metavar="P",
        help="Numbers of ranks: 8, 2..33 or 2,4,8.",
    )


def needed_size(collective: str, size: int | None) -> int:
    """The size that was given; only a collective that moves no data needs none."""
    from choreo.collectives import get_collective

    if size is None and get_collective(collective).size_per != "nothing":
        raise UsageError("say how much: --size S, like 64MiB")
    return size or 0


def size_option(function: Function) -> Function:
    """The size of a collective, as `choreo.collectives` defines it."""
    return click.option(
        "--size",
        callback=parsed(parse_size),
        metavar="S",
        help="The collective's size in bytes: 8, 4KiB, 1MB, 64MiB; 64M is 64 MiB.",
    )(function)


def gamma_option(function: Function) -> Function:
    """What reducing costs a rank."""
    return click.option(
        "--gamma",
        callback=parsed(parse_gamma),
        default="0",
        show_default=True,
        metavar="G",
        help="Cost of reducing: seconds per byte (1e-11), or bytes per second (100GB/s).",
    )(function)


def json_option(function: Function) -> Function:
    """One JSON document on stdout and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(function)


def load_option(function: Function) -> Function:
    """Load a user's algorithms before anything else."""

    def run(ctx: click.Context, param: click.Parameter, files: tuple[str, ...]) -> None:
        from choreo.algorithms import load_algorithms

        ctx.meta[LOADED] = [algorithm for file in files for algorithm in load_algorithms(file)]

    return click.option(
        "--load",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=run,
        metavar="FILE",
        help="Add your own algorithms: a Python file, or a schedule file.",
    )(function)
