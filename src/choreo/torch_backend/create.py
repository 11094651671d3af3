"""Make a process group when torch asks for one."""

from __future__ import annotations

from typing import Any

import torch

from choreo.errors import ChoreoError
from choreo.run.communicator import Communicator
from choreo.torch_backend.cuda.group import CudaGroup
from choreo.torch_backend.errors import torch_error
from choreo.torch_backend.process_group import ProcessGroup
from choreo.torch_backend.store import connect_through_store

__all__ = ["create_process_group"]


def create_process_group(options: Any, backend_options: Any = None) -> ProcessGroup:
    """A process group of the ranks that torch names. Its members call it, and meet in torch's store."""
    del backend_options
    others = {}
    try:
        comm = _connect(options)
        if torch.cuda.is_available():
            # Calls on CUDA tensors come in an order of their own. All members connect now: the first may be a send.
            others["cuda"] = CudaGroup(ProcessGroup(_connect(options), options.store, {}))
    except ChoreoError as error:
        raise torch_error(error) from error
    return ProcessGroup(comm, options.store, others)


def _connect(options: Any) -> Communicator:
    seconds = options.timeout.total_seconds()
    return connect_through_store(options.store, options.group_rank, options.group_size, seconds)
