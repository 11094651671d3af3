"""What the interpreters of other tools' programs share: thread blocks that take turns, and what must come out.

Written from the collectives' promises, not from the package: numbers go in, and the numbers that must come out are
said for each place of each output buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple


class Stuck(Exception):  # noqa: N818 - what it is
    """Every thread block waits."""


def take_turns(blocks: list[Iterator[bool]], random: Random) -> None:
    """Run thread blocks to their ends, one at random at a time; each says whether it got on or waits."""
    waited = 0
    while blocks:
        block = random.choice(blocks)
        try:
            waited = 0 if next(block) else waited + 1
        except StopIteration:
            blocks.remove(block)
            waited = 0
        if waited > 200 * (len(blocks) + 1):
            raise Stuck


class Buffers(NamedTuple):
    """Of each rank: what is in its input, and what must be in its output in the end; None where nobody cares."""

    inputs: list[list[int]]
    outputs: list[list[int | None]]


def promised(collective: str, ranks: int, a_block: int, root: int, random: Random) -> Buffers:
    """Random inputs for `a_block` chunks a block (of the whole vector where it has no blocks), and what is due."""

    def drawn(count: int) -> list[int]:
        return [random.randrange(1 << 60) for _ in range(count)]

    everyone = range(ranks)
    size = {"allgather": a_block, "gather": a_block}.get(collective, a_block * ranks)
    if collective in ("allreduce", "broadcast", "reduce"):
        size = a_block
    inputs = [drawn(size) for _ in everyone]
    total = [sum(inputs[r][c] for r in everyone) for c in range(size)]
    nothing: list[int | None] = [None]
    match collective:
        case "allreduce":
            outputs: list[list[int | None]] = [[*total] for _ in everyone]
        case "reduce":
            outputs = [[*total] if r == root else nothing * size for r in everyone]
        case "broadcast":
            outputs = [[*inputs[root]] for _ in everyone]
        case "reducescatter":
            outputs = [[*total[r * a_block : (r + 1) * a_block]] for r in everyone]
        case "scatter":
            outputs = [[*inputs[root][r * a_block : (r + 1) * a_block]] for r in everyone]
        case "allgather" | "gather":
            all_of = [value for r in everyone for value in inputs[r]]
            outputs = [[*all_of] if collective == "allgather" or r == root else nothing * len(all_of) for r in everyone]
        case "alltoall":
            outputs = [[v for s in everyone for v in inputs[s][r * a_block : (r + 1) * a_block]] for r in everyone]
        case _:
            raise ValueError(collective)
    return Buffers(inputs, outputs)


class Memory:
    """A GPU's buffers, full of rubbish where nobody has written; in place, one of input and output is in the other."""

    def __init__(self, inputs: list[int], outputs: int, scratch: int, offset: int | None, random: Random) -> None:
        self.cells = {("s", n): -random.randrange(1, 1 << 60) for n in range(scratch)}
        self.offset, self.sizes = offset, (len(inputs), outputs)
        for n in range(max(len(inputs), outputs)):
            self.cells["w", n] = -random.randrange(1, 1 << 60)
            self.cells["o", n] = -random.randrange(1, 1 << 60)
        for n, value in enumerate(inputs):
            self.cells[self.at("i", n)] = value

    def at(self, buffer: str, offset: int) -> tuple[str, int]:
        """The cell of a place: out of place input and output are apart, in place both are in one."""
        if buffer == "s":
            return buffer, offset
        if self.offset is None:
            return ("w" if buffer == "i" else "o"), offset
        small = "i" if self.sizes[0] < self.sizes[1] else "o"
        shift = self.offset if buffer == small and self.sizes[0] != self.sizes[1] else 0
        return "w", offset + shift

    def read(self, buffer: str, offset: int, count: int) -> list[int]:
        """Some neighbouring chunks."""
        return [self.cells[self.at(buffer, offset + n)] for n in range(count)]

    def write(self, buffer: str, offset: int, values: list[int]) -> None:
        """Put values into neighbouring chunks."""
        for n, value in enumerate(values):
            here = self.at(buffer, offset + n)
            assert here in self.cells, f"{buffer}[{offset + n}] is not there"
            self.cells[here] = value
