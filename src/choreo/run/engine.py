"""Run a communicator's calls: choose an algorithm, compile, place the arrays, execute, and record a failure."""

from __future__ import annotations

import copy
import os
import sys
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from choreo.collectives import get_collective
from choreo.errors import ChoreoError, CommunicatorClosed, UsageError
from choreo.run.connection import Connection
from choreo.run.consensus.failure_message import describe_call
from choreo.run.execute.arrays import Array
from choreo.run.execute.backend import executor
from choreo.run.execute.calls import CallSpec, Failed, PreparedCall, prepare_call
from choreo.run.execute.choice import Chooser
from choreo.run.execute.dtypes import ReduceOp, dtype_code, operation_code
from choreo.run.execute.heap import Heap
from choreo.run.stats import TrafficCounter
from choreo.run.transport.deadline import Deadline
from choreo.run.work import QueuedWork, Work

__all__ = ["CallRequest", "Engine", "debug_wanted"]

Result = TypeVar("Result")

# Smaller arrays are staged: that is cheaper than finding out whether peers can read them in place.
LOOK_BYTES = 64 << 10
MAX_PREPARED = 1024


@dataclass(slots=True, eq=False)
class CallRequest:
    """One call. `given` is None if this rank contributes nothing, `work` if it only needs a buffer to work in.

    If `mine` is given, it gets this rank's block of the vector, and nothing else of the result is wanted.
    """

    collective: str
    given: Array | None
    work: Array | None
    dtype: np.dtype[Any]
    blocks: int | tuple[int, ...]  # elements of each block, or of every block
    op: ReduceOp | None = None
    root: int | None = None
    timeout_s: float = 0.0
    mine: Array | None = None
    step_of: str = ""  # that of a CallSpec


class Engine:
    """Runs calls on one connection, one at a time, and holds all state of a communicator.

    `call_cache` runs calls that were made before without checking this state. It is closed after a failure, and at the
    end. `progress` is the queue of asynchronous calls. `refusal` is the error that every further call raises.
    """

    def __init__(self, connection: Connection, chooser: Chooser, *, debug: bool) -> None:
        self.connection, self.debug = connection, debug
        self.chooser = chooser.among(connection.consensus.quorum.hosts)
        self.rank, self.world_size = connection.rank, connection.world_size
        self.heap = Heap(connection.segment)
        self.refusal: ChoreoError | None = None
        self.aborted = False
        self.readable = False  # whether all peers on this host may read this process's memory
        me: Engine = weakref.proxy(self)  # so that shared memory is freed with the last reference to the engine

        def failure(prepared: PreparedCall, failed: Failed) -> ChoreoError:
            return me.failure(prepared, failed)

        def check() -> None:
            me.check()

        self.progress = executor().ProgressQueue(connection.endpoint, failure, check)
        self.call_cache = executor().CallCache(connection.endpoint, np.ndarray, failure, self.progress)
        self.traffic = TrafficCounter()
        self._prepared: dict[Hashable, PreparedCall] = {}

    def cache(self, key: object, prepared: PreparedCall, request: CallRequest) -> None:
        """Let the next identical call go straight to the executor; `key` is its operation or root."""
        work = request.mine if prepared.is_part else request.work
        if self.debug or work is None or prepared.copies or not (prepared.stages or self.readable):
            return
        runs = (prepared.ready, prepared.signature, prepared.call.dtype, prepared.call.operation, prepared.stages)
        self.call_cache.add(request.collective, key, request.given, work, prepared, *runs)

    def refuse(self, error: ChoreoError) -> None:
        """Make every further call raise this error; the first error stays."""
        self.call_cache.open = 0
        if self.refusal is None:
            self.refusal = copy.copy(error)  # the one that is raised refers to all frames that it passes through

    def abort(self) -> None:
        """End the call in progress, whichever thread it is on, and all that are queued."""
        self.refuse(CommunicatorClosed("this communicator was aborted; make another with choreo.init()"))
        self.aborted = True
        self.connection.endpoint.abort()

    def close(self) -> None:
        """End the progress thread, and drop everything that was cached for later calls."""
        self.progress.stop()
        self.call_cache.close()
        self.traffic.forget_programs()
        self._prepared.clear()
        self.heap.forget()

    def check(self) -> None:
        """Raise the error that every call raises, if there is one."""
        if self.refusal is not None:
            raise copy.copy(self.refusal)

    def prepare(self, request: CallRequest) -> PreparedCall:
        """Prepare a call. Every mistake in it is raised before anything is sent."""
        self.check()
        given, work = request.given, request.work
        if request.op is not None:
            operation_code(request.op, request.dtype)
        registered = self.registered(request)
        same = given is work and given is not None
        wants = request.mine is not None
        how = (request.op, request.root, same, registered, wants, request.step_of)
        key = (request.collective, request.blocks, request.dtype, *how)
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= MAX_PREPARED and not self.progress.pending:
                self.call_cache.clear()
                self.traffic.forget_programs()
                self._prepared.clear()
            prepared = self._prepared[key] = self._make(request, same=same, registered=registered)
            self.traffic.watch(prepared)
            self.connection.detector.directory.add(prepared.signature, describe_call(prepared.call))
        return prepared

    def prepared_calls(self) -> list[PreparedCall]:
        """The calls that are prepared."""
        return list(self._prepared.values())

    def registered(self, request: CallRequest) -> bool:
        """Whether peers can read the arrays of a call in place; small ones are staged all the same."""
        given, work, owns = request.given, request.work, self.heap.owns
        if given is None or given.nbytes < LOOK_BYTES:
            return False
        return owns(given) and (work is None or work is given or owns(work))

    def run(self, prepared: PreparedCall, request: CallRequest) -> Array:
        """Run a call, and return its result: a flat array if none was given for it."""
        self.check()
        given, work = request.given, request.mine if prepared.is_part else request.work
        into = work
        if prepared.copies and given is not None:
            given = given.copy()
        if work is None:
            work = self._work(prepared.vector_bytes).view(request.dtype)
        if not (prepared.stages or self.readable):
            given, work = self._in_heap(given, work)
        if request.dtype.kind == "V":  # bfloat16 has no name in the buffer protocol
            given, work = None if given is None else given.view(np.uint16), work.view(np.uint16)
        began = time.perf_counter() if self.debug else 0.0
        failed = self.connection.run(prepared, given, work, timeout_s=request.timeout_s)
        if self.debug:
            self._report(prepared, time.perf_counter() - began)
        if failed is not None:
            raise self.failure(prepared, failed)
        if request.dtype.kind == "V":
            work = work.view(request.dtype)
        if into is not None and work is not into and not np.may_share_memory(work, into):
            np.copyto(into, work.reshape(into.shape))
        if into is None and request.mine is not None:
            into, first = request.mine, sum(prepared.call.blocks[: self.rank])
            np.copyto(into, work[first : first + into.size].reshape(into.shape))
        return work if into is None else into

    def failure(self, prepared: PreparedCall, failed: Failed) -> ChoreoError:
        """The error that explains what went wrong in a call. From now on all calls raise it."""
        if self.aborted and self.refusal is not None:  # there is nothing to agree on, and the connection may be closed
            return copy.copy(self.refusal)
        error = self.connection.fail(prepared, *failed)
        self.refuse(error)
        return error

    def in_order(self, call: Callable[[], Result], what: str, async_op: bool = False) -> Result | Work[Result]:
        """Run a call after all asynchronous ones before it; with `async_op`, queue it."""
        self.check()
        if not (async_op or self.progress.pending):
            return call()
        work: Work[Result] = QueuedWork(what, self.progress.submit(call))
        return work if async_op else work.result()

    def deadline(self, timeout_s: float) -> Deadline:
        """The deadline of a call of several steps, which begins when all asynchronous calls before it are done."""
        self.check()
        self.progress.drain(None)  # each has its deadline
        return Deadline.after(timeout_s)

    def broadcast(self, array: Array, root: int, timeout_s: float, step_of: str) -> None:
        """Every rank gets the root's array, in place, as a step of another call."""
        request = CallRequest("broadcast", array, array, array.dtype, array.size, None, root, timeout_s, None, step_of)
        prepared = self.prepare(request)
        self.in_order(lambda: self.run(prepared, request), step_of)

    def all_gather(self, array: Array, timeout_s: float, step_of: str, *, in_order: bool = True) -> Array:
        """The arrays of all ranks, by rank, as a step of another call; all have the same shape and type.

        `in_order=False` is for a call that has waited for its turn.
        """
        found = np.empty((self.world_size, *array.shape), array.dtype)
        request = CallRequest("all_gather", array, found, array.dtype, array.size, timeout_s=timeout_s, step_of=step_of)
        prepared = self.prepare(request)
        if in_order:
            self.in_order(lambda: self.run(prepared, request), step_of)
        else:
            self.run(prepared, request)
        return found

    def _make(self, request: CallRequest, *, same: bool, registered: bool) -> PreparedCall:
        contract = get_collective(request.collective)
        root = contract.check_root(request.root, self.world_size)
        code, item = dtype_code(request.dtype), request.dtype.itemsize
        blocks = request.blocks
        if isinstance(blocks, int):
            blocks = (blocks,) * contract.blocks(self.world_size)
        size = sum(blocks) * item // (self.world_size if contract.size_per == "rank" else 1)
        algorithm = self.chooser.choose(request.collective, size)
        operation = operation_code(request.op, request.dtype) if contract.reduces else 0
        averages = request.op is ReduceOp.AVG
        call = CallSpec(request.collective, blocks, item, code, operation, root, algorithm, averages, request.step_of)
        remote = self.connection.remote
        part = None
        if request.mine is not None:
            part = sum(blocks[: self.rank]) * item, blocks[self.rank] * item
        try:
            return prepare_call(call, self.rank, self.world_size, remote, same=same, stages=not registered, part=part)
        except UsageError:  # this algorithm sends inputs after results have arrived
            if not same:
                raise
        prepared = prepare_call(call, self.rank, self.world_size, remote, same=False, stages=not registered)
        return replace(prepared, copies=True)

    def _work(self, length: int) -> Array:
        try:
            return self.heap.buffer("work", length)
        except UsageError:  # shared memory is short: use private memory, which peers may be allowed to read
            return np.empty(length, np.uint8)

    def _in_heap(self, given: Array | None, work: Array) -> tuple[Array | None, Array]:
        """Copies in the heap of private arrays that peers may not read."""
        moved = work
        if not self.heap.owns(work):
            moved = self.heap.buffer("copied work", work.nbytes).view(work.dtype).reshape(work.shape)
            if given is work:
                np.copyto(moved, work)
        if given is work:
            return moved, moved
        if given is not None and not self.heap.owns(given):
            there = self.heap.buffer("copied input", given.nbytes).view(given.dtype).reshape(given.shape)
            np.copyto(there, given)
            given = there
        return given, moved

    def _report(self, prepared: PreparedCall, time_s: float) -> None:
        call = prepared.call
        line = f"choreo: rank {self.rank}: {call.collective} of {prepared.vector_bytes} bytes by {call.algorithm} in"
        print(line, f"{time_s * 1e6:.1f} us", file=sys.stderr)


def debug_wanted() -> bool:
    """Whether CHOREO_DEBUG asks for a line per call."""
    return os.environ.get("CHOREO_DEBUG", "") not in ("", "0")
