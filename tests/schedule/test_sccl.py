"""SCCL's algorithms: steps of addresses become a schedule that is proved like any other."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from choreo.errors import FormatError, ProofError
from choreo.prove import prove
from choreo.schedule import load
from choreo.schedule.exchange.sccl import read_sccl
from tests.helpers.exchange import in_effect


def _algorithm(collective: str, nodes: int, steps: list[list[list[int]]], chunks: int = 1) -> dict[str, Any]:
    return {
        "msccl_type": "algorithm",
        "name": f"{collective}-mine",
        "instance": {"msccl_type": "instance", "steps": len(steps), "chunks": chunks, "pipeline": None},
        "input_map": {},
        "output_map": {},
        "steps": [{"msccl_type": "step", "rounds": 1, "sends": sends} for sends in steps],
        "collective": {"msccl_type": "collective", "name": collective, "nodes": nodes, "chunks": [], "triggers": {}},
        "topology": {"msccl_type": "topology", "name": "Ring", "links": [], "switches": []},
    }


def _read(document: dict[str, Any]) -> Any:
    return read_sccl(json.dumps(document).encode())


RING = [[[(r - k) % 3, r, (r + 1) % 3] for r in range(3)] for k in range(2)]


def test_an_allgather_is_recovered_and_found_by_content(tmp_path: Path) -> None:
    (tmp_path / "ring.json").write_text(json.dumps(_algorithm("Allgather(n=3)", 3, RING)))
    found = load(tmp_path / "ring.json")
    prove(found)
    assert in_effect(found) == {(k, r, (r + 1) % 3, (r - k) % 3, False, False) for k in range(2) for r in range(3)}


def test_an_alltoall_counts_targets_first() -> None:
    sends = [[(d * 3 + s) * 2 + piece, s, d] for s in range(3) for d in range(3) if s != d for piece in range(2)]
    found = _read(_algorithm("Alltoall(n=3)", 3, [sends], chunks=2))
    prove(found)
    assert found.num_chunks == 18


def test_sums_are_added_and_then_stored() -> None:
    scatter = [[[(r - k - 1) % 3, r, (r + 1) % 3] for r in range(3)] for k in range(2)]
    prove(_read(_algorithm("ReduceScatter(n=3)", 3, scatter)))
    both = [[[0, 1, 0], [0, 2, 0]], [[0, 0, 1], [0, 0, 2]]]
    found = _read(_algorithm("Allreduce(n=3)", 3, both))
    prove(found)
    assert [bool(row.reduce) for row in found.columns()] == [True, True, False, False]
    assert prove(_read(_algorithm("Reduce(n=3,root=0)", 3, both[:1]))).root == 0


def test_a_wrong_algorithm_fails_its_proof() -> None:
    with pytest.raises(ProofError):
        prove(_read(_algorithm("Allgather(n=3)", 3, RING[:1])))
    with pytest.raises(ProofError, match="twice"):
        prove(_read(_algorithm("Allreduce(n=3)", 3, [[[0, 0, 1]], [[0, 1, 2]], [[0, 0, 2]], [[0, 2, 0], [0, 2, 1]]])))


@pytest.mark.parametrize(
    ("collective", "steps", "told"),
    [
        ("Scan(n=3)", RING, "is none that could be proved"),
        ("Allgather(n=4)", RING, "over 3 nodes is none"),
        ("Allgather(n=3)", [[[9, 0, 1]]], r"\[9, 0, 1\] is beyond the addresses or nodes"),
        ("Allgather(n=3)", [[[0, 0]]], "must have 3 values"),
    ],
)
def test_a_broken_file_is_refused_by_name(collective: str, steps: list[list[list[int]]], told: str) -> None:
    with pytest.raises(FormatError, match=told):
        _read(_algorithm(collective, 3, steps))


def test_text_that_is_not_unicode_is_reported() -> None:
    with pytest.raises(FormatError, match=r"the algorithm is not JSON: .*invalid start byte"):
        read_sccl(json.dumps(_algorithm("Allgather(n=3)", 3, RING)).encode().replace(b"mine", b"m\xff"))


def test_many_chunks_that_nobody_sends_take_no_room() -> None:
    found = _algorithm("Allreduce(n=3)", 3, [[[0, 0, 1]]], chunks=500_000)
    tracemalloc.start()
    try:
        assert _read(found).num_chunks == 500_000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
