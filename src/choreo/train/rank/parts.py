"""Break down the time of a step, measured inside a rank: collectives by kind, the pipeline's bubble, the optimizer.

Calls of torch.distributed are timed while a rank waits in them; what overlaps the backward pass costs only what is left
of it when the pass is over. The rest of the step is compute. Among the calls of one size, the shortest is the
communication time: in a longer one, a rank waits for another that is late.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch.distributed as dist

__all__ = ["STRAGGLERS", "Clock", "Span"]

# Torch's names, and those of a plan's figures.
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
BUBBLE, SEND, STRAGGLERS = "bubble", "pp send", "stragglers"
LAST_BUCKET = -1  # in place of its bytes: it is the same in every step
MOST_SPANS = 2000  # per rank and step
SCHEDULES, BATCH = "torch.distributed.pipelining.schedules", "_batch_p2p"


class Span(NamedTuple):
    """An interval of a rank's step; passes have a micro-batch and a chunk."""

    name: str  # "F", "B" and "W" are passes
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


class Clock:
    """Seconds of one step by part; `axis_of` names the axis of a group and collective, `wait` waits for the device."""

    def __init__(self, axis_of: Callable[[Any, str], str], wait: Callable[[], None] = lambda: None) -> None:
        self.axis_of, self._wait = axis_of, wait
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.spans: list[Span] = []
        self._least_s: dict[tuple[str, int], float] = {}  # by the kind and the bytes of a call
        self._bucket_at_s: float | None = None
        self._inside = False

    def begin(self) -> None:
        """Start a step."""
        self.spent = defaultdict(float)
        self.spans = []
        self._bucket_at_s = None
        self._wait()
        self._start_s = time.perf_counter()

    def end(self) -> dict[str, float]:
        """Seconds by part since `begin`; "time" is all of them."""
        self._wait()
        total = time.perf_counter() - self._start_s
        return {"time": total, "compute": max(0.0, total - sum(self.spent.values())), **self.spent}

    def bucket_ready(self) -> None:
        """A bucket of gradients is ready to be sent: after the last one, only sending is left of the pass."""
        self._bucket_at_s = time.perf_counter()

    def backward_done(self) -> None:
        """The backward pass is over, and its gradients have arrived."""
        if self._bucket_at_s is not None:
            self.count_collective("dp all_reduce", LAST_BUCKET, self._bucket_at_s)
            self._bucket_at_s = None

    def count(self, kind: str, start_s: float) -> None:
        """Add the time since then to this part."""
        self.spent[kind] += time.perf_counter() - start_s
        if kind != BUBBLE:
            self._keep(kind, start_s)

    def count_send(self, size_bytes: int, start_s: float) -> None:
        """Add the time since then, in which this rank waited for a message it had sent.

        It is sent when the neighbour has taken it. Time beyond the shortest is waiting for the neighbour.
        """
        self._count_least(SEND, size_bytes, start_s, BUBBLE)

    def count_collective(self, kind: str, size_bytes: int, start_s: float) -> None:
        """Add the time since then, in which this rank was in a collective. Time beyond the shortest is waiting."""
        self._count_least(kind, size_bytes, start_s, STRAGGLERS)

    def _count_least(self, kind: str, size_bytes: int, start_s: float, waiting: str) -> None:
        took_s = time.perf_counter() - start_s
        least_s = self._least_s[kind, size_bytes] = min(took_s, self._least_s.get((kind, size_bytes), took_s))
        self.spent[waiting] += took_s - least_s
        self.count(kind, start_s + took_s - least_s)

    @contextmanager
    def passing(self, kind: str, micro_batch: int, chunk: int = 0) -> Iterator[None]:
        """Keep a pass for the timeline: "F", "B" or "W"."""
        start_s = time.perf_counter()
        yield
        self._keep(kind, start_s, micro_batch, chunk)

    def _keep(self, name: str, start_s: float, micro_batch: int = -1, chunk: int = 0) -> None:
        if len(self.spans) < MOST_SPANS:
            zero_s = self._start_s
            self.spans.append(Span(name, micro_batch, chunk, start_s - zero_s, time.perf_counter() - zero_s))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count everything inside as one part, except its collectives, which are counted separately."""
        before, start_s = sum(self.spent.values()), time.perf_counter()
        yield
        self.spent[name] += time.perf_counter() - start_s - (sum(self.spent.values()) - before)
        self._keep(name, start_s)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Time every collective that is called through torch.distributed, and what a pipeline sends and receives."""
        originals = {name: getattr(dist, name) for name in COLLECTIVES if hasattr(dist, name)}
        for name, function in originals.items():
            setattr(dist, name, self._timed(name, function))
        # Batches of sends alone or receives alone do not go through batch_isend_irecv.
        schedules = sys.modules.get(SCHEDULES)
        batched = getattr(schedules, BATCH, None)
        if batched is not None:
            setattr(schedules, BATCH, self._p2p(batched))
        try:
            yield
        finally:
            for name, function in originals.items():
                setattr(dist, name, function)
            if batched is not None:
                setattr(schedules, BATCH, batched)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        place = list(inspect.signature(function).parameters).index("group")

        def call(*arguments: Any, **options: Any) -> Any:
            group = options.get("group", arguments[place] if len(arguments) > place else None)
            kind = f"{self.axis_of(group, COLLECTIVES[name])} {COLLECTIVES[name]}"
            if self._inside:
                return function(*arguments, **options)
            self._inside, start_s = True, time.perf_counter()
            try:
                work = function(*arguments, **options)
            finally:
                self._inside = False
            if work is None:
                size_bytes = _bytes_of(next(iter((*arguments, *options.values()))))
                # Experts get as many tokens as are sent to them: no two calls have the same size, but many a similar.
                size_bytes = size_bytes.bit_length() if COLLECTIVES[name] == "all_to_all" else size_bytes
                self.count_collective(kind, size_bytes, start_s)
                return None
            self.count(kind, start_s)
            return _TimedWork(work, partial(self.count, kind))

        return call

    def _p2p(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(operations: list[Any], desc: str | None = None) -> Any:
            receives = [operation.op is dist.irecv for operation in operations]
            works = function(operations, desc)
            sizes = [operation.tensor.nbytes for operation in operations]
            if len(works) != len(operations):
                receives, sizes = [any(receives)] * len(works), [sum(sizes)] * len(works)
            return [
                _TimedWork(work, partial(self.count, BUBBLE) if received else partial(self.count_send, size))
                for work, received, size in zip(works, receives, sizes, strict=True)
            ]

        return call


def _bytes_of(given: Any) -> int:
    """The bytes of a tensor or of a list of tensors."""
    return sum(map(_bytes_of, given)) if isinstance(given, list | tuple) else int(given.nbytes)


class _TimedWork:
    """A torch Work whose `wait` is timed; `count` gets the time when it began."""

    def __init__(self, work: Any, count: Callable[[float], None]) -> None:
        self._work, self._count = work, count

    def wait(self, *arguments: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return self._work.wait(*arguments)
        finally:
            self._count(start_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
