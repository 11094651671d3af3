"""The libraries that a benchmark can measure, behind one interface."""

from __future__ import annotations

import ctypes
import importlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from choreo.algorithms import load_algorithms
from choreo.bench.inputs import Case
from choreo.bench.processes import Message, receive, send
from choreo.run.communicator import Communicator
from choreo.run.connect import connect
from choreo.run.connection import Ended
from choreo.run.execute.arrays import Array
from choreo.run.execute.choice import Chooser
from choreo.run.execute.constants import decode_constants, load_constants
from choreo.run.execute.dtypes import ReduceOp
from choreo.run.execute.layout import LAST, RECEIVE, SEND, TO_SCRATCH

__all__ = ["Choreo", "Gloo", "Library", "OpenMpi", "messages_of"]

# Operations of a call that are followed.
MOST_WATCHED = 1 << 16


class Library(Protocol):
    """The interface of a library that can be measured."""

    def prepare(self, case: Case, x: Array, y: Array) -> Callable[[], object]:
        """The call to time: in place in x where the collective allows it, from x to y elsewhere."""
        ...

    def empty(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """An uninitialized array."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have called."""
        ...


class _Private:
    def empty(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        return np.empty(shape, kind)


class Choreo(_Private):
    """A communicator of our own. `algorithm` forces one; `registered` arrays can be read by peers in place."""

    def __init__(self, link: socket.socket, request: Message) -> None:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        forced = {request["collective"]: request["algorithm"]} if request.get("algorithm") else {}
        if request.get("load"):
            load_algorithms(request["load"])
        constants = decode_constants(request["constants"]) if request.get("constants") else load_constants()
        self.registered = bool(request.get("registered"))
        meeting = _SocketRendezvous(link, rank, ranks)
        self.chooser = Chooser(ranks, constants, forced)
        self.communicator = open_communicator(meeting, self.chooser)
        self.barrier = self.communicator.barrier

    def empty(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """An uninitialized array."""
        return self.communicator.empty(shape, kind) if self.registered else np.empty(shape, kind)

    def prepare(self, case: Case, x: Array, y: Array) -> Callable[[], object]:
        """The call to time."""
        comm, root = self.communicator, case.root
        op = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}[case.op]
        reduction = ReduceOp[op]
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: comm.all_reduce(x, reduction),
            "broadcast": lambda: comm.broadcast(x, root),
            "reduce": lambda: comm.reduce(x, root, reduction),
            "all_gather": lambda: comm.all_gather(x, out=y),
            "reduce_scatter": lambda: comm.reduce_scatter(x, reduction, out=y),
            "all_to_all": lambda: np.copyto(y, comm.all_to_all(x).reshape(y.shape)),
            "gather": lambda: _into(y, comm.gather(x, root)),
            "scatter": lambda: comm.scatter(x, root, out=y),
            "barrier": comm.barrier,
            # The yardstick: all ranks copy as many bytes at once.
            "memcpy": lambda: ctypes.memmove(y.ctypes.data, x.ctypes.data, x.nbytes),
        }
        return calls[case.collective]

    def timeline(self, call: Callable[[], object]) -> Message:
        """Make a call, and return when its messages were sent and received: see `messages_of`."""
        engine = self.communicator._engine
        endpoint = engine.connection.endpoint
        assert not isinstance(endpoint, Ended)
        before = {id(call): call.ready.runs for call in engine.prepared_calls()}
        endpoint.watch(MOST_WATCHED)
        try:
            call()
            times = np.frombuffer(endpoint.watched(), np.float64)
        finally:
            endpoint.watch(0)
        (ran,) = (call for call in engine.prepared_calls() if call.ready.runs != before.get(id(call), 0))
        return messages_of(ran.program.ops, times)

    def algorithm(self, collective: str, size_bytes: int) -> str:
        """The algorithm of a call of this size."""
        return self.chooser.choose(collective, size_bytes)


def messages_of(ops: npt.NDArray[np.void], times: npt.NDArray[np.float64]) -> Message:
    """The start of a call on this rank, and its messages as columns: whether it was received, the peer, and when.

    A message is all operations up to its last. The messages of a pair of ranks are numbered from 1. A large call is cut
    into parts, each with its own messages.
    """
    kept = min(len(ops), len(times) - 1)
    some, done = ops[:kept], times[1 : kept + 1]
    incoming = (some["kind"] == RECEIVE) | (some["kind"] == TO_SCRATCH)
    last = ((some["kind"] == SEND) | incoming) & ((some["flags"] & LAST) != 0)
    ours = (some["kind"] == SEND) | incoming
    bytes_so_far = np.cumsum(np.where(ours, some["length"], 0).astype(np.int64))[last]
    return {
        "began_s": float(times[0]),
        "received": incoming[last].astype(int).tolist(),
        "peer": some["peer"][last].tolist(),
        "number": some["number"][last].tolist(),
        "step": some["step"][last].tolist(),
        "bytes": np.diff(bytes_so_far, prepend=0).tolist(),
        "done_s": done[last].tolist(),
    }


class _SocketRendezvous:
    """A rendezvous through the socket of the benchmark."""

    def __init__(self, link: socket.socket, rank: int, world_size: int) -> None:
        self.link, self.rank, self.world_size = link, rank, world_size

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        send(self.link, {"blob": blob})
        answer: list[bytes] = receive(self.link)["blobs"]
        return answer


def open_communicator(meeting: _SocketRendezvous, chooser: Chooser) -> Communicator:
    """A communicator between the ranks of a rendezvous."""
    connection = connect(meeting, f"bench-{os.getppid()}-{time.monotonic_ns() % 10**9}", "here", 30.0)
    return Communicator(connection, chooser)


class Gloo(_Private):
    """torch.distributed over Gloo."""

    def __init__(self) -> None:
        torch: Any = importlib.import_module("torch")
        dist: Any = importlib.import_module("torch.distributed")

        torch.set_num_threads(1)
        folder = Path(os.environ["CHOREO_BENCH_FOLDER"])
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
        self.torch, self.dist = torch, dist
        self.barrier = dist.barrier

    def prepare(self, case: Case, x: Array, y: Array) -> Callable[[], object]:
        """The call to time."""
        dist, root = self.dist, case.root
        words = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
        op = getattr(dist.ReduceOp, words[case.op])
        given_, out = self._tensor(x), self._tensor(y).view(-1)
        parts = list(out.chunk(case.ranks)) if case.collective == "gather" and dist.get_rank() == root else None
        pieces = list(given_.chunk(case.ranks)) if case.collective == "scatter" and dist.get_rank() == root else None
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(given_, op),
            "broadcast": lambda: dist.broadcast(given_, root),
            "reduce": lambda: dist.reduce(given_, root, op),
            "all_gather": lambda: gather(out, given_),
            "reduce_scatter": lambda: scatter(out, given_, op),
            "all_to_all": lambda: dist.all_to_all_single(out, given_),
            "gather": lambda: dist.gather(given_, parts, root),
            "scatter": lambda: dist.scatter(out, pieces, root),
            "barrier": dist.barrier,
        }
        return calls[case.collective]

    def _tensor(self, array: Array) -> Any:
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)


class OpenMpi(_Private):
    """Open MPI through mpi4py's calls on buffers."""

    def __init__(self) -> None:
        self.mpi: Any = importlib.import_module("mpi4py.MPI")
        self.world = self.mpi.COMM_WORLD
        self.barrier = self.world.Barrier

    def prepare(self, case: Case, x: Array, y: Array) -> Callable[[], object]:
        """The call to time."""
        mpi, world, root = self.mpi, self.world, case.root
        op = {"sum": mpi.SUM, "prod": mpi.PROD, "min": mpi.MIN, "max": mpi.MAX}.get(case.op)
        if op is None:
            raise ValueError(f"MPI has no {case.op}")
        at_root = world.rank == root
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: world.Allreduce(mpi.IN_PLACE, x, op),
            "broadcast": lambda: world.Bcast(x, root),
            "reduce": lambda: world.Reduce(mpi.IN_PLACE if at_root else x, x if at_root else None, op, root),
            "all_gather": lambda: world.Allgather(x, y),
            "reduce_scatter": lambda: world.Reduce_scatter_block(x, y, op),
            "all_to_all": lambda: world.Alltoall(x, y),
            "gather": lambda: world.Gather(x, y if at_root else None, root),
            "scatter": lambda: world.Scatter(x if at_root else None, y, root),
            "barrier": world.Barrier,
        }
        return calls[case.collective]


def _into(y: Array, found: Array | None) -> None:
    if found is not None:
        np.copyto(y, found)
