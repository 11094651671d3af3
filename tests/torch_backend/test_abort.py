"""A process group that is aborted, as a watchdog does, while its rank waits in a call."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.helpers.ranks.run import Job
from tests.helpers.suite.torch import dist, torch


def abort_while_waiting(_: object) -> str:
    group = dist.new_group(backend="choreo")
    assert group is not None
    if dist.get_rank() == 0:
        timer = threading.Timer(0.1, group.abort)
        timer.start()
        with pytest.raises(dist.DistBackendError, match="aborted"):
            dist.all_reduce(torch.ones(1000), group=group)
        timer.join()
    dist.barrier()  # the default group goes on
    told = ""
    if dist.get_rank() == 1:
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(1000), group=group)
        told = str(caught.value)
    dist.destroy_process_group(group)
    return told


def test_abort_ends_the_call_under_way(groups: Callable[[int], Job]) -> None:
    assert "rank 0" in groups(2).run(abort_while_waiting)[1]
