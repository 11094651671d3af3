"""Torch's own tests of torch.distributed: what passes on Gloo passes on Choreo."""

from __future__ import annotations

import json

import pytest

from tests.helpers.ranks.forks import forked_python, import_torch

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


def outcomes(backend: str, ranks: int, *names: str) -> dict[str, str]:
    """What became of each test; torch stops one that hangs."""
    import_torch()
    ran = forked_python("-m", "tests.torch_backend.torch_suite", backend, str(ranks), *names)
    assert ran.code == 0, ran.err[-4000:]
    return dict(json.loads(line) for line in ran.out.splitlines())


def test_some_of_torchs_tests_pass() -> None:
    pytest.importorskip("expecttest")  # torch's tests need it
    found = outcomes("choreo-as-gloo", 2, *SOME)
    assert found == dict.fromkeys(SOME, "passed")


@pytest.mark.grid
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_passes_on_gloo_passes_here(ranks: int) -> None:
    """Under its own name, or under Gloo's where a test asks for that."""
    pytest.importorskip("expecttest")
    gloo, own, as_gloo = (outcomes(backend, ranks) for backend in ("gloo", "choreo", "choreo-as-gloo"))
    on_gloo = {name for name, said in gloo.items() if said == "passed"}
    assert len(on_gloo) >= 90
    assert {name: as_gloo[name] for name in on_gloo if "passed" not in (own[name], as_gloo[name])} == {}
    assert {name: said for name, said in own.items() if said not in ("passed", "skipped")} == {}
