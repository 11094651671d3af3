"""Programs run in this process, operation by operation, in any order that their waits allow."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

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
