"""From a schedule to MSCCL's thread blocks.

A connection is the messages from one GPU to another on one channel, in order. A thread block serves one incoming and
one outgoing connection. The two share a block if what arrives on one is forwarded on the other: such a receive and send
are fused. A step waits for the steps of other blocks that wrote what it reads, or read what it overwrites.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from choreo.schedule.exchange.layout import Cell, Layout

__all__ = ["Block", "Step", "lower"]

NOWHERE = Cell("i", -1)
Chunk = tuple[int, int]  # rank, chunk


@dataclass(slots=True, eq=False)
class Step:
    """A step of a thread block; `after` are the steps that it waits for."""

    block: Block
    type: str
    source: Cell = NOWHERE
    target: Cell = NOWHERE
    count: int = 0
    round: int | None = None
    after: list[Step] = field(default_factory=list)
    number: int = -1
    needed: bool = False


@dataclass(slots=True, eq=False)
class Block:
    """A thread block of a GPU: its peers to send to and receive from, its channel, and its steps."""

    send: int = -1
    receive: int = -1
    channel: int = 0
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class _Rank:
    """One GPU: the numbers of the messages it receives and sends on each connection, and its blocks."""

    incoming: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    outgoing: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    blocks: list[Block] = field(default_factory=list)


Uses = list[tuple[list[int], bool]]


@dataclass(slots=True)
class _Lowering:
    """Facts about all messages: who forwards them, and the steps at both ends; and the copies of inputs.

    `uses` has for each message those that forward its result, -1 if a later sum needs it, and whether it is final.
    """

    layout: Layout
    uses: Uses
    fused: dict[int, int]
    sent: dict[int, Step] = field(default_factory=dict)
    received: dict[int, Step] = field(default_factory=dict)
    saved: dict[Chunk, Step] = field(default_factory=dict)


def lower(layout: Layout, *, fuse: bool, window: int, peers: int, share: bool) -> list[list[Block]]:
    """The thread blocks of each rank.

    A connection moves to another channel after `window` messages. A rank has at most `peers` connections each way on a
    channel. With `share` an incoming and an outgoing connection share a block even if nothing is fused.
    """
    ranks = [_Rank() for _ in range(layout.schedule.ranks)]
    spread = -(-max(1, len(ranks) - 1) // peers)
    sent: Counter[tuple[int, int]] = Counter()
    channels: list[int] = []
    for message in layout.messages:
        after = sent[message.src, message.dst] // window
        channels.append(((message.dst - message.src) % len(ranks) - 1) // peers + spread * after)
        sent[message.src, message.dst] += 1
    dense = {channel: number for number, channel in enumerate(sorted(set(channels)))}
    for number, message in enumerate(layout.messages):
        channel = dense[channels[number]]
        ranks[message.src].outgoing[message.dst, channel].append(number)
        ranks[message.dst].incoming[message.src, channel].append(number)
    uses = _uses(layout)
    work = _Lowering(layout, uses, _forwarded(layout, uses) if fuse else {})
    for number, rank in enumerate(ranks):
        for incoming, outgoing in _shared(rank, work.fused, share):
            rank.blocks.append(_block(work, rank, incoming, outgoing))
        local = _copies(work, number)
        if local.steps:
            rank.blocks.append(local)
    _order(work)
    for rank in ranks:
        _spell_out(rank.blocks)
    return [rank.blocks for rank in ranks]


def _uses(layout: Layout) -> Uses:
    """For each message, the messages that forward its result, -1 if a later sum needs it, and whether it is final."""
    made_by: dict[Chunk, int] = {}
    readers: list[set[int]] = [set() for _ in layout.messages]
    for _, numbers in groupby(range(len(layout.messages)), key=lambda n: layout.messages[n].step):
        together = list(numbers)
        for number in together:
            message = layout.messages[number]
            for chunk in range(message.chunk, message.chunk + message.count):
                maker = made_by.get((message.src, chunk))
                if maker is not None and not message.from_copy and message.source.buffer != "i":
                    readers[maker].add(number)
        for number in together:
            message = layout.messages[number]
            for chunk in range(message.chunk, message.chunk + message.count):
                maker = made_by.get((message.dst, chunk))
                if maker is not None and message.base is not None:
                    readers[maker].add(-1)  # a later sum needs it in its place
                made_by[message.dst, chunk] = number
    kept: set[int] = set()
    due = layout.schedule.held_after()
    for (rank, chunk), maker in made_by.items():
        if due[rank, chunk]:
            kept.add(maker)
    return [(sorted(found), number in kept) for number, found in enumerate(readers)]


def _forwarded(layout: Layout, uses: Uses) -> dict[int, int]:
    """Messages that another message forwards whole, and nothing else, each with the first message that does so."""
    fused: dict[int, int] = {}
    taken: set[int] = set()
    makers = Counter(reader for readers, _ in uses for reader in readers)
    for number, message in enumerate(layout.messages):
        for reader in uses[number][0]:
            if reader < 0 or reader in taken or makers[reader] > 1:
                continue
            other = layout.messages[reader]
            if (other.source, other.count) == (message.target, message.count):
                fused[number] = reader
                taken.add(reader)
                break
    return fused


Connection = tuple[int, int] | None


def _shared(rank: _Rank, fused: dict[int, int], share: bool) -> Iterator[tuple[Connection, Connection]]:
    """Pairs of incoming and outgoing connections that share a thread block: those with the most to fuse first."""
    out_of = {number: ends for ends, numbers in rank.outgoing.items() for number in numbers}
    common: Counter[tuple[tuple[int, int], tuple[int, int]]] = Counter()
    for ends, numbers in rank.incoming.items():
        for number in numbers:
            other = out_of.get(fused.get(number, -1))
            if other is not None and other[1] == ends[1]:
                common[ends, other] += 1
    free_in, free_out = dict.fromkeys(rank.incoming), dict.fromkeys(rank.outgoing)
    pairs: list[tuple[Connection, Connection]] = []
    for (incoming, outgoing), _ in common.most_common():
        if incoming in free_in and outgoing in free_out:
            del free_in[incoming], free_out[outgoing]
            pairs.append((incoming, outgoing))
    for incoming in list(free_in) if share else ():
        # Prefer the same peer both ways: a block that waits for a peer then also receives from it.
        partner = incoming if incoming in free_out else next((o for o in free_out if o[1] == incoming[1]), None)
        if partner is not None:
            del free_in[incoming], free_out[partner]
            pairs.append((incoming, partner))
    pairs.extend((incoming, None) for incoming in free_in)
    pairs.extend((None, outgoing) for outgoing in free_out)
    yield from sorted(pairs, key=lambda pair: (pair[1] or (1 << 30, 0), pair[0] or (1 << 30, 0)))


def _block(work: _Lowering, rank: _Rank, incoming: Connection, outgoing: Connection) -> Block:
    """A thread block's steps: both connections in order, sends before receives of the same step."""
    messages = work.layout.messages
    block = Block(outgoing[0] if outgoing else -1, incoming[0] if incoming else -1, (outgoing or incoming or (0, 0))[1])
    inward = rank.incoming[incoming] if incoming else []
    outward = rank.outgoing[outgoing] if outgoing else []
    place = {number: index for index, number in enumerate(outward)}
    a = b = 0
    while a < len(inward) or b < len(outward):
        on = place.get(work.fused.get(inward[a], -1), -1) if a < len(inward) else -1
        if on == b:
            step = _fused_step(work, block, inward[a], outward[b])
            work.received[inward[a]] = work.sent[outward[b]] = step
            a, b = a + 1, b + 1
        elif b < len(outward) and (a == len(inward) or on > b or messages[outward[b]].step <= messages[inward[a]].step):
            message = messages[outward[b]]
            work.sent[outward[b]] = Step(block, "s", message.source, message.source, message.count, message.step)
            block.steps.append(work.sent[outward[b]])
            b += 1
        else:
            message = messages[inward[a]]
            kind = "r" if message.base is None else "rrc"
            work.received[inward[a]] = Step(block, kind, message.base or message.target, message.target, message.count)
            block.steps.append(work.received[inward[a]])
            a += 1
    return block


def _fused_step(work: _Lowering, block: Block, arrives: int, leaves: int) -> Step:
    one, other = work.layout.messages[arrives], work.layout.messages[leaves]
    readers, kept = work.uses[arrives]
    summed = "rrs" if readers == [leaves] and not kept else "rrcs"
    kind = "rcs" if one.base is None else summed
    step = Step(block, kind, one.base or one.target, one.target, one.count, other.step)
    block.steps.append(step)
    return step


def _copies(work: _Lowering, rank: int) -> Block:
    """The thread block that copies inputs: to scratch if they are sent later, to the output if they end up there."""
    block = Block()
    for copies, saves in ((work.layout.saves[rank], True), (work.layout.leaves[rank], False)):
        last: Step | None = None
        for chunk, source, target in copies:
            follows = last is not None and (
                (last.source.buffer, last.source.offset + last.count) == source
                and (last.target.buffer, last.target.offset + last.count) == target
                and last.count < 71
            )
            if last is None or not follows:
                last = Step(block, "cpy", source, target)
                block.steps.append(last)
            last.count += 1
            if saves:
                work.saved[rank, chunk] = last
    return block


def _order(work: _Lowering) -> None:
    """Let each step wait for the writers of what it reads, and for the readers and writers of what it overwrites."""
    messages = work.layout.messages
    wrote: dict[Chunk, Step] = {}
    read: dict[Chunk, list[Step]] = defaultdict(list)
    for place, step in work.saved.items():
        read[place].append(step)
    for _, numbers in groupby(range(len(messages)), key=lambda n: messages[n].step):
        together = list(numbers)
        for number in together:
            message, step = messages[number], work.sent[number]
            for chunk in range(message.chunk, message.chunk + message.count):
                here = (message.src, chunk)
                if message.from_copy:
                    step.after.append(work.saved[here])
                    continue
                if message.source.buffer != "i" and here in wrote:
                    step.after.append(wrote[here])
                read[here].append(step)
        for number in together:
            message, step = messages[number], work.received[number]
            for chunk in range(message.chunk, message.chunk + message.count):
                here = (message.dst, chunk)
                if here in wrote:
                    step.after.append(wrote[here])
                step.after.extend(read.pop(here, ()))
                wrote[here] = step


def _spell_out(blocks: list[Block]) -> None:
    """Drop dependencies that a block already knows of, put all but one per step into nops, and number the steps."""
    for block in blocks:
        for number, step in enumerate(block.steps):
            step.number = number
    for block in blocks:
        known: dict[int, int] = {id(block): 1 << 30}
        for step in block.steps:
            latest: dict[int, Step] = {}
            for other in step.after:
                here = id(other.block)
                if other.number > max(known.get(here, -1), latest[here].number if here in latest else -1):
                    latest[here] = other
            step.after = list(latest.values())
            known |= {here: other.number for here, other in latest.items()}
    for block in blocks:
        spelled: list[Step] = []
        for step in block.steps:
            spelled.extend(Step(block, "nop", after=[other]) for other in step.after[:-1])
            step.after = step.after[-1:]
            spelled.append(step)
        block.steps = spelled
        for number, step in enumerate(spelled):
            step.number = number
    for block in blocks:
        for step in block.steps:
            for other in step.after:
                other.needed = True
