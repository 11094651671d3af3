"""Turn an executed program into a schedule: which places the values take, and in which steps they move.

A GPU may keep values of one chunk in several buffers; a schedule has one work place for them, besides the input. A
value is identified by what it is made of at its rank: the rank's own input and what arrived. The values that a rank
forwards or ends up with occupy the work place one after another. Each contains more than the last, or overwrites it.

A message becomes transfers of one step. That step comes after the steps that made what it carries, and not after the
step that overwrites it. It overwrites a value only after the steps that read it. The first attempt also keeps the order
of each thread block; if that fails, only data dependencies order the steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from choreo.errors import FormatError
from choreo.schedule.exchange.execute import OWN, Execution
from choreo.schedule.exchange.order import Order, UnorderedError
from choreo.schedule.exchange.program import Program
from choreo.schedule.schedule import Schedule
from choreo.schedule.steps import Steps
from choreo.schedule.transfers import Transfers

__all__ = ["coarsened", "recover"]

Parts = frozenset[int]
Chunk = tuple[int, int]  # rank, chunk
JUST_OWN: Parts = frozenset((OWN,))


def recover(program: Program, run: Execution, file_bytes: int) -> Schedule:
    """The schedule of a program that does what its collective promises."""
    found = _Recovery(program, run, _used(program, run))
    if program.contract.reduces:
        found.place_values()
    return found.schedule(found.steps(), file_bytes)


def _used(program: Program, run: Execution) -> list[int]:
    """The crossings that some rank forwards or ends up with, in order."""
    used: set[int] = set()
    for place in program.due:
        value = run.held[place]
        assert value is not None
        used |= value.parts
    for number in range(len(run.crossings) - 1, -1, -1):
        if number in used:
            used |= run.crossings[number].value.parts
    return sorted(used - {OWN})


@dataclass(slots=True)
class _Recovery:
    """A schedule in the making. `used` are the crossings that become transfers.

    `values` are the successive values of a chunk's work place; `stores` are the crossings that are stored there rather
    than added.
    """

    program: Program
    run: Execution
    used: list[int]
    values: dict[Chunk, list[Parts]] = field(default_factory=dict)
    stores: set[int] = field(default_factory=set)

    def place_values(self) -> None:
        """Find the values of each work place, and which crossings overwrite it."""
        sent: dict[Chunk, dict[Parts, int]] = defaultdict(dict)
        for x in self.used:
            value = self.run.crossings[x].value
            sent[value.rank, value.chunk].setdefault(value.parts, x)
        last: dict[Chunk, Parts] = {}
        for place, chunk in self.program.due.items():
            held = self.run.held[place]
            assert held is not None
            last[self.program.places[place].rank, chunk] = held.parts
        for here in sorted(sent.keys() | last.keys()):
            first_sent, final = sent.get(here, {}), last.get(here, JUST_OWN)
            others = [parts for parts in first_sent if parts not in (final, JUST_OWN)]
            # First the values that contain the own input, in growing order; then those that overwrite it.
            others.sort(key=lambda parts: (OWN not in parts, len(parts) if OWN in parts else first_sent[parts]))
            self.values[here] = [*others, final] if final != JUST_OWN else others
            written: set[int] = set()
            for before, parts, new in self._changes(here):
                if OWN in new or written & set(new):
                    raise self._two_values(here, before, parts)
                written.update(new)
                if not before <= parts:
                    self.stores.add(new[0])

    def _changes(self, here: Chunk) -> Iterator[tuple[Parts, Parts, list[int]]]:
        """Each value of a work place with the next one, and the crossings that make the next one."""
        before = JUST_OWN
        for parts in self.values[here]:
            yield before, parts, sorted(parts - before if before <= parts else parts, key=self._when)
            before = parts

    def _when(self, x: int) -> tuple[int, int]:
        """Orders what is added in one place: by the steps that the file claims, then as it was executed."""
        return self._claim(x) or 0, x

    def _claim(self, x: int) -> int | None:
        """The step that the file claims for a crossing, if it does."""
        return self.program.instructions[self.run.crossings[x].instruction].round

    def _two_values(self, here: Chunk, before: Parts, parts: Parts) -> FormatError:
        def describe(value: Parts) -> str:
            arrived = [self.run.crossings[x].src for x in sorted(value - JUST_OWN)]
            return " + ".join([*(["its own"] if OWN in value else []), *(f"that of gpu {src}" for src in arrived[:4])])

        return FormatError(
            f"gpu {here[0]} keeps two values of {self.program.told_chunk(here[1])} at once ({describe(before)}; "
            f"{describe(parts)}); a schedule has one place for them beside the input",
            field=f"gpu {here[0]}",
        )

    def steps(self) -> list[int]:
        """The step of each transfer."""
        for by_message, keep_blocks in ((True, True), (True, False), (False, False)):
            message = self._messages(by_message)
            claimed = self._claimed(message, max(message.values(), default=-1) + 1)
            if claimed is not None and self._ordered(message, as_claimed=True).holds(claimed):
                return [claimed[message[x]] for x in self.used]
            order = self._ordered(message, as_claimed=False)
            if keep_blocks:
                self._order_blocks(message, order)
            try:
                found = order.steps()
                return [found[message[x]] for x in self.used]
            except UnorderedError as error:
                stuck = next(x for x in self.used if message[x] == error.message)
        crossing = self.run.crossings[stuck]
        at = self.program.instructions[crossing.instruction]
        raise FormatError(
            f"{at} sends {self.program.told_chunk(crossing.value.chunk)} to gpu {crossing.dst}, where values of this "
            "chunk are needed at the same time in several buffers; a schedule has one place for them beside the input",
            field=str(at),
        )

    def _ordered(self, message: dict[int, int], *, as_claimed: bool) -> Order:
        """What the data says about the order of the messages.

        Copies that overwrite each other are equal, so their order is a choice: as executed, or as the file claims.
        """
        order = Order(max(message.values(), default=-1) + 1)
        if self.program.contract.reduces:
            self._order_sums(message, order)
        else:
            self._order_copies(message, order, sorted(self.used, key=self._when) if as_claimed else self.used)
        return order

    def _messages(self, by_message: bool) -> dict[int, int]:
        """The number of each crossing's message: one per instruction and target GPU, or one per crossing."""
        if not by_message:
            return {x: number for number, x in enumerate(self.used)}
        numbers: dict[tuple[int, int], int] = {}
        keys = ((self.run.crossings[x].instruction, self.run.crossings[x].dst) for x in self.used)
        return {x: numbers.setdefault(key, len(numbers)) for x, key in zip(self.used, keys, strict=True)}

    def _claimed(self, message: dict[int, int], count: int) -> list[int] | None:
        """The steps that the file claims for its messages, if it does."""
        steps = [-1] * count
        for x, number in message.items():
            step = self._claim(x)
            if step is None:
                return None
            steps[number] = step
        return steps

    def _order_blocks(self, message: dict[int, int], order: Order) -> None:
        """A thread block sends one message after another."""
        last: dict[tuple[int, int], int] = {}
        for x in sorted(self.used, key=lambda x: self.run.crossings[x].instruction):
            at = self.program.instructions[self.run.crossings[x].instruction]
            before = last.get((at.rank, at.block), message[x])
            if before != message[x]:
                order.strictly(before, message[x])
            last[at.rank, at.block] = message[x]

    def _order_copies(self, message: dict[int, int], order: Order, stored: list[int]) -> None:
        """If nothing is summed, all values of a chunk are equal, so the chunk only has to have arrived."""
        last: dict[Chunk, int] = {}
        for x in stored:
            crossing = self.run.crossings[x]
            for part in crossing.value.parts - JUST_OWN:
                order.strictly(message[part], message[x])
            here = (crossing.dst, crossing.value.chunk)
            if here in last:
                order.strictly(last[here], message[x])
            last[here] = message[x]

    def _order_sums(self, message: dict[int, int], order: Order) -> None:
        """Order each work place: what makes a value, what reads it, and what overwrites it."""
        readers: dict[tuple[Chunk, Parts], list[int]] = defaultdict(list)
        for x in self.used:
            value = self.run.crossings[x].value
            readers[(value.rank, value.chunk), value.parts].append(message[x])
        for here in self.values:
            writers: list[int] = []
            for before, parts, new in self._changes(here):
                writes = [message[x] for x in new]
                if new[0] in self.stores:
                    for writer in writers:
                        order.strictly(writer, writes[0])
                    for other in writes[1:]:
                        order.strictly(writes[0], other)
                for writer in writes:
                    for reader in readers[here, before] if before != JUST_OWN else ():
                        order.not_after(reader, writer)
                    for reader in readers[here, parts]:
                        order.strictly(writer, reader)
                writers = writes

    def schedule(self, steps: list[int], file_bytes: int) -> Schedule:
        """The schedule with these steps."""
        numbers = {old: new for new, old in enumerate(sorted(set(steps)))}
        written: dict[Chunk, int] = {}
        for x, step in zip(self.used, steps, strict=True):
            here = (self.run.crossings[x].dst, self.run.crossings[x].value.chunk)
            written[here] = min(written.get(here, step), step)
        rows: list[tuple[int, int, int, int, bool, bool]] = []
        for x, step in zip(self.used, steps, strict=True):
            crossing, value = self.run.crossings[x], self.run.crossings[x].value
            # A rank's own input is still in its work place, unless something was written there before.
            from_input = value.parts == JUST_OWN and written.get((value.rank, value.chunk), step) < step
            reduce = self.program.contract.reduces and x not in self.stores
            rows.append((numbers[step], crossing.src, crossing.dst, value.chunk, reduce, from_input))
        rows.sort(key=lambda row: (row[0], row[1], row[2], row[4], row[5], row[3]))
        program = self.program
        body = Steps.from_transfers(program.ranks, program.num_chunks, len(numbers), _joined(rows))
        return Schedule(program.collective, body, program.root, program.name or "unnamed", file_bytes=file_bytes)


def _joined(rows: list[tuple[int, int, int, int, bool, bool]]) -> Transfers:
    """The rows as columns, consecutive chunks as one row."""
    if not rows:
        return Transfers.none()
    table = np.asarray(rows, np.int64)
    same = (table[1:, [0, 1, 2, 4, 5]] == table[:-1, [0, 1, 2, 4, 5]]).all(axis=1)
    opens = np.concatenate(([True], ~(same & (table[1:, 3] == table[:-1, 3] + 1))))
    first = np.flatnonzero(opens)
    count = np.diff(np.append(first, len(table)))
    step, src, dst, chunk, reduce, from_input = table[first].T
    return Transfers(step, src, dst, chunk, count, reduce.astype(np.bool_), from_input.astype(np.bool_))


def coarsened(schedule: Schedule, pieces: int) -> Schedule:
    """The same schedule with `pieces` neighbouring chunks as one, where they always travel together.

    >>> from choreo import build
    >>> from choreo.schedule import refined
    >>> coarsened(refined(build("all_reduce", "ring", 4), 3), 3).num_chunks
    4
    """
    rows = schedule.columns()
    if pieces == 1 or any((column % pieces).any() for column in (rows.chunk, rows.count)):
        return schedule
    whole = replace(rows, chunk=rows.chunk // pieces, count=rows.count // pieces)
    body = Steps.from_transfers(schedule.members, schedule.num_chunks // pieces, schedule.num_steps, whole)
    return replace(schedule, body=body)
