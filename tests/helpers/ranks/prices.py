"""Algorithms priced before ranks are forked: every rank of every job would do it anew, for a tenth of a second each."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from choreo.run.execute.choice import Chooser, load_algorithms
from choreo.run.execute.constants import default_constants

__all__ = ["price_algorithms"]

USUAL = ("all_reduce", "all_gather", "broadcast", "barrier")
OTHERS = ("reduce", "reduce_scatter", "gather", "scatter", "all_to_all")


@functools.cache
def price_algorithms(collectives: Sequence[str] = USUAL + OTHERS) -> None:
    """Those that small jobs choose from, once for all forks of this process."""
    load_algorithms()
    for ranks in (1, 2, 3, 4, 5, 7):
        several = (tuple(range(ranks)),) if ranks in (2, 3, 4) else ()
        for hosts in ((), *several):  # on one host, and on several
            chooser = Chooser(ranks, default_constants(), {}, hosts)
            for collective in collectives:
                chooser.choose(collective, 8)
