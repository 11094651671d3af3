"""The messages of a process group. Plain tensors go straight from their memory into shared memory, and back."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch

from choreo.run.communicator import Communicator
from choreo.torch_backend.calls import Calls, group_call, only
from choreo.torch_backend.tensors import CODES, Finish, flat_bytes, into
from choreo.torch_backend.work import DONE, Work

__all__ = ["Messages"]

_profiling, _strided = torch.autograd._profiler_enabled, torch.strided


class Messages(Calls):
    """Sends and receives of a process group."""

    def __init__(self, comm: Communicator, store: Any, others: dict[str, Any]) -> None:
        super().__init__(comm, store, others)
        self.unposted: DirectReceive | None = None  # the last receive, if nothing knows of it yet

    @group_call
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Send a tensor to a rank; it must not change until the work is done."""
        tensor = only(tensors)
        if not tensor.is_cpu:
            return self._other(tensor).send([tensor], dst, tag)
        if _is_plain(tensor):
            self.comm.check()
            messages = self.comm.messages
            data = messages.memory_at(tensor.data_ptr(), tensor.nbytes)
            if messages.send_now(data, CODES[tensor.dtype], dst, tag):
                return DONE
        return self._message("send", tensor, partial(self.comm.isend, flat_bytes(tensor), dst, tag), [])

    @group_call
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receive a tensor from a rank."""
        tensor = only(tensors)
        if not tensor.is_cpu:
            return self._other(tensor).recv([tensor], src, tag)
        self._post()
        if _is_plain(tensor) and self._batch is None and type(src) is int and 0 <= src < self._size:
            self.comm.check()
            self.unposted = DirectReceive(self, tensor, src, tag)
            return self.unposted
        return self.post_receive(tensor, src, tag)

    @group_call
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive a tensor from whichever rank sends one; the work's `source_rank` says which."""
        tensor = only(tensors)
        if not tensor.is_cpu:
            return self._other(tensor).recv_anysource([tensor], tag)
        self._post()
        return self.post_receive(tensor, None, tag)

    def post_receive(self, tensor: Any, src: int | None, tag: int) -> Work:
        """Let a receive wait for its message, behind those that wait already."""
        finish: Finish = []
        array = into(tensor, finish, flat_bytes)
        name = "recvAnySource" if src is None else "recv"
        return self._message(name, tensor, partial(self.comm.irecv, array, src, tag), finish)

    def _post(self) -> None:
        """Receives get their messages in the order in which they were made, so the last one is put off no longer."""
        if self.unposted is not None:
            self.unposted.post()

    def _message(self, name: str, tensor: Any, begin: partial[Any], finish: Finish) -> Work:
        return self._start(name, [tensor], lambda: [begin()], [tensor], finish)


class DirectReceive(Work):
    """A receive that is posted only if anything else is called before it is waited for.

    Most receives are waited for at once. Then the message goes from shared memory to the tensor, and nothing else knows
    of it.
    """

    def __init__(self, group: Messages, tensor: Any, src: int, tag: int) -> None:
        super().__init__((), [tensor], [])
        self._group: Messages | None = group  # until it is posted, or over
        self._source, self._tag = src, tag

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the message; raise what went wrong."""
        group = self._group
        if group is not None:
            seconds = group.comm.timeout_s if timeout is None else timeout.total_seconds() or group.comm.timeout_s
            messages = group.comm.messages
            bells = messages.bells()
            if self._take():
                return True
            if self._group is not None:
                messages.sleep(bells, seconds)
                if self._take():
                    return True
            self.post()
        return super().wait(timeout)

    def post(self) -> None:
        """Post it like any other receive."""
        group = self._group
        if group is None:
            return
        with group.comm.messages.lock:  # another thread may post it, or take its message
            if self._group is not None:
                self._end(group)
                self._calls = group.post_receive(self._results[0], self._source, self._tag)._calls

    def _take(self) -> bool:
        """Take the message if it is there. If another one is before it, post the receive."""
        group = self._group
        if group is None:
            return False
        messages, tensor = group.comm.messages, self._results[0]
        with messages.lock:
            if self._group is None:
                return False
            data = messages.memory_at(tensor.data_ptr(), tensor.nbytes)
            taken = messages.receive_now(data, CODES[tensor.dtype], self._source, self._tag)
            if taken:
                self._end(group)
            elif taken is not None:
                self.post()
        return bool(taken)

    def _end(self, group: Messages) -> None:
        self._group = None
        if group.unposted is self:
            group.unposted = None


def _posting(name: str) -> Any:
    """A method of `Work` that needs the receive to be posted."""
    method = getattr(Work, name)

    def call(self: DirectReceive, *arguments: Any) -> Any:
        self.post()
        return method(self, *arguments)

    call.__doc__ = method.__doc__
    return call


for _name in ("is_completed", "is_success", "exception", "result", "get_future", "when_over"):
    setattr(DirectReceive, _name, _posting(_name))


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor is plain memory."""
    return (
        type(tensor) is torch.Tensor
        and tensor.dtype in CODES
        and tensor.layout is _strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not _profiling()
    )
