"""`record`: write a result to the store."""

from __future__ import annotations

import sys
from pathlib import Path

from choreo.record.facts import facts_of
from choreo.record.store import Store

__all__ = ["record"]


def record(result: object, *, store: str | Path | None = None, **settings: object) -> int:
    """Store the result of a verb, or a list of results; returns how many predictions and measurements were stored.

    `store` is a folder: that of CHOREO_STORE, or one in the platform's data folder, by default. `settings` are what a
    result does not hold itself: the `cost_model` and `ports` of a price.

    >>> import choreo, tempfile
    >>> found = choreo.simulate(choreo.build("all_reduce", "ring", 4), "ring(4, 50GB/s, 1us)", "1MiB")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     choreo.record(found, store=folder)
    1
    """
    facts = facts_of(result, **settings)
    with Store(store) as kept:
        run = kept.begin("record", sys.argv)
        kept.add(run, facts)
        kept.end(run)
    return len(facts)
