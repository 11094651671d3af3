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
from choreo.prove.replay import AbsentError, inputs, wanted
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
    """The story of a chunk that some rank ends up with wrongly."""
    given = inputs(schedule, chunk, chunk + 1)[:, 0]
    history = _replay_chunk(schedule, chunk, given)
    stories = []
    for rank in np.flatnonzero(wanted(schedule, chunk, chunk + 1)[:, 0]).tolist():
        held = history.at(rank)
        counts = np.zeros(schedule.ranks, np.uint8) if held is None else held.counts
        doubled, missing = np.flatnonzero(counts > 1), np.flatnonzero((counts == 0) & given)
        if len(doubled):
            assert held is not None
            stories.append(_doubled(held, int(doubled[0]), chunk))
        elif len(missing):
            stories.append(_missing(schedule, history, rank, int(missing[0]), chunk))
    assert stories, f"chunk {chunk} of {schedule!r} failed the replay but not the trace"
    return min(stories, key=lambda story: (story.step, story.rank))


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
        history.values.setdefault(dst, []).append(_Value(counts, dst, step, source, before, reduce))
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


def _missing(schedule: Schedule, history: _History, rank: int, contributor: int, chunk: int) -> ProofError:
    """Go back through what the value was made of to where the contribution was overwritten or not waited for."""
    held = history.at(rank)
    queue = deque([held] if held is not None else [])
    seen = {id(value) for value in queue}
    while queue:
        value = queue.popleft()
        source, before = value.source, value.before
        if source is None:
            continue
        told = f"step {value.step}: rank {{}} chunk {chunk} {{}} rank {{}}"
        if not value.reduced and before is not None and before.counts[contributor]:
            story = (
                told.format(value.rank, "from", source.rank).replace(" chunk", " stores chunk", 1)
                + f" over what it has, and loses the contribution of rank {contributor}"
            )
            return _miss(story, value.step, value.rank, chunk, contributor)
        later = (v.step for v in history.values[source.rank] if v.step >= value.step and v.counts[contributor])
        arrives = next(later, None)
        if arrives is not None:
            story = (
                told.format(source.rank, "to", value.rank).replace(" chunk", " sends chunk", 1)
                + f" before it has the contribution of rank {contributor}, which reaches it only in step {arrives}"
            )
            return _miss(story, value.step, source.rank, chunk, contributor)
        for parent in (source, before if value.reduced else None):
            if parent is not None and id(parent) not in seen:
                seen.add(id(parent))
                queue.append(parent)
    last = schedule.num_steps - 1
    if held is None:
        story = f"after the last step, {last}: rank {rank} never receives chunk {chunk}"
    else:
        story = (
            f"after the last step, {last}: the contribution of rank {contributor} to chunk {chunk} has never reached "
            f"rank {rank}"
        )
    return _miss(story, max(last, 0), rank, chunk, contributor)


def _miss(story: str, step: int, rank: int, chunk: int, contributor: int) -> ProofError:
    return ProofError(story, kind="missing", step=step, rank=rank, chunk=chunk, contributor=contributor)
