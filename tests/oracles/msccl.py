"""An interpreter of MSCCL's XML: thread blocks take turns at random, and numbers move as the executor moves them.

Written from the executor's rules: a block waits for the flags of others, receives in order from its peer, adds, stores,
sends, and raises its flag if anything depends on the step. A step of many chunks goes `at_once` of them at a time. A
connection holds `room` such messages. What receives and sends in one waits until it can do both.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from random import Random
from xml.etree import ElementTree

from tests.oracles.thread_blocks import Memory, Stuck, promised, take_turns


def run_msccl(
    content: bytes, random: Random, *, in_place: bool, root: int = 0, room: int = 2, at_once: int = 1
) -> bool:
    """Whether one execution at random leaves what the collective promises."""
    algo = ElementTree.fromstring(content)
    ranks, coll, loop = int(algo.attrib["ngpus"]), algo.attrib["coll"], int(algo.attrib["nchunksperloop"])
    divided = coll in ("allgather", "reducescatter", "alltoall")
    a_block = loop // ranks if divided else loop
    buffers = promised(coll, ranks, a_block, root, random)
    memories: dict[int, Memory] = {}
    blocks: list[Iterator[bool]] = []
    wires: dict[tuple[int, int, str], deque[list[int]]] = defaultdict(deque)
    flags: dict[tuple[int, str], int] = defaultdict(lambda: -1)
    for gpu in algo:
        rank = int(gpu.attrib["id"])
        offset = rank * a_block if in_place else None
        memories[rank] = Memory(
            buffers.inputs[rank], len(buffers.outputs[rank]), int(gpu.attrib["s_chunks"]), offset, random
        )
        blocks.extend(_block(tb, rank, memories[rank], wires, flags, (room, at_once)) for tb in gpu)
    take_turns(blocks, random)
    if any(wires.values()):
        raise Stuck
    return all(
        wanted is None or wanted == memories[rank].read("o", place, 1)[0]
        for rank, output in enumerate(buffers.outputs)
        for place, wanted in enumerate(output)
    )


def _block(
    tb: ElementTree.Element,
    rank: int,
    memory: Memory,
    wires: dict[tuple[int, int, str], deque[list[int]]],
    flags: dict[tuple[int, str], int],
    limits: tuple[int, int],
) -> Iterator[bool]:
    """A thread block; it yields whether it got on, wherever another one may come between."""
    here, channel = tb.attrib, tb.attrib["chan"]
    arriving, leaving = wires[int(here["recv"]), rank, channel], wires[rank, int(here["send"]), channel]
    room, at_once = limits
    for step in tb:
        at = step.attrib
        kind = at["type"]
        receives, sends = kind in ("r", "rcs", "rrs", "rrc", "rrcs"), kind in ("s", "rcs", "rrs", "rrcs")
        while int(at["depid"]) >= 0 and flags[rank, at["depid"]] < int(at["deps"]):
            yield False
        for first in range(0, int(at["cnt"]), at_once):
            count = min(at_once, int(at["cnt"]) - first)
            source, target = (at["srcbuf"], int(at["srcoff"]) + first), (at["dstbuf"], int(at["dstoff"]) + first)
            while (receives and not arriving) or (sends and len(leaving) >= room):
                yield False
            values = arriving.popleft() if receives else []
            assert not receives or len(values) == count
            yield True
            if kind in ("s", "cpy"):
                values = memory.read(*source, count)
            elif kind in ("rrs", "rrc", "rrcs"):
                values = [a + b for a, b in zip(values, memory.read(*source, count), strict=True)]
            elif kind == "re":
                values = [a + b for a, b in zip(memory.read(*target, count), memory.read(*source, count), strict=True)]
            yield True
            if kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
                memory.write(*target, values)
            if sends:
                leaving.append(values)
            yield True
        if at["hasdep"] == "1" and kind != "nop":
            flags[rank, here["id"]] = int(at["s"])
