"""Shared by all calls of a process group: options, errors, profiling, and running a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist

from choreo.errors import ChoreoError, UsageError
from choreo.run.communicator import Communicator
from choreo.run.execute.dtypes import ReduceOp
from choreo.run.transport.shortage import start_thread
from choreo.torch_backend.backward import HeldCalls
from choreo.torch_backend.errors import torch_error
from choreo.torch_backend.tensors import Finish
from choreo.torch_backend.work import DONE, Work

__all__ = ["Calls", "Reduction", "group_call", "only", "options", "reduction"]

_profiling = torch.autograd._profiler_enabled


def group_call(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that raises Choreo's errors as torch's."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except ChoreoError as error:
            raise torch_error(error) from error

    return call


def options(kind: type, given: Any, timeout: timedelta | None, **fields: Any) -> Any:
    """The options of a call. Python may also give a reduction or a root, and a timeout, instead."""
    if type(given) is kind:
        return given
    converted = kind()
    if isinstance(given, dist.ReduceOp | dist.ReduceOp.RedOpType):
        converted.reduceOp = given
    if timeout is not None:
        converted.timeout = timeout
    for name, value in fields.items():
        if value is not None:
            setattr(converted, name, value)
    return converted


def only(tensors: Any) -> Any:
    """The tensor of a list of one. Lists of several were for several devices in one process."""
    if type(tensors) is not list:
        return tensors
    if len(tensors) != 1:
        raise UsageError(f"the call got {len(tensors)} tensors; a process has one in each call")
    return tensors[0]


class Calls(dist.ProcessGroup):
    """Runs calls on a communicator. `others` are the process groups for tensors that are not in CPU memory."""

    profiled_as = "choreo"

    def __init__(self, comm: Communicator, store: Any, others: dict[str, Any]) -> None:
        super().__init__(comm.rank, comm.world_size)
        self.comm, self.store, self.others = comm, store, others
        self._size = comm.world_size
        self._held = HeldCalls(comm)
        self._batch: list[Work] | None = None  # what is in progress between _start_coalescing and _end_coalescing

    def _run(
        self, name: str, inputs: list[Any], opts: Any, results: list[Any], finish: Finish, *calls: partial[Any]
    ) -> Work:
        """Run calls in order, and then `finish`: now, or while the program goes on."""
        timeout = opts.timeout.total_seconds()
        seconds = timeout if timeout > 0 else None
        waits = not opts.asyncOp and self._batch is None
        if waits and not _profiling():
            for call in calls:
                call(timeout=seconds)
            for callback in finish:
                callback()
            return DONE
        work = self._start(
            name, inputs, lambda: [call(timeout=seconds, async_op=True) for call in calls], results, finish
        )
        if waits:
            work.wait()
        return work

    def _start(
        self, name: str, inputs: list[Any], begin: Callable[[], list[Any]], results: list[Any], finish: Finish
    ) -> Work:
        """Begin asynchronous calls. A profile shows them as "choreo:NAME", until they are over."""
        record = None
        if _profiling():
            record = torch.autograd._record_function_with_args_enter(f"{self.profiled_as}:{name}", *inputs)
        work = Work(begin(), results, finish)
        if record is not None:
            work.when_over(partial(_end_on_a_thread, record))
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _other(self, tensor: Any) -> Any:
        """The process group for a tensor that is not in CPU memory."""
        found = self.others.get(tensor.device.type)
        if found is None:
            named = 'name one, as in init_process_group("cpu:choreo,cuda:nccl")'
            raise UsageError(
                f"the tensor is on {tensor.device}, and this process group has no backend for it; "
                f"{named if tensor.is_cuda else 'move it to the CPU'}"
            )
        return found


def _end_on_a_thread(record: Any) -> None:
    """End an event of a profile. One that ends on another thread than it began on shows as asynchronous."""
    end = partial(torch.autograd._record_function_with_args_exit, record)
    try:
        start_thread(end, "choreo-profile", "a profile").join()
    except ChoreoError:  # there is none: the event shows as any other
        end()


@dataclass(slots=True, frozen=True)
class Reduction:
    """A reduction of torch: the communicator's, with a factor before it and a division after it."""

    op: ReduceOp
    factor: Any = None
    divisor: int = 1

    def before(self, tensor: Any) -> Any:
        """The input of the communicator's reduction."""
        return tensor if self.factor is None else tensor * self.factor

    def after(self, tensor: Any, finish: Finish) -> None:
        """Divide the result in the end, if it is to be an average."""
        if self.divisor > 1:
            rounding = None if tensor.is_floating_point() or tensor.is_complex() else "trunc"
            finish.append(lambda: tensor.detach().div_(self.divisor, rounding_mode=rounding))


def reduction(op: Any, world_size: int) -> Reduction:
    """The communicator's form of a reduction of torch."""
    kind = op.op if type(op) is dist.ReduceOp else op
    found = _PLAIN.get(kind)
    if found is not None:
        return found
    if kind == dist.ReduceOp.AVG:
        return Reduction(ReduceOp.SUM, divisor=world_size)
    if kind == dist.ReduceOp.PREMUL_SUM:
        return Reduction(ReduceOp.SUM, factor=op.factor)
    raise UsageError(f"there is no reduction {op!r:.60}; use one of torch.distributed.ReduceOp")


_PLAIN = {
    getattr(dist.ReduceOp, name): Reduction(ReduceOp[name])
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}
