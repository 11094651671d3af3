"""`choreo record import`: measurements of real clusters, stored beside predictions for them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from choreo.errors import UsageError, shown
from choreo.record.case import Case, Measured
from choreo.record.importing.nccl_inspector import is_inspector_file, read_nccl_inspector
from choreo.record.importing.nccl_tests import NcclTest, read_nccl_tests
from choreo.record.names import topology_name
from choreo.record.store import Store
from choreo.record.store.machine import Machine

__all__ = ["Imported", "import_nccl_tests"]


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: the file's tests, and their numbers of rows and samples."""

    tests: list[NcclTest]
    rows: int
    samples: int


def import_nccl_tests(
    path: str | Path,
    *,
    topology: str | None = None,
    collective: str | None = None,
    ranks: int | None = None,
    store: str | Path | None = None,
    argv: Sequence[str] = (),
    again: bool = False,
) -> Imported:
    """Keep the measurements of a file of nccl-tests, or of NCCL's Inspector.

    `topology` says what it ran on, for predictions. `collective` and `ranks` are for files that do not give them. A
    file that was imported before is refused unless `again`.
    """
    tests = read_nccl_inspector(path) if is_inspector_file(path) else read_nccl_tests(path)
    cases = [_facts(path, test, topology, collective, ranks) for test in tests]
    content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    with Store(store) as kept:
        before = kept.rows(
            "select r.id from artifact a join run r on r.id = a.run where r.verb = 'import' and r.status = 'done' "
            "and a.sha256 = ? order by r.id",
            [content],
        )
        if before and not again:
            raise UsageError(f"{shown(path)} was imported already, by run {before[0][0]}; --again keeps it once more")
        for test, facts in zip(tests, cases, strict=True):
            machine = Machine("", 0, 0, "", _accelerator(test))
            run = kept.begin("import", argv, machine=machine, host=",".join(test.hosts) or None)
            kept.add(run, facts)
            kept.add_artifact(run, Path(path))
            kept.end(run)
    rows = [fact for facts in cases for fact in facts]
    return Imported(tests, len(rows), sum(len(fact.times_s) for fact in rows))


def _facts(
    path: str | Path, test: NcclTest, topology: str | None, collective: str | None, ranks: int | None
) -> list[Measured]:
    from choreo.collectives import get_collective
    from choreo.topology import get_topology

    test.collective = get_collective(collective).name if collective is not None else test.collective
    test.ranks = ranks if ranks is not None else test.ranks
    if test.collective is None:
        raise UsageError(f"{shown(path)} does not say which collective it measured; give --collective all_reduce")
    name: str | None = None
    options: dict[str, object] = {}
    if topology is not None:
        network = get_topology(topology)
        name, test.ranks = topology_name(network), test.ranks or network.num_devices
        if test.ranks > network.num_devices:
            raise UsageError(
                f"{shown(path)} is of {test.ranks} ranks, which do not fit on {shown(topology)} with its "
                f"{network.num_devices} devices; say where it ran with --topology"
            )
        devices = _devices(test, network.num_devices)
        options = {} if devices == list(range(test.ranks)) else {"placement": devices}
    if test.ranks is None:
        raise UsageError(f"{shown(path)} does not say how many ranks took part; give --ranks P, or --topology T")
    rooted = get_collective(test.collective).rooted
    return [
        Measured(
            Case(
                test.collective,
                test.forced,
                test.ranks,
                row.size_bytes,
                name,
                root=row.root or None if rooted else None,
                library="nccl",
                options=options,
            ),
            row.times_s,
            row.datatype,
            row.op,
            row.in_place,
            row.wrong,
        )
        for row in test.rows
    ]


def _devices(test: NcclTest, devices: int) -> list[int]:
    """The devices of the ranks: the same number on each host, the first ones."""
    ranks, hosts = test.ranks or 0, len(test.hosts)
    if hosts < 2 or ranks % hosts or devices % hosts:
        return list(range(ranks))
    here, there = ranks // hosts, devices // hosts
    return [host * there + rank for host in range(hosts) for rank in range(here)]


def _accelerator(test: NcclTest) -> str:
    return f"{test.ranks}x {test.device}" if test.device else f"{test.ranks} GPUs"
