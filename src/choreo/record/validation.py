"""Predictions compared with the measurements in the store, on clusters and on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from choreo.errors import ChoreoError, UsageError, shown
from choreo.record.ask.sql import engine
from choreo.record.facts import facts_of
from choreo.record.store import Store
from choreo.record.store.place import store_path
from choreo.results import Result, result
from choreo.units import counted
from choreo.validate.errors import grouped, mean, relative_error

__all__ = ["StoreValidation", "ValidatedCase", "ValidatedGroup", "validate_store"]

BOUNDARY_BYTES = 1 << 20
# Measured times of NCCL on a network that is defined by its name: these can be predicted now.
MEASURED = """
select distinct c.collective, c.algorithm, c.ranks, c.size_bytes, c.topology, c.root, c.options
from measurement s join case_ c on c.id = s.case_
where c.library = 'nccl' and c.topology is not null
order by c.topology, c.collective, c.ranks, c.size_bytes"""
COMPARED = """
select source, coalesce(library, software, '') as library, coalesce(collective, model) as what, algorithm, ranks,
       size_bytes, coalesce(topology, '') as topology, predicted_s, measured_s, samples,
       case when accelerator = '' then cpu else accelerator end as machine
from compared where source in ('nccl', 'price', 'plan')
order by machine, library, topology, what, ranks, size_bytes, algorithm, source"""


@result
class ValidatedCase(Result):
    """A collective or a model, as it was predicted and measured; `machine` is the accelerator or the processor."""

    columns: ClassVar[tuple[str, ...]] = (
        "what",
        "library",
        "algorithm",
        "topology",
        "ranks",
        "size_bytes",
        "source",
        "predicted_s",
        "measured_s",
        "error",
        "samples",
        "machine",
    )

    source: str
    library: str
    what: str
    algorithm: str | None
    ranks: int
    size_bytes: int | None
    topology: str
    predicted_s: float
    measured_s: float
    samples: int
    machine: str

    @property
    def error(self) -> float:
        """Relative: 0.1 is ten per cent too slow."""
        return relative_error(self.predicted_s, self.measured_s)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; a training step has no size."""
        return {name: getattr(self, name) for name in self.columns}


@result
class ValidatedGroup(Result):
    """Mean absolute relative errors of one group of cases on one machine; None if there are none of that size."""

    columns: ClassVar[tuple[str, ...]] = ("group", "cases", "mape_below_1MiB", "mape_from_1MiB")

    group: str
    cases: int
    mape_below_1MiB: float | None  # noqa: N815 - MiB is spelled so
    mape_from_1MiB: float | None  # noqa: N815


@result
class StoreValidation(Result):
    """Every case that was predicted and measured, the errors by group, and what could not be predicted."""

    columns: ClassVar[tuple[str, ...]] = ("rows", "groups", "skipped")

    rows: tuple[ValidatedCase, ...]
    groups: tuple[ValidatedGroup, ...]
    skipped: tuple[str, ...]

    def summary(self) -> str:
        """How many cases there were."""
        return f"{counted(len(self.rows), 'case')} predicted, {len(self.skipped)} skipped"


def validate_store(store: str | Path | None = None, *, argv: Sequence[str] = ()) -> StoreValidation:
    """Predict with this code what was measured with NCCL, and compare all stored predictions with measurements."""
    folder = store_path(store)
    with engine(folder, oltp=True) as ask:
        measured = ask(MEASURED, []).rows
    skipped = _predict(folder, measured, argv) if measured else []
    with engine(folder, oltp=True) as ask:
        rows = tuple(ValidatedCase(*row) for row in ask(COMPARED, []).rows)
    if not rows:
        raise UsageError(
            f"{shown(folder)} has nothing that was both measured and predicted; import measurements with choreo record "
            "import FILE --topology T, or measure here with choreo bench --record"
        )
    named = grouped(rows, lambda row: f"{row.what} of {row.library} on {row.topology or row.machine}, by {row.source}")
    return StoreValidation(rows, tuple(_group(name, members) for name, members in named.items()), tuple(skipped))


def _predict(folder: Path, measured: Sequence[tuple[Any, ...]], argv: Sequence[str]) -> list[str]:
    """Predict what was measured with NCCL, store it, and return what could not be predicted."""
    from choreo.simulate import simulate_nccl
    from choreo.topology import get_topology

    skipped: dict[str, None] = {}
    with Store(folder) as kept:
        run = kept.begin("validate", argv)
        for collective, forced, ranks, size, topology, root, options in measured:
            try:
                network = get_topology(topology)
                more = json.loads(options) if options else {}
                devices = more.get("placement") or list(range(ranks))
                found = simulate_nccl(collective, network, size, devices=devices, root=root, forced=forced)
                kept.add(run, facts_of(found, topology=network, root=root, forced=forced, options=more))
            except ChoreoError as error:
                skipped[f"{collective} on {shown(topology)}: {error}"] = None
        kept.end(run)
    return list(skipped)


def _group(name: str, members: Sequence[ValidatedCase]) -> ValidatedGroup:
    below = [abs(row.error) for row in members if row.size_bytes is not None and row.size_bytes < BOUNDARY_BYTES]
    above = [abs(row.error) for row in members if row.size_bytes is None or row.size_bytes >= BOUNDARY_BYTES]
    return ValidatedGroup(name, len(members), mean(below), mean(above))
