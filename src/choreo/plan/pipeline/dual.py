"""DualPipe and DualPipeV: micro-batches flow through the stages from both ends, and a forward runs beside a backward.

    dualpipe     p devices hold p stages twice: device i has stages i and p - 1 - i, and half of the micro-batches start
                 at either end
    dualpipev    p devices hold 2p stages once, in the shape of a V: device i has stages i and 2p - 1 - i

Either way a device has a near chunk, whose micro-batches come by early, and a far one. A forward and a backward of
different chunks run side by side, so that one communicates while the other computes; both end when the pair does. With
P stages along the way, equal ones, F, B and its weight gradients W each, the idle time is

    (P / 2 - 1)(F + B + B - 3W)

and P + 1 passes are in flight at every device. Source: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from choreo.plan.pipeline.passes import PassCosts, Pipeline, PipelinePass

__all__ = ["DUAL", "dual_ranks", "simulate_dual"]

DUAL = ("dualpipe", "dualpipev")
# A full backward, or only the gradients of its input; the weights' then follow as a pass of their own.
FORWARD, BACKWARD, INPUT, WEIGHTS = "F", "B", "I", "W"
Work = tuple[str, int, int]  # kind, micro-batch, chunk
Unit = tuple[Work, ...]  # one pass, or two that run side by side


def dual_ranks(schedule: str, stages: int) -> int:
    """Stages along the way of a micro-batch."""
    return stages if schedule == "dualpipe" else 2 * stages


def simulate_dual(schedule: str, rounds: int, costs: PassCosts, *, keep: bool = False) -> Pipeline:
    """Run the passes; `costs` by device and chunk. A round is one micro-batch through each chunk of a device.

    >>> costs = PassCosts([[1.0] * 2] * 4, [[2.0] * 2] * 4, [[1.0] * 2] * 4, 0.0, 0.0, True)
    >>> simulate_dual("dualpipe", 8, costs).bubble_s, simulate_dual("dualpipev", 8, costs).bubble_s
    (2.0, 6.0)
    """
    return _Dual(schedule, rounds, costs, keep).run()


@lru_cache(maxsize=64)
def _orders(schedule: str, stages: int, rounds: int) -> tuple[tuple[Unit, ...], ...]:
    ways = dual_ranks(schedule, stages)
    both = schedule == "dualpipe"
    found = []
    for stage in range(stages):
        near = 1 if both and 2 * stage >= stages else 0
        units = _units(min(stage, ways - 1 - stage), ways // 2, rounds)
        found.append(tuple(_numbered(units, near, rounds if both else 0)))
    return tuple(found)


def _units(place: int, halves: int, rounds: int) -> Iterator[tuple[str, ...]]:
    """Passes of a device in order, as letters: near chunks small, far ones large; w are the weights owed longest.

    `place` counts from the end of the pipeline that is nearer. The further a device is from the middle, the longer it
    waits for the first micro-batch from the other end.
    """
    inner = halves - place - 1
    yield from [("f",)] * (2 * inner)
    yield from [("f",), ("F",)] * (place + 1)
    yield from [("I",), ("w",), ("F",)] * inner
    yield from [("f", "B"), ("F", "b")] * (rounds - 2 * halves + place + 1)
    yield from [("B",), ("F", "b")] * inner
    # The second half of these postpone their weight gradients, which then fill the waits at the end.
    for number in range(2 * (place + 1)):
        kind = "b" if number <= place else "i"
        yield (kind.upper() if number % 2 == 0 else kind,)
    yield from [("w",), ("i",)] * inner
    yield from [("w",)] * (place + 1)


def _numbered(units: Iterator[tuple[str, ...]], near: int, apart: int) -> Iterator[Unit]:
    """The units with micro-batches and chunks. Micro-batches of the second chunk are numbered from `apart`."""
    done: dict[tuple[bool, int], int] = {}
    owed: list[tuple[int, int]] = []
    for unit in units:
        works: list[Work] = []
        for letter in unit:
            kind = letter.upper()
            if kind == WEIGHTS:
                works.append((kind, *owed.pop(0)))
                continue
            chunk = near if letter.islower() else 1 - near
            number = done.get((kind == FORWARD, chunk), 0)
            done[kind == FORWARD, chunk] = number + 1
            works.append((kind, number + apart * chunk, chunk))
            if kind == INPUT:
                owed.append((number + apart * chunk, chunk))
        yield tuple(works)


@dataclass(frozen=True, slots=True)
class _Dual:
    """The state of a simulation: the next unit of each device, and when each pass ended."""

    schedule: str
    rounds: int
    costs: PassCosts
    keep: bool

    def run(self) -> Pipeline:
        costs = self.costs
        stages = len(costs.forward_s)
        order = _orders(self.schedule, stages, self.rounds)
        ends: dict[tuple[bool, int, int], float] = {}  # forward or not, position, micro-batch
        at, free, busy = [0] * stages, [0.0] * stages, [0.0] * stages
        tasks: list[PipelinePass] = []
        waiting = list(range(stages))
        while waiting:
            before = sum(at)
            for stage in waiting:
                while at[stage] < len(order[stage]):
                    unit = order[stage][at[stage]]
                    ready = self.ready(stage, unit, ends)
                    if ready is None:
                        break
                    start = max(free[stage], ready[0]) + ready[1]
                    spent = [self.cost(stage, work) for work in unit]
                    free[stage] = start + sum(spent)
                    busy[stage] += sum(spent)
                    for (kind, micro_batch, chunk), took in zip(unit, spent, strict=True):
                        if kind != WEIGHTS:
                            ends[kind == FORWARD, self.position(stage, chunk), micro_batch] = free[stage]
                        if self.keep:
                            shown = BACKWARD if kind == INPUT else kind
                            tasks.append(PipelinePass(shown, stage, micro_batch, chunk, start, start + took))
                        start += took
                    at[stage] += 1
            waiting = [stage for stage in waiting if at[stage] < len(order[stage])][::-1]
            assert not waiting or sum(at) > before, "a pipeline schedule that waits for itself"
        return Pipeline(max(free), tuple(busy), tuple(tasks))

    @property
    def last(self) -> int:
        """The position of the last stage on the way."""
        return dual_ranks(self.schedule, len(self.costs.forward_s)) - 1

    def position(self, stage: int, chunk: int) -> int:
        """Where a chunk of a device lies on the way of its micro-batches."""
        return stage if chunk == 0 else self.last - stage

    def ready(self, stage: int, unit: Unit, ends: dict[tuple[bool, int, int], float]) -> tuple[float, float] | None:
        """When the inputs of a unit are there, and how long messages block the device; None if it is not known yet."""
        latest = held = 0.0
        for kind, micro_batch, chunk in unit:
            if kind == WEIGHTS:
                continue
            forward, position = kind == FORWARD, self.position(stage, chunk)
            if forward and position == 0:
                continue
            local = not forward and position == self.last
            source = position if local else position - 1 if forward else position + 1
            found = ends.get((local or forward, source, micro_batch))
            if found is None:
                return None
            # In the shape of a V the last device hands over to itself.
            turns = self.schedule == "dualpipev" and {source, position} == {self.last // 2, self.last // 2 + 1}
            if not local and not turns:
                found += self.costs.message_s
                held += self.costs.blocking_s
            latest = max(latest, found)
        return latest, held

    def cost(self, stage: int, work: Work) -> float:
        """Seconds of a pass."""
        kind, _, chunk = work
        weight = self.costs.weight_s[stage][chunk] if self.costs.weight_s else 0.0
        if kind == FORWARD:
            return self.costs.forward_s[stage][chunk]
        if kind == WEIGHTS:
            return weight
        return self.costs.backward_s[stage][chunk] - (weight if kind == INPUT else 0.0)
