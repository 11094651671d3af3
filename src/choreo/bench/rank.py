"""One rank of a benchmark: joins its library, then does what it is told until nobody tells it any more."""

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

from choreo.algorithms import load_algorithms
from choreo.bench.inputs import Case, dtype_of, expected, given, input_count
from choreo.bench.job import Message, receive, send
from choreo.run.communicator import Communicator
from choreo.run.connect import connect
from choreo.run.execute.arrays import Array
from choreo.run.execute.choice import Chooser
from choreo.run.execute.constants import decode_constants, load_constants
from choreo.run.execute.dtypes import ReduceOp

__all__: list[str] = []


class Library(Protocol):
    """What a library must be able to do to be raced."""

    def prepare(self, case: Case, x: Array, y: Array) -> Callable[[], object]:
        """The call to time: in place in x where the collective allows it, from x to y elsewhere."""
        ...

    def room(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """An array to work on."""
        ...

    def barrier(self) -> None:
        """Nobody returns before everybody has called."""
        ...


class _Private:
    def room(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        return np.empty(shape, kind)


class Choreo(_Private):
    """Our own communicator; `algorithm` forces one, `registered` puts arrays where peers can read them."""

    def __init__(self, link: socket.socket, request: Message) -> None:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        forced = {request["collective"]: request["algorithm"]} if request.get("algorithm") else {}
        if request.get("load"):
            load_algorithms(request["load"])
        constants = decode_constants(request["constants"]) if request.get("constants") else load_constants()
        self.registered = bool(request.get("registered"))
        meeting = _ThroughDoor(link, rank, ranks)
        self.chooser = Chooser(ranks, constants, forced)
        self.communicator = open_communicator(meeting, self.chooser)
        self.barrier = self.communicator.barrier

    def room(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        return self.communicator.empty(shape, kind) if self.registered else np.empty(shape, kind)

    def prepare(self, case: Case, x: Array, y: Array) -> Callable[[], object]:
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
            # What memory allows: all ranks copy as many bytes at once.
            "memcpy": lambda: ctypes.memmove(y.ctypes.data, x.ctypes.data, x.nbytes),
        }
        return calls[case.collective]

    def algorithm(self, collective: str, size_bytes: int) -> str:
        """Which algorithm a call of this size takes."""
        return self.chooser.choose(collective, size_bytes)


class _ThroughDoor:
    """A meeting of ranks through the benchmark's own socket."""

    def __init__(self, link: socket.socket, rank: int, world_size: int) -> None:
        self.link, self.rank, self.world_size = link, rank, world_size

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        send(self.link, {"blob": blob})
        answer: list[bytes] = receive(self.link)["blobs"]
        return answer


def open_communicator(meeting: _ThroughDoor, chooser: Chooser) -> Communicator:
    """A communicator between the ranks that meet."""
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


class Bench:
    """Does what it is told with one case at a time."""

    def __init__(self, rank: int, link: socket.socket) -> None:
        self.rank, self.link = rank, link
        self.libraries: dict[str, Library] = {}
        self.ready: dict[str, tuple[Case, Array, Array, Callable[[], object]]] = {}

    def do(self, request: Message) -> Message:
        what = request["do"]
        if what == "open":
            return self._open(request)
        if what == "prepare":
            return self._prepare(request)
        if what == "time":
            return self._time(request)
        if what == "check":
            return {"wrong": self._check(request["name"])}
        if what == "forget":
            self.ready.clear()
            return {}
        if what == "rates":
            return rates(request["sizes"])
        raise ValueError(f"nobody knows how to {what}")

    def _open(self, request: Message) -> Message:
        name = request.get("name", "")
        if name not in self.libraries:
            kind = os.environ["CHOREO_BENCH_LIBRARY"]
            if kind == "choreo":
                self.libraries[name] = Choreo(self.link, request)
            else:
                self.libraries[name] = Gloo() if kind == "gloo" else OpenMpi()
        return {}

    def _prepare(self, request: Message) -> Message:
        name = request["name"]
        library = self.libraries[request.get("library", "")]
        case = Case(**{field: request[field] for field in ("collective", "ranks", "count", "dtype", "op", "root")})
        kind = dtype_of(case.dtype)
        x = library.room((input_count(case),), kind)
        y = library.room(_output_shape(case), kind)
        x[:], y[:] = 0, 0
        self.ready[name] = (case, x, y, library.prepare(case, x, y))
        answer: Message = {}
        if isinstance(library, Choreo) and case.collective != "memcpy":
            answer["algorithm"] = library.algorithm(case.collective, case.size_bytes)
        return answer

    def _time(self, request: Message) -> Message:
        call = self.ready[request["name"]][3]
        barrier, clock = self.libraries[request.get("library", "")].barrier, time.perf_counter
        turns = range(request["iterations"])
        for _ in range(request["warmup"]):
            call()
        barrier()
        began = clock()
        for _ in turns:
            call()
        return {"time_s": clock() - began}

    def _check(self, name: str) -> int:
        case, x, y, call = self.ready[name]
        if case.collective in ("barrier", "memcpy"):
            return 0
        x[:] = given(case, self.rank)
        y[:] = dtype_of(case.dtype).type(77)
        call()
        right = expected(case, self.rank)
        found = x if case.collective in ("all_reduce", "broadcast", "reduce") else y
        wrong = 0 if right is None else int((found.reshape(-1) != right).sum())
        x[:] = 0
        return wrong


def rates(sizes: list[int]) -> Message:
    """Bytes a second that this rank copies and adds, by size."""
    found: dict[str, float] = {}
    for size in sizes:
        x, y = np.ones(size // 4, np.float32), np.ones(size // 4, np.float32)
        turns = max(1, (64 << 20) // size)
        for name, call in (("copy", lambda x=x, y=y: np.copyto(y, x)), ("add", lambda x=x, y=y: np.add(x, y, out=y))):
            times = []
            for _ in range(3):
                began = time.perf_counter()
                for _ in range(turns):
                    call()
                times.append(time.perf_counter() - began)
            found[f"{name} {size}"] = size * turns / min(times)
    return {"rates": found}


def _output_shape(case: Case) -> tuple[int, ...]:
    if case.collective in ("all_gather", "gather", "all_to_all"):
        return case.ranks, case.count
    return (case.count if case.collective in ("reduce_scatter", "scatter", "memcpy") else 0,)


def _into(y: Array, found: Array | None) -> None:
    if found is not None:
        np.copyto(y, found)


def main() -> None:
    """Come to the benchmark's socket and serve it."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0")))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(os.environ["CHOREO_BENCH_DOOR"])
        if os.environ.get("CHOREO_BENCH_PIN"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
        send(link, {"rank": rank, "pid": os.getpid()})
        bench = Bench(rank, link)
        while True:
            try:
                request = receive(link)
            except (EOFError, OSError):
                os._exit(0)  # nobody is left to talk to; a library's own farewell could wait for others
            try:
                answer = bench.do(request)
            except Exception as error:  # whatever it is, the benchmark must hear of it
                answer = {"error": f"{type(error).__name__}: {error}"}
            send(link, answer)


if __name__ == "__main__":
    main()
