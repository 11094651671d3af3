"""Create a process group of the backend "choreo". torch calls this when a program asks for one."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from choreo.errors import ChoreoError, UsageError
from choreo.run.communicator import Communicator
from choreo.torch_backend.cuda.group import CudaGroup
from choreo.torch_backend.errors import torch_error
from choreo.torch_backend.process_group import ProcessGroup
from choreo.torch_backend.store import connect_through_store

__all__ = ["create_process_group"]


def create_process_group(options: Any, backend_options: Any = None) -> ProcessGroup:
    """A process group of the ranks that torch names. Its members call it, and meet in torch's store."""
    named = _named_backends()
    try:
        if named.get("cpu", "choreo") != "choreo":
            raise UsageError(
                f"CPU tensors cannot go through {named['cpu']} where other devices go through choreo; "
                'name choreo for both, as in "cpu:choreo,cuda:choreo"'
            )
        comm = _connect(options)
        others = {
            device: _inner_group(device, backend, options, backend_options)
            for device, backend in named.items()
            if backend != "choreo" and not _without_gpu(device, backend)
        }
        if "cuda" not in others and torch.cuda.is_available():
            # Calls on CUDA tensors come in an order of their own. All members connect now: the first may be a send.
            others["cuda"] = CudaGroup(ProcessGroup(_connect(options), options.store, {}))
    except ChoreoError as error:
        raise torch_error(error) from error
    return ProcessGroup(comm, options.store, others)


def _connect(options: Any) -> Communicator:
    seconds = options.timeout.total_seconds()
    return connect_through_store(options.store, options.group_rank, options.group_size, seconds)


def _named_backends() -> dict[str, str]:
    """The backends that the user named by device, as in "cpu:choreo,cuda:nccl".

    torch does not tell them to a backend's creator, and takes a group that is made in Python for all devices. So they
    are read from the function of torch that makes the group.
    """
    frame: Any = sys._getframe(1)  # not this one: with its own locals it would refer to itself, and outlive the group
    while frame is not None:
        if frame.f_code.co_name == "_new_process_group_helper":
            config = frame.f_locals["backend_config"]
            return {device: str(backend) for device, backend in config.get_device_backend_map().items()}
        frame = frame.f_back
    return {}


def _without_gpu(device: str, backend: str) -> bool:
    """Whether it is NCCL in a torch without CUDA: a program that names it for GPUs runs on a laptop as well."""
    return (device, backend) == ("cuda", "nccl") and not dist.is_nccl_available() and not torch.cuda.is_available()


def _inner_group(device: str, backend: str, options: Any, backend_options: Any) -> Any:
    """A process group of torch's own for one kind of device."""
    store = dist.PrefixStore(f"{device}:{backend}/", options.store)
    rank, size, kinds = options.group_rank, options.group_size, dist.ProcessGroup.BackendType
    if backend == "nccl" and dist.is_nccl_available():
        kind, nccl = kinds.NCCL, dist.ProcessGroupNCCL
        settings = backend_options if isinstance(backend_options, nccl.Options) else nccl.Options()
        settings._timeout, settings.group_name = options.timeout, options.group_id
        settings.global_ranks_in_group = options.global_ranks_in_group
        created = nccl(store, rank, size, settings)
    elif backend == "gloo" and dist.is_gloo_available():
        kind, created = kinds.GLOO, dist.ProcessGroupGloo(store, rank, size, timeout=options.timeout)
    else:
        raise UsageError(
            f"this torch has no backend {backend} for {device} that could stand beside choreo; name nccl or gloo, "
            "if it was built with them, or choreo"
        )
    created._set_sequence_number_for_group()
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, created)
    group._set_group_name(options.group_id)
    return group
