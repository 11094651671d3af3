"""From hops that depend on each other to a schedule: every link takes the most urgent task first.

A *task* is a chunk on a hop. A free link never waits if there is something for it to do. The task with the longest
remaining path goes first, and chunks that follow one another along the same trees are due one after another; or, with
`busiest_first`, the task whose link has the most left to carry. The order of the starts gives the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from choreo.compiled import import_compiled, prefers_python, warn_missing
from choreo.schedule import Steps, Transfers
from choreo.synthesize.list_scheduling import start_times
from choreo.synthesize.network import Hops
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Tasks", "in_time", "planner", "steps_of"]

CORE = "choreo.synthesize._core"


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Chunks on hops, as columns. `before` has the dependencies as pairs (before, after).

    A task has a higher number than those before it. `reduce` marks those that are added at the destination. `due_s` is
    when a chunk's last hop should have arrived, relative to other chunks. `joint` are pairs of tasks in the same step.
    """

    hop: Ints
    chunk: Ints
    size_bytes: Floats
    reduce: Bools
    before: Ints
    due_s: Floats
    joint: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))

    def __len__(self) -> int:
        return len(self.hop)


def in_time(
    tasks: Tasks,
    hops: Hops,
    *,
    planned_s: Floats | None = None,
    busiest_first: bool = False,
    together: bool = False,
    compiled: bool | None = None,
) -> tuple[Floats, float]:
    """When each task starts, and when the last has arrived.

    Messages share a link that has room for them, but take turns at ports. With `planned_s` tasks go in the order of
    these starts, not of what they are due and the path before them.

    With `busiest_first` a hop goes first if one of its links has the most left to carry, as behind switches, where a
    message needs a port of its sender and one of its receiver. With `together` tasks that wait for the same hop are one
    message, as long as it takes no longer than the longest task. `compiled` chooses the compiled loop or its twin.
    """
    takes_s = tasks.size_bytes / hops.bandwidth_bytes_per_s[tasks.hop]
    costs_s = np.stack((hops.send_s, hops.send_busy_s, hops.receive_s, hops.receive_busy_s))
    costs_s[1::2] = np.maximum(costs_s[1::2], costs_s[::2])
    before = tasks.before[np.argsort(tasks.before[:, 0], kind="stable")]
    alone_s = takes_s + (hops.latency_s + costs_s[0] + costs_s[2])[tasks.hop]
    by_hop = hops.load.tocsc()
    room = (hops.taken, hops.is_port.astype(np.int64)) if hops.leave_room else ()
    columns = (
        tasks.hop,
        takes_s,
        tasks.due_s - _rest(alone_s, before) if planned_s is None else planned_s,
        np.bincount(before[:, 1], minlength=len(tasks)),
        _places(tasks, hops),
        np.searchsorted(before[:, 0], np.arange(len(tasks) + 1)),
        before[:, 1],
        by_hop.indptr.astype(np.int64),
        by_hop.indices.astype(np.int64),
        len(hops.capacity),
        hops.latency_s,
        np.stack((hops.sender, hops.receiver)),
        costs_s,
        busiest_first,
        float(takes_s.max(initial=0.0)) * (1 + 1e-9) if together else 0.0,
        *room,
    )
    return planner(compiled)(*columns)


def _places(tasks: Tasks, hops: Hops) -> Ints:
    """Where each task adds to what is there; -1 where it does not."""
    place = hops.dst[tasks.hop] * (int(tasks.chunk.max(initial=0)) + 1) + tasks.chunk
    return np.where(tasks.reduce, place, -1)


def planner(compiled: bool | None = None) -> Callable[..., tuple[Floats, float]]:
    """The loop of list scheduling, compiled if there is one; `list_scheduling` says what it takes."""
    wants_python = compiled is False or (compiled is None and prefers_python())
    core = None if wants_python else import_compiled(CORE)
    if core is None:
        if not wants_python:
            warn_missing("planner of synthesis", "using the Python one, which takes many times as long")
        return start_times

    def in_c(*columns: Ints | Floats | float) -> tuple[Floats, float]:
        found, end_s = core.start_times(*(np.ascontiguousarray(c) if isinstance(c, np.ndarray) else c for c in columns))
        return np.frombuffer(found, np.float64), end_s

    return in_c


def _rest(alone_s: Floats, before: Ints) -> Floats:
    """The longest path from the start of each task to the end of all that depends on it; `before` is in order."""
    first, starts = np.unique(before[:, 0], return_index=True)
    rest = alone_s.copy()
    while len(first):  # after each round, paths of one more task are right
        longer = alone_s[first] + np.maximum.reduceat(rest[before[:, 1]], starts)
        if np.array_equal(longer, rest[first]):
            break
        rest[first] = longer
    return rest


def steps_of(tasks: Tasks, hops: Hops, start_s: Floats, num_chunks: int) -> Steps:
    """The steps of tasks that start at these times; tasks that start together are in one step."""
    start_s = start_s.copy()
    start_s[tasks.joint] = start_s[tasks.joint].min(axis=1, keepdims=True)
    moments, step = np.unique(start_s, return_inverse=True)
    rows = Transfers(
        step.astype(np.int64),
        hops.src[tasks.hop],
        hops.dst[tasks.hop],
        tasks.chunk,
        np.ones(len(tasks), np.int64),
        tasks.reduce,
        np.zeros(len(tasks), np.bool_),
    )
    return Steps.from_transfers(hops.members, num_chunks, len(moments), rows.by_step())
