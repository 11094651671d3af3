"""Read an MSCCL++ plan: ops become instructions, which `matching` lets wait for each other.

The threads of a block do not wait for each other. The next operation sees what one did only after a `nop`; other blocks
see it only after a signal that follows a `nop`. A packet carries its own flag: its reader waits for its writer. A
relaxed signal orders control flow, but says nothing about data.

A pipeline is run for two rounds of its loop, so every chunk is split in two; a group of thread blocks splits it
further. Here each round has its own scratch. That the scratch suffices for many rounds is not proved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from choreo.errors import FormatError, ProofError, shown
from choreo.files import check_work
from choreo.schedule.exchange.execute import execute
from choreo.schedule.exchange.mscclpp.file import Block, Buffer, Gpu, Op, Plan, parse
from choreo.schedule.exchange.mscclpp.matching import Waits, match
from choreo.schedule.exchange.program import (
    BUFFERS,
    Buffers,
    Instruction,
    Place,
    Program,
    collective_of,
    proof_error_at,
)
from choreo.schedule.exchange.recover import coarsened, recover
from choreo.schedule.schedule import MAX_NAME, Schedule

__all__ = ["read_mscclpp"]

ROUNDS = 2  # simulated rounds of a pipeline's loop
ACCESS_BYTES = 256  # of memory while reading, per piece that an operation moves
# Operations whose sources are packets: all sources, or those after the first; and the same for their targets.
ALL_IN, ALL_OUT = ("rppkt", "upkt", "gstorepkt"), ("ppkt", "rppkt", "cpkt", "gstorepkt")
PACKETS_IN = (*ALL_IN, "repkt", "respkt", "recpkt", "recspkt")
PACKETS_OUT = (*ALL_OUT, "respkt", "recpkt", "recspkt")
MOVES = {"put", "pws", "pwsf", "get", "copy", "re", "res", "rre", "rres", "glres", "gstore", *PACKETS_IN, *PACKETS_OUT}
OTHERS = {"nop", "barrier", "signal", "wait", "rlxsignal", "rlxwait", "flush", "pipeline", "sem_acquire", "sem_release"}
ALL_SUMMED = ("re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt")
Pieces = list[list[int]]  # the places of each buffer that an operation names


def read_mscclpp(content: bytes) -> Schedule:
    """The schedule that an MSCCL++ plan executes, or an error that says what is wrong with it."""
    plan = parse(content)
    collective = collective_of(plan.collective, "collective")
    ranks = len(plan.gpus)
    sizes = (plan.gpus[0].input_chunks, plan.gpus[0].output_chunks)
    chunks = max(sizes) * ranks if collective == "all_to_all" else max(sizes)
    pieces = _pieces(plan)
    moved = sum(buffer.size for _, _, op in _all_ops(plan) for buffer in (*op.src_buff, *op.dst_buff)) * pieces
    blocks = sum(len(gpu.threadblocks) for gpu in plan.gpus)
    ops = sum(1 for _ in _all_ops(plan))
    work = (moved + ranks * chunks * pieces * 2) * ACCESS_BYTES + ops * blocks * 4
    check_work(f"a plan that moves {moved} pieces of chunks", work, len(content), _refused)
    try:
        program = _Reading(plan, collective, chunks * pieces, pieces).program()
        return coarsened(recover(program, execute(program), len(content)), pieces)
    except ProofError as error:
        error.about = {"collective": collective, "algorithm": plan.name[:MAX_NAME], "ranks": ranks}
        raise


def _refused(message: str) -> FormatError:
    return FormatError(message, field="the plan")


def _all_ops(plan: Plan) -> Iterator[tuple[Gpu, Block, Op]]:
    for gpu in plan.gpus:
        for block in gpu.threadblocks:
            for op in block.ops:
                yield gpu, block, op
                yield from ((gpu, block, inner) for inner in op.ops)


def _pieces(plan: Plan) -> int:
    """The number of equal pieces that a chunk is split into, so that loops and groups of thread blocks get whole
    pieces.
    """
    groups = {op.tbg_info.tbg_size for _, _, op in _all_ops(plan) if op.tbg_info is not None}
    loops = ROUNDS if any(op.name == "pipeline" for _, _, op in _all_ops(plan)) else 1
    return math.lcm(loops * math.lcm(*groups)) if groups else loops


@dataclass(frozen=True, slots=True)
class _At:
    """An operation: its place in the plan, its instruction, and its round of the pipeline."""

    gpu: Gpu
    block: Block
    op: Op
    instruction: Instruction
    turn: int | None

    def wrong(self, problem: str) -> FormatError:
        return FormatError(f"{self.instruction}: {problem}", field=str(self.instruction))


class _Reading:
    """A plan being read, operation by operation."""

    def __init__(self, plan: Plan, collective: str, chunks: int, pieces: int) -> None:
        self.plan, self.pieces = plan, pieces
        root = plan.root or 0
        program = Program(collective, len(plan.gpus), chunks, plan.name[:MAX_NAME] or "unnamed")
        program.pieces = pieces
        program.root = program.contract.check_root(root if program.contract.rooted else None, len(plan.gpus))
        blocks = program.contract.blocks(program.ranks)
        if not chunks or chunks % (blocks * pieces):
            raise FormatError(f"gpus[0]: {collective} of this many chunks has no equal blocks", field="gpus[0]")
        self._program, self.buffers = program, Buffers(program, plan.inplace)
        self.waits = Waits()
        self.proxied: dict[tuple[int, int, int], int] = {}  # the last request to each port channel
        self.channels = [_flattened(gpu) for gpu in plan.gpus]

    def program(self) -> Program:
        """The program."""
        for gpu in self.plan.gpus:
            for block in gpu.threadblocks:
                meetings: dict[int, int] = defaultdict(int)
                for step, op in enumerate(block.ops):
                    turns = range(ROUNDS) if op.name == "pipeline" else (None,)
                    for turn in turns:
                        for inner in op.ops if op.name == "pipeline" else (op,):
                            instruction = Instruction(gpu.id, block.id, step, inner.name, round=inner.round)
                            self._add(_At(gpu, block, inner, instruction, turn), meetings)
        ready = {(gpu.id, n): one.init_value for gpu in self.plan.gpus for n, one in enumerate(gpu.semaphores)}
        match(self._program, self.waits, ready)
        return self._program

    def _add(self, at: _At, meetings: dict[int, int]) -> None:
        gpu, op, instruction = at.gpu, at.op, at.instruction
        if op.name not in MOVES and op.name not in OTHERS:
            where = f"gpu {gpu.id}, thread block {at.block.id}, step {instruction.step}"
            raise FormatError(f"{where}: {shown(op.name)} is no operation of MSCCL++", field=where)
        instruction.sync = op.name in ("nop", "barrier")
        code = self._program.instructions
        code.append(instruction)
        if op.channel_type == "port" and op.name in ("put", "pws", "pwsf", "signal", "flush"):
            instruction = self._by_proxy(at)
        number = len(code) - 1
        if op.name in MOVES:
            self._moves(_At(gpu, at.block, op, instruction, at.turn), number)
        signals = op.name in ("signal", "rlxsignal") or (op.name in ("pws", "pwsf") and op.channel_type == "port")
        if signals or op.name in ("wait", "rlxwait"):
            waits = op.name.endswith("wait")
            for channel in op.channel_ids:
                peer, key = self._channel(at, channel)
                wire = self.waits.wires[(peer, gpu.id, *key) if waits else (gpu.id, peer, *key)]
                (wire.waits if waits else wire.signals).append(number)
        for semaphore in op.semaphore_ids:
            if semaphore >= len(gpu.semaphores):
                raise at.wrong(f"there is no semaphore {semaphore}")
            held = self.waits.semaphores[gpu.id, semaphore]
            (held.waits if op.name == "sem_acquire" else held.signals).append(number)
        if op.name == "pwsf":
            code.append(Instruction(gpu.id, at.block.id, instruction.step, "pwsf", after=[number], sync=False))
        if op.name == "barrier":
            here = op.barrier_id or 0
            self.waits.barriers[gpu.id, here, meetings[here]].append(number)
            if op.num_threadblocks is not None:
                self.waits.expected[number] = op.num_threadblocks
            meetings[here] += 1
            code.append(Instruction(gpu.id, at.block.id, instruction.step, "barrier"))

    def _by_proxy(self, at: _At) -> Instruction:
        """The instruction by which the CPU proxy serves a request to a port channel, after all earlier requests."""
        code, asked = self._program.instructions, len(self._program.instructions) - 1
        ways = [(at.gpu.id, at.block.id, channel) for channel in at.op.channel_ids]
        earlier = sorted({self.proxied[way] for way in ways if way in self.proxied})
        if at.op.name == "flush":
            at.instruction.after.extend(earlier)
            return at.instruction
        done = Instruction(
            at.gpu.id, at.block.id, at.instruction.step, at.op.name, after=[asked, *earlier], proxy=asked + 1
        )
        done.round = at.op.round
        code.append(done)
        self.proxied.update(dict.fromkeys(ways, asked + 1))
        return done

    def _channel(self, at: _At, channel: int) -> tuple[int, tuple[str, int]]:
        """The GPU at the other end of an op's channel, and the channel's type and number among those of the two."""
        kind = at.op.channel_type or "memory"
        own = [n for ids in at.block.channels if ids.channel_type == kind for n in ids.channel_ids]
        known = self.channels[at.gpu.id].get(kind, [])
        if channel >= len(own) or own[channel] >= len(known):
            raise at.wrong(f"there is no {kind} channel {channel} in its thread block")
        peer, nth = known[own[channel]]
        return peer, (kind, nth)

    def _moves(self, at: _At, number: int) -> None:
        op, instruction = at.op, at.instruction
        forwards = op.name == "ppkt" and op.channel_type == "port"  # a port sends packets as they are
        unpacks = [
            forwards or (op.name in PACKETS_IN and (n > 0 or op.name in ALL_IN)) for n in range(len(op.src_buff))
        ]
        packs = [op.name in PACKETS_OUT and (n > 0 or op.name in ALL_OUT) for n in range(len(op.dst_buff))]
        sources = [self._places(at, buffer, packed) for buffer, packed in zip(op.src_buff, unpacks, strict=True)]
        targets = [self._places(at, buffer, packed) for buffer, packed in zip(op.dst_buff, packs, strict=True)]
        if not sources or not targets:
            raise at.wrong("it says not what it moves, or not where to")
        one_to_one = op.name in ("put", "pws", "pwsf", "get", "ppkt")
        if one_to_one and len(sources) != len(targets):
            raise at.wrong(f"it has {len(sources)} sources and {len(targets)} targets")
        if one_to_one and op.name != "get" and (op.channel_type or "memory") == "memory":
            self._check_one_buffer(at, sources)
        for n, target in enumerate(targets):
            taken = sources if op.name in ALL_SUMMED else [sources[n if one_to_one else 0]]
            if any(len(source) != len(target) for source in taken):
                raise at.wrong("its sources and targets differ in size")
            for piece, everywhere in enumerate(target):
                values = tuple(place for source in taken for place in source[piece])
                instruction.moves.extend((place, values) for place in everywhere if values != (place,))
        for source, packed in zip(sources, unpacks, strict=True):
            if packed:
                self.waits.unpacked.extend((number, place) for piece in source for place in piece)
        read = {place for _, values in instruction.moves for place in values}
        for target, packed in zip(targets, packs, strict=True):
            for place in (place for piece in target for place in piece):
                if packed and place not in read:  # not where it is updated in place
                    self.waits.packets[place].append(number)

    def _check_one_buffer(self, at: _At, sources: list[Pieces]) -> None:
        """Refuse a put whose sources are in different buffers: the executor reads all in the buffer of the first."""
        taken = at.op.src_buff[0].type
        for buffer, source in zip(at.op.src_buff, sources, strict=True):
            if buffer.type is None or taken is None or buffer.type == taken:
                continue
            first, _ = self._region(at, buffer)
            for n, (place,) in enumerate(source):
                if self.buffers.number(Place(at.gpu.id, taken, first + n)) != place:
                    meant, read = (f"{BUFFERS[kind]} chunk {buffer.index}" for kind in (buffer.type, taken))
                    story = (
                        f"{at.instruction} names {meant} of gpu {at.gpu.id} but sends {read}: a put through memory "
                        "channels reads all its sources in the buffer of the first"
                    )
                    raise proof_error_at(at.instruction, "misplaced", story)

    def _region(self, at: _At, buffer: Buffer) -> tuple[int, int]:
        """The first of the pieces of a buffer that an op names, and how many there are."""
        first, count = buffer.index * self.pieces, buffer.size * self.pieces
        if at.turn is not None:
            count //= ROUNDS
            first += at.turn * count
        if at.op.tbg_info is not None:
            count //= at.op.tbg_info.tbg_size
            first += at.op.tbg_info.tb_id * count
        return first, count

    def _places(self, at: _At, buffer: Buffer, packed: bool) -> Pieces:
        """The places of a buffer that an op names, piece by piece; for a switch channel one at each of its GPUs."""
        ranks, kind = self._whose(at, buffer)
        first, count = self._region(at, buffer)
        sizes = {"i": self.buffers.input_chunks, "o": self.buffers.output_chunks}
        for rank in ranks:
            most = sizes.get(kind, self.plan.gpus[rank].scratch_chunks * self.pieces)
            if first + count > most:
                last = (first + count - 1) // self.pieces
                raise at.wrong(
                    f"chunk {last} is not in the buffer {kind} of gpu {rank}, which has {most // self.pieces}"
                )
        letter = "m" if packed else kind
        return [
            [self.buffers.number(Place(rank, letter, piece)) for rank in ranks] for piece in range(first, first + count)
        ]

    def _whose(self, at: _At, buffer: Buffer) -> tuple[list[int], str]:
        """The GPUs whose buffer is meant, and which buffer."""
        kind, ranks = buffer.type, [at.gpu.id]
        if buffer.buffer_id is not None:
            channel = at.op.channel_type or "memory"
            refs = at.block.remote_buffer_refs
            own = [n for ids in refs if ids.access_channel_type == channel for n in ids.remote_buffer_ids]
            if buffer.buffer_id >= len(own) or own[buffer.buffer_id] >= len(at.gpu.remote_buffers):
                raise at.wrong(f"its thread block has no remote buffer {buffer.buffer_id}")
            remote = at.gpu.remote_buffers[own[buffer.buffer_id]]
            ranks, kind = [remote.rank], remote.type
        elif buffer.switch_channel_id is not None:
            own = [n for ids in at.block.channels if ids.channel_type == "switch" for n in ids.channel_ids]
            switches = [channel for channel in at.gpu.channels if channel.channel_type == "switch"]
            groups = [(way.buffer_type or way.buff, group.ranks) for way in switches for group in way.rank_groups]
            if buffer.switch_channel_id >= len(own) or own[buffer.switch_channel_id] >= len(groups):
                raise at.wrong(f"its thread block has no switch channel {buffer.switch_channel_id}")
            kind, ranks = groups[own[buffer.switch_channel_id]]
        if kind not in ("i", "o", "s") or not ranks or max(ranks) >= len(self.plan.gpus):
            raise at.wrong(f"there is no buffer {shown(kind)} at gpu {', '.join(map(str, ranks))}")
        return ranks, kind


def _flattened(gpu: Gpu) -> dict[str, list[tuple[int, int]]]:
    """A GPU's channels by type: the peer, and the channel's number among those to that peer."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for channel in gpu.channels:
        for peer in channel.connected_to:
            found[channel.channel_type].append((peer, seen[channel.channel_type, peer]))
            seen[channel.channel_type, peer] += 1
    return found
