"""TE-CCL's results: flows of an all_gather and paths of an all_to_all become schedules that can be proved."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from choreo.errors import FormatError, ProofError
from choreo.prove import prove
from choreo.schedule import Schedule, load
from choreo.schedule.exchange import read_foreign
from choreo.schedule.exchange.msccl.write import write_msccl
from tests.helpers.exchange import in_effect
from tests.oracles.msccl import run_msccl

# A ring of GPUs 1, 2 and 4; 0 and 3 are switches.
GPUS = (1, 2, 4)


def _around(chunks: int = 1) -> dict[str, Any]:
    flows = [
        f"Chunk {chunk} from {GPUS[rank]} traveled over {GPUS[(rank + hop) % 3]}->{GPUS[(rank + hop + 1) % 3]} "
        f"in epoch {5 * hop}{' via switches 0' if hop else ''}"
        for hop in range(2)
        for rank in range(3)
        for chunk in range(chunks)
    ]
    return {"1-Epoch_Duration": 1e-9, "6-Demand_Met": {"GPU 1": {}}, "7-Flows": flows, "8-Chunk paths": {"x": [[]]}}


def _exchange(key: str = "8-Chunk paths") -> dict[str, Any]:
    """Everything goes straight, but a quarter of what 1 has for 4 goes by 2."""
    paths = {
        f"Demand at {dst} for chunk {GPUS.index(dst)} from {src} met by epoch 9": [
            [[0, f"{src}->{dst} with volume 1.0 in epoch 0"]]
        ]
        for src in GPUS
        for dst in GPUS
        if src != dst
    }
    paths["Demand at 4 for chunk 2 from 1 met by epoch 9"] = [
        [[0, "1->4 with volume 0.75 in epoch 0"]],
        [[1, "1->2 with volume 2.5e-1 in epoch 1"], [3, "2->4 with volume 0.25 in epoch 3 via switches 3"]],
    ]
    return {"1-Epoch_Duration": 1e-9, "7-Flows" if key.startswith("8") else "6-Flows": ["Chunk"], key: paths}


def _read(document: dict[str, Any]) -> Schedule:
    found = read_foreign(json.dumps(document).encode())
    assert found is not None
    return found


def test_an_all_gather_is_recovered_and_found_by_content(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text(json.dumps(_around()))
    found = load(tmp_path / "out.json")
    prove(found)
    assert in_effect(found) == {
        (hop, (rank + hop) % 3, (rank + hop + 1) % 3, rank, False, False) for hop in range(2) for rank in range(3)
    }
    assert prove(_read(_around(2))).num_transfers == 12


def test_a_chunk_that_comes_twice_in_an_epoch_comes_once() -> None:
    twice = _around()
    twice["7-Flows"].append("Chunk 0 from 1 traveled over 4->2 in epoch 0")
    assert in_effect(_read(twice)) == in_effect(_read(_around()))


@pytest.mark.parametrize("key", ["8-Chunk paths", "7-chunk paths"])
def test_paths_of_an_all_to_all_are_chunks_of_their_own_size(key: str) -> None:
    found = _read(_exchange(key))
    assert prove(found).num_transfers == 8
    assert found.weights is not None
    shares = found.weights.reshape(9, 2) / found.weights.sum() * 9
    assert np.allclose(shares[2], (0.75, 0.25)) and np.allclose(np.delete(shares, 2, axis=0), (1, 0))
    assert run_msccl(write_msccl(found), Random(2), in_place=False)


def test_what_does_not_arrive_in_time_is_told_by_the_proof() -> None:
    late = _around()
    late["7-Flows"][0] = late["7-Flows"][0].replace("epoch 0", "epoch 7")
    with pytest.raises(ProofError, match="step 1: rank 1 sends chunk 0 to rank 2 before it has it"):
        prove(_read(late))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"7-Flows": []}, "7-Flows: there are none"),
        ({"7-Flows": ["Chunk 0 from 1 went home"]}, r"7-Flows\[0\]: Chunk 0 from 1 went home is no flow of a chunk"),
        ({"7-Flows": [3]}, r"7-Flows\[0\] must be text"),
        (
            {"7-Flows": ["Chunk 999999999 from 1 traveled over 1->2 in epoch 0"]},
            "chunk 999999999 cannot be there with 1 flows",
        ),
    ],
)
def test_a_broken_all_gather_is_refused_by_name(change: dict[str, object], told: str) -> None:
    with pytest.raises(FormatError, match=told):
        _read(_around() | change)


STRAIGHT = "Demand at 2 for chunk 1 from 1 met by epoch 9"


@pytest.mark.parametrize(
    ("demand", "paths", "told"),
    [
        ("Demand at 2", [], "Demand at 2 is no demand for a chunk"),
        (STRAIGHT, [], "its paths bring 0 of the chunk"),
        (STRAIGHT, [[[0, "1->2 with volume 0.5 in epoch 0"]]], "its paths bring 0.5 of the chunk"),
        (STRAIGHT, [[[0, "1->2 with volume 1..0 in epoch 0"]]], "1..0 is no volume"),
        (STRAIGHT, [[[0, "1=>2"]]], "1=>2 is no hop in an epoch"),
        (STRAIGHT, [[]], "its hops do not lead from 1 to 2"),
        (
            STRAIGHT,
            [[[4, "1->4 with volume 1 in epoch 4"], [3, "4->2 with volume 1 in epoch 3"]]],
            "its hops do not lead from 1 to 2, one after another",
        ),
        (
            STRAIGHT,
            [[[1, "1->4 with volume 1 in epoch 1"], [3, "4->2 with volume 0.5 in epoch 3"]]],
            "the hops of a path differ in volume",
        ),
        (
            STRAIGHT,
            [[[1, "1->7 with volume 1 in epoch 1"], [3, "7->2 with volume 1 in epoch 3"]]],
            "1->7 leads through a GPU for which nothing is meant",
        ),
    ],
)
def test_a_broken_all_to_all_is_refused_by_name(demand: str, paths: list[Any], told: str) -> None:
    broken = _exchange()
    broken["8-Chunk paths"][demand] = paths
    with pytest.raises(FormatError, match=told):
        _read(broken)
