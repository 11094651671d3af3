"""Read a program in MSCCL's XML: its steps become instructions, with messages and dependencies matched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from choreo.collectives import get_collective
from choreo.errors import FormatError, ProofError, shown
from choreo.files import check_work
from choreo.schedule.exchange.execute import execute
from choreo.schedule.exchange.msccl.file import TYPES, Algorithm, Step, parse
from choreo.schedule.exchange.program import Buffers, Instruction, Place, Program
from choreo.schedule.exchange.recover import recover
from choreo.schedule.schedule import Schedule

__all__ = ["read_msccl"]

ACCESS_BYTES = 256  # of memory while reading, per chunk that a step moves
CLOCK_BYTES = 2  # per step and thread block: a clock entry takes four bytes, and half of the steps are live at once


def read_msccl(content: bytes, room: int | None = None) -> Schedule:
    """The schedule that a file in MSCCL's XML executes, or an error that says what is wrong with it.

    With `room` a send blocks while that many messages of its connection have not been received, and a step of several
    chunks sends them one by one, as the executor does with large buffers.
    """
    algorithm = parse(content)
    steps = [step for _, blocks in algorithm.gpus.values() for block in blocks.values() for step in block.steps]
    moved = sum(step.count for step in steps)
    blocks = sum(len(blocks) for _, blocks in algorithm.gpus.values())
    work = moved * ACCESS_BYTES + len(steps) * blocks * CLOCK_BYTES
    places = algorithm.ranks * (2 * algorithm.chunks) * ACCESS_BYTES
    check_work(f"a program that moves {moved} chunks", work + places, len(content), _refused)
    schedules: list[Schedule] = []
    for in_place in algorithm.in_place:
        try:
            schedules.append(_first_right(algorithm, in_place, room, len(content)))
        except ProofError as error:
            if len(algorithm.in_place) > 1:
                error.tell(f"{'in place' if in_place else 'out of place'}: {error.story}")
            error.about = {"collective": algorithm.collective, "algorithm": algorithm.name, "ranks": algorithm.ranks}
            raise
    return schedules[0]


def _first_right(algorithm: Algorithm, in_place: bool, room: int | None, file_bytes: int) -> Schedule:
    """The schedule for the first root with which the program is correct; otherwise raise the first error."""
    first_error: ProofError | None = None
    for root in _roots(algorithm):
        try:
            program = _program(algorithm, in_place, root, room)
            return recover(program, execute(program), file_bytes)
        except ProofError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _refused(message: str) -> FormatError:
    return FormatError(message, field="the file")


def _roots(algorithm: Algorithm) -> list[int | None]:
    """Candidate roots. If the file names none, the ranks that never receive (or never send) come first."""
    if not get_collective(algorithm.collective).rooted:
        return [None]
    if algorithm.root is not None:
        return [algorithm.root]
    column = 0 if algorithm.collective in ("broadcast", "scatter") else 1  # the root never receives, or never sends

    def has_such_step(rank: int) -> bool:
        return any(TYPES[step.type][column] for block in algorithm.gpus[rank][1].values() for step in block.steps)

    return [*sorted(range(algorithm.ranks), key=has_such_step)]


def _program(algorithm: Algorithm, in_place: bool, root: int | None, room: int | None) -> Program:
    """The instructions of all steps, each waiting for its message and for the steps it depends on."""
    a_loop, ranks = algorithm.chunks, algorithm.ranks
    # For these a file counts one rank's chunks, for the others the chunks of all ranks.
    a_rank = algorithm.collective in ("gather", "scatter", "all_to_all")
    chunks = a_loop * ranks if a_rank else a_loop
    program = Program(algorithm.collective, ranks, chunks, algorithm.name, root)
    blocks = program.contract.blocks(ranks)
    if chunks % blocks:
        raise FormatError(
            f"algo.nchunksperloop: {algorithm.collective} over {ranks} gpus needs a multiple of {ranks} chunks, "
            f"not {a_loop}",
            field="algo.nchunksperloop",
        )
    buffers = Buffers(program, in_place)
    numbers: dict[tuple[int, int, int], tuple[int, int]] = {}  # the first and last instruction of each step
    steps: list[Step] = []
    for rank in range(ranks):
        for block in algorithm.gpus[rank][1].values():
            for step in block.steps:
                first = len(steps)
                steps.extend([step] if room is None else _one_by_one(step))
                numbers[rank, block.number, step.number] = first, len(steps) - 1
    slots = _slots(program, steps, room)
    for number, step in enumerate(steps):
        sizes = algorithm.gpus[step.block.rank][0]
        program.instructions.append(_instruction(step, number, buffers, sizes, slots))
    _dependencies(program, algorithm, numbers)
    return program


def _one_by_one(step: Step) -> list[Step]:
    """The step split into one step per chunk."""
    (a, x), (b, y) = step.source, step.target
    return [replace(step, source=(a, x + n), target=(b, y + n), count=1) for n in range(step.count)] or [step]


@dataclass(slots=True)
class _Slots:
    """For each step, the slots of the message that it reads and of the one that it writes."""

    received: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    sent: dict[int, list[int]] = field(default_factory=dict)


def _slots(program: Program, steps: list[Step], room: int | None) -> _Slots:
    """Match the k-th send of a connection with its k-th receive."""
    sends: dict[tuple[int, int, int], list[int]] = {}
    receives: dict[tuple[int, int, int], list[int]] = {}
    for number, step in enumerate(steps):
        does_receive, does_send, _, _ = TYPES[step.type]
        block = step.block
        for does, ends, connection in (
            (does_send, sends, (block.rank, block.send, block.channel)),
            (does_receive, receives, (block.receive, block.rank, block.channel)),
        ):
            if does and step.count:
                line = ends.setdefault(connection, [])
                if line and steps[line[-1]].block is not block:
                    raise FormatError(
                        f"{steps[line[-1]].block} and {block} both "
                        f"{'send to' if ends is sends else 'receive from'} gpu "
                        f"{block.send if ends is sends else block.receive} on channel {block.channel}, so that their "
                        "messages mix",
                        field=str(block),
                    )
                line.append(number)
    slots = _Slots()
    for connection in dict.fromkeys((*sends, *receives)):
        src, dst, channel = connection
        line, other = sends.get(connection, []), receives.get(connection, [])
        for index in range(max(len(line), len(other))):
            if index >= len(other):
                story = f"{steps[line[index]]} sends to gpu {dst} on channel {channel}, where nobody receives it"
                raise _unmatched(story, "unreceived", steps[line[index]])
            if index >= len(line):
                story = (
                    f"{steps[other[index]]} waits for a message from gpu {src} on channel {channel} that nobody sends"
                )
                raise _unmatched(story, "unsent", steps[other[index]])
            sender, receiver = steps[line[index]], steps[other[index]]
            if sender.count != receiver.count:
                story = (
                    f"{sender} sends {sender.count} chunks, but {receiver}, which receives them, takes {receiver.count}"
                )
                raise _unmatched(story, "mismatch", receiver)
            first = len(program.places)
            program.places.extend(Place(dst, "m", first + inside) for inside in range(sender.count))
            slots.sent[line[index]] = list(range(first, first + sender.count))
            slots.received[other[index]] = (line[index], slots.sent[line[index]])
            if room is not None and index >= room:
                program.order.append((other[index - room], line[index]))
    return slots


def _unmatched(story: str, kind: str, step: Step) -> ProofError:
    error = ProofError(story, kind=kind, step=step.number, rank=step.block.rank, chunk=max(0, step.source[1]))
    error.thread_block = step.block.number
    return error


def _instruction(step: Step, number: int, buffers: Buffers, sizes: dict[str, int], slots: _Slots) -> Instruction:
    _, sends, reads, writes = TYPES[step.type]
    instruction = Instruction(step.block.rank, step.block.number, step.number, step.type, round=step.round)
    source = _places(step, step.source, buffers, sizes) if reads else []
    target = _places(step, step.target, buffers, sizes) if writes else []
    message: list[int] = []
    if number in slots.received:
        sender, message = slots.received[number]
        instruction.after.append(sender)
    for index in range(step.count):
        values = tuple(places[index] for places in (message, source) if places)
        if step.type == "re":
            values = (target[index], source[index])
        if writes and values != (target[index],):  # in place, a copy from the input to the output does nothing
            instruction.moves.append((target[index], values))
        if sends:
            instruction.moves.append((slots.sent[number][index], values))
    return instruction


def _places(step: Step, place: tuple[str, int], buffers: Buffers, sizes: dict[str, int]) -> list[int]:
    letter, offset = place
    if letter not in sizes:
        raise FormatError(f"{step}: there is no buffer {shown(letter)}; there are i, o and s", field=str(step))
    most = {"i": buffers.input_chunks, "o": buffers.output_chunks, "s": sizes["s"]}[letter]
    if buffers.in_place and letter in "io":
        most = max(most, sizes[letter]) if buffers.input_chunks == buffers.output_chunks else most
    if step.count and not 0 <= offset <= most - step.count:
        raise FormatError(
            f"{step}: chunks {offset} to {offset + step.count - 1} are not in the buffer {letter}, which has {most}",
            field=str(step),
        )
    rank = step.block.rank
    return [buffers.number(Place(rank, letter, offset + inside)) for inside in range(step.count)]


def _dependencies(program: Program, algorithm: Algorithm, numbers: dict[tuple[int, int, int], tuple[int, int]]) -> None:
    """Let steps wait for others of their GPU. The next step inherits what `nop` steps wait for."""
    for rank, (_, blocks) in algorithm.gpus.items():
        for block in blocks.values():
            for step in block.steps:
                other, wanted = step.after
                if other < 0:
                    continue
                if other not in blocks:
                    raise FormatError(f"{step}: it waits for thread block {other}, which is not there", field=str(step))
                # A block's flag only grows, and only steps with hasdep raise it.
                raised = (s for s in blocks[other].steps if s.number >= wanted and s.has_dependent and s.type != "nop")
                waited = next(raised, None)
                if waited is None:
                    story = (
                        f"{step} waits for step {wanted} of thread block {other}, but no step from there on says that "
                        "anything depends on it (hasdep)"
                    )
                    raise _unmatched(story, "deadlock", step)
                waits, _ = numbers[rank, block.number, step.number]
                program.instructions[waits].after.append(numbers[rank, other, waited.number][1])
