"""Execute a program symbolically: find deadlocks and races, and what every place holds at the end.

The instructions are run in one order that the program allows. Without races every execution gives the same data. What a
place holds is a `Value`: which chunk it is, and which ranks' contributions are in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from choreo.errors import ProofError
from choreo.schedule.exchange.program import Program, proof_error_at
from choreo.schedule.exchange.races import check_races

__all__ = ["OWN", "Crossing", "Execution", "Value", "execute"]

NAMED = 6  # at most this many instructions of a cycle are listed
OWN = -1  # in `Value.parts`: the rank's own input


@dataclass(slots=True, eq=False)
class Value:
    """The contents of a place: the sum of some ranks' contributions to a chunk.

    `once` and `twice` are sets of ranks as bits. `parts` is what it was made of at its rank: crossings by number, and
    `OWN`. `bad` tells why it is no such sum, and `kind` in a word.
    """

    rank: int
    chunk: int
    once: int
    twice: int
    parts: frozenset[int]
    writer: int = -1
    bad: str = ""
    kind: str = ""


@dataclass(slots=True, eq=False)
class Crossing:
    """A value that goes from one GPU to another. Those of one instruction to one GPU are a message."""

    src: int
    dst: int
    value: Value
    instruction: int
    place: int


@dataclass(slots=True)
class Execution:
    """The result of a run: the final values, and all that crossed between GPUs, in order."""

    held: list[Value | None]
    writers: dict[int, int] = field(default_factory=dict)  # the last instruction that wrote each place
    crossings: list[Crossing] = field(default_factory=list)


def execute(program: Program) -> Execution:
    """Run the program, or raise `ProofError` with the story of a deadlock, a race or a wrong result."""
    order = _in_order(program)
    check_races(program, order)
    run = _values(program, order)
    _check_results(program, run)
    return run


def _in_order(program: Program) -> list[int]:
    """The instructions in an order in which none waits for a later one."""
    code = program.instructions
    waits = [len(instruction.after) + len(instruction.fed_by) for instruction in code]
    then: list[list[int]] = [[] for _ in code]
    last: dict[tuple[int, int], int] = {}  # the last instruction of each block
    for number, instruction in enumerate(code):
        for before in (*instruction.after, *instruction.fed_by):
            then[before].append(number)
        if instruction.home in last:
            then[last[instruction.home]].append(number)
            waits[number] += 1
        last[instruction.home] = number
    for first, second in program.order:
        then[first].append(second)
        waits[second] += 1
    ready = [number for number in range(len(code) - 1, -1, -1) if not waits[number]]
    order: list[int] = []
    while ready:
        number = ready.pop()  # the one made ready last, so that few messages are in flight at once
        order.append(number)
        for later in then[number]:
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    if len(order) < len(code):
        raise _deadlock(program, {number for number, count in enumerate(waits) if count})
    return order


def _deadlock(program: Program, stuck: set[int]) -> ProofError:
    """Follow the waits until they form a cycle."""
    code = program.instructions
    room: dict[int, list[int]] = {}
    for first, second in program.order:
        room.setdefault(second, []).append(first)
    seen: dict[int, int] = {}
    path: list[tuple[int, str]] = []
    here = min(stuck)
    while here not in seen:
        seen[here] = len(path)
        message = next((n for n in (*code[here].after, *code[here].fed_by) if n in stuck), None)
        full = next((n for n in room.get(here, ()) if n in stuck), None)
        if message is not None:
            path.append((here, "waits for"))
            here = message
        elif full is not None:
            path.append((here, "waits for"))
            here = full
        else:
            path.append((here, "comes after"))
            here = max(n for n in range(here) if code[n].home == code[here].home)
    cycle = path[seen[here] :]
    ends = [*cycle[1:], cycle[0]]
    waits = [f"{code[number]} {how} {code[after]}" for (number, how), (after, _) in zip(cycle, ends, strict=True)]
    if len(waits) > NAMED:
        waits = [*waits[: NAMED - 1], f"{len(waits) - NAMED} more", waits[-1]]
    return proof_error_at(code[cycle[0][0]], "deadlock", f"deadlock: {'; '.join(waits)}")


def _values(program: Program, order: list[int]) -> Execution:
    held: list[Value | None] = [None] * len(program.places)
    own = frozenset((OWN,))
    for place, chunk in program.given.items():
        rank = program.places[place].rank
        held[place] = Value(rank, chunk, 1 << rank, 0, own)
    run = Execution(held)
    for number in order:
        instruction = program.instructions[number]
        written = []
        known: dict[tuple[int, ...], Value] = {}  # a value that is put into several places is made once
        for target, sources in instruction.moves:
            if sources not in known:
                values = [_arrived(run, program, number, source, instruction.rank) for source in sources]
                known[sources] = values[0] if len(values) == 1 else _sum(values, number, program)
            value = known[sources]
            held_there = program.places[target].rank
            if held_there != instruction.rank:
                value = _cross(run, value, number, target, held_there)
            written.append((target, value))
        for target, value in written:
            held[target] = value
            run.writers[target] = number
    return run


def _arrived(run: Execution, program: Program, number: int, place: int, rank: int) -> Value:
    """The value at a place, as the reading GPU sees it."""
    value, held_by = run.held[place], program.places[place].rank
    if value is None:
        problem = f"{program.instructions[number]} reads {program.told(place)}, where nothing has been written"
        return Value(rank, -1, 0, 0, frozenset(), number, problem, "absent")
    return value if held_by == rank else _cross(run, value, number, place, rank)


def _cross(run: Execution, value: Value, number: int, place: int, dst: int) -> Value:
    run.crossings.append(Crossing(value.rank, dst, value, number, place))
    parts = frozenset((len(run.crossings) - 1,))
    return Value(dst, value.chunk, value.once, value.twice, parts, number, value.bad, value.kind)


def _sum(values: list[Value], number: int, program: Program) -> Value:
    first, instruction, told = values[0], program.instructions[number], program.told_chunk
    chunk, once, twice, parts = first.chunk, first.once, first.twice, first.parts
    bad, kind = next(((value.bad, value.kind) for value in values if value.bad), ("", ""))
    for value in values[1:]:
        if value.chunk != chunk and not bad:
            bad, kind = f"{instruction} adds {told(value.chunk)} to {told(chunk)}", "mixed"
        if once & value.once and not bad:
            rank = _first(once & value.once)
            bad, kind = (
                f"{instruction} adds to {told(chunk)} the contribution of rank {rank}, which is in it already",
                "doubled",
            )
        twice |= value.twice | (once & value.once)
        once |= value.once
        parts |= value.parts
    return Value(instruction.rank, chunk, once, twice, parts, number, bad, kind)


def _check_results(program: Program, run: Execution) -> None:
    """Refuse a place whose final value is not what the collective promises."""
    contract = program.contract
    everyone = (1 << program.ranks) - 1
    origin = {chunk: 1 << program.places[place].rank for place, chunk in program.given.items()}
    for place, chunk in program.due.items():
        value = run.held[place]
        wanted = everyone if contract.reduces else origin[chunk]
        if value is not None and not value.bad and (value.chunk, value.once, value.twice) == (chunk, wanted, 0):
            continue
        raise _wrong(program, run, place, wanted)


def _wrong(program: Program, run: Execution, place: int, wanted: int) -> ProofError:
    held_by, chunk, value = program.places[place].rank, program.due[place], run.held[place]
    end = f"in the end {program.told(place)} does not hold {_meant(program, chunk)}"
    if value is None or place not in run.writers:
        written = "nothing is written there" if value is None else "nothing is written over the input there"
        return ProofError(f"{end}: {written}", kind="missing", step=0, rank=held_by, chunk=chunk)
    if value.bad:
        contributor = _first(value.twice) if value.twice else None
        at = program.instructions[value.writer]
        return proof_error_at(at, value.kind, f"{value.bad}; {end}", chunk, contributor)
    at = program.instructions[run.writers[place]]
    if value.chunk != chunk:
        return proof_error_at(at, "misplaced", f"{at} leaves {_meant(program, value.chunk)} there; {end}", chunk)
    missing = wanted & ~value.once
    assert missing, "a value that is neither bad nor misplaced lacks something"
    rank = _first(missing)
    story = f"{at} leaves {program.told_chunk(chunk)} without the contribution of rank {rank}; {end}"
    return proof_error_at(at, "missing", story, chunk, rank)


def _meant(program: Program, chunk: int) -> str:
    """A chunk in the words of the collective."""
    ranks = program.ranks
    a_block = program.num_chunks // program.contract.blocks(ranks)
    block, inside = divmod(chunk, a_block)
    if program.collective == "all_to_all":
        return f"{program.told_chunk(inside)} of what rank {block // ranks} has for rank {block % ranks}"
    if program.collective in ("all_gather", "gather"):
        return f"{program.told_chunk(inside)} of rank {block}"
    told = program.told_chunk(chunk)
    return f"the sum of {told}" if program.contract.reduces else told


def _first(ranks: int) -> int:
    return (ranks & -ranks).bit_length() - 1
