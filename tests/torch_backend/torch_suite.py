"""Torch's own tests of torch.distributed, with forked ranks, on Gloo or on Choreo.

`python -m tests.torch_backend.torch_suite choreo 4 test_all_reduce_sum ...` prints a line of JSON for each test: its
name and "passed", "skipped" or what went wrong. Some tests run only on backends of certain names, so "choreo-as-gloo"
has Gloo's name and is Choreo.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any

BACKENDS = ("choreo", "choreo-as-gloo", "gloo")
TIMEOUT_S = 100  # of a test


def suite(backend: str, ranks: int) -> type[unittest.TestCase]:
    """The test case of torch for this backend; once a process, since torch reads the environment at import."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed

    os.environ |= {"WORLD_SIZE": str(ranks), "BACKEND": "choreo" if backend == "choreo" else "gloo"}
    os.environ |= {"TEMP_DIR": tempfile.mkdtemp(), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    common_distributed.TIMEOUT_DEFAULT = TIMEOUT_S
    for feature in ("ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add("choreo")
    if backend == "choreo-as-gloo":
        dist.distributed_c10d.ProcessGroupGloo = under_gloos_name()
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


def under_gloos_name() -> type[Any]:
    """A class that torch takes for its ProcessGroupGloo."""
    from choreo.torch_backend.process_group import ProcessGroup
    from choreo.torch_backend.store import connect_through_store

    class ProcessGroupGloo(ProcessGroup):
        def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
            super().__init__(connect_through_store(store, rank, size, timeout.total_seconds()), store, {})
            self.options = SimpleNamespace()

        profiled_as = "gloo"

        def _set_sequence_number_for_group(self) -> None: ...

    return ProcessGroupGloo


def main(backend: str, ranks: str, *names: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # tests print
    case = suite(backend, int(ranks))
    for name in names or unittest.TestLoader().getTestCaseNames(case):
        result = unittest.TestResult()
        case(name).run(result)
        wrong = [text for _, text in (*result.failures, *result.errors)]
        said = wrong[0] if wrong else "skipped" if result.skipped else "passed"
        print(json.dumps([name, said]), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
