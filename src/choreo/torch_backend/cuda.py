"""Calls on CUDA tensors, through pinned host memory or, between ranks of one GPU, through memory that they share.

A call copies what it sends to host memory on a stream of its own, once the caller's stream has got there. A thread then
runs the call on the host and copies the results back. The caller's stream waits for them when the program waits for
the work. CUDA calls have a communicator of their own: their order is that of the thread, not that of CPU tensors.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from choreo.torch_backend.errors import torch_error

__all__ = ["CudaGroup"]

# For each call, which of its first two arguments it reads, and which it writes. A gather may have no outputs.
_READS_WRITES = {
    "allreduce": ((0,), (0,)),
    "allreduce_coalesced": ((0,), (0,)),
    "broadcast": ((0,), (0,)),
    "reduce": ((0,), (0,)),
    "allgather": ((1,), (0,)),
    "allgather_coalesced": ((1,), (0,)),
    "all_gather_single": ((1,), (0,)),
    "all_gather_single_coalesced": ((1,), (0,)),
    "reduce_scatter": ((1,), (0,)),
    "reduce_scatter_single": ((1,), (0,)),
    "reduce_scatter_single_coalesced": ((1,), (0,)),
    "gather": ((1,), (0,)),
    "scatter": ((1,), (0,)),
    "all_to_all_single": ((1,), (0,)),
    "alltoall": ((1,), (0,)),
    "send": ((0,), ()),
    "recv": ((), (0,)),
    "recv_anysource": ((), (0,)),
}


class CudaGroup:
    """The calls of a process group on CUDA tensors. `host` is a process group for the copies in host memory."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._waiting: queue.SimpleQueue[CudaWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _READS_WRITES:
            raise AttributeError(name)
        reads, writes = _READS_WRITES[name]
        method = getattr(self.host, name)

        def call(*arguments: Any) -> Any:
            return self._submit(method, arguments, reads, writes)

        setattr(self, name, call)
        return call

    def _submit(
        self, method: Callable[..., Any], arguments: tuple[Any, ...], reads: tuple[int, ...], writes: tuple[int, ...]
    ) -> CudaWork:
        """Copy what the call reads to the host, and leave the rest to the thread."""
        staged: dict[int, Any] = {}
        back: list[tuple[Any, Any]] = []
        stream = self._stream(_device(arguments))
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for at in sorted({*reads, *writes}):
                staged[at] = _on_host(arguments[at], at in reads, stream, back if at in writes else None)
            copied = stream.record_event()
        host = [staged.get(at, argument) for at, argument in enumerate(arguments)]
        opts = next((one for one in arguments if hasattr(one, "asyncOp")), None)
        is_async = opts is not None and opts.asyncOp
        if opts is not None:
            opts.asyncOp = False  # the thread waits for it
        work = CudaWork(stream, lambda: method(*host), copied, back)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="choreo-cuda", daemon=True)
            self._thread.start()
        self._waiting.put(work)
        if opts is not None and not is_async:
            work.wait()
        return work

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream that copies to and from a device."""
        found = self._streams.get(device)
        if found is None:
            found = self._streams[device] = torch.cuda.Stream(device)
        return found

    def _serve(self) -> None:
        while (work := self._waiting.get()) is not None:
            work.run()
            del work  # or the last call's tensors would live until the next

    def shutdown(self) -> None:
        """Wait for the calls under way, and end."""
        self._waiting.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.host.shutdown()

    def _get_backend(self, device: torch.device) -> Any:
        return self.host._get_backend(torch.device("cpu"))


class CudaWork(dist.Work):
    """A call on CUDA tensors. `wait` lets the caller's stream wait for the results, as NCCL's does."""

    def __init__(
        self, stream: torch.cuda.Stream, call: Callable[[], Any], copied: torch.cuda.Event, back: list[tuple[Any, Any]]
    ) -> None:
        super().__init__()
        self._stream, self._call, self._copied, self._back = stream, call, copied, back
        self._results = [tensor for tensor, _ in back]
        self._over = threading.Event()
        self._error: Exception | None = None
        self._arrived: torch.cuda.Event | None = None
        self._begun: Any = torch.futures.Future(devices=[stream.device])
        # C++ sees an exception that a callback raises, but not one that Python sets.
        self._future = self._begun.then(self._value)

    def run(self) -> None:
        """Run the call on the host, and copy its results back; on the thread of the group."""
        try:
            self._copied.synchronize()
            work = self._call()
            work.wait()
        except Exception as error:
            self._error = torch_error(error)
        with torch.cuda.stream(self._stream):
            if self._error is None:
                for tensor, host in self._back:
                    tensor.copy_(host, non_blocking=True)
            self._arrived = self._stream.record_event()
            self._over.set()
            self._begun.set_result(None)  # on this stream: whoever waits for the future waits for the copies
        del self._call

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait on the host until the results are on their way, and on the stream until they are there."""
        seconds = None if timeout is None or timeout.total_seconds() <= 0 else timeout.total_seconds()
        if not self._over.wait(seconds):
            raise TimeoutError(f"the call is not done after {seconds} s; it goes on, so wait again")
        if self._error is not None:
            raise self._error
        assert self._arrived is not None
        torch.cuda.current_stream(self._stream.device).wait_event(self._arrived)
        return True

    def is_completed(self) -> bool:
        """Whether the results are there, or the call has failed."""
        return self._over.is_set() and (self._error is not None or bool(self._arrived and self._arrived.query()))

    def is_success(self) -> bool:
        """Whether the results are there."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """What went wrong, if the call is over and something did."""
        return self._error if self._over.is_set() else None

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def result(self) -> list[Any]:
        """The tensors with the result."""
        self.wait()
        return self._results

    def get_future(self) -> Any:
        """A future of the result that streams wait for."""
        return self._future

    def _value(self, _: Any) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._results


def _on_host(argument: Any, read: bool, stream: torch.cuda.Stream, back: list[tuple[Any, Any]] | None) -> Any:
    """The tensors of an argument in pinned memory, with the values of those that are read."""
    if isinstance(argument, list | tuple):
        return [_on_host(one, read, stream, back) for one in argument]
    if not isinstance(argument, torch.Tensor):
        return argument
    tensor = argument.detach()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    if read:
        host.copy_(tensor, non_blocking=True)
    tensor.record_stream(stream)
    if back is not None:
        back.append((tensor, host))
    return host


def _device(arguments: Any) -> torch.device:
    """The device of the first CUDA tensor."""
    for one in arguments:
        if isinstance(one, torch.Tensor) and one.is_cuda:
            return one.device
        if isinstance(one, list | tuple):
            with contextlib.suppress(LookupError):
                return _device(one)
    raise LookupError("no CUDA tensor")
