"""One rank of a benchmark: joins its library, then answers requests until its connection ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import numpy as np

from choreo.bench.inputs import Case, dtype_of, expected, given, input_count
from choreo.bench.libraries import Choreo, Gloo, Library, OpenMpi
from choreo.bench.object_store import RayObjectStore
from choreo.bench.processes import Message, receive, send
from choreo.run.execute.arrays import Array

__all__: list[str] = []


class RankServer:
    """Answers requests, about one case at a time."""

    def __init__(self, rank: int, link: socket.socket) -> None:
        self.rank, self.link = rank, link
        self.libraries: dict[str, Library] = {}
        self.ready: dict[str, tuple[Case, Array, Array, Callable[[], object]]] = {}

    def do(self, request: Message) -> Message:
        known: dict[str, Callable[[Message], Message]] = {
            "open": self._open,
            "prepare": self._prepare,
            "time": self._time,
            "timeline": self._timeline,
            "check": lambda asked: {"wrong": self._check(asked["name"])},
            "forget": self._forget,
            "rates": lambda asked: rates(asked["sizes"]),
        }
        if request["do"] not in known:
            raise ValueError(f"there is no request {request['do']}")
        return known[request["do"]](request)

    def _forget(self, _: Message) -> Message:
        self.ready.clear()
        return {}

    def _open(self, request: Message) -> Message:
        name = request.get("name", "")
        if name not in self.libraries:
            kind = os.environ["CHOREO_BENCH_LIBRARY"]
            peers: dict[str, Callable[[], Library]] = {"gloo": Gloo, "openmpi": OpenMpi, "ray": RayObjectStore}
            self.libraries[name] = Choreo(self.link, request) if kind == "choreo" else peers[kind]()
        return {}

    def _prepare(self, request: Message) -> Message:
        name = request["name"]
        library = self.libraries[request.get("library", "")]
        case = Case(**{field: request[field] for field in ("collective", "ranks", "count", "dtype", "op", "root")})
        kind = dtype_of(case.dtype)
        x = library.empty((input_count(case),), kind)
        y = library.empty(_output_shape(case), kind)
        x[:], y[:] = 0, 0
        self.ready[name] = (case, x, y, library.prepare(case, x, y))
        answer: Message = {}
        if isinstance(library, Choreo) and case.collective != "memcpy":
            answer["algorithm"] = library.algorithm(case.collective, case.size_bytes)
        return answer

    def _time(self, request: Message) -> Message:
        call = self.ready[request["name"]][3]
        library, clock = self.libraries[request.get("library", "")], time.perf_counter
        turns = range(request["iterations"])
        for _ in range(request["warmup"]):
            call()
        library.barrier()
        began = clock()
        before = getattr(library, "received_bytes", 0)
        for _ in turns:
            call()
        return {"time_s": clock() - began, "received_bytes": getattr(library, "received_bytes", 0) - before}

    def _timeline(self, request: Message) -> Message:
        """The times at which this rank handed over or took in each message of some calls, after a warm-up."""
        library, call = self.libraries[request["library"]], self.ready[request["name"]][3]
        assert isinstance(library, Choreo)
        for _ in range(request["warmup"]):
            call()
        found = []
        for _ in range(request["calls"]):
            library.barrier()
            found.append(library.timeline(call))
        return {"calls": found}

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


def main() -> None:
    """Connect to the socket of the benchmark, and serve it."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0")))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(os.environ["CHOREO_BENCH_SOCKET"])
        if os.environ.get("CHOREO_BENCH_PIN"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
        send(link, {"rank": rank, "pid": os.getpid()})
        server = RankServer(rank, link)
        while True:
            try:
                request = receive(link)
            except (EOFError, OSError):
                os._exit(0)  # the benchmark has ended; a library's own shutdown could wait for others
            try:
                answer = server.do(request)
            except Exception as error:  # whatever it is, the benchmark must be told
                answer = {"error": f"{type(error).__name__}: {error}"}
            send(link, answer)


if __name__ == "__main__":
    main()
