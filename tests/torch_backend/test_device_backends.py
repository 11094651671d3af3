"""Backends that a program names by device: Choreo for CPU tensors, and another beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.helpers.ranks.run import Job
from tests.helpers.suite.torch import dist, torch


def beside(_: Any) -> None:
    group = dist.new_group(backend="cpu:choreo,cuda:gloo")
    cuda, meta = torch.device("cuda"), torch.ones(3, device="meta")
    assert (group._get_backend(cuda).name(), group._get_backend(torch.device("cpu")).name()) == ("gloo", "choreo")
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [dist.get_world_size()] * 3
    gloo = group.others["cuda"]
    gloo._get_backend(cuda).allreduce([x]).wait()  # its members have met
    assert x.tolist() == [dist.get_world_size() ** 2] * 3
    other = mock.Mock()
    with mock.patch.dict(group.others, {"meta": other}):  # there is no GPU everywhere
        dist.all_reduce(meta, group=group)
        dist.broadcast(meta, 0, group=group)
    assert [call[0] for call in other.method_calls if call[0] in ("allreduce", "broadcast")] == [
        "allreduce",
        "broadcast",
    ]
    with pytest.raises(dist.DistBackendError, match="has no backend for it; move it to the CPU"):
        dist.all_reduce(meta, group=group)
    dist.destroy_process_group(group)


def without_gpu(_: Any) -> None:
    with mock.patch.object(torch.cuda, "is_available", lambda: False):
        group = dist.new_group(backend="cpu:choreo,cuda:nccl")
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [dist.get_world_size()] * 3
    assert not group.others
    dist.monitored_barrier(group)
    dist.destroy_process_group(group)


def refused(_: Any) -> None:
    for backend, sentence in (
        ("cpu:gloo,cuda:choreo", "CPU tensors cannot go through gloo"),
        ("cpu:choreo,cuda:ucc", "this torch has no backend ucc for cuda that could stand beside choreo"),
    ):
        with pytest.raises(dist.DistBackendError, match=sentence) as told:
            dist.new_group(backend=backend)
        dist.barrier()  # Gloo made its part before that, and must not go while others still connect to it
        del told


def test_another_backend_takes_the_tensors_of_its_device(groups: Callable[[int], Job]) -> None:
    groups(2).run(beside)


def test_nccl_may_be_named_where_torch_has_no_gpu(groups: Callable[[int], Job]) -> None:
    if dist.is_nccl_available():
        pytest.skip("this torch has NCCL")
    groups(2).run(without_gpu)


def test_backends_that_cannot_stand_together_are_refused(groups: Callable[[int], Job]) -> None:
    groups(2).run(refused)
