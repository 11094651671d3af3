"""Calls that DDP's reducer makes within a backward pass.

The reducer starts an all_reduce for each bucket, and waits for all of them once the backward pass is over. Where every
core computes, a thread that runs them meanwhile would only take time from the pass, and would be woken for the last one
while all ranks wait. So they are held, and the thread that ran the pass runs them at its end.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward

from choreo.run.communicator import Communicator

__all__ = ["HeldCalls"]

_BACKWARD = _engine_run_backward.__code__
_engine: Any = torch.autograd.Variable._execution_engine
_current_node, _current_pass = torch._C._current_autograd_node, torch._C._current_graph_task_id


class HeldCalls:
    """Holds calls of a communicator until the end of the backward pass that makes them."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._pass = comm, -1
        cores = len(os.sched_getaffinity(0))
        self._shares_cores = comm.is_on_one_host and comm.world_size * torch.get_num_threads() >= cores

    def begin(self, depth: int) -> bool:
        """Hold what this thread calls next, if the function `depth` frames above the caller's is the reducer's.

        The reducer is in C++, so its caller in Python is the function that runs the backward pass.
        """
        if not self._shares_cores or _current_node() is None or sys._getframe(depth + 1).f_code is not _BACKWARD:
            return False
        number = _current_pass()
        if number != self._pass:
            self._pass = number
            _engine.queue_callback(self._run)  # the reducer's own callback, which waits, comes after it
        self._comm.progress.hold(True)
        return True

    def end(self) -> None:
        """Hold no more calls."""
        self._comm.progress.hold(False)

    def _run(self) -> None:
        self._comm.progress.drain(None)
