"""A synthesized schedule as an algorithm of the command that asked for it, beside those of the library."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from choreo.cli.options.common import needed_size
from choreo.cli.options.schedule import SYNTHESIZED
from choreo.cli.options.topology import need_topology
from choreo.cli.progress import waiting
from choreo.errors import UsageError

if TYPE_CHECKING:
    from choreo.algorithms import Algorithm

__all__ = ["synthesized_too"]


def synthesized_too(
    collective: str | None,
    names: tuple[str | None, ...],
    topology: str | None,
    size: int | None,
    *,
    ranks: int | None,
    root: int | None,
    relays: bool = True,
) -> int | None:
    """Synthesize for a topology and a size if one of the names asks for it; return the number of ranks.

    The schedule is an algorithm like one that --load brought, until the command ends.
    """
    from choreo.algorithms import load_algorithms
    from choreo.algorithms._registry import registered
    from choreo.schedule import save
    from choreo.synthesize import synthesize

    if SYNTHESIZED not in names or (topology is None and (collective, SYNTHESIZED) in registered()):
        if topology is not None:
            raise UsageError("--topology is the network that --algorithm synthesized is made for; leave it out")
        return ranks
    if collective is None:
        raise UsageError("say which collective is to be synthesized; see choreo list")
    if topology is None:
        raise UsageError("a synthesized schedule is made for a network; say which: --topology T")
    network, size_bytes = need_topology(topology), needed_size(collective, size)
    with waiting("synthesizing"):
        schedule = synthesize(collective, network, size_bytes, ranks=ranks, root=root, relays=relays)
    context = click.get_current_context()
    file = Path(context.with_resource(TemporaryDirectory(prefix="choreo-")), f"{SYNTHESIZED}.npz")
    save(schedule, file)
    for algorithm in load_algorithms(file):
        context.call_on_close(lambda algorithm=algorithm: _forget(algorithm))
    return schedule.ranks


def _forget(algorithm: Algorithm) -> None:
    from choreo.algorithms._registry import registered

    registered().pop((algorithm.collective, algorithm.name), None)
