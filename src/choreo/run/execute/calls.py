"""Prepared calls: a schedule compiled for this rank and this size, as the executor takes it."""

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
from choreo.run.execute.backend import executor
from choreo.run.execute.compile import compile_program
from choreo.run.execute.program import Ints, Program
from choreo.schedule import Schedule

if TYPE_CHECKING:
    from choreo.run.execute import twin

__all__ = ["CallSpec", "Failed", "PreparedCall", "edges_of", "prepare_call"]

# How much a call may stage at once, and how much in one part, if it is cut into parts: so much that what was staged in
# a part's place before has left the caches of single cores by then.
SLOT_BYTES, PART_BYTES = 1 << 20, 512 << 10
# The outcome of a call that failed, the culprit, and the operation of the program.
Failed: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DirectReadCost:
    """The measured cost of storing, or of reducing, a byte that is read from another process's memory.

    The unit is what it costs to stage a byte, and to store or reduce a staged one. Fewer than `min_bytes` that would
    be staged otherwise are not worth the system calls.
    """

    store: float
    reduce: float
    min_bytes: int


def direct_read_cost(vector_bytes: int, shares_cores: bool) -> DirectReadCost:
    """Staging pays until memory is the limit rather than a core. Where ranks share cores, it means more waits.

    A byte that is staged and read costs 2, so 2.0 would be a tie, and rounding would decide it.
    """
    if vector_bytes > 64 << 20:
        return DirectReadCost(1.2, 1.5, 48 << 10)
    return DirectReadCost(2.4, 1.8, 1 << 20) if shares_cores else DirectReadCost(2.4, 2.2, 48 << 10)


@dataclass(frozen=True, slots=True)
class CallSpec:
    """The arguments that all ranks must agree on: collective, sizes in elements, element type, operation and root."""

    collective: str
    blocks: tuple[int, ...]  # elements of each block of the contract
    item_bytes: int
    dtype: int
    operation: int
    root: int | None
    algorithm: str
    averages: bool = False  # a sum that every rank divides in the end
    step_of: str = ""  # the call that this is a step of, like "new_group"

    @property
    def signature(self) -> int:
        """The same number on every rank that makes the same call."""
        digest = blake2b(repr(self).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True, eq=False)
class PreparedCall:
    """A call compiled for one rank.

    `stages`: data is handed over through staging. `copies`: it needs an input of its own, because it sends some of it
    after work was written. `is_part`: its work array is only this rank's part of the vector.
    """

    call: CallSpec
    signature: int
    program: Program
    ready: twin.Program  # the program as the executor takes it
    vector_bytes: int
    stages: bool
    copies: bool = False
    is_part: bool = False


def prepare_call(
    call: CallSpec,
    rank: int,
    world_size: int,
    remote: npt.NDArray[np.bool_],
    *,
    same: bool,
    stages: bool,
    part: tuple[int, int] | None = None,
) -> PreparedCall:
    """Build the schedule and compile it for this rank: staged, or exposed where peers can read the arrays in place.

    `remote` are the peers that are reached through sockets. `same`: input and work are one array. `part` is the first
    byte and the length of what this rank wants of the vector, if that is not all. How many parts a program has depends
    only on what all ranks know, because senders and receivers must agree.
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
    staged = int(program.traffic[0].max(initial=0))
    costs = direct_read_cost(int(edges[-1]), world_size > cores)
    reads = staged > costs.min_bytes and (bool(remote.any()) or _direct_read_is_faster(program.traffic, costs, cores))
    if staged > 2 * PART_BYTES and not reads:
        parts = -(-staged // PART_BYTES)
        program = compiled(parts)
    if stages and (reads or program.traffic[0].max(initial=0) > SLOT_BYTES):
        stages = False
        program = compiled(parts)
    cut = None if part is None else program.within(*part)
    program = cut or program
    ready = executor().Program(*program.as_bytes())
    return PreparedCall(call, call.signature, program, ready, int(edges[-1]), stages, is_part=cut is not None)


def _direct_read_is_faster(traffic: Ints, costs: DirectReadCost, cores: int) -> bool:
    """Whether ranks that read each other's memory finish before ranks that stage. All ranks find the same."""
    staged, stored, reduced = traffic
    by_staging, by_reading = staged + stored + reduced, costs.store * stored + costs.reduce * reduced
    return bool(max(by_reading.max(), by_reading.sum() / cores) < max(by_staging.max(), by_staging.sum() / cores))


def edges_of(schedule: Schedule, blocks: tuple[int, ...], item_bytes: int) -> Ints:
    """The offset of each chunk in the logical vector, in bytes: blocks of these sizes, each cut into even chunks."""
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
    """The offset in the logical vector of each rank's input."""
    held = schedule.held_before()
    first = np.where(held.any(axis=1), held.argmax(axis=1), 0)
    return edges[first]


@lru_cache(maxsize=256)
def _schedule(collective: str, algorithm: str, world_size: int, root: int | None) -> Schedule:
    schedule = build(collective, algorithm, world_size, root=root)
    if schedule.switches:
        raise RefusedError(f"{collective} by {algorithm} needs switches that reduce, and there are none here")
    return schedule
