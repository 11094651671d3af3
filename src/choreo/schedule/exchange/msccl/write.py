"""Write a schedule as MSCCL's XML, within the limits of the executors that read it, or name the limit it exceeds.

Each limit is the smallest among Azure's msccl-executor-nccl, AMD's RCCL and microsoft/msccl, so that a file runs on all
of them. The file is then read back and checked, in place and out of place, on connections that hold two chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from xml.sax.saxutils import quoteattr

from choreo.errors import ProofError, RefusedError, shown
from choreo.schedule.exchange.equal_chunks import equal_chunks
from choreo.schedule.exchange.layout import Layout, foreign_name, lay_out
from choreo.schedule.exchange.msccl.lower import Block, lower
from choreo.schedule.exchange.msccl.read import read_msccl
from choreo.schedule.schedule import Schedule

__all__ = ["write_msccl"]

MAX_STEPS = 64  # per thread block, nops included
MAX_BLOCKS = 64  # per GPU
MAX_CHANNELS = 32
MAX_PEERS = 32  # per GPU and channel, each way
MAX_CHUNKS_A_STEP = 71
MAX_OFFSET = (1 << 15) - 1
MAX_NODES = 4096  # XML elements that a GPU's reader keeps: all gpu elements, and its own blocks and steps
MAX_ROWS = 1 << 18  # rows of a schedule; beyond it the file would be larger than 50 MB
MAX_NAME = 60
ROOM = 2  # chunks that a connection buffers with the Simple protocol before a send blocks
CYCLE = "its steps would wait for each other in a cycle"
WINDOWS = (1 << 30, 60, 44, 30, 20, 12, 8)  # messages of a connection before it moves to another channel


def write_msccl(schedule: Schedule) -> bytes:
    """The schedule as a file for MSCCL's executors, or `RefusedError` if they cannot run it.

    >>> from choreo import build
    >>> write_msccl(build("all_gather", "ring", 2)).splitlines()[2]
    b'    <tb id="0" send="1" recv="-1" chan="0">'
    """
    name = foreign_name(schedule, "MSCCL")
    schedule = equal_chunks(schedule, MAX_OFFSET)
    _check_size(schedule)
    # Two ranks that exchange more than a connection holds would wait for each other; smaller pieces may help.
    for most in (MAX_CHUNKS_A_STEP, ROOM):
        layout = lay_out(schedule, most)
        problems: list[str] = []
        for fuse, share in product((True, False), (False, True)):
            written, problem = _tried(layout, name, fuse=fuse, share=share)
            if written is not None:
                return written
            problems.append(problem)
        if not any(problem.startswith(CYCLE) for problem in problems):
            break
    raise RefusedError(f"{_called(schedule)} cannot be written for MSCCL: {problems[0]}")


def _tried(layout: Layout, name: str, *, fuse: bool, share: bool) -> tuple[bytes | None, str]:
    """The file with as few channels as possible, or none and the limit that is in the way."""
    limit = ""
    for window in WINDOWS:
        blocks = lower(layout, fuse=fuse, window=window, peers=MAX_PEERS, share=share)
        problem, finer = _beyond(layout, blocks)
        limit = limit or problem
        if problem and finer:
            continue
        if problem:
            break
        written = _written(layout, blocks, name)
        try:
            read_msccl(written, room=ROOM)
        except ProofError as error:
            return None, f"{CYCLE} ({error.story})"
        return written, ""
    return None, limit


def _called(schedule: Schedule) -> str:
    return f"{schedule.collective} by {shown(schedule.label)} over {schedule.ranks} ranks"


def _check_size(schedule: Schedule) -> None:
    """Refuse early what cannot fit any number of thread blocks."""
    if schedule.num_chunks > MAX_OFFSET:
        raise RefusedError(
            f"{_called(schedule)} cannot be written for MSCCL: it has {schedule.num_chunks} chunks, and a buffer there "
            f"has at most {MAX_OFFSET}"
        )
    if schedule.ranks > MAX_NODES - 2:
        raise RefusedError(
            f"{_called(schedule)} cannot be written for MSCCL: a gpu reads at most {MAX_NODES} elements of the file, "
            "and each rank is one"
        )
    if schedule.count_transfers(MAX_ROWS) > MAX_ROWS:
        raise RefusedError(
            f"{_called(schedule)} is not written for MSCCL: it has more than {MAX_ROWS} transfers, and a file of "
            "this many steps would be larger than 50 MB"
        )


def _beyond(layout: Layout, blocks: list[list[Block]]) -> tuple[str, bool]:
    """The limit that is exceeded, if any, and whether more channels may help."""
    for rank, own in enumerate(blocks):
        if len(own) > MAX_BLOCKS:
            return f"rank {rank} needs {len(own)} thread blocks, and a gpu has at most {MAX_BLOCKS}", False
        steps = max((len(block.steps) for block in own), default=0)
        if steps > MAX_STEPS:
            return f"a thread block of rank {rank} needs {steps} steps, and it has at most {MAX_STEPS}", True
        channels = max((block.channel for block in own), default=0) + 1
        if channels > MAX_CHANNELS:
            return f"rank {rank} needs {channels} channels, and there are {MAX_CHANNELS}", False
        nodes = 1 + len(blocks) + len(own) + sum(len(block.steps) for block in own)
        if nodes > MAX_NODES:
            return f"rank {rank} needs {nodes} elements of the file, and a gpu reads at most {MAX_NODES}", False
    deepest = max((layout.scratch), default=0)
    if deepest > MAX_OFFSET:
        return f"a rank needs {deepest} chunks of scratch, and a buffer has at most {MAX_OFFSET}", False
    return "", False


def _written(layout: Layout, blocks: list[list[Block]], coll: str) -> bytes:
    schedule = layout.schedule
    a_rank = schedule.collective in ("gather", "scatter", "all_to_all")
    chunks = schedule.num_chunks // (schedule.ranks if a_rank else 1)
    channels = max((block.channel + 1 for own in blocks for block in own), default=1)
    # An in-place all_to_all would read what it has overwritten.
    in_place = int(schedule.collective != "all_to_all")
    head = {
        "name": schedule.label[:MAX_NAME],
        "proto": "Simple",
        "nchannels": channels,
        "nchunksperloop": chunks,
        "ngpus": schedule.ranks,
        "coll": coll,
        "inplace": in_place,
        "outofplace": 1,
        "minBytes": 0,
        "maxBytes": 0,
    }
    if schedule.root is not None:
        head["root"] = schedule.root
    lines = [f"<algo{_attributes(head)}>"]
    for rank, own in enumerate(blocks):
        used = (
            c for block in own for step in block.steps for c in ((step.source, step.count), (step.target, step.count))
        )
        scratch = max((cell.offset + count for cell, count in used if cell.buffer == "s"), default=0)
        sizes = {"i_chunks": layout.input_chunks, "o_chunks": layout.output_chunks, "s_chunks": scratch}
        lines.append(f"  <gpu{_attributes({'id': rank} | sizes)}>")
        numbers = {id(block): number for number, block in enumerate(own)}
        for number, block in enumerate(own):
            peers = {"send": block.send, "recv": block.receive, "chan": block.channel}
            lines.append(f"    <tb{_attributes({'id': number} | peers)}>")
            for step in block.steps:
                after = step.after[0] if step.after else None
                values = {
                    "s": step.number,
                    "type": step.type,
                    "srcbuf": step.source.buffer,
                    "srcoff": step.source.offset,
                    "dstbuf": step.target.buffer,
                    "dstoff": step.target.offset,
                    "cnt": step.count,
                    "depid": -1 if after is None else numbers[id(after.block)],
                    "deps": -1 if after is None else after.number,
                    "hasdep": int(step.needed),
                }
                if step.round is not None:
                    values["round"] = step.round
                lines.append(f"      <step{_attributes(values)}/>")
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return ("\n".join([*lines, "</algo>"]) + "\n").encode()


def _attributes(values: Mapping[str, object]) -> str:
    return "".join(f" {name}={quoteattr(str(value))}" for name, value in values.items())
