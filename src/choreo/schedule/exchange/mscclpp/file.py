"""MSCCL++'s execution plans: JSON in which thread blocks copy, add, put into other GPUs' memory, signal and wait.

    {"name": "ring", "collective": "allreduce", "protocol": "Simple", "inplace": true, "gpus": [
      {"id": 0, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 1,
       "channels": [{"channel_type": "memory", "connected_to": [1]}],
       "remote_buffers": [{"rank": 1, "type": "s", "access_channel_types": ["memory"]}],
       "threadblocks": [
         {"id": 0, "channels": [{"channel_type": "memory", "channel_ids": [0]}],
          "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
          "ops": [{"name": "put", "src_buff": [{"type": "i", "index": 0, "size": 1}],
                   "dst_buff": [{"buffer_id": 0, "index": 0, "size": 1}],
                   "channel_ids": [0], "channel_type": "memory"}, ...]}]}, ...]}

`channel_ids` of a thread block index the GPU's channels of that type; `channel_ids` of an op index the thread block's.
Likewise `remote_buffer_ids` index the GPU's remote buffers, and `buffer_id` the thread block's. Channels between two
GPUs are paired in the order in which both list them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from choreo.errors import FormatError, shown
from choreo.malformed import explained

__all__ = ["Buffer", "Gpu", "Op", "Plan", "parse"]

Index = Annotated[int, Meta(ge=0, le=1 << 20)]


class Buffer(msgspec.Struct, frozen=True):
    """Some chunks of a buffer: of this GPU, of another GPU, or of all GPUs of a switch channel."""

    index: Index
    size: Annotated[int, Meta(ge=0, le=1 << 20)]
    type: str | None = None
    buffer_id: Index | None = None
    switch_channel_id: Index | None = None


class Group(msgspec.Struct, frozen=True):
    """The part of an op that one of several thread blocks executes."""

    tb_id: Index
    tbg_size: Annotated[int, Meta(ge=1, le=1024)]


class Loop(msgspec.Struct, frozen=True):
    """The loop of a pipeline: over `num_chunks` chunks, `unit_size` bytes at a time."""

    unit_size: Annotated[int, Meta(ge=1, le=1 << 40)]
    num_chunks: Annotated[int, Meta(ge=1, le=1 << 20)]


class Op(msgspec.Struct, frozen=True):
    """An operation."""

    name: str
    channel_type: str | None = None
    channel_ids: list[Index] = []
    src_buff: list[Buffer] = []
    dst_buff: list[Buffer] = []
    tbg_info: Group | None = None
    barrier_id: Index | None = None
    num_threadblocks: Index | None = None
    semaphore_ids: list[Index] = []
    iter_context: Loop | None = None
    ops: list[Op] = []
    round: Annotated[int, Meta(ge=0, le=1 << 28)] | None = None


class Ids(msgspec.Struct, frozen=True):
    """Channels that a thread block uses."""

    channel_type: str
    channel_ids: list[Index] = []


class References(msgspec.Struct, frozen=True):
    """Other GPUs' buffers that a thread block uses."""

    access_channel_type: str
    remote_buffer_ids: list[Index] = []


class Block(msgspec.Struct, frozen=True):
    """A thread block."""

    id: Index
    ops: list[Op]
    channels: list[Ids] = []
    remote_buffer_refs: list[References] = []


class RankGroup(msgspec.Struct, frozen=True):
    """The GPUs of a switch channel."""

    size: int
    ranks: list[Index]


class Channel(msgspec.Struct, frozen=True):
    """Channels to some GPUs, or through a switch to groups of them."""

    channel_type: str
    connected_to: list[Index] = []
    buffer_type: str | None = None
    buff: str | None = None  # its older name
    rank_groups: list[RankGroup] = []


class RemoteBuffer(msgspec.Struct, frozen=True):
    """A buffer of another GPU."""

    rank: Index
    type: str
    access_channel_types: list[str] = []


class Semaphore(msgspec.Struct, frozen=True):
    """A counter that thread blocks of one GPU raise and wait for."""

    init_value: Annotated[int, Meta(ge=0, le=1 << 20)]


class Gpu(msgspec.Struct, frozen=True):
    """One GPU's part of the plan."""

    id: Index
    input_chunks: Index
    output_chunks: Index
    scratch_chunks: Index
    threadblocks: list[Block]
    channels: list[Channel] = []
    remote_buffers: list[RemoteBuffer] = []
    semaphores: list[Semaphore] = []


class Plan(msgspec.Struct, frozen=True):
    """A plan."""

    name: str
    collective: str
    gpus: list[Gpu]
    protocol: str = "Simple"
    inplace: bool = False
    reuse_resources: bool = False
    root: Index | None = None


def parse(content: bytes) -> Plan:
    """Parse a file, or raise a `FormatError` that names the place."""
    try:
        plan = msgspec.json.decode(content, type=Plan)
    except msgspec.ValidationError as error:
        field, reason = explained(error, Plan, "the plan")
        raise FormatError(reason, field=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the plan is not JSON: {shown(error)}", field="the plan") from None
    if not plan.gpus:
        raise FormatError("gpus: there are none", field="gpus")
    for number, gpu in enumerate(plan.gpus):
        if gpu.id != number:
            raise FormatError(
                f"gpus[{number}].id: it is {gpu.id}; gpus stand in order, from 0", field=f"gpus[{number}]"
            )
        for index, block in enumerate(gpu.threadblocks):
            if block.id != index:
                where = f"gpus[{number}].threadblocks[{index}]"
                raise FormatError(f"{where}.id: it is {block.id}; thread blocks stand in order, from 0", field=where)
    return plan
