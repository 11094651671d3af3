"""Calls on CUDA tensors, through pinned host memory or, between ranks of one GPU, through memory that they share.

A call copies what it sends to host memory on a stream of its own, once the caller's stream has got there. A thread then
runs the call on the host and copies the results back. The caller's stream waits for them when the program waits for
the work. CUDA calls have a communicator of their own: their order is that of the thread, not that of CPU tensors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from choreo.run.transport.shortage import start_thread
from choreo.torch_backend.cuda.shared_calls import SHARED_CALLS
from choreo.torch_backend.cuda.shared_gpu import SharedGpu, share_gpu
from choreo.torch_backend.errors import torch_error

__all__ = ["CudaGroup"]

# Below this, waiting twice for the GPU, which the ranks use in turn, takes longer than going through the host. On an
# H200 an all_reduce of 1 MiB took 2.0 ms shared and 1.2 ms through the host, one of 16 MiB 1.6 and 8.5 ms.
SHARE_BYTES = 2 << 20

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
        self._shared: dict[torch.device, SharedGpu | None] = {}
        self._waiting: queue.SimpleQueue[CudaWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _READS_WRITES:
            raise AttributeError(name)
        reads, writes = _READS_WRITES[name]
        method = getattr(self.host, name)

        def call(*arguments: Any) -> Any:
            return self._share(name, arguments) or self._stage(method, arguments, reads, writes)

        setattr(self, name, call)
        return call

    def _stage(
        self, method: Callable[..., Any], arguments: tuple[Any, ...], reads: tuple[int, ...], writes: tuple[int, ...]
    ) -> CudaWork:
        """Copy what the call reads to the host, and leave the rest to the thread."""
        staged: dict[int, Any] = {}
        back: list[tuple[Any, Any]] = []
        stream = self._stream(_device(arguments))
        with torch.cuda.stream(stream):
            for at in sorted({*reads, *writes}):
                staged[at] = _on_host(arguments[at], at in reads, stream, back if at in writes else None)
            copied = stream.record_event()
        host = [staged.get(at, argument) for at, argument in enumerate(arguments)]
        opts = _options(arguments)
        is_async = opts is None or opts.asyncOp
        if opts is not None:
            opts.asyncOp = False  # the thread waits for it

        def run() -> None:
            copied.synchronize()
            method(*host).wait()
            for tensor, found in back:
                tensor.copy_(found, non_blocking=True)

        return self._submit(CudaWork(stream, run, [tensor for tensor, _ in back]), is_async)

    def _share(self, name: str, arguments: tuple[Any, ...]) -> CudaWork | None:
        """Run the call in memory that the ranks share, if they are on one GPU and it can be done there."""
        decide, tensors = SHARED_CALLS.get(name), _tensors(arguments)
        call = None if decide is None else decide(*arguments)
        if call is None or not all(tensor.is_contiguous() for tensor in tensors):
            return None
        if max(tensor.nbytes for tensor in tensors) < SHARE_BYTES:
            return None
        device = tensors[0].device
        if device not in self._shared:
            self._agree(device)
        shared = self._shared[device]
        if shared is None:
            return None
        stream = self._stream(device)
        for tensor in tensors:
            tensor.record_stream(stream)
        writes = _READS_WRITES[name][1]
        opts = _options(arguments)
        work = CudaWork(stream, lambda: call(shared), _tensors([arguments[at] for at in writes]))
        return self._submit(work, opts is not None and opts.asyncOp)

    def _agree(self, device: torch.device) -> None:
        """Find out, with the other ranks, whether all are on this GPU. The thread alone uses the communicator."""
        stream = self._stream(device)

        def run() -> None:
            self._shared[device] = share_gpu(self.host.comm, device)

        self._submit(CudaWork(stream, run, []), is_async=False)

    def _submit(self, work: CudaWork, is_async: bool) -> CudaWork:
        if self._thread is None:
            self._thread = start_thread(self._serve, "choreo-cuda", "calls on CUDA tensors")
        self._waiting.put(work)
        if not is_async:
            work.wait()
        return work

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream of the calls on a device, which waits for what the caller has computed there."""
        found = self._streams.get(device)
        if found is None:
            found = self._streams[device] = torch.cuda.Stream(device)
        found.wait_stream(torch.cuda.current_stream(device))
        return found

    def _serve(self) -> None:
        while (work := self._waiting.get()) is not None:
            work.run()
            del work  # or the last call's tensors would live until the next

    def shutdown(self) -> None:
        """Wait for the calls in progress, and end."""
        self._waiting.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for shared in self._shared.values():
            if shared is not None:
                shared.close()
        self.host.shutdown()

    def abort(self) -> None:
        """End the calls in progress at once, and leave."""
        self.host.abort()
        self.shutdown()

    def _get_backend(self, device: torch.device) -> Any:
        return self.host._get_backend(torch.device("cpu"))


class CudaWork(dist.Work):
    """A call on CUDA tensors. `wait` lets the caller's stream wait for the results, as NCCL's does."""

    def __init__(self, stream: torch.cuda.Stream, call: Callable[[], None], results: list[Any]) -> None:
        super().__init__()
        self._stream, self._call, self._results = stream, call, results
        self._over = threading.Event()
        self._error: Exception | None = None
        self._arrived: torch.cuda.Event | None = None
        self._begun: Any = torch.futures.Future(devices=[stream.device])
        # C++ sees an exception that a callback raises, but not one that Python sets.
        self._future = self._begun.then(self._value)

    def run(self) -> None:
        """Run the call; on the thread of the group."""
        with torch.cuda.stream(self._stream):
            try:
                self._call()
                self._arrived = self._stream.record_event()
            except Exception as error:  # `wait` raises it
                self._error = torch_error(error)
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
        """The error of the call, if it is over and failed."""
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
        return [_on_host(item, read, stream, back) for item in argument]
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


def _tensors(arguments: Any) -> list[Any]:
    """All CUDA tensors of a call."""
    found: list[Any] = []
    for argument in arguments:
        if isinstance(argument, list | tuple):
            found += _tensors(argument)
        elif isinstance(argument, torch.Tensor):
            found.append(argument.detach())
    return found


def _device(arguments: Any) -> torch.device:
    device: torch.device = _tensors(arguments)[0].device
    return device


def _options(arguments: tuple[Any, ...]) -> Any:
    return next((argument for argument in arguments if hasattr(argument, "asyncOp")), None)
