"""A program for thread blocks: what MSCCL XML and MSCCL++ plans have in common.

Each GPU has buffers of chunks, the *places*, and thread blocks that run instructions one after another. An instruction
moves data: a place becomes the sum of places. It may wait for instructions of other thread blocks. A message between
GPUs is a move into a place at the receiver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from choreo.collectives import Collective, Layout, get_collective
from choreo.errors import FormatError, ProofError, shown

__all__ = [
    "BUFFERS",
    "COLLECTIVE_NAMES",
    "Buffers",
    "Instruction",
    "Place",
    "Program",
    "collective_of",
    "proof_error_at",
]

# What other tools call the collectives.
COLLECTIVE_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
BUFFERS = {"i": "input", "o": "output", "s": "scratch", "m": "message"}


class Place(NamedTuple):
    """A chunk of a buffer of a GPU; in the buffer "m" are messages that the GPU receives."""

    rank: int
    buffer: str
    offset: int


@dataclass(slots=True)
class Instruction:
    """One instruction of a thread block.

    `moves` lists (target, sources): the target place becomes the sum of the sources. `after` are the instructions of
    other blocks that it waits for, by number. `fed_by` are the instructions that wrote the packets it reads; it learns
    nothing else about them. If `sync` is false the threads of its block do not wait for each other, and the next
    instruction may overtake it. `proxy` numbers what the CPU does for a thread block. `round` is the step that the file
    claims for what it sends.
    """

    rank: int
    block: int
    step: int
    name: str
    moves: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    fed_by: list[int] = field(default_factory=list)
    sync: bool = True
    round: int | None = None
    proxy: int = 0

    @property
    def home(self) -> tuple[int, int]:
        """Its GPU and thread block; each proxy request is a thread block of its own."""
        return self.rank, self.block if not self.proxy else -self.proxy

    def __str__(self) -> str:
        return f"gpu {self.rank}, thread block {self.block}, step {self.step} ({self.name})"


@dataclass(slots=True)
class Program:
    """The instructions of all thread blocks, and what the places hold before and must hold after.

    `given` and `due` map places to chunks of the schedule; a chunk of the file is `pieces` of these. `order` has pairs
    of instructions: the second waits for the first, for buffer room or for a relaxed signal, and learns nothing about
    data.
    """

    collective: str
    ranks: int
    num_chunks: int
    name: str
    root: int | None = None
    instructions: list[Instruction] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)
    pieces: int = 1

    def told(self, place: int) -> str:
        """A place, as the file numbers chunks."""
        rank, buffer, offset = self.places[place]
        return f"{BUFFERS[buffer]} {self.told_chunk(offset)} of gpu {rank}"

    def told_chunk(self, number: int) -> str:
        """A chunk of the schedule, as the file numbers chunks."""
        chunk, piece = divmod(number, self.pieces)
        return f"chunk {chunk}" if self.pieces == 1 else f"chunk {chunk} (part {piece + 1} of {self.pieces})"

    @property
    def contract(self) -> Collective:
        """The contract of the collective that the program implements."""
        return get_collective(self.collective)


class Buffers:
    """The places of a program's input, output and scratch buffers, and the chunk of the vector that each holds.

    A rank's input and output have the block sizes of the contract. In place, one of them is a part of the other.
    """

    def __init__(self, program: Program, in_place: bool) -> None:
        self.program, self.in_place = program, in_place
        contract, ranks = program.contract, program.ranks
        a_block = program.num_chunks // contract.blocks(ranks)
        self.input_chunks = self._size(contract.before, a_block)
        self.output_chunks = self._size(contract.after, a_block)
        self._a_block = a_block
        self._numbers: dict[Place, int] = {}
        for rank in range(ranks):
            for offset in range(self.input_chunks):
                chunk = self._chunk(contract.before, rank, offset)
                if chunk is not None:
                    program.given[self.number(Place(rank, "i", offset))] = chunk
            for offset in range(self.output_chunks):
                chunk = self._chunk(contract.after, rank, offset)
                if chunk is not None:
                    program.due[self.number(Place(rank, "o", offset))] = chunk

    def number(self, place: Place) -> int:
        """The number of a place; in place, an input and the output that overlaps it have the same number."""
        rank, buffer, offset = place
        if self.in_place and buffer == "i" and self.input_chunks < self.output_chunks:
            place = Place(rank, "o", offset + rank * self._a_block)
        elif self.in_place and buffer == "o" and self.output_chunks <= self.input_chunks:
            shift = rank * self._a_block if self.output_chunks < self.input_chunks else 0
            place = Place(rank, "i", offset + shift)
        found = self._numbers.get(place)
        if found is None:
            found = self._numbers[place] = len(self.program.places)
            self.program.places.append(place)
        return found

    def _size(self, layout: Layout, a_block: int) -> int:
        """The number of chunks in a buffer: one block, or one block for each rank."""
        blocks = {Layout.BLOCK: 1, Layout.SHIFTED: 1}.get(layout)
        if blocks is not None:
            return blocks * a_block
        pairs = layout in (Layout.PAIR_SOURCE, Layout.PAIR_TARGET)
        return self.program.ranks * a_block if pairs else self.program.num_chunks

    def _chunk(self, layout: Layout, rank: int, offset: int) -> int | None:
        """The chunk of the vector at an offset of a rank's buffer; None at ranks that the contract leaves out."""
        ranks, a_block = self.program.ranks, self._a_block
        match layout:
            case Layout.EVERYWHERE:
                return offset
            case Layout.ROOT:
                return offset if rank == self.program.root else None
            case Layout.BLOCK:
                return rank * a_block + offset
            case Layout.SHIFTED:
                return (rank - 1) % ranks * a_block + offset
            case Layout.PAIR_SOURCE:
                return rank * ranks * a_block + offset
            case Layout.PAIR_TARGET:
                block, inside = divmod(offset, a_block)
                return (block * ranks + rank) * a_block + inside


def collective_of(name: str, field_name: str) -> str:
    """The collective that another tool's name stands for."""
    found = COLLECTIVE_NAMES.get(name.lower())
    if found is None:
        known = ", ".join(sorted(set(COLLECTIVE_NAMES) - {"reduce_scatter"}))
        raise FormatError(
            f"{field_name}: {shown(name)} is no collective with a promise that could be proved; there are {known}",
            field=field_name,
        )
    return found


def proof_error_at(
    at: Instruction, kind: str, story: str, chunk: int = 0, contributor: int | None = None
) -> ProofError:
    """The error at an instruction."""
    error = ProofError(story, kind=kind, step=at.step, rank=at.rank, chunk=chunk, contributor=contributor)
    error.thread_block = at.block
    return error
