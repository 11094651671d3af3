"""How a wrong place came to be wrong, told as a short story.

One chunk is replayed exactly, remembering for every value what it was made from. From the place that ended up wrong
the story goes back to the transfer where a contribution was first counted twice, left out, or overwritten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from choreo.errors import ProofError
from choreo.prove.replay import AbsentError
from choreo.schedule import Schedule

__all__ = ["explain_absent", "explain_wrong"]


@dataclass(slots=True, eq=False)
class _Value:
    """What a rank held of the chunk from some step on: how often each contribution is in it, and what made it."""

    counts: npt.NDArray[np.uint8]
    rank: int
    step: int = -1
    source: _Value | None = None
    before: _Value | None = None
    reduced: bool = False
    from_input: bool = False


@dataclass(slots=True)
class _History:
    """All values each rank held of one chunk, in order; a rank that was given nothing starts with none."""

    values: dict[int, list[_Value]] = field(default_factory=dict)
    inputs: dict[int, _Value] = field(default_factory=dict)

    def at(self, rank: int) -> _Value | None:
        held = self.values.get(rank)
        return held[-1] if held else None


def explain_absent(schedule: Schedule, absent: AbsentError) -> ProofError:
    """The story of a transfer that sends what is not there."""
    step, src, dst, chunk = absent.step, absent.src, absent.dst, absent.chunk
    told = f"step {step}: rank {src} sends chunk {chunk} to rank {dst}"
    if absent.from_input:
        story = f"{told} from its input, but {schedule.collective} gives it no input there"
    else:
        later = [s for s, _, d, _, _ in _transfers_of(schedule, chunk) if d == src and s >= step]
        arrives = f"it arrives only in step {later[0]}" if later else "it never arrives there"
        story = f"{told} before it has it: {arrives}"
    return ProofError(story, kind="absent", step=step, rank=src, chunk=chunk)


def explain_wrong(schedule: Schedule, chunk: int) -> ProofError:
    """The story of a chunk that some rank ends up with wrongly.

    Of several such ranks it is told for the one whose wrong value was made first: the others often only got a copy.
    """
    given = schedule.held_before(chunk, chunk + 1)[:, 0]
    history = _replay_chunk(schedule, chunk, given)
    wrong: list[tuple[int, int]] = []
    for rank in np.flatnonzero(schedule.held_after(chunk, chunk + 1)[:, 0]).tolist():
        held = history.at(rank)
        if held is None or not np.array_equal(held.counts, given):
            wrong.append((schedule.num_steps if held is None else held.step, rank))
    assert wrong, f"chunk {chunk} of {schedule!r} failed the replay but not the trace"
    rank = min(wrong)[1]
    held = history.at(rank)
    if held is None:
        last = max(schedule.num_steps - 1, 0)
        story = f"after the last step, {last}: rank {rank} never receives chunk {chunk}"
        return _miss(story, last, rank, chunk, int(np.flatnonzero(given)[0]))
    doubled = np.flatnonzero(held.counts > 1)
    if len(doubled):
        return _doubled(held, int(doubled[0]), chunk)
    missing = np.flatnonzero(given & (held.counts == 0))
    return _missing(schedule, history, held, int(missing[0]), chunk)


def _transfers_of(schedule: Schedule, chunk: int) -> Iterator[tuple[int, int, int, bool, bool]]:
    """Step, src, dst, reduce and from_input of every transfer of one chunk, by step and src."""
    for block in schedule.body.blocks():
        rows = block.take((block.chunk <= chunk) & (chunk < block.chunk + block.count))
        rows = rows.take(np.lexsort((rows.src, rows.step)))
        yield from zip(
            rows.step.tolist(),
            rows.src.tolist(),
            rows.dst.tolist(),
            rows.reduce.tolist(),
            rows.from_input.tolist(),
            strict=True,
        )


def _replay_chunk(schedule: Schedule, chunk: int, given: npt.NDArray[np.bool_]) -> _History:
    history = _History()
    for rank in np.flatnonzero(given).tolist():
        counts = np.zeros(schedule.ranks, np.uint8)
        counts[rank] = 1
        history.inputs[rank] = _Value(counts, rank)
        history.values[rank] = [history.inputs[rank]]
    step_now, held_before = -1, dict[int, _Value | None]()
    for step, src, dst, reduce, from_input in _transfers_of(schedule, chunk):
        if step != step_now:
            step_now, held_before = step, {rank: held[-1] for rank, held in history.values.items()}
        source = history.inputs.get(src) if from_input else held_before.get(src)
        assert source is not None, "an absent value is reported before this"
        before = history.at(dst)
        counts = source.counts
        if reduce and before is not None:
            counts = np.minimum(before.counts + source.counts, 2)
        history.values.setdefault(dst, []).append(_Value(counts, dst, step, source, before, reduce, from_input))
    return history


def _doubled(held: _Value, contributor: int, chunk: int) -> ProofError:
    """Go back to the transfer that added a contribution to one that was already there."""
    while True:
        parents = [held.source] + ([held.before] if held.reduced else [])
        guilty = next((p for p in parents if p is not None and p.counts[contributor] > 1), None)
        if guilty is None:
            break
        held = guilty
    assert held.source is not None
    story = (
        f"step {held.step}: rank {held.rank} adds chunk {chunk} from rank {held.source.rank}, but both already have "
        f"the contribution of rank {contributor}, which is now counted twice"
    )
    return ProofError(story, kind="doubled", step=held.step, rank=held.rank, chunk=chunk, contributor=contributor)


def _missing(schedule: Schedule, history: _History, held: _Value, contributor: int, chunk: int) -> ProofError:
    """Go back through what the value was made of to where the contribution was not waited for, or overwritten."""
    made_of = _ancestry(held)
    for value, source in made_of:
        if value.from_input:
            continue  # an input never gets anybody else's contribution, however long one waits
        later = (v.step for v in history.values[source.rank] if v.step >= value.step and v.counts[contributor])
        arrives = next(later, None)
        if arrives is not None:
            story = (
                f"step {value.step}: rank {source.rank} sends chunk {chunk} to rank {value.rank} before it has the "
                f"contribution of rank {contributor}, which reaches it only in step {arrives} and is not sent on"
            )
            return _miss(story, value.step, source.rank, chunk, contributor)
    # What the wanted place itself once had counts too, even if the value that replaced it was replaced in turn.
    at_place = [(value, value.source) for value in history.values[held.rank] if value.source is not None]
    for value, source in (*made_of, *at_place):
        if not value.reduced and value.before is not None and value.before.counts[contributor]:
            story = (
                f"step {value.step}: rank {value.rank} stores chunk {chunk} from rank {source.rank} over what it has, "
                f"and loses the contribution of rank {contributor}"
            )
            return _miss(story, value.step, value.rank, chunk, contributor)
    return _dead_end(schedule, history, held.rank, contributor, chunk)


def _ancestry(held: _Value) -> list[tuple[_Value, _Value]]:
    """Every transfer a value was made by, as the value it made and the value it carried, the latest first."""
    found: list[tuple[_Value, _Value]] = []
    queue, seen = deque([held]), {id(held)}
    while queue:
        value = queue.popleft()
        if value.source is None:
            continue
        found.append((value, value.source))
        for parent in (value.source, value.before if value.reduced else None):
            if parent is not None and id(parent) not in seen:
                seen.add(id(parent))
                queue.append(parent)
    return found


def _dead_end(schedule: Schedule, history: _History, rank: int, contributor: int, chunk: int) -> ProofError:
    """Follow the contribution forwards to the last rank it reaches."""
    first = {r: next((v.step for v in held if v.counts[contributor]), None) for r, held in history.values.items()}
    reached = {r: step for r, step in first.items() if step is not None}
    furthest = max(reached, key=lambda r: reached[r])
    if reached[furthest] < 0:
        last = max(schedule.num_steps - 1, 0)
        story = (
            f"after the last step, {last}: the contribution of rank {contributor} to chunk {chunk} has never reached "
            f"rank {rank}: it never leaves rank {contributor}"
        )
        return _miss(story, last, rank, chunk, contributor)
    story = (
        f"step {reached[furthest]}: the contribution of rank {contributor} to chunk {chunk} gets as far as rank "
        f"{furthest} and no further, so that it does not reach rank {rank}"
    )
    return _miss(story, reached[furthest], furthest, chunk, contributor)


def _miss(story: str, step: int, rank: int, chunk: int, contributor: int) -> ProofError:
    return ProofError(story, kind="missing", step=step, rank=rank, chunk=chunk, contributor=contributor)
