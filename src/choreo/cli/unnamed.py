"""Values on the command line that lack their option: `choreo show all_reduce ring 8`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from choreo.errors import ChoreoError

if TYPE_CHECKING:
    import click

__all__ = ["with_options"]


def with_options(values: list[str], command: click.Command) -> str:
    """The values after the options of a command that they fit, as they would be typed; "" if one fits none."""
    here = {name for parameter in command.params for name in parameter.opts}
    found = [
        next((option for option, fits in FITS.items() if option in here and fits(value)), None) for value in values
    ]
    if None in found or len(set(found)) < len(found):
        return ""
    return " ".join(f"{option} {shlex.quote(value)}" for option, value in zip(found, values, strict=True))


def _is_algorithm(value: str) -> bool:
    from choreo.algorithms import list_algorithms

    return value == "all" or value in {algorithm.name for algorithm in list_algorithms()}


def _is_network(value: str) -> bool:
    from choreo.topology import get_topology

    try:
        return Path(value).suffix in {".toml", ".yml", ".yaml", ".xml"} or bool(get_topology(value))
    except ChoreoError:
        return False


def _is_size(value: str) -> bool:
    from choreo.units import parse_size

    try:
        return parse_size(value) >= 0
    except ChoreoError:
        return False


# By option, what its values look like; a bare number is ranks where a command has them.
FITS: dict[str, Callable[[str], bool]] = {
    "--ranks": str.isdecimal,
    "--size": _is_size,
    "--algorithm": _is_algorithm,
    "--topology": _is_network,
}
