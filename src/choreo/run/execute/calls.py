"""Calls made ready: a schedule compiled for this rank and this size, as the executor takes it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.algorithms import build
from choreo.errors import RefusedError
from choreo.run.execute.backend import program_type
from choreo.run.execute.program import Program, compile_program
from choreo.schedule import Schedule

if TYPE_CHECKING:
    from choreo.run.execute.twin.executor import Program as Prepared

__all__ = ["Call", "Failed", "Plan", "edges_of", "make_plan"]

Ints = npt.NDArray[np.int64]
# What a call may stage at once, and what it stages before it lets others read, if it is cut into parts at all; more
# where ranks share cores, because there a wait costs more.
SLOT_BYTES, PART_BYTES = 1 << 20, 64 << 10
# What went wrong, whose fault it is, and in which operation of the program.
Failed: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """What it takes to read a byte out of another process, and to reduce one from there; measured.

    1 is to stage a byte, or to store or reduce one that is staged. `least` is how many must be staged otherwise before
    it is worth the system calls.
    """

    store: float
    reduce: float
    least: int


def reading_of(vector_bytes: int, shares_cores: bool, passes_on: bool) -> Reading:
    """By whether caches hold the vector, and whether what was just reduced is read again: that is slow from a cache."""
    if shares_cores:
        return Reading(1.4, 1.7, 256 << 10) if vector_bytes >= 16 << 20 else Reading(1.6, 1.95, 256 << 10)
    if vector_bytes > 1 << 20:
        return Reading(1.2, 1.5, 48 << 10)
    return Reading(2.2, 2.2, 48 << 10) if passes_on else Reading(0.8, 1.6, 48 << 10)


@dataclass(frozen=True, slots=True)
class Call:
    """What every rank must agree on: the collective, its sizes in elements, the type, the operation and the root."""

    collective: str
    blocks: tuple[int, ...]  # elements of each block of the contract
    item_bytes: int
    dtype: int
    operation: int
    root: int | None
    algorithm: str
    averages: bool = False  # a sum that every rank divides in the end

    @property
    def signature(self) -> int:
        """The same number on every rank that makes the same call."""
        digest = blake2b(repr(self).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A call compiled for one rank.

    `stages` is whether it hands data over through staging; `copies`, whether it needs an input of its own, because it
    sends some of it after it has written work; `is_part`, whether its work is only this rank's part of the vector.
    """

    call: Call
    signature: int
    program: Program
    ready: Prepared  # the program as the executor takes it
    vector_bytes: int
    stages: bool
    copies: bool = False
    is_part: bool = False


def make_plan(
    call: Call,
    rank: int,
    world_size: int,
    remote: npt.NDArray[np.bool_],
    *,
    same: bool,
    stages: bool,
    part: tuple[int, int] | None = None,
) -> Plan:
    """Build the schedule and compile it for this rank: staged, or exposed where peers can read the arrays in place.

    `remote` are the peers that are reached through sockets; `same`, whether input and work are one array; `part`, the
    first byte and the length of all that this rank wants of the vector. How many parts a program has depends only on
    what all ranks know, since senders and receivers must agree.
    """
    schedule = _schedule(call.collective, call.algorithm, world_size, call.root)
    edges = edges_of(schedule, call.blocks, call.item_bytes)
    input_at = _input_at(schedule, edges)

    def compiled(parts: int) -> Program:
        exposes = remote | (not stages)
        item = call.item_bytes
        return compile_program(schedule, rank, edges, input_at, exposes, same=same, parts=parts, item_bytes=item)

    parts, cores = 1, os.cpu_count() or 1
    program = compiled(parts)
    at_once = min(SLOT_BYTES // 2, PART_BYTES * (2 if world_size > cores else 1))
    staged = int(program.traffic[0].max(initial=0))
    _, stored, reduced = program.traffic
    costs = reading_of(int(edges[-1]), world_size > cores, bool(stored.any() and reduced.any()))
    reads = staged > costs.least and (bool(remote.any()) or _reading_is_faster(program.traffic, costs, cores))
    if staged > 2 * at_once and not reads:
        parts = -(-staged // at_once)
        program = compiled(parts)
    if stages and (reads or program.traffic[0].max(initial=0) > SLOT_BYTES):
        stages = False
        program = compiled(parts)
    cut = None if part is None else program.within(*part)
    program = cut or program
    ready = program_type()(*program.as_bytes())
    return Plan(call, call.signature, program, ready, int(edges[-1]), stages, is_part=cut is not None)


def _reading_is_faster(traffic: Ints, costs: Reading, cores: int) -> bool:
    """Whether ranks that read each other's memory are done before ranks that stage; all ranks find the same."""
    staged, stored, reduced = traffic
    by_staging, by_reading = staged + stored + reduced, costs.store * stored + costs.reduce * reduced
    return bool(max(by_reading.max(), by_reading.sum() / cores) < max(by_staging.max(), by_staging.sum() / cores))


def edges_of(schedule: Schedule, blocks: tuple[int, ...], item_bytes: int) -> Ints:
    """Where each chunk begins in the logical vector, in bytes: blocks of these sizes, each cut into even chunks."""
    sizes = np.asarray(blocks, np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    a_block = schedule.chunks_a_block
    part = np.arange(a_block)
    if schedule.weights is None:
        inside = sizes[:, None] * part // a_block
    else:
        weights = schedule.weights.reshape(len(blocks), a_block)
        before = np.cumsum(weights, axis=1) - weights
        inside = sizes[:, None] * before // np.maximum(1, weights.sum(axis=1, keepdims=True))
    chunks = (starts[:-1, None] + inside).reshape(-1)
    return np.append(chunks, starts[-1]) * item_bytes


def _input_at(schedule: Schedule, edges: Ints) -> Ints:
    """Where in the logical vector each rank's input begins."""
    held = schedule.held_before()
    first = np.where(held.any(axis=1), held.argmax(axis=1), 0)
    return edges[first]


@lru_cache(maxsize=256)
def _schedule(collective: str, algorithm: str, world_size: int, root: int | None) -> Schedule:
    schedule = build(collective, algorithm, world_size, root=root)
    if schedule.switches:
        raise RefusedError(f"{collective} by {algorithm} needs switches that reduce, and there are none here")
    return schedule
