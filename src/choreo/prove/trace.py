"""Explain how a place went wrong, in a sentence.

One chunk is replayed exactly, remembering for every value what it was made from. From the place that ended up wrong the
explanation goes back to the transfer where a contribution was first counted twice, left out, or overwritten.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from choreo.errors import ProofError
from choreo.prove.replay import AbsentError
from choreo.schedule import Schedule

__all__ = ["can_be_traced", "explain_absent", "explain_wrong"]

TRACED_ROWS, TRACED_BYTES = 1 << 17, 1 << 28
# An explanation names at most this many ranks.
NAMED = 4
NEVER = -2  # less than the step of an input, which is -1


@dataclass(slots=True, eq=False)
class _Value:
    """The value of the chunk at a member from some step on, and the transfer that made it.

    `counts` says how often each contribution is in it, in the order of the ranks that have one to give. `holder` is the
    member in words, "rank 2" or "switch 0".
    """

    counts: npt.NDArray[np.uint8]
    rank: int
    holder: str
    step: int = -1
    source: _Value | None = None
    before: _Value | None = None
    reduced: bool = False
    from_input: bool = False


@dataclass(slots=True)
class _History:
    """All values each member held of one chunk, in order; `givers`, the ranks with a contribution, start with one."""

    givers: list[int]
    values: dict[int, list[_Value]] = field(default_factory=dict)
    inputs: dict[int, _Value] = field(default_factory=dict)

    def at(self, rank: int) -> _Value | None:
        held = self.values.get(rank)
        return held[-1] if held else None


def can_be_traced(schedule: Schedule, chunk: int) -> bool:
    """Whether a chunk can be explained quickly and in little memory: every value counts the contributions it has."""
    rows = sum(int(((b.chunk <= chunk) & (chunk < b.chunk + b.count)).sum()) for b in schedule.blocks())
    givers = len(_origins(schedule, chunk))
    return rows <= TRACED_ROWS and (givers + rows) * givers <= TRACED_BYTES


def explain_absent(schedule: Schedule, absent: AbsentError) -> ProofError:
    """Explain a transfer that sends absent data."""
    step, src, dst, chunk = absent.step, absent.src, absent.dst, absent.chunk
    sends = f"step {step}: {schedule.member_name(src)} sends chunk {chunk} to {schedule.member_name(dst)}"
    if absent.from_input:
        story = f"{sends} from its input, but {schedule.collective} gives it no input there"
    else:
        later = [s for s, _, d, _, _ in _transfers_of(schedule, chunk) if d == src and s >= step]
        if later and later[0] == step:
            arrives = "it arrives only in that same step"
        else:
            arrives = f"it arrives only in step {later[0]}" if later else "it never gets there"
        story = f"{sends} before it has it: {arrives}"
    return ProofError(story, kind="absent", step=step, rank=src, chunk=chunk)


def explain_wrong(schedule: Schedule, chunk: int) -> ProofError:
    """Explain a chunk that some rank ends up with wrongly, and what that rank ends up with.

    If there are several, it is about the rank whose wrong value was made first: the others often just received a copy.
    """
    given = _origins(schedule, chunk)
    history = _replay_chunk(schedule, chunk, given)
    due = schedule.held_after(chunk, chunk + 1)[:, 0].copy()
    # The step that made each member's value; num_steps if it has none.
    last_step = np.full(len(due), schedule.num_steps)
    for member, values in history.values.items():
        last_step[member] = values[-1].step
        due[member] &= not (values[-1].counts == 1).all()
    wrong = np.flatnonzero(due)
    assert len(wrong), f"chunk {chunk} of {schedule!r} failed the replay but not the trace"
    rank = int(wrong[np.argmin(last_step[wrong])])
    held = history.at(rank)
    if held is None:
        return _at_the_end(schedule, f"rank {rank} never receives chunk {chunk}", rank, chunk, given[0])
    doubled, missing = np.flatnonzero(held.counts > 1), np.flatnonzero(held.counts == 0)
    if len(doubled):
        error = _doubled(held, int(doubled[0]), given, chunk)
    else:
        error = _missing(schedule, history, held, place=int(missing[0]), chunk=chunk)
    symptoms = [(missing, "without the {}"), (doubled, "with the {} more than once")]
    ends = [how.format(_named([given[i] for i in which.tolist()])) for which, how in symptoms if len(which)]
    others = f" ({len(wrong)} of {schedule.ranks} ranks end up wrong)" if len(wrong) > 1 else ""
    error.tell(f"{error.story}; rank {rank} ends up {' and '.join(ends)}{others}")
    return error


def _origins(schedule: Schedule, chunk: int) -> list[int]:
    """The ranks that contribute to a chunk."""
    origins: list[int] = np.flatnonzero(schedule.held_before(chunk, chunk + 1)[:, 0]).tolist()
    return origins


def _named(ranks: list[int]) -> str:
    """A contribution, or several: at most a few are named."""
    if len(ranks) == 1:
        return f"contribution of rank {ranks[0]}"
    few = ", ".join(map(str, ranks[:NAMED])) + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")
    return f"contributions of ranks {few}"


def _transfers_of(schedule: Schedule, chunk: int) -> Iterator[tuple[int, int, int, bool, bool]]:
    """Step, src, dst, reduce and from_input of every transfer of one chunk, by step and src."""
    for block in schedule.blocks():
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


def _replay_chunk(schedule: Schedule, chunk: int, given: list[int]) -> _History:
    history = _History(given)
    for place, rank in enumerate(given):
        counts = np.zeros(len(given), np.uint8)
        counts[place] = 1
        history.inputs[rank] = _Value(counts, rank, schedule.member_name(rank))
        history.values[rank] = [history.inputs[rank]]
    for _, rows in itertools.groupby(_transfers_of(schedule, chunk), key=lambda row: row[0]):
        written: dict[int, list[_Value]] = {}  # what the step writes becomes visible at its end
        for step, src, dst, reduce, from_input in rows:
            source = history.inputs.get(src) if from_input else history.at(src)
            assert source is not None, "an absent value is reported before this"
            before = written[dst][-1] if dst in written else history.at(dst)
            counts = source.counts
            if reduce and before is not None:
                counts = np.minimum(before.counts + source.counts, 2)
            value = _Value(counts, dst, schedule.member_name(dst), step, source, before, reduce, from_input)
            written.setdefault(dst, []).append(value)
        for dst, values in written.items():
            history.values.setdefault(dst, []).extend(values)
    return history


def _doubled(held: _Value, place: int, given: list[int], chunk: int) -> ProofError:
    """Go back to the transfer that added a contribution to one that was already there."""
    while True:
        parents = [held.source] + ([held.before] if held.reduced else [])
        guilty = next((p for p in parents if p is not None and p.counts[place] > 1), None)
        if guilty is None:
            break
        held = guilty
    assert held.source is not None
    story = (
        f"step {held.step}: {held.holder} adds chunk {chunk} from {held.source.holder}, but both already have the "
        f"contribution of rank {given[place]}, which is now counted twice"
    )
    at = {"step": held.step, "rank": held.rank, "chunk": chunk}
    return ProofError(story, kind="doubled", contributor=given[place], **at)


def _missing(schedule: Schedule, history: _History, held: _Value, *, place: int, chunk: int) -> ProofError:
    """Go back through the value's history to where the contribution was sent too late, or overwritten."""
    made_of, contributor = _ancestry(held), history.givers[place]
    overwritten = _overwritten(history, made_of, held, chunk)
    if overwritten is not None:
        return overwritten
    with_it: dict[int, list[_Value]] = {}  # the values of each member that contain the contribution
    for value, source in made_of:
        if value.from_input:
            continue  # an input never gets anybody else's contribution, however long one waits
        if source.rank not in with_it:
            with_it[source.rank] = [v for v in history.values[source.rank] if v.counts[place]]
        held_with = with_it[source.rank]
        later = held_with[bisect_left(held_with, value.step, key=lambda v: v.step) :]
        if not later:
            continue
        reaches = f"only in step {later[0].step}" if later[0].step > value.step else "only in that same step"
        complete = next((v for v in later if (v.counts == 1).all()), None)
        if complete is not None and value is held and value.reduced:  # then it is rightly a partial sum
            story = (
                f"step {complete.step}: {source.holder} gets chunk {chunk} complete, but does not send it on to "
                f"{held.holder}, to which it last sent it in step {value.step}, without the contribution of rank "
                f"{contributor}"
            )
            return _miss(story, complete.step, source.rank, chunk, contributor)
        story = (
            f"step {value.step}: {source.holder} sends chunk {chunk} to {value.holder} before it has the "
            f"contribution of rank {contributor}, which reaches it {reaches} and is not sent on"
        )
        return _miss(story, value.step, source.rank, chunk, contributor)
    # Earlier values of the place itself, even if what replaced them was replaced in turn.
    at_place = [(value, value.source) for value in history.values[held.rank] if value.source is not None]
    once_there = _overwritten(history, at_place, held, chunk)
    return once_there or _dead_end(schedule, history, held, chunk)


def _overwritten(
    history: _History, transfers: list[tuple[_Value, _Value]], held: _Value, chunk: int
) -> ProofError | None:
    """The first of these transfers that overwrote a value with a contribution that is missing at the end."""
    missing = held.counts == 0
    for value, source in sorted(transfers, key=lambda pair: (pair[0].step, pair[0].rank)):
        if value.reduced or value.before is None:
            continue
        lost = np.flatnonzero(missing & (value.before.counts > 0))
        if len(lost):
            contributor = history.givers[int(lost[0])]
            story = (
                f"step {value.step}: {value.holder} stores chunk {chunk} from {source.holder} over what it has, and "
                f"loses the contribution of rank {contributor}"
            )
            return _miss(story, value.step, value.rank, chunk, contributor)
    return None


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


def _dead_end(schedule: Schedule, history: _History, held: _Value, chunk: int) -> ProofError:
    """Follow the missing contributions forwards. The one that travelled longest shows where the data was lost."""
    complete = [v for values in history.values.values() for v in values if v.step >= 0 and (v.counts == 1).all()]
    for value in sorted(complete, key=lambda v: (v.step, v.rank))[:1]:
        new = (held.counts == 0) & (value.before is None or value.before.counts == 0)
        if new.any():
            story = f"step {value.step}: {value.holder} gets chunk {chunk} complete, but nobody sends it on to "
            contributor = history.givers[int(np.flatnonzero(new)[0])]
            return _miss(f"{story}{held.holder}", value.step, value.rank, chunk, contributor)
    step, furthest, contributor = _longest_trail(history, held.counts == 0)
    if step < 0:
        story = (
            f"the contribution of rank {contributor} to chunk {chunk} has never reached rank {held.rank}: it never "
            f"leaves rank {contributor}"
        )
        return _at_the_end(schedule, story, held.rank, chunk, contributor)
    story = (
        f"step {step}: the contribution of rank {contributor} to chunk {chunk} gets as far as "
        f"{schedule.member_name(furthest)} and no further, so that it does not reach {held.holder}"
    )
    return _miss(story, step, furthest, chunk, contributor)


def _longest_trail(history: _History, missing: npt.NDArray[np.bool_]) -> tuple[int, int, int]:
    """The last step in which a missing contribution reaches a new member, that member, and whose contribution it is."""
    places = len(history.givers)
    last, furthest = np.full(places, NEVER), np.zeros(places, np.int64)
    for rank, values in history.values.items():
        first = np.full(places, NEVER)
        for value in values:
            first[(value.counts > 0) & (first == NEVER)] = value.step
        later = first > last
        last[later], furthest[later] = first[later], rank
    place = int(np.argmax(np.where(missing, last, NEVER)))
    return int(last[place]), int(furthest[place]), history.givers[place]


def _at_the_end(schedule: Schedule, story: str, rank: int, chunk: int, contributor: int) -> ProofError:
    """The story of an error that no single step explains: it shows after the last step."""
    last = schedule.num_steps - 1
    when = f"in the end, after step {last}" if last >= 0 else "in the end"
    return _miss(f"{when}: {story}", max(last, 0), rank, chunk, contributor)


def _miss(story: str, step: int, rank: int, chunk: int, contributor: int) -> ProofError:
    return ProofError(story, kind="missing", step=step, rank=rank, chunk=chunk, contributor=contributor)
