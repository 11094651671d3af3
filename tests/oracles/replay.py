"""What a schedule does, the slow and obvious way: numbers are moved by the rule and held to the promise.

Nothing here comes from the package: the ordering rule and the ten contracts are written out a second time, in
plain Python, so that a mistake in the one place is not repeated in the other.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from hypothesis.vendor.pretty import RepresentationPrinter

Value = TypeVar("Value")
Place: TypeAlias = tuple[int, int]  # the work place of (rank, chunk)
Contributions: TypeAlias = tuple[int, ...]  # how many times each rank's share is in a value


@dataclass(frozen=True, slots=True, repr=False)
class Row:
    """One transfer."""

    step: int
    src: int
    dst: int
    chunk: int
    count: int
    reduce: bool
    from_input: bool

    def __repr__(self) -> str:
        numbers = (self.step, self.src, self.dst, self.chunk, self.count)
        return f"Row({', '.join(map(str, numbers))}, {self.reduce}, {self.from_input})"

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def chunks(self) -> range:
        """The chunks that it carries."""
        return range(self.chunk, self.chunk + self.count)


@dataclass(frozen=True)
class Case:
    """A schedule as plain data: what is promised, and the rows that are to keep it.

    After the ranks come `switches` members that are given nothing and promised nothing.
    """

    collective: str
    ranks: int
    root: int | None
    num_chunks: int
    rows: tuple[Row, ...]
    switches: int = 0

    @property
    def num_steps(self) -> int:
        """How many steps the rows take."""
        return 1 + max((row.step for row in self.rows), default=-1)

    @property
    def members(self) -> int:
        """Ranks and switches."""
        return self.ranks + self.switches


class WrongError(Exception):
    """Rows that cannot be followed any further: `faults` are the places of the step, by kind, that forbid it."""

    def __init__(self, step: int, faults: Mapping[str, Sequence[Place]], why: str) -> None:
        super().__init__(f"step {step}: {why}")
        self.step, self.faults = step, {kind: frozenset(places) for kind, places in faults.items()}


# The contracts.

BLOCKS: dict[str, Callable[[int], int]] = {
    "broadcast": lambda p: 1,
    "reduce": lambda p: 1,
    "all_reduce": lambda p: 1,
    "scatter": lambda p: p,
    "gather": lambda p: p,
    "all_gather": lambda p: p,
    "reduce_scatter": lambda p: p,
    "barrier": lambda p: p,
    "send_recv": lambda p: p,
    "all_to_all": lambda p: p * p,
}


def block_of(case: Case, chunk: int) -> int:
    """The block that a chunk lies in: blocks are equal numbers of consecutive chunks."""
    return chunk // (case.num_chunks // BLOCKS[case.collective](case.ranks))


def has_input(case: Case, rank: int, chunk: int) -> bool:
    """Whether the rank has something of its own to give for the chunk."""
    if rank >= case.ranks:
        return False
    block = block_of(case, chunk)
    match case.collective:
        case "broadcast" | "scatter":
            return rank == case.root
        case "reduce" | "reduce_scatter" | "all_reduce":
            return True
        case "gather" | "all_gather" | "barrier" | "send_recv":
            return rank == block
        case "all_to_all":
            return rank == block // case.ranks
    raise AssertionError(case.collective)


def wants(case: Case, rank: int, chunk: int) -> bool:
    """Whether the rank must have the chunk in the end: the one share there is of it, or the sum of all."""
    if rank >= case.ranks:
        return False
    block = block_of(case, chunk)
    match case.collective:
        case "broadcast" | "all_reduce" | "all_gather" | "barrier":
            return True
        case "reduce" | "gather":
            return rank == case.root
        case "scatter" | "reduce_scatter":
            return rank == block
        case "send_recv":
            return rank == (block + 1) % case.ranks
        case "all_to_all":
            return rank == block % case.ranks
    raise AssertionError(case.collective)


def contributors(case: Case, chunk: int) -> list[int]:
    """The ranks whose shares make up the chunk."""
    return [rank for rank in range(case.ranks) if has_input(case, rank, chunk)]


def places(case: Case) -> list[Place]:
    """Every place there is."""
    return [(member, chunk) for member in range(case.members) for chunk in range(case.num_chunks)]


# The rule, step by step.


def check_form(case: Case) -> None:
    """Rows that name ranks or chunks that are not there, ranks that send to themselves, empty steps."""
    if case.num_chunks < 1 or case.num_chunks % BLOCKS[case.collective](case.ranks):
        raise WrongError(0, {"form": []}, f"{case.num_chunks} chunks cannot be cut into equal blocks")
    for row in case.rows:
        if not (0 <= row.src < case.members and 0 <= row.dst < case.members):
            raise WrongError(row.step, {"form": []}, f"{row}: no such rank")
        if row.count < 1 or row.chunk < 0 or row.chunk + row.count > case.num_chunks:
            raise WrongError(row.step, {"form": []}, f"{row}: no such chunks")
        if row.src == row.dst:
            raise WrongError(row.step, {"form": []}, f"{row}: a rank sends to itself")
    if {row.step for row in case.rows} != set(range(case.num_steps)):
        raise WrongError(0, {"form": []}, "there is a step without a transfer")


def contradictions(rows: Sequence[Row]) -> list[Place]:
    """The places where writes of one step contradict: a store excludes every other write to its place."""
    writers: dict[Place, list[Row]] = {}
    for row in rows:
        for chunk in row.chunks:
            writers.setdefault((row.dst, chunk), []).append(row)
    return [place for place, into in writers.items() if len(into) > 1 and not all(row.reduce for row in into)]


def replay(
    case: Case, given: Mapping[Place, Value], add: Callable[[Value, Value], Value], *, lenient: bool = False
) -> Iterator[dict[Place, Value]]:
    """What is in the work places before the first step and after each; a place that is absent is empty.

    Sending from an empty place is wrong, and so are writes that contradict each other. `lenient` lets them pass, to
    see what comes of it: nothing is moved, and the writes happen in order of src.
    """
    work = dict(given)
    yield dict(work)
    for step in range(case.num_steps):
        rows = [row for row in case.rows if row.step == step]
        empty = [
            (row.src, chunk)
            for row in rows
            for chunk in row.chunks
            if (row.src, chunk) not in (given if row.from_input else work)
        ]
        found = {"contradiction": contradictions(rows), "absent": empty}
        faults = {kind: where for kind, where in found.items() if where}
        if faults and not lenient:
            raise WrongError(step, faults, str(faults))
        before = dict(work)
        for row in sorted(rows, key=lambda row: row.src):
            for chunk in row.chunks:
                origin: Mapping[Place, Value] = given if row.from_input else before
                if (row.src, chunk) not in origin:
                    continue
                moved, target = origin[row.src, chunk], (row.dst, chunk)
                work[target] = add(work[target], moved) if row.reduce and target in work else moved
        yield dict(work)


def numbers(case: Case, seed: int) -> dict[Place, int]:
    """A random number of 200 bits for every share, so that no two different sums come out alike."""
    draw = random.Random(seed)
    return {place: draw.getrandbits(200) for place in places(case) if has_input(case, *place)}


def reason(case: Case, seeds: Sequence[int] = (1, 2)) -> str | None:
    """What is wrong with the schedule, or None: numbers are moved and compared with what was promised."""
    try:
        check_form(case)
        for seed in seeds:
            given = numbers(case, seed)
            *_, work = replay(case, given, lambda a, b: a + b)
            for rank, chunk in places(case):
                if wants(case, rank, chunk):
                    promised = sum(given[who, chunk] for who in contributors(case, chunk))
                    found = work.get((rank, chunk))
                    if found != promised:
                        return f"rank {rank} ends with {found} in chunk {chunk}, not with {promised}"
    except WrongError as wrong:
        return str(wrong)
    return None


def right(case: Case) -> bool:
    """Whether the rows are a schedule and do what the collective promises."""
    return reason(case) is None


def shares(case: Case, *, lenient: bool = False) -> Iterator[dict[Place, Contributions]]:
    """As `replay`, for the number of times that each rank's share is in a place."""
    given = {
        (rank, chunk): tuple(int(who == rank) for who in range(case.ranks))
        for rank, chunk in places(case)
        if has_input(case, rank, chunk)
    }
    return replay(case, given, lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), lenient=lenient)


# The rule, with nothing to keep the ranks in step.

READ_AFTER_WRITE = "a transfer waits for the earlier ones that wrote what it reads"
WRITE_AFTER_READ = "it writes after those of its own and earlier steps have read the place"
WRITE_AFTER_WRITE = "writes to one place happen in step order, and within a step in order of src"
ORDERING_RULE = (READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE)


class _Event(NamedTuple):
    """The row of this number reads or writes one of its chunks."""

    row: int
    chunk: int
    writes: bool


def _waits_for(case: Case, rule: Sequence[str]) -> dict[_Event, set[_Event]]:
    """The events that each event waits for. Chunks of one transfer wait for one another in nothing."""
    waits: dict[_Event, set[_Event]] = {}
    carriers: dict[int, list[tuple[int, Row]]] = {}
    for index, row in enumerate(case.rows):
        for chunk in row.chunks:
            carriers.setdefault(chunk, []).append((index, row))
    for chunk, carrying in carriers.items():
        for mine, row in carrying:
            read, write = _Event(mine, chunk, False), _Event(mine, chunk, True)
            waits[read], waits[write] = set(), {read}
            for theirs, other in carrying:
                other_read, other_write = _Event(theirs, chunk, False), _Event(theirs, chunk, True)
                wrote = other.dst == row.src and other.step < row.step and not row.from_input
                if READ_AFTER_WRITE in rule and wrote:
                    waits[read].add(other_write)
                reads = other.src == row.dst and other.step <= row.step and not other.from_input
                if WRITE_AFTER_READ in rule and reads:
                    waits[write].add(other_read)
                sooner = other.dst == row.dst and (other.step, other.src, theirs) < (row.step, row.src, mine)
                if WRITE_AFTER_WRITE in rule and sooner:
                    waits[write].add(other_write)
    return waits


def run_in_any_order(
    case: Case,
    given: Mapping[Place, Value],
    add: Callable[[Value, Value], Value],
    draw: random.Random,
    rule: Sequence[str] = ORDERING_RULE,
) -> dict[Place, Value]:
    """What is in the work places after one of the executions that the rule allows, drawn at random.

    Every event gets a random urgency, so an unlucky one stays behind until nothing else can happen.
    """
    waits = _waits_for(case, rule)
    followers: dict[_Event, list[_Event]] = {event: [] for event in waits}
    for event, earlier in waits.items():
        for one in earlier:
            followers[one].append(event)
    urgency = {event: draw.random() for event in waits}
    ready = [(urgency[event], event) for event, earlier in waits.items() if not earlier]
    heapq.heapify(ready)
    work, carried, done = dict(given), dict[tuple[int, int], Value](), 0
    while ready:
        _, event = heapq.heappop(ready)
        row, done = case.rows[event.row], done + 1
        if event.writes:
            target, moved = (row.dst, event.chunk), carried.pop((event.row, event.chunk))
            work[target] = add(work[target], moved) if row.reduce and target in work else moved
        else:
            origin: Mapping[Place, Value] = given if row.from_input else work
            if (row.src, event.chunk) not in origin:
                raise WrongError(row.step, {"absent": [(row.src, event.chunk)]}, f"{row}: nothing to send")
            carried[event.row, event.chunk] = origin[row.src, event.chunk]
        for follower in followers[event]:
            waits[follower].discard(event)
            if not waits[follower]:
                heapq.heappush(ready, (urgency[follower], follower))
    assert done == len(followers), "some transfers wait for one another for ever"
    return work


def order_matters(first: int, second: int) -> int:
    """A sum that remembers the order of its terms, as sums of floats do, only never the same by chance."""
    return hash((first, second))


def any_order_gives_the_same(case: Case, seed: int, executions: int = 3) -> bool:
    """Whether executions that the rule allows end with the data of the step-by-step replay, to the last bit.

    A case that fails in the replay for want of something to send must fail in every execution too.
    """
    given, draw = numbers(case, seed), random.Random(seed)

    def ends(execution: Callable[[], dict[Place, int]]) -> dict[Place, int] | None:
        try:
            return execution()
        except WrongError:
            return None

    expected = ends(lambda: list(replay(case, given, order_matters))[-1])
    return all(ends(lambda: run_in_any_order(case, given, order_matters, draw)) == expected for _ in range(executions))
