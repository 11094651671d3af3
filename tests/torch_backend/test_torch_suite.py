"""Torch's own tests of torch.distributed: what passes on Gloo passes on Choreo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# A cheap one of each kind.
SOME = (
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_simple",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_sum_async",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_destroy_group",
    "test_monitored_barrier_gloo_subgroup",
    "test_scatter_complex",
    "test_send_recv_any_source_torch_profiler",
    "test_sparse_all_reduce_sum",
)


def outcomes(backend: str, ranks: int, *names: str, timeout_s: float = 200.0) -> dict[str, str]:
    """What became of each test."""
    command = [sys.executable, "-m", "tests.torch_backend.torch_suite", backend, str(ranks), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return dict(json.loads(line) for line in ran.stdout.splitlines())


def test_some_of_torchs_tests_pass() -> None:
    pytest.importorskip("expecttest")  # torch's tests need it
    found = outcomes("choreo-as-gloo", 2, *SOME)
    assert found == dict.fromkeys(SOME, "passed")


@pytest.mark.grid
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_passes_on_gloo_passes_here(ranks: int) -> None:
    """Under its own name, or under Gloo's where a test asks for that."""
    pytest.importorskip("expecttest")
    gloo, own, as_gloo = (
        outcomes(backend, ranks, timeout_s=3000.0) for backend in ("gloo", "choreo", "choreo-as-gloo")
    )
    on_gloo = {name for name, said in gloo.items() if said == "passed"}
    assert len(on_gloo) >= 90
    assert {name: as_gloo[name] for name in on_gloo if "passed" not in (own[name], as_gloo[name])} == {}
    assert {name: said for name, said in own.items() if said not in ("passed", "skipped")} == {}
