"""Races: two unordered uses of a place, at least one of them a write.

They are found with vector clocks, as in FastTrack (Flanagan and Freund, PLDI 2009): from what it waited for, a thread
block knows how far each other block has come at least. Without races every execution gives the same data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from choreo.errors import ProofError
from choreo.schedule.exchange.program import Instruction, Program, proof_error_at

__all__ = ["check_races"]

Clock = npt.NDArray[np.int32]


class _Use(NamedTuple):
    """A use of a place: the block, the span of that block, and the instruction."""

    block: int
    span: int
    instruction: int


class _Block:
    """A thread block at run time: `clock[b]` is how many spans of block b have certainly ended.

    A span is what runs between two points where all threads of the block synchronize. `joins` is what was waited for
    since the last such point.
    """

    def __init__(self, number: int, blocks: int) -> None:
        self.number = number
        self.clock: Clock = np.zeros(blocks, np.int32)
        self.joins: list[Clock] = []

    def meet(self) -> None:
        for clock in self.joins:
            np.maximum(self.clock, clock, out=self.clock)
        self.joins.clear()
        self.clock[self.number] += 1


class _Places:
    """For each place, its last write, and the last read of each block since then."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.fed = _fed(program)
        self.writes: dict[int, _Use] = {}
        self.reads: dict[int, dict[int, _Use]] = {}

    def use(self, instruction: Instruction, now: _Use, clock: Clock) -> None:
        """Record what an instruction reads and writes, or raise an error that describes a race."""
        for target, sources in instruction.moves:
            for source in sources:
                for other in self._unordered((self.writes.get(source),), now, clock):
                    raise self._race(other, now, source, "writes, reads")
                self.reads.setdefault(source, {})[now.block] = now
            if self.program.places[target].buffer == "m":
                continue  # a message is written once and read once
            for other in self._unordered((self.writes.get(target),), now, clock):
                raise self._race(other, now, target, "writes, writes")
            for other in self._unordered(self.reads.pop(target, {}).values(), now, clock):
                raise self._race(other, now, target, "reads, writes")
            self.writes[target] = now

    def _unordered(self, uses: Iterable[_Use | None], now: _Use, clock: Clock) -> Iterator[_Use]:
        for use in uses:
            if use is None or clock[use.block] > use.span or use.instruction == now.instruction:
                continue
            if use.instruction not in self.fed.get(now.instruction, ()):
                yield use

    def _race(self, first: _Use, second: _Use, place: int, how: str) -> ProofError:
        did, does = how.split(", ")
        one, other = (self.program.instructions[use.instruction] for use in (first, second))
        where = self.program.told(place)
        story = f"race: {one} {did} {where} and {other} {does} it, and nothing says which is first"
        return proof_error_at(other, "race", story, self.program.due.get(place, self.program.given.get(place, 0)))


def _fed(program: Program) -> dict[int, frozenset[int]]:
    """For each instruction that reads packets, the instructions that the data came through.

    A packet arrives together with its data. So its reader knows that those instructions are done for these elements,
    and knows nothing else.
    """
    fed: dict[int, frozenset[int]] = {}
    waiting = [number for number, instruction in enumerate(program.instructions) if instruction.fed_by]
    while waiting:
        number = waiting[-1]
        before = program.instructions[number].fed_by
        missing = [other for other in before if other not in fed and program.instructions[other].fed_by]
        if missing and number not in fed:
            waiting.extend(missing)
            fed[number] = frozenset(before)  # seen; made complete below
            continue
        waiting.pop()
        fed[number] = frozenset(before).union(*(fed.get(other, frozenset()) for other in before))
    return fed


def check_races(program: Program, order: list[int]) -> None:
    """Refuse a program with a race; `order` is an order in which its instructions may run."""
    code = program.instructions
    names = {home: number for number, home in enumerate(dict.fromkeys(instruction.home for instruction in code))}
    blocks = [_Block(number, len(names)) for number in range(len(names))]
    waiters = [0] * len(code)
    for instruction in code:
        for before in instruction.after:
            waiters[before] += 1
    done: dict[int, Clock] = {}
    places = _Places(program)
    for number in order:
        instruction = code[number]
        block = blocks[names[instruction.home]]
        for before in instruction.after:
            block.joins.append(done[before])
            waiters[before] -= 1
            if not waiters[before]:
                del done[before]
        if instruction.sync:
            block.meet()
        places.use(instruction, _Use(block.number, int(block.clock[block.number]), number), block.clock)
        if instruction.sync:
            block.meet()
        if waiters[number]:
            done[number] = block.clock.copy()
