"""The whole product in about two seconds: read this first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import choreo
from tests.helpers.command import run_choreo


def test_build_prove_price() -> None:
    ring = choreo.build("all_reduce", "ring", ranks=8)
    assert (ring.collective, ring.ranks, ring.root, ring.num_chunks, ring.num_steps) == ("all_reduce", 8, None, 8, 14)
    assert choreo.prove(ring).method == "exact"
    link = choreo.CostModel(alpha_s=5e-6, bandwidth_bytes_per_s=50e9, gamma_s_per_byte=1e-11)
    cost = choreo.price(ring, size_bytes=1 << 20, cost_model=link)
    n = 1 << 20
    assert cost.alpha_s == pytest.approx(14 * 5e-6)
    assert cost.beta_s == pytest.approx(14 / 8 * n / 50e9)
    assert cost.gamma_s == pytest.approx(7 / 8 * n * 1e-11)
    assert cost.total_s == pytest.approx(cost.alpha_s + cost.beta_s + cost.gamma_s)


def test_columns_are_numpy() -> None:
    columns = choreo.build("broadcast", "mst", ranks=4, root=2).columns()
    assert columns.src.tolist() == [2, 2, 0]
    assert dict(columns)["dst"].dtype == np.int64
    assert [len(step) for step in choreo.build("all_gather", "ring", ranks=3).steps()] == [3, 3]


def test_write_an_algorithm_and_prove_it(registry: object) -> None:
    @choreo.algorithm("broadcast", name="chain")
    def chain(ranks: int, root: int) -> choreo.Schedule:
        hops = [choreo.move((root + k) % ranks, (root + k + 1) % ranks, 0) for k in range(ranks - 1)]
        return choreo.Schedule.from_list("broadcast", ranks, hops, root=root)

    assert choreo.prove(choreo.build("broadcast", "chain", ranks=5, root=3)).num_steps == 4
    assert choreo.build("broadcast", "chain", ranks=5, segments=10).num_steps == 4 + 9  # a pipeline


def test_compose_and_turn_round() -> None:
    gather = choreo.build("all_gather", "bruck", ranks=6)
    scatter = choreo.backwards(gather)
    assert scatter.collective == "reduce_scatter"
    both = choreo.then(scatter, gather)
    assert both.collective == "all_reduce"
    assert choreo.prove(both).num_transfers == 2 * len(gather.columns())


def test_a_broken_schedule_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text(
        '{"collective": "broadcast", "ranks": 3, "steps": ['
        '[{"src": 1, "dst": 2, "chunk": 0}], [{"src": 0, "dst": 1, "chunk": 0}]]}'
    )
    with pytest.raises(choreo.ProofError) as caught:
        choreo.prove(choreo.load(file))
    assert (caught.value.step, caught.value.rank, caught.value.chunk) == (0, 1, 0)
    assert caught.value.story == ("step 0: rank 1 sends chunk 0 to rank 2 before it has it: it arrives only in step 1")
    ran = run_choreo("prove", "--schedule", str(file))
    assert ran.code == 1
    assert "before it has it" in ran.out


def test_commands(tmp_path: Path) -> None:
    assert run_choreo("prove", "--all", "--ranks", "2..5").out.endswith(" proved, 0 failed, 0 refused\n")
    prices = run_choreo("price", "all_reduce", "--ranks", "8", "--size", "1MiB", "--json").json
    assert isinstance(prices, list)
    assert {"algorithm", "total_s", "max_fan_in"} <= prices[0].keys()
    page = tmp_path / "ring.html"
    assert run_choreo("show", "all_reduce", "-a", "ring", "-p", "4", "--html", str(page)).code == 0
    assert page.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    assert run_choreo("show", "all_reduce", "-a", "rign", "-p", "4").err == (
        "choreo: there is no all_reduce algorithm 'rign'; did you mean 'ring' or 'bine'?\n"
    )
