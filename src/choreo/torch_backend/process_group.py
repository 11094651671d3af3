"""The process group of torch.distributed on a communicator."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch

from choreo.run.communicator import Communicator
from choreo.torch_backend.calls import group_call
from choreo.torch_backend.collectives import Collectives
from choreo.torch_backend.messages import Messages
from choreo.torch_backend.monitored_barrier import monitored_barrier
from choreo.torch_backend.work import Work

__all__ = ["ProcessGroup"]


class ProcessGroup(Messages, Collectives):
    """A process group. C++ calls some of its methods by the names that they have there."""

    def __init__(self, comm: Communicator, store: Any, others: dict[str, Any]) -> None:
        super().__init__(comm, store, others)
        self._name, self._description, self._pid = "", "undefined", os.getpid()

    @group_call
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come."""
        seconds = self.comm.timeout_s if timeout is None else timeout.total_seconds()
        monitored_barrier(self.comm, seconds, wait_all_ranks=wait_all_ranks)

    # Several calls at once

    def _start_coalescing(self, device: Any) -> None:
        del device
        self._batch = []

    def _end_coalescing(self, device: Any) -> Any:
        """One work for all calls since `_start_coalescing`."""
        del device
        batch, self._batch = self._batch or [], None
        return Work.of_all(batch)

    # What torch asks a process group

    def rank(self) -> int:
        """The rank of this process in the group."""
        return self.comm.rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return self._size

    getRank, getSize = rank, size  # noqa: N815 - C++ calls them by these names

    def getBackendName(self) -> str:  # noqa: N802
        """The name of the backend."""
        return "choreo"

    name = getBackendName

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Give the group its name."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """The name of the group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Describe the group."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """The description of the group."""
        return self._description

    @property
    def group_name(self) -> str:
        """The name of the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The description of the group."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *(torch.device(other) for other in self.others)]

    def _get_backend(self, device: torch.device) -> Any:
        other = self.others.get(device.type)
        return self if other is None else other._get_backend(device)

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of further calls."""
        self.comm.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _has_hooks(self) -> bool:
        return False

    def shutdown(self) -> None:
        """Wait for work in progress, and leave. Nothing stays behind."""
        if self._pid == os.getpid():
            self.comm.close()
        for other in self.others.values():
            other.shutdown()

    def abort(self) -> None:
        """Leave at once: calls in progress raise an error on this rank, and on the others as if it had failed."""
        if self._pid == os.getpid():
            self.comm.abort()
        for other in self.others.values():
            other.abort()
