"""MSCCL's XML: thread blocks that send and receive in order on channels.

    <algo name="ring" proto="Simple" nchannels="1" nchunksperloop="4" ngpus="2" coll="allreduce" inplace="1"
          outofplace="0" minBytes="0" maxBytes="0">
      <gpu id="0" i_chunks="4" o_chunks="0" s_chunks="1">
        <tb id="0" send="1" recv="-1" chan="0">
          <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>

The k-th message that a GPU sends to another on a channel is the k-th that the other receives there. A step waits for
step `deps` of thread block `depid` of its GPU; further dependencies are in `nop` steps before it. The newer form has
`<op step type buf off>` and leaves out defaults. The meaning of a step is what the executor's interpreter does: `rrc`
adds what arrives to the *source* and stores the sum at the destination.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from choreo.checks import MAX_RANKS
from choreo.errors import FormatError, shown
from choreo.schedule.exchange.program import collective_of
from choreo.schedule.schedule import MAX_NAME

__all__ = ["TYPES", "Algorithm", "Block", "Step", "parse"]

# For each type of step: does it receive, send, read its source, write its destination?
TYPES = {
    "s": (False, True, True, False),
    "r": (True, False, False, True),
    "rcs": (True, True, False, True),
    "rrs": (True, True, True, False),
    "rrc": (True, False, True, True),
    "rrcs": (True, True, True, True),
    "cpy": (False, False, True, True),
    "re": (False, False, True, True),
    "nop": (False, False, False, False),
}
PROTOCOLS = ("Simple", "LL", "LL128")
MAX_COUNT = 1 << 16


@dataclass(slots=True, eq=False)
class Step:
    """A step: its type, its chunks, and the step of its GPU that it waits for, (-1, -1) if none.

    `round` is the step of the schedule that the file claims for its message.
    """

    block: Block
    number: int
    type: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    after: tuple[int, int]
    has_dependent: bool
    round: int | None

    def __str__(self) -> str:
        return f"{self.block}, step {self.number} ({self.type})"


@dataclass(slots=True, eq=False)
class Block:
    """A thread block: its peers to send to and receive from, its channel, and its steps."""

    rank: int
    number: int
    send: int
    receive: int
    channel: int
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        return f"gpu {self.rank}, thread block {self.number}"


@dataclass(slots=True)
class Algorithm:
    """A whole file. `gpus` has each GPU's buffer sizes and thread blocks."""

    name: str
    protocol: str
    collective: str
    ranks: int
    chunks: int
    in_place: tuple[bool, ...]
    root: int | None
    gpus: dict[int, tuple[dict[str, int], dict[int, Block]]]


def parse(content: bytes) -> Algorithm:
    """Parse a file element by element, or raise a `FormatError` that names the place."""
    if re.search(rb"<!\s*(DOCTYPE|ENTITY)", content, re.IGNORECASE):
        raise FormatError("it declares a DOCTYPE or an entity, which no such file needs", field="the file")
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise FormatError(f"it is not XML: {shown(error)}", field="the file") from None
    if root.tag != "algo":
        raise FormatError(f"its element is <{shown(root.tag)}>, not <algo>", field="the file")
    ranks = _whole(root, "ngpus", "algo", least=1, most=MAX_RANKS)
    name = root.get("coll")
    if name is None:
        raise FormatError("algo: it has no coll", field="algo.coll")
    collective = collective_of(name, "algo.coll")
    protocol = root.get("proto", "Simple")
    if protocol not in PROTOCOLS:
        raise FormatError(
            f"algo.proto: {shown(protocol)} is no protocol; there are {', '.join(PROTOCOLS)}", field="algo.proto"
        )
    gpus: dict[int, tuple[dict[str, int], dict[int, Block]]] = {}
    for element in root:
        if element.tag != "gpu":
            raise FormatError(f"algo: it has an element <{shown(element.tag)}>; there are only <gpu>", field="algo")
        rank = _whole(element, "id", "gpu", least=0, most=ranks - 1)
        if rank in gpus:
            raise FormatError(f"gpu {rank}: it is there twice", field=f"gpu {rank}")
        where = f"gpu {rank}"
        sizes = {letter: _whole(element, f"{letter}_chunks", where, least=0, most=1 << 28) for letter in "ios"}
        gpus[rank] = (sizes, _blocks(element, rank, ranks))
    if len(gpus) < ranks:
        absent = next(rank for rank in range(ranks) if rank not in gpus)
        raise FormatError(f"gpu {absent}: it is not there, but ngpus is {ranks}", field=f"gpu {absent}")
    _check_channels(gpus, _whole(root, "nchannels", "algo", least=0, most=1 << 16, default=1 << 16))
    largest = max(max(sizes["i"], sizes["o"]) for sizes, _ in gpus.values())
    a_loop = _whole(root, "nchunksperloop", "algo", least=1, most=1 << 20, default=max(1, largest))
    inside = _whole(root, "inplace", "algo", 0, 1, default=0)
    outside = _whole(root, "outofplace", "algo", 0, 1, default=1 - inside)
    in_place = (*((True,) if inside else ()), *((False,) if outside or not inside else ()))
    named_root = _whole(root, "root", "algo", 0, ranks - 1) if root.get("root") is not None else None
    called = root.get("name", "unnamed")[:MAX_NAME]
    return Algorithm(called, protocol, collective, ranks, a_loop, in_place, named_root, gpus)


def _check_channels(gpus: dict[int, tuple[dict[str, int], dict[int, Block]]], channels: int) -> None:
    """Refuse a thread block on a channel that executors do not connect."""
    for _, blocks in gpus.values():
        for block in blocks.values():
            if max(block.send, block.receive) >= 0 and not 0 <= block.channel < channels:
                raise FormatError(
                    f"{block}: chan is {block.channel}, and nchannels is {channels}; channels are counted from 0",
                    field=str(block),
                )


def _blocks(gpu: ElementTree.Element, rank: int, ranks: int) -> dict[int, Block]:
    blocks: dict[int, Block] = {}
    for element in gpu:
        if element.tag == "copy":  # from an older runtime; executors skip it
            continue
        if element.tag != "tb":
            raise FormatError(
                f"gpu {rank}: it has an element <{shown(element.tag)}>; there are only <tb>", field=f"gpu {rank}"
            )
        number = _whole(element, "id", f"gpu {rank}, a thread block", 0, 1 << 16)
        where = f"gpu {rank}, thread block {number}"
        if number in blocks:
            raise FormatError(f"{where}: it is there twice", field=where)
        peers = [_whole(element, end, where, -1, ranks - 1) for end in ("send", "recv")]
        if rank in peers:
            raise FormatError(f"{where}: it sends to or receives from its own gpu", field=where)
        channel = _whole(element, "chan", where, -1, 1 << 16)
        blocks[number] = block = Block(rank, number, peers[0], peers[1], channel)
        for index, step in enumerate(element):
            block.steps.append(_step(step, index, block))
    missing = next((number for number in range(len(blocks)) if number not in blocks), None)
    if missing is not None:
        raise FormatError(f"gpu {rank}: thread block {missing} is missing", field=f"gpu {rank}")
    return dict(sorted(blocks.items()))


def _step(element: ElementTree.Element, index: int, block: Block) -> Step:
    where = f"{block}, step {index}"
    if element.tag not in ("step", "op"):
        raise FormatError(f"{where}: it is an element <{shown(element.tag)}>, not <step>", field=where)
    newer = element.tag == "op"
    number = _whole(element, "step" if newer else "s", where, 0, 1 << 20)
    if number != index:
        raise FormatError(f"{where}: it says that it is step {number}; steps are counted from 0 in order", field=where)
    kind = element.get("type", "")
    if kind not in TYPES:
        raise FormatError(f"{where}: type {shown(kind)} is none of {', '.join(TYPES)}", field=where)
    receives, sends, _, _ = TYPES[kind]
    if (receives and block.receive < 0) or (sends and block.send < 0):
        raise FormatError(
            f"{where}: {kind} {'receives' if receives and block.receive < 0 else 'sends'}, but its thread block has no "
            f"gpu to {'receive from' if receives and block.receive < 0 else 'send to'}",
            field=where,
        )
    if newer:
        place = (element.get("buf", "i"), _whole(element, "off", where, -1, 1 << 28, default=-1))
        source = target = place
    else:
        source = (element.get("srcbuf", "i"), _whole(element, "srcoff", where, -1, 1 << 28, default=-1))
        target = (element.get("dstbuf", "o"), _whole(element, "dstoff", where, -1, 1 << 28, default=-1))
    count = _whole(element, "cnt", where, 0, MAX_COUNT, default=int(kind != "nop"))
    after = (
        _whole(element, "depid", where, -1, 1 << 16, default=-1),
        _whole(element, "deps", where, -1, 1 << 20, default=-1),
    )
    if after[0] >= 0 > after[1]:
        raise FormatError(f"{where}: it waits for thread block {after[0]}, but for none of its steps", field=where)
    claimed = element.get("round")
    return Step(
        block,
        index,
        kind,
        source,
        target,
        count if kind != "nop" else 0,
        after,
        bool(_whole(element, "hasdep", where, 0, 1, default=0)),
        None if claimed is None else _whole(element, "round", where, 0, 1 << 28),
    )


def _whole(
    element: ElementTree.Element, name: str, where: str, least: int, most: int, *, default: int | None = None
) -> int:
    text = element.get(name)
    if text is None:
        if default is None:
            raise FormatError(f"{where}: it has no {name}", field=f"{where}.{name}")
        return default
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text) or not least <= int(text) <= most:
        raise FormatError(
            f"{where}: {name} is {shown(text[:40])}; it must be a whole number from {least} to {most}",
            field=f"{where}.{name}",
        )
    return int(text)
