"""Write a schedule as an MSCCL++ execution plan, within the limits of its executor, or name the limit it exceeds.

Steps run one after another. A message is put into its own place in the receiver's scratch, then signalled. The receiver
copies it from there, or adds it. So the GPUs' buffers need not have the same layout. A thread block has room for few
operations, so further steps go to another block, which waits on a semaphore, or at a barrier once there are no more
semaphores. Several thread blocks share each operation, each on its slice of the data.

The plan is then read back and checked, in place and out of place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from choreo.errors import RefusedError, shown
from choreo.schedule.exchange.equal_chunks import equal_chunks
from choreo.schedule.exchange.layout import Cell, Layout, Message, foreign_name, lay_out
from choreo.schedule.exchange.mscclpp.read import read_mscclpp
from choreo.schedule.schedule import Schedule

__all__ = ["write_mscclpp"]

MAX_OPS = 64  # per thread block
JOINED = 3  # of these, to wait for the previous thread block and to wake the next
MAX_PEERS = 16  # peers of a thread block
AT_ONCE = 8  # channels, or buffers of other GPUs, in one operation
MAX_SEMAPHORES, MAX_BARRIERS = 16, 16  # per GPU
SLICES = 4  # thread blocks that share an operation, if there are enough semaphores and barriers
MAX_CHUNKS_A_RUN = 1 << 16
MAX_ROWS = 1 << 18
Op = dict[str, object]
Step = dict[int, list[int]]  # the messages of each rank that has any


@dataclass(slots=True)
class _Part:
    """The steps of one thread block, and its peers."""

    ops: list[Op] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    @property
    def peers(self) -> list[int]:
        return sorted({*self.sources, *self.targets})


def write_mscclpp(schedule: Schedule) -> bytes:
    """The schedule as a plan for MSCCL++'s executor, or `RefusedError` if the executor cannot run it.

    >>> from choreo import build
    >>> write_mscclpp(build("all_gather", "ring", 2))[:37]
    b'{"name":"ring","collective":"allgathe'
    """
    name = foreign_name(schedule, "MSCCL++")
    schedule = equal_chunks(schedule)
    if schedule.num_transfers > MAX_ROWS:
        raise _beyond(schedule, f"it has more than {MAX_ROWS} transfers")
    try:
        # Slices of operations fit together only if all are on one chunk.
        return _written(schedule, name, lay_out(schedule, 1), SLICES)
    except RefusedError:
        return _written(schedule, name, lay_out(schedule, MAX_CHUNKS_A_RUN), 1)


def _written(schedule: Schedule, name: str, layout: Layout, slices: int) -> bytes:
    inbox = _inboxes(layout)
    numbers = range(len(layout.messages))
    steps = [_by_rank(layout, group) for _, group in groupby(numbers, key=lambda n: layout.messages[n].step)]
    windows = _windows(layout, steps)
    most = MAX_SEMAPHORES + MAX_BARRIERS
    while (len(windows) - 1) * slices > most and slices > 1:
        slices //= 2
    if (len(windows) - 1) * slices > most:
        raise _beyond(
            schedule,
            f"its steps take {len(windows)} thread blocks one after another, joined by semaphores and barriers, of "
            f"which a gpu has {most}",
        )
    plan: Op = {
        "name": schedule.label,
        "collective": name,
        "protocol": "Simple",
        "inplace": schedule.collective != "all_to_all",
        "reuse_resources": False,
        "gpus": [_gpu(layout, rank, windows, inbox, slices) for rank in range(schedule.ranks)],
    }
    if schedule.root is not None:
        plan["root"] = schedule.root
    for in_place in {bool(plan["inplace"]), False}:
        read_mscclpp(msgspec.json.encode(plan | {"inplace": in_place}))
    return msgspec.json.encode(plan)


def _beyond(schedule: Schedule, why: str) -> RefusedError:
    called = f"{schedule.collective} by {shown(schedule.label)} over {schedule.ranks} ranks"
    return RefusedError(f"{called} cannot be written for MSCCL++: {why}")


def _inboxes(layout: Layout) -> list[int]:
    """The place in the receiver's scratch where each message arrives; nothing else uses it."""
    end = list(layout.scratch)
    first = []
    for message in layout.messages:
        first.append(end[message.dst])
        end[message.dst] += message.count
    layout.scratch[:] = end
    return first


def _by_rank(layout: Layout, together: Iterable[int]) -> Step:
    found: Step = {}
    for n in together:
        for rank in {layout.messages[n].src, layout.messages[n].dst}:
            found.setdefault(rank, []).append(n)
    return found


def _windows(layout: Layout, steps: list[Step]) -> list[list[Step]]:
    """The steps in windows, each as long as fits into a thread block at every rank.

    A window is often as long as the previous one, so that length is tried first.
    """
    nowhere = [0] * len(layout.messages)

    def problem(begin: int, length: int) -> str:
        window = steps[begin : begin + length]
        return _too_many(layout, window, nowhere, first=begin == 0) if window else ""

    windows: list[list[Step]] = []
    begin, length = 0, 1
    while begin < len(steps) or not windows:
        while begin + length < len(steps) and not problem(begin, length + 1):
            length += 1
        while why := problem(begin, length):
            if length == 1:
                raise _beyond(layout.schedule, why)
            length -= 1
        windows.append(steps[begin : begin + length])
        begin += length
    return windows


def _too_many(layout: Layout, window: list[Step], inbox: Sequence[int], *, first: bool) -> str:
    """The limit of a thread block that these steps would exceed, if any."""
    (number, *_), *_ = window[-1].values()
    for rank in range(layout.schedule.ranks):
        part = _part(layout, rank, window, inbox, first=first, last=True)
        at = f"step {layout.messages[number].step} of rank {rank}"
        if len(part.ops) + JOINED > MAX_OPS:
            return f"{at} takes {len(part.ops)} operations, and a thread block has at most {MAX_OPS - JOINED}"
        if len(part.peers) > MAX_PEERS:
            return f"{at} has {len(part.peers)} peers, and a thread block has channels to at most {MAX_PEERS}"
    return ""


def _part(
    layout: Layout, rank: int, window: list[Step], inbox: Sequence[int], *, first: bool, last: bool
) -> _Part:  # fmt: skip
    """The operations of one rank in some steps."""
    messages = layout.messages
    part = _Part()
    mine = [together.get(rank, []) for together in window]
    part.sources = sorted({messages[n].src for together in mine for n in together if messages[n].dst == rank})
    part.targets = sorted({messages[n].dst for together in mine for n in together if messages[n].src == rank})
    peers = part.peers
    # A receiver that signals it is ready has read what the previous call left in its scratch.
    part.ops += _signals("rlxsignal", part.sources, peers)
    part.ops += _signals("rlxwait", part.targets, peers)
    if first and layout.saves[rank]:
        part.ops += _copies(layout.saves[rank], layout.most)
    if part.ops:
        part.ops.append({"name": "nop"})
    for together in mine:
        sent = [n for n in together if messages[n].src == rank]
        came = [n for n in together if messages[n].dst == rank]
        for buffer in "ios":  # a put reads all its sources in one buffer
            for some in _at_most([n for n in sent if messages[n].source.buffer == buffer], AT_ONCE):
                part.ops.append(_put([messages[n] for n in some], [inbox[n] for n in some], peers))
        if sent:
            part.ops.append({"name": "nop"})
            part.ops += _signals("signal", sorted({messages[n].dst for n in sent}), peers)
        if came:
            part.ops += _signals("wait", sorted({messages[n].src for n in came}), peers)
            part.ops.append({"name": "nop"})
            part.ops += _taken(came, layout, inbox)
            part.ops.append({"name": "nop"})
    if last:
        part.ops += _copies(layout.leaves[rank], layout.most)
    return part


def _at_most(items: list[int], most: int) -> list[list[int]]:
    return [items[start : start + most] for start in range(0, len(items), most)]


def _signals(name: str, ranks: list[int], peers: list[int]) -> list[Op]:
    return [
        {"name": name, "channel_ids": [peers.index(rank) for rank in some], "channel_type": "memory"}
        for some in _at_most(ranks, AT_ONCE)
    ]


def _copy(source: Cell, target: Cell, count: int) -> Op:
    return {"name": "copy", "src_buff": [_own(source, count)], "dst_buff": [_own(target, count)]}


def _copies(cells: list[tuple[int, Cell, Cell]], most: int) -> list[Op]:
    """Copies of chunks, up to `most` neighbours at once."""
    runs: list[tuple[Cell, Cell, int]] = []
    for _, source, target in cells:
        if runs and runs[-1][2] < most:
            (a, x), (b, y), count = runs[-1]
            if (a, x + count) == source and (b, y + count) == target:
                runs[-1] = (Cell(a, x), Cell(b, y), count + 1)
                continue
        runs.append((source, target, 1))
    return [_copy(*run) for run in runs]


def _own(cell: Cell, count: int) -> dict[str, object]:
    return {"type": cell.buffer, "index": cell.offset, "size": count}


def _put(some: list[Message], inbox: list[int], peers: list[int]) -> Op:
    there = [
        {"buffer_id": peers.index(message.dst), "index": first, "size": message.count}
        for message, first in zip(some, inbox, strict=True)
    ]
    return {
        "name": "put",
        "src_buff": [_own(message.source, message.count) for message in some],
        "dst_buff": there,
        "channel_ids": [peers.index(message.dst) for message in some],
        "channel_type": "memory",
        "round": some[0].step,
    }


def _taken(came: list[int], layout: Layout, inbox: Sequence[int]) -> list[Op]:
    """Copy what has arrived to its places, or add it there; all additions to one place are one operation."""
    ops: list[Op] = []
    sums: dict[tuple[Cell, int], list[Op]] = defaultdict(list)
    for n in came:
        message = layout.messages[n]
        arrived = Cell("s", inbox[n])
        if message.base is None:
            ops.append(_copy(arrived, message.target, message.count))
            continue
        waiting = sums[message.target, message.count]
        if not waiting or len(waiting[-1]["src_buff"]) > AT_ONCE:  # type: ignore[arg-type]
            base = message.target if waiting else message.base
            waiting.append(
                {
                    "name": "re",
                    "src_buff": [_own(base, message.count)],
                    "dst_buff": [_own(message.target, message.count)],
                }
            )
        waiting[-1]["src_buff"].append(_own(arrived, message.count))  # type: ignore[attr-defined]
    turns = max((len(waiting) for waiting in sums.values()), default=0)
    for turn in range(turns):
        if turn:
            ops.append({"name": "nop"})
        ops += [waiting[turn] for waiting in sums.values() if turn < len(waiting)]
    return [op | {"reduce_op": "sum"} if op["name"] == "re" else op for op in ops]


def _gpu(layout: Layout, rank: int, windows: list[list[Step]], inbox: list[int], slices: int) -> Op:
    """One GPU's part of the plan: a thread block for each window and slice of the data."""
    last = len(windows) - 1
    parts = [
        _part(layout, rank, window, inbox, first=number == 0, last=number == last)
        for number, window in enumerate(windows)
    ]
    everyone = sorted({peer for part in parts for peer in part.peers})
    connected: list[int] = []
    blocks: list[Op] = []
    for number, part in enumerate(parts):
        for piece in range(slices):
            ops = [_sliced(op, piece, slices) for op in part.ops]
            if number > 0:
                ops[:0] = [*_join((number - 1) * slices + piece, "sem_acquire"), {"name": "nop"}]
            if number < last:
                ops += _join(number * slices + piece, "sem_release")
            first = len(connected)
            connected += part.peers
            ids = list(range(first, len(connected)))
            blocks.append(
                {
                    "id": len(blocks),
                    "ops": ops,
                    "channels": [{"channel_type": "memory", "channel_ids": ids}] if ids else [],
                    "remote_buffer_refs": [
                        {
                            "access_channel_type": "memory",
                            "remote_buffer_ids": [everyone.index(peer) for peer in part.peers],
                        }
                    ]
                    if part.peers
                    else [],
                }
            )
    return {
        "id": rank,
        "input_chunks": layout.input_chunks,
        "output_chunks": layout.output_chunks,
        "scratch_chunks": layout.scratch[rank],
        "channels": [{"channel_type": "memory", "connected_to": connected}] if connected else [],
        "remote_buffers": [{"rank": peer, "type": "s", "access_channel_types": ["memory"]} for peer in everyone],
        "semaphores": [{"init_value": 0}] * min(last * slices, MAX_SEMAPHORES),
        "threadblocks": blocks,
    }


def _join(number: int, name: str) -> list[Op]:
    """One end of the link from a thread block to the next: a semaphore, or a barrier of the two."""
    if number < MAX_SEMAPHORES:
        return [{"name": name, "semaphore_ids": [number]}]
    return [{"name": "barrier", "barrier_id": number - MAX_SEMAPHORES, "num_threadblocks": 2}]


def _sliced(op: Op, piece: int, slices: int) -> Op:
    return op | {"tbg_info": {"tb_id": piece, "tbg_size": slices}} if "src_buff" in op and slices > 1 else op
