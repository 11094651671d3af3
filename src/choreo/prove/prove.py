"""The proof: replay over symbolic contributions, compare with the contract, and trace what is wrong.

Chunks are independent, so they are replayed in slices that fit in memory. Each place holds a multiset of contributions.
It is tracked exactly, by counting, if the collective does not sum or the ranks are few, and otherwise by a fingerprint:
each rank's contribution is a random number modulo a random prime P of 61 bits, and a place is right if its sum is. A
wrong multiset passes only if P divides all of its errors, or if a random sum hits one value of P. Of the 2.7e16 primes
to choose from, at most log2(error) / 60 divide an error. A wrong schedule is proved only if all its wrong places pass,
so the error probability of the verdict is below that of one place. Failures are then traced exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from choreo.errors import ContradictionError, ProofError, shown
from choreo.files import check_work
from choreo.prove.replay import AbsentError, Algebra, Counting, Fingerprint, replay
from choreo.prove.trace import can_be_traced, explain_absent, explain_wrong
from choreo.results import Result, result
from choreo.schedule import Schedule, check_schedule
from choreo.units import counted

__all__ = ["Proof", "prove"]

# Counting every contribution at every place takes members x chunks x ranks bytes; beyond this, fingerprints.
EXACT_BYTES = 1 << 22
# The memory limit of one slice of chunks.
SLICE_BYTES, ROW_BYTES = 1 << 28, 64
# The work of a chunk that is sent, relative to one that is only held.
MOVED = 4
HELD_BYTES = 16  # per place besides its value: whether it has one, should have one, and has the right one
# Trace at most this many wrong chunks to find the first step that goes wrong.
TRACED_CHUNKS, TRACED_RANKS = 16, 4096
# Beyond this many places, slices after the first failing one are not searched for an earlier failure.
SEARCHED_PLACES = 1 << 30


@result
class Proof(Result):
    """The proof that a schedule does what its collective promises.

    `method` is "exact" or "fingerprint". `error_probability` bounds the chance that a wrong schedule was proved.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "collective",
        "algorithm",
        "ranks",
        "root",
        "num_chunks",
        "num_steps",
        "num_transfers",
        "method",
        "error_probability",
    )

    collective: str
    algorithm: str
    ranks: int
    root: int | None
    num_chunks: int
    num_steps: int
    num_transfers: int
    method: str
    error_probability: float

    def summary(self) -> str:
        """The proof in one line: the schedule and the method."""
        how = "exactly" if self.method == "exact" else f"by fingerprint, error below {self.error_probability:.0e}"
        return (
            f"{how}: {self.collective} by {shown(self.algorithm)} over {counted(self.ranks, 'rank')}, "
            f"{counted(self.num_steps, 'step')}, {counted(self.num_transfers, 'transfer')}"
        )


def prove(schedule: Schedule, *, exact: bool | None = None) -> Proof:
    """Prove that a schedule does what its collective promises, or raise a `ProofError` that says why not.

    `exact=True` counts every contribution for any number of ranks. `exact=False` allows a fingerprint. By default,
    small cases are exact.

    >>> from choreo import build
    >>> prove(build("all_reduce", "ring", 4)).algorithm
    'ring'
    """
    check_schedule(schedule, "can be proved")
    algebra = _choose(schedule, exact)
    if schedule.file_bytes is not None:
        _check_work(schedule, algebra, schedule.file_bytes)
    failures: list[ProofError] = []
    transfers = 0
    for low, high in _slices(schedule, algebra):
        if failures and schedule.members * schedule.num_chunks > SEARCHED_PLACES:
            break
        try:
            places, transfers = replay(schedule, algebra, low, high)
        except AbsentError as absent:
            failures.append(explain_absent(schedule, absent))
            continue
        except ContradictionError as error:
            at = {"step": error.step, "rank": error.rank, "chunk": error.chunk}
            failures.append(ProofError(error.story, kind="contradiction", **at))
            continue
        right = algebra.right(places)
        wrong = schedule.held_after(low, high) & ~right
        chunks = low + np.flatnonzero(wrong.any(axis=0))
        if len(chunks) and not can_be_traced(schedule, int(chunks[0])):
            failures.append(_untraced(schedule, int(np.flatnonzero(wrong[:, chunks[0] - low])[0]), int(chunks[0])))
            continue
        traced = max(1, min(TRACED_CHUNKS, TRACED_RANKS // schedule.members))
        failures.extend(explain_wrong(schedule, int(chunk)) for chunk in chunks[:traced])
    if failures:
        raise min(failures, key=lambda failure: (failure.step, failure.rank, failure.chunk))
    return Proof(
        schedule.collective,
        schedule.algorithm,
        schedule.ranks,
        schedule.root,
        schedule.num_chunks,
        schedule.num_steps,
        transfers,
        algebra.name,
        _error_probability(schedule.num_steps, transfers) if algebra.name == "fingerprint" else 0.0,
    )


def _check_work(schedule: Schedule, algebra: Algebra, file_bytes: int) -> None:
    """Refuse a schedule from a file whose proof takes far more than its size would suggest."""
    places = schedule.members * schedule.num_chunks
    moved = sum(int(block.count.sum()) for block in schedule.blocks())
    what = (
        f"the proof of {schedule.collective} over {counted(schedule.members, 'member')} in "
        f"{counted(schedule.num_chunks, 'chunk')}, of which {moved} are sent,"
    )
    place_bytes = algebra.width * algebra.contributions.itemsize + HELD_BYTES
    check_work(what, (places + moved * MOVED) * place_bytes, file_bytes)


def _untraced(schedule: Schedule, rank: int, chunk: int) -> ProofError:
    last = max(schedule.num_steps - 1, 0)
    what = "the sum of" if schedule.contract.reduces else "just one of"
    story = (
        f"in the end, after step {last}: rank {rank} does not have {what} chunk {chunk}; among so many ranks or "
        "transfers it is not traced how, so try it with fewer"
    )
    return ProofError(story, kind="missing", step=last, rank=rank, chunk=chunk)


def _choose(schedule: Schedule, exact: bool | None) -> Algebra:
    if not schedule.contract.reduces:
        return Counting(1)
    if exact is None:
        exact = schedule.members * schedule.num_chunks * schedule.ranks <= EXACT_BYTES
    return (Counting if exact else Fingerprint)(schedule.ranks, schedule.members - schedule.ranks)


def _slices(schedule: Schedule, algebra: Algebra) -> Iterator[tuple[int, int]]:
    bytes_a_chunk = schedule.members * algebra.width * algebra.contributions.itemsize
    # A range of chunks that must be checked one by one takes another ROW_BYTES per chunk.
    width = max(1, min(SLICE_BYTES // bytes_a_chunk, SLICE_BYTES // ROW_BYTES))
    for low in range(0, schedule.num_chunks, width):
        yield low, min(low + width, schedule.num_chunks)


def _error_probability(num_steps: int, num_transfers: int) -> float:
    # In a step of r transfers a count grows at most (1 + r)-fold, so in all it has at most this many bits.
    bits = num_steps * math.log2(1 + num_transfers / max(1, num_steps))
    return 2.0**-60 + bits / 60 / 2.7e16
