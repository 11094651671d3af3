"""An interpreter of MSCCL++ execution plans, of the operations that put, copy, add, signal, wait and meet.

Written from the executor's rules: the threads of a block run on by themselves until a nop, so what stands between two
nops is done in any order. Signals and semaphores are counts. A group of thread blocks shares an operation by slices; a
chunk has `ELEMENTS` elements here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.oracles.thread_blocks import Memory, promised, take_turns

ELEMENTS = 4
Op = dict[str, Any]


class _Machine:
    """All GPUs: their memories, and the counts of signals and semaphores."""

    def __init__(self, plan: dict[str, Any], random: Random, in_place: bool) -> None:
        self.gpus = plan["gpus"]
        self.random = random
        ranks, coll = len(self.gpus), plan["collective"]
        small = coll in ("allgather", "gather")
        a_block = (self.gpus[0]["input_chunks"] if small or coll in ("allreduce", "broadcast", "reduce") else
                   self.gpus[0]["input_chunks"] // ranks) * ELEMENTS  # fmt: skip
        self.buffers = promised(coll, ranks, a_block, plan.get("root", 0), random)
        self.memories = [
            Memory(
                self.buffers.inputs[gpu["id"]],
                len(self.buffers.outputs[gpu["id"]]),
                gpu["scratch_chunks"] * ELEMENTS,
                gpu["id"] * a_block if in_place else None,
                random,
            )
            for gpu in self.gpus
        ]
        self.met: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.signals: dict[tuple[int, int, int], int] = defaultdict(int)
        self.semaphores = {
            (gpu["id"], n): one["init_value"] for gpu in self.gpus for n, one in enumerate(gpu["semaphores"])
        }

    def channel(self, gpu: dict[str, Any], block: dict[str, Any], local: int) -> tuple[int, int]:
        """The peer of a thread block's channel, and which of the channels to that peer it is."""
        every = [peer for channel in gpu["channels"] for peer in channel["connected_to"]]
        number = block["channels"][0]["channel_ids"][local]
        return every[number], every[:number].count(every[number])

    def do(self, gpu: dict[str, Any], block: dict[str, Any], op: Op) -> bool:  # noqa: PLR0912 - one for each operation
        """Do an operation, or say that it must wait."""
        rank, name = gpu["id"], op["name"]
        if name in ("signal", "rlxsignal"):
            for local in op["channel_ids"]:
                peer, nth = self.channel(gpu, block, local)
                self.signals[rank, peer, nth] += 1
        elif name in ("wait", "rlxwait"):
            ways = [(peer, rank, nth) for peer, nth in (self.channel(gpu, block, n) for n in op["channel_ids"])]
            if any(not self.signals[way] for way in ways):
                return False
            for way in ways:
                self.signals[way] -= 1
        elif name == "sem_release":
            for number in op["semaphore_ids"]:
                self.semaphores[rank, number] += 1
        elif name == "sem_acquire":
            if any(not self.semaphores[rank, number] for number in op["semaphore_ids"]):
                return False
            for number in op["semaphore_ids"]:
                self.semaphores[rank, number] -= 1
        elif name == "barrier":
            here = self.met[rank, op["barrier_id"]]
            here.add(block["id"])
            return len(here) == int(op["num_threadblocks"])
        elif name == "put":
            for source, target in zip(op["src_buff"], op["dst_buff"], strict=True):
                there = source | {"type": op["src_buff"][0]["type"]}  # all are read in the buffer of the first
                self.write(gpu, block, op, target, self.read(rank, op, there))
        elif name in ("copy", "re"):
            parts = [self.read(rank, op, source) for source in op["src_buff"]]
            self.write(gpu, block, op, op["dst_buff"][0], [sum(values) for values in zip(*parts, strict=True)])
        else:
            raise ValueError(name)
        return True

    def region(self, op: Op, buffer: dict[str, Any]) -> tuple[int, int]:
        first, count = buffer["index"] * ELEMENTS, buffer["size"] * ELEMENTS
        group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        count //= group["tbg_size"]
        return first + group["tb_id"] * count, count

    def read(self, rank: int, op: Op, buffer: dict[str, Any]) -> list[int]:
        return self.memories[rank].read(buffer["type"], *self.region(op, buffer))

    def write(
        self, gpu: dict[str, Any], block: dict[str, Any], op: Op, buffer: dict[str, Any], values: list[int]
    ) -> None:
        rank, kind = gpu["id"], buffer.get("type")
        if "buffer_id" in buffer:
            remote = gpu["remote_buffers"][block["remote_buffer_refs"][0]["remote_buffer_ids"][buffer["buffer_id"]]]
            rank, kind = remote["rank"], remote["type"]
        self.memories[rank].write(str(kind), self.region(op, buffer)[0], values)


def run_mscclpp(content: bytes, random: Random, *, in_place: bool) -> bool:
    """Whether one execution at random leaves what the collective promises."""
    plan = json.loads(content)
    machine = _Machine(plan, random, in_place)
    blocks = [_block(machine, gpu, block) for gpu in machine.gpus for block in gpu["threadblocks"]]
    take_turns(blocks, random)
    return all(
        wanted is None or wanted == machine.memories[rank].read("o", place, 1)[0]
        for rank, output in enumerate(machine.buffers.outputs)
        for place, wanted in enumerate(output)
    )


def _block(machine: _Machine, gpu: dict[str, Any], block: dict[str, Any]) -> Iterator[bool]:
    """A thread block; it yields whether it got on."""
    assert len(block["ops"]) <= 64
    spans: list[list[Op]] = [[]]
    for op in block["ops"]:
        if op["name"] in ("nop", "barrier"):
            spans += [[op], []] if op["name"] == "barrier" else [[]]
        else:
            spans[-1].append(op)
    for span in spans:
        left = list(span)
        while left:
            op = machine.random.choice(left)
            done = machine.do(gpu, block, op)
            if done:
                left.remove(op)
            yield done
