"""`sweep`: run a verb for every combination of its axes' values; each case is stored as soon as it is done."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from choreo.errors import UsageError
from choreo.record.case import digest
from choreo.record.store import Store
from choreo.record.store.provenance import code_hash
from choreo.sweep.axes import values_of
from choreo.sweep.table import Table
from choreo.sweep.tasks import Done, Task
from choreo.sweep.verbs import cases_of, get_verb, named_axis
from choreo.sweep.workers.local import available_cores, run_here

__all__ = ["Progress", "sweep", "sweep_cases"]

# Called with the cases that are done, all of them, and the seconds that the rest will take.
Progress = Callable[[int, int, float], None]


def sweep(
    verb: str,
    name: object = None,
    *,
    store: str | Path | None = None,
    workers: int | None = None,
    on: str | None = None,
    address: str | None = None,
    again: bool = False,
    progress: Progress | None = None,
    **axes: object,
) -> Table:
    """Call a verb with every combination of values, on all cores, and return the results as a table.

    The verbs are price, simulate, bound, nccl, plan and bench. `name` is a collective, or several; for plan, models. An
    axis is a text as on the command line, a number, or a list of them. Every case is kept in the `store` when it is
    done, and is not computed again: a sweep that was interrupted resumes where it was. `again` recomputes all cases.
    `on="ray"` uses a Ray cluster.

    >>> import choreo, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = choreo.sweep("price", "all_reduce", algorithm="ring,swing", ranks=8, size="8:64",
    ...                          store=folder)
    >>> table["algorithm"][:2], table["size_bytes"][:2], len(table.rows)
    (['ring', 'swing'], [8, 8], 8)
    """
    if name is not None:
        place = named_axis(verb)
        if place in axes:
            raise UsageError(f"the {place} is given twice, as {name!r} and as {place}={axes[place]!r}; leave out one")
        axes = {place: name} | axes
    found = {axis: values_of(axis, value) for axis, value in axes.items()}
    cases = cases_of(verb, found)
    return sweep_cases(
        verb, cases, store=store, workers=workers, on=on, address=address, again=again, progress=progress
    )


def sweep_cases(
    verb: str,
    cases: Sequence[Task],
    *,
    store: str | Path | None = None,
    workers: int | None = None,
    on: str | None = None,
    address: str | None = None,
    again: bool = False,
    progress: Progress | None = None,
    argv: Sequence[str] | None = None,
    finish: Callable[[Table], Sequence[Path]] | None = None,
) -> Table:
    """Compute the cases that the store does not have, and keep them.

    `finish` gets the table before the run is closed, and returns the files that it wrote.
    """
    found = get_verb(verb)
    if workers is not None and workers < 1:
        raise UsageError(f"there must be at least 1 worker, not {workers}")
    names = [case.hash for case in cases]
    whole = digest(names)
    with Store(store) as kept:
        rows = {} if again else _kept_rows(kept, whole, names, measured=found.alone)
        run = kept.begin("sweep", sys.argv if argv is None else argv, sweep=whole)
        missing = [(number, case) for number, case in enumerate(cases) if number not in rows]
        status = "failed"
        try:
            began, before = time.monotonic(), len(rows)
            with closing(_computed(verb, missing, 1 if found.alone else workers, on, address)) as batches:
                for done in batches:
                    lasting = [(names[result.number], result.row) for result in done if result.kept]
                    kept.add(run, [fact for result in done for fact in result.facts], lasting)
                    rows.update((result.number, result.row) for result in done)
                    if progress is not None:
                        left = (time.monotonic() - began) / (len(rows) - before) * (len(cases) - len(rows))
                        progress(len(rows), len(cases), left)
            table = Table([rows[number] for number in range(len(cases))], found.time)
            for file in () if finish is None else finish(table):
                kept.add_artifact(run, file)
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except BrokenPipeError:  # nobody reads the rest of the table
            status = "done"
            raise
        finally:
            kept.end(run, status)
    return table


def _computed(
    verb: str, cases: list[tuple[int, Task]], workers: int | None, on: str | None, address: str | None
) -> Generator[list[Done], None, None]:
    if on is None:
        return run_here(verb, cases, workers or available_cores())
    if on != "ray":
        raise UsageError(f"a sweep runs here, or on ray, not on {on!r}")
    if get_verb(verb).alone:
        raise UsageError(f"{verb} measures this machine; leave out --on ray")
    from choreo.sweep.workers.on_ray import run_on_ray

    return run_on_ray(cases, address)


def _kept_rows(kept: Store, whole: str, names: Sequence[str], *, measured: bool) -> dict[int, Mapping[str, Any]]:
    """The rows that are stored already, by the number of the case.

    Predictions are reused. Measurements are taken again, unless this very sweep was interrupted.
    """
    if measured:
        last = kept.rows("select id, status, machine from run where sweep = ? order by id desc limit 1", [whole])
        if not last or last[0][1] == "done":
            return {}
        # All runs since this sweep was last done.
        found = kept.rows(
            "select hash, row_ from task join run on run.id = task.run where run.sweep = ? and task.code = ? "
            "and run.id > (select coalesce(max(id), 0) from run where sweep = ? and status = 'done')",
            [whole, code_hash(), whole],
        )
    else:
        found = []
        for start in range(0, len(names), 500):
            part = names[start : start + 500]
            marks = ", ".join("?" * len(part))
            found += kept.rows(
                f"select hash, row_ from task where code = ? and hash in ({marks})", [code_hash(), *part]
            )
    there = {str(name): str(row) for name, row in found}
    return {number: json.loads(there[name]) for number, name in enumerate(names) if name in there}
