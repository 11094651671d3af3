"""What a communicator does with a call: choose, compile, place the arrays, run, and remember how it went."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from choreo.collectives import get_collective
from choreo.errors import ChoreoError, UsageError
from choreo.run.connection import Connection
from choreo.run.execute.arrays import Array
from choreo.run.execute.backend import quick_type
from choreo.run.execute.calls import Call, Failed, Plan, make_plan
from choreo.run.execute.choice import Chooser
from choreo.run.execute.dtypes import ReduceOp, dtype_code, operation_code
from choreo.run.execute.heap import Heap
from choreo.run.recover.shrink import describe, explain
from choreo.run.work import Progress

__all__ = ["Engine", "Request"]

# Below this a copy into staging costs less than finding out where an array lies.
LOOK_BYTES = 64 << 10
MOST_PLANS = 1024


@dataclass(slots=True, eq=False)
class Request:
    """One call: `given` is None where a rank contributes nothing, `work` where it needs only room to work in.

    `mine`, where it is given, is for this rank's block of the vector, which is all of the result that is wanted.
    """

    collective: str
    given: Array | None
    work: Array | None
    dtype: np.dtype[Any]
    blocks: int | tuple[int, ...]  # elements of each block; a number where all are alike
    op: ReduceOp | None = None
    root: int | None = None
    timeout_s: float = 0.0
    mine: Array | None = None


class Engine:
    """Runs calls on one connection, one at a time. Everything that a communicator remembers is here.

    `quick` holds the calls that need no look at the state; it is closed whenever there is something to look at: work
    under way, a failure, the end. `refusal` is what every further call raises.
    """

    def __init__(self, connection: Connection, chooser: Chooser, *, debug: bool) -> None:
        self.connection, self.debug = connection, debug
        self.chooser = chooser.through("one" if connection.exposes.any() else "read")
        self.rank, self.world_size = connection.rank, connection.world_size
        self.heap = Heap(connection.segment)
        self.refusal: ChoreoError | None = None
        self.readable = False  # whether all peers on this machine may read this process's memory
        self.quick = quick_type()(connection.endpoint, np.ndarray, self.failure)
        self._plans: dict[Hashable, Plan] = {}
        self.progress = Progress(self._busy, self._idle)

    def keep(self, how: str, key: object, plan: Plan, request: Request) -> None:
        """Let the next call like this one take the quick way; `key` is its operation or root."""
        work = request.mine if plan.is_part else request.work
        if self.debug or work is None or plan.copies or not (plan.stages or self.readable):
            return
        runs = (plan.ready, plan.signature, plan.call.dtype, plan.call.operation, plan.stages)
        self.quick.keep(how, key, request.given, work, plan, *runs)

    def refuse(self, error: ChoreoError) -> None:
        """From now on every call raises this; the first reason stays."""
        self.quick.open = 0
        if self.refusal is None:
            self.refusal = copy.copy(error)  # what was raised holds on to every frame that it came through

    def forget(self) -> None:
        """Let go of everything that was kept for further calls: there are none."""
        self.quick.close()
        self._plans.clear()
        self.heap.forget()

    def check(self) -> None:
        """Raise what every call raises."""
        if self.refusal is not None:
            raise copy.copy(self.refusal)

    def plan(self, request: Request) -> Plan:
        """The plan of a call, with every mistake in it told before anything is sent."""
        self.check()
        given, work = request.given, request.work
        if request.op is not None:
            operation_code(request.op, request.dtype)
        registered = self.registered(request)
        same = given is work and given is not None
        wants = request.mine is not None
        key = (request.collective, request.blocks, request.dtype, request.op, request.root, same, registered, wants)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._make(request, same=same, registered=registered)
            self.connection.circle.directory.add(plan.signature, describe(plan.call))
        return plan

    def registered(self, request: Request) -> bool:
        """Whether peers can read the arrays of a call where they are; small ones are staged all the same."""
        given, work, owns = request.given, request.work, self.heap.owns
        if given is None or given.nbytes < LOOK_BYTES:
            return False
        return owns(given) and (work is None or work is given or owns(work))

    def run(self, plan: Plan, request: Request) -> Array:
        """Run a call, and give back where its result lies: a flat room if no array was given for it."""
        self.check()
        given, work = request.given, request.mine if plan.is_part else request.work
        into = work
        if plan.copies and given is not None:
            given = given.copy()
        if work is None:
            work = self._room(plan.vector_bytes).view(request.dtype)
        if not (plan.stages or self.readable):
            given, work = self._bounced(given, work)
        if request.dtype.kind == "V":  # bfloat16 has no name in the buffer protocol
            given, work = None if given is None else given.view(np.uint16), work.view(np.uint16)
        began = time.perf_counter() if self.debug else 0.0
        failed = self.connection.run(plan, given, work, timeout_s=request.timeout_s)
        if self.debug:
            self._report(plan, time.perf_counter() - began)
        if failed is not None:
            raise self.failure(plan, failed)
        if request.dtype.kind == "V":
            work = work.view(request.dtype)
        if into is not None and work is not into and not np.may_share_memory(work, into):
            np.copyto(into, work.reshape(into.shape))
        if into is None and request.mine is not None:
            into, first = request.mine, sum(plan.call.blocks[: self.rank])
            np.copyto(into, work[first : first + into.size].reshape(into.shape))
        return work if into is None else into

    def failure(self, plan: Plan, failed: Failed) -> ChoreoError:
        """The error that tells what went wrong in a call; from now on all calls raise it."""
        error = explain(self.connection, plan, *failed)
        self.refuse(error)
        return error

    def _busy(self) -> None:
        self.quick.open = 0

    def _idle(self) -> None:
        if self.refusal is None:
            self.quick.open = 1

    def _make(self, request: Request, *, same: bool, registered: bool) -> Plan:
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
        call = Call(request.collective, blocks, item, code, operation, root, algorithm, averages)
        remote = self.connection.exposes
        part = None
        if request.mine is not None:
            part = sum(blocks[: self.rank]) * item, blocks[self.rank] * item
        try:
            return make_plan(call, self.rank, self.world_size, remote, same=same, stages=not registered, part=part)
        except UsageError:  # this algorithm sends inputs after results have come in
            if not same:
                raise
        plan = make_plan(call, self.rank, self.world_size, remote, same=False, stages=not registered)
        return replace(plan, copies=True)

    def _room(self, length: int) -> Array:
        try:
            return self.heap.room("work", length)
        except UsageError:  # little shared memory: peers can still be allowed to read this process's own
            return np.empty(length, np.uint8)

    def _bounced(self, given: Array | None, work: Array) -> tuple[Array | None, Array]:
        """Private arrays that nobody may read, moved to the heap; what is work already is not copied."""
        moved = work
        if not self.heap.owns(work):
            moved = self.heap.room("bounced work", work.nbytes).view(work.dtype).reshape(work.shape)
            if given is work:
                np.copyto(moved, work)
        if given is work:
            return moved, moved
        if given is not None and not self.heap.owns(given):
            there = self.heap.room("bounced input", given.nbytes).view(given.dtype).reshape(given.shape)
            np.copyto(there, given)
            given = there
        return given, moved

    def _report(self, plan: Plan, time_s: float) -> None:
        call = plan.call
        line = f"choreo: rank {self.rank}: {call.collective} of {plan.vector_bytes} bytes by {call.algorithm} in"
        print(line, f"{time_s * 1e6:.1f} us", file=sys.stderr)


def debug_wanted() -> bool:
    """Whether CHOREO_DEBUG asks for a line a call."""
    return os.environ.get("CHOREO_DEBUG", "") not in ("", "0")
