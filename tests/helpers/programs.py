"""Programs run in this process, operation by operation in any order that waits allow; and executors in real ones."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import random
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.run.execute import backend, twin
from choreo.run.execute.calls import edges_of
from choreo.run.execute.compile import compile_program
from choreo.run.execute.layout import (
    ALREADY_STAGED,
    COPY,
    FROM_SCRATCH,
    LAST,
    NEXT_PART,
    OWN_INPUT,
    RECEIVE,
    REDUCE,
    SEND,
    THEIR_INPUT,
    TO_SCRATCH,
)
from choreo.run.execute.program import Program
from choreo.schedule import Schedule

Array = npt.NDArray[Any]
PAGE = 4096
STAGE_BYTES = 1 << 17
COMPILED, TWIN = True, False
EMPTY = -(10**9)


def places(schedule: Schedule, count: int, item_bytes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each chunk begins, for `count` elements a block, and where each rank's input does; in bytes."""
    blocks = schedule.num_chunks // schedule.chunks_a_block
    edges = edges_of(schedule, (count,) * blocks, item_bytes)
    held = schedule.held_before()
    return edges, edges[np.where(held.any(axis=1), held.argmax(axis=1), 0)]


def spans(schedule: Schedule, edges: npt.NDArray[np.int64], item_bytes: int) -> list[slice]:
    """What each rank holds at the start, in elements of the whole vector."""
    found = []
    for row in schedule.held_before():
        held = np.flatnonzero(row)
        low, high = (int(edges[held[0]]), int(edges[held[-1] + 1])) if len(held) else (0, 0)
        found.append(slice(low // item_bytes, high // item_bytes))
    return found


def replay(
    schedule: Schedule, edges: npt.NDArray[np.int64], vectors: list[Array], reduce: Callable[[Array, Array], Array]
) -> tuple[list[Array], npt.NDArray[np.bool_]]:
    """What every rank has in the end, and where: step by step, in order of source; the bits that any run must have."""
    held = schedule.held_before()
    item = vectors[0].itemsize
    work, full = [vector.copy() for vector in vectors], held.copy()
    for rows in schedule.steps():
        senders = set(rows.src.tolist())
        before, had = {rank: work[rank].copy() for rank in senders}, full.copy()
        columns = (rows.src, rows.dst, rows.chunk, rows.count, rows.reduce, rows.from_input)
        for src, dst, chunk, count, adds, from_input in sorted(zip(*(c.tolist() for c in columns), strict=True)):
            for one in range(chunk, chunk + count):
                part = slice(int(edges[one]) // item, int(edges[one + 1]) // item)
                data = (vectors[src] if from_input else before[src])[part]
                assert from_input or had[src, one]
                work[dst][part] = reduce(work[dst][part], data) if adds and full[dst, one] else data
                full[dst, one] = True
    return work, full


@dataclass
class Emulation:
    """All ranks of a schedule in one process; who exposes its data to whom is given."""

    schedule: Schedule
    count: int
    exposes: npt.NDArray[np.bool_]
    same: bool
    seed: int
    parts: int = 1
    programs: list[Program] = field(init=False)

    def __post_init__(self) -> None:
        ranks = self.schedule.ranks
        self.random = random.Random(self.seed)
        edges, input_at = places(self.schedule, self.count, 8)
        self.edges = edges
        self.programs = [
            compile_program(
                self.schedule,
                rank,
                edges,
                np.zeros_like(input_at) if self.same else input_at,
                self.exposes[rank],
                same=self.same,
                parts=self.parts,
                item_bytes=8,
            )
            for rank in range(ranks)
        ]
        generator = np.random.default_rng(self.seed)
        size = int(edges[-1]) // 8
        self.vectors = [generator.integers(0, 1000, size) for _ in range(ranks)]
        self.inputs, self.work = [], []
        for vector, span in zip(self.vectors, spans(self.schedule, edges, 8), strict=True):
            work = np.full(size, EMPTY)
            if self.same:
                work[span] = vector[span]
            self.inputs.append(work if self.same else vector[span].copy())
            self.work.append(work)
        self.ready, self.consumed = np.zeros((ranks, ranks), int), np.zeros((ranks, ranks), int)
        self.staging = [np.full((2, program.stage_bytes // 8), EMPTY) for program in self.programs]
        self.slot, self.sent_by = [0] * ranks, np.zeros((ranks, 2, ranks), int)
        self.scratch = [np.full(program.scratch_bytes // 8, EMPTY) for program in self.programs]
        self.at = [0] * ranks
        self.ops = [
            [dict(zip(program.ops.dtype.names or (), op, strict=True)) for op in program.ops.tolist()]
            for program in self.programs
        ]

    def run(self) -> list[Array]:
        """Ranks take turns at random, several operations at a time, until all are through."""
        live = [rank for rank in range(self.schedule.ranks) if len(self.programs[rank].ops)]
        while live:
            self.random.shuffle(live)
            moved = False
            for rank in live:
                for _ in range(self.random.randint(1, 5)):
                    if self.at[rank] < len(self.programs[rank].ops) and self._step(rank):
                        self.at[rank] += 1
                        moved = True
                if moved:
                    break
            assert moved, f"everybody waits: {[self.programs[rank].ops[self.at[rank]] for rank in live]}"
            live = [rank for rank in live if self.at[rank] < len(self.programs[rank].ops)]
        return self.work

    def _step(self, rank: int) -> bool:
        """One operation; False if it has to wait."""
        op = self.ops[rank][self.at[rank]]
        kind, flags, peer, length = op["kind"], op["flags"], op["peer"], op["length"]
        own = self.inputs[rank] if flags & OWN_INPUT else self.work[rank]
        if kind == SEND:
            if not self.exposes[rank, peer] and not flags & ALREADY_STAGED:
                _part(self.staging[rank][self.slot[rank]], op["staged"], length)[:] = _part(own, op["at"], length)
            if flags & LAST:
                self.ready[rank, peer] += 1
                assert self.ready[rank, peer] == op["number"]
            return True
        if kind == NEXT_PART:
            return self._part_begins(rank)
        if kind == COPY:
            _part(self.work[rank], op["at"], length)[:] = _part(self.inputs[rank], op["base"], length)
            return True
        return self._take(rank, op, own)

    def _part_begins(self, rank: int) -> bool:
        self.sent_by[rank, self.slot[rank]] = self.ready[rank]
        if (self.consumed[:, rank] < self.sent_by[rank, self.slot[rank] ^ 1]).any():
            return False
        self.slot[rank] ^= 1
        self.staging[rank][self.slot[rank]] = EMPTY
        return True

    def _take(self, rank: int, op: dict[str, int], own: Array) -> bool:
        program, kind, flags, peer, length = (self.programs[rank], op["kind"], op["flags"], op["peer"], op["length"])
        guards = program.guards[op["first_guard"] : op["first_guard"] + op["guards"]].tolist()
        if any(self.consumed[who, rank] < number for who, number in guards):
            return False
        if kind == FROM_SCRATCH:
            data = _part(self.scratch[rank], op["there"], length)
        elif self.ready[peer, rank] < op["number"]:
            return False
        elif self.exposes[peer, rank]:
            data = _part(self.inputs[peer] if flags & THEIR_INPUT else self.work[peer], op["there"], length)
        else:
            data = _part(self.staging[peer][self.slot[rank]], op["staged"], length)
        assert not (data == EMPTY).any()
        if kind == TO_SCRATCH:
            _part(self.scratch[rank], op["at"], length)[:] = data
        else:
            base = _part(own, op["base"], length) if flags & REDUCE else 0
            _part(self.work[rank], op["at"], length)[:] = base + data
        if kind in (RECEIVE, TO_SCRATCH) and flags & LAST:
            self.consumed[rank, peer] += 1
        return True


def _part(array: Array, at: int, length: int) -> Array:
    assert at % 8 == 0
    assert 0 <= at <= at + length <= 8 * len(array), "within its array"
    return array[at // 8 : (at + length) // 8]


# Executors, each in a process of its own.


@dataclass
class Rank:
    """What a test's body gets in its process."""

    rank: int
    world: int
    endpoint: twin.Endpoint
    compiled: bool
    segment: mmap.mmap
    peers: list[tuple[Any, int, int, tuple[int, ...]]]
    hosts: Sequence[int]
    calls: int = 0

    @property
    def remote(self) -> npt.NDArray[np.bool_]:
        """Peers on other hosts."""
        return np.array([host != self.hosts[self.rank] for host in self.hosts])

    def heap(self, count: int, dtype: Any, at: int = 0) -> Array:
        """An array that peers can read where it is."""
        return np.frombuffer(self.segment, dtype, count, heap_at(self.world) + at)

    def prepared(self, program: Program) -> twin.Program:
        """A program as this rank's executor takes it."""
        return backend.executor(self.compiled).Program(*program.as_bytes())

    def collective(
        self,
        schedule: Schedule,
        count: int,
        given: Array | None,
        work: Array | None,
        *,
        item: int,
        dtype: int,
        operation: int = 0,
        stages: bool = True,
        signature: int = 7,
        timeout_s: float = 20.0,
        parts: int = 1,
    ) -> tuple[int, int, int] | None:
        """Compile and run a schedule, `count` elements a block."""
        edges, input_at = places(schedule, count, item)
        same = given is work
        program = compile_program(
            schedule,
            self.rank,
            edges,
            np.zeros_like(input_at) if same else input_at,
            self.remote | (not stages),
            same=same,
            parts=parts,
            item_bytes=item,
        )
        self.calls += 1
        return self.endpoint.run(
            self.calls, signature, self.prepared(program), given, work, dtype, operation, timeout_s, stages
        )


def heap_at(world: int) -> int:
    """Where the heap of a segment begins."""
    return PAGE + -(-576 * world // PAGE) * PAGE + STAGE_BYTES


def segment_of(world: int, heap_bytes: int = 0) -> mmap.mmap:
    """A segment that forks share."""
    return mmap.mmap(-1, heap_at(world) + heap_bytes)


def run_ranks(  # noqa: PLR0912 - what is started is ended here, whatever happens
    kinds: Sequence[bool],
    body: Callable[[Rank], Any],
    *,
    hosts: Sequence[int] | None = None,
    heap_bytes: int = 0,
    timeout_s: float = 60,
) -> list[Any]:
    """Run the body in a process a rank, compiled or twin; what they return. Ranks of other hosts have only sockets."""
    world, at = len(kinds), hosts or [0] * len(kinds)
    context = multiprocessing.get_context("fork")
    segments = [segment_of(world, heap_bytes) for _ in kinds]
    wires: dict[tuple[int, int], list[socket.socket]] = {}  # control, and two streams
    for low in range(world):
        for high in range(low + 1, world):
            if at[low] != at[high]:
                pairs = [socket.socketpair() for _ in range(3)]
                wires[low, high], wires[high, low] = [one for one, _ in pairs], [one for _, one in pairs]
    pipes = [context.Pipe() for _ in kinds]
    started = [
        context.Process(target=_rank, args=(rank, kinds, at, segments, wires, pipes, body), daemon=True)
        for rank in range(world)
    ]
    for one in started:
        one.start()
    for _, end in pipes:
        end.close()
    for wire in (one for several in wires.values() for one in several):
        wire.close()
    try:
        for here, _ in pipes:
            here.send([one.pid for one in started])
        for _ in range(2):  # prepared, and connected
            for here, _ in pipes:
                _answer(here, timeout_s)
            for here, _ in pipes:
                here.send(None)
        found = [_answer(here, timeout_s, told=True) for here, _ in pipes]
        wrong = [one for one in found if isinstance(one, Wrong)]
        assert not wrong, "\n".join(one.story for one in wrong)
        return found
    finally:
        for one in started:
            one.kill()
            one.join()
        for here, _ in pipes:
            here.close()


@dataclass
class Wrong:
    """What went wrong in a rank."""

    story: str


def _answer(pipe: Connection, timeout_s: float, told: bool = False) -> Any:
    assert wait([pipe], timeout_s), "a rank does not answer"
    try:
        fine, value = pipe.recv()
    except EOFError:
        return "died"
    assert fine or told, value
    return value if fine else Wrong(value)


def _rank(
    rank: int,
    kinds: Sequence[bool],
    hosts: Sequence[int],
    segments: list[mmap.mmap],
    wires: dict[tuple[int, int], list[socket.socket]],
    pipes: list[tuple[Connection, Connection]],
    body: Callable[[Rank], Any],
) -> None:
    for number, (here, there) in enumerate(pipes):
        here.close()
        if number != rank:
            there.close()
    for (owner, _), several in wires.items():
        for wire in several if owner != rank else ():
            wire.close()
    pipe = pipes[rank][1]
    try:
        pids = pipe.recv()
        backend.executor(kinds[rank]).prepare_segment(segments[rank], rank, len(kinds), STAGE_BYTES)
        pipe.send((True, None))
        pipe.recv()
        peers = []
        for number, pid in enumerate(pids):
            local = number != rank and hosts[number] == hosts[rank]
            mine = wires.get((rank, number), [])
            peers.append(
                (
                    segments[number] if local else None,
                    pid,
                    os.pidfd_open(pid) if local else os.dup(mine[0].fileno()) if mine else -1,
                    tuple(wire.fileno() for wire in mine[1:]),
                )
            )
        endpoint = backend.executor(kinds[rank]).Endpoint(rank, len(kinds), segments[rank], STAGE_BYTES, peers, 20)
        pipe.send((True, None))
        pipe.recv()
        pipe.send((True, body(Rank(rank, len(kinds), endpoint, kinds[rank], segments[rank], peers, hosts))))
        with contextlib.suppress(EOFError):
            pipe.recv()  # nobody goes before all have answered
    except BaseException:  # told to the test, whatever it is
        pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))
