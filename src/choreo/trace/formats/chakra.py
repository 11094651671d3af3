"""Chakra execution traces: one file per rank, `PREFIX.RANK.et`, of protocol buffers (mlcommons/chakra, et_def.proto).

Chakra counts the shard of an all_gather, and the whole vector of all other collectives. Its durations are integer
microseconds, too coarse for short kernels, so an attribute of our own carries seconds.
"""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path

import numpy as np

from choreo.errors import TraceError, UsageError, shown
from choreo.files import write_bytes, write_text
from choreo.trace.formats import protobuf as wire
from choreo.trace.raw import EVERYBODY, Findings, RankTrace, RawNode
from choreo.workload.execution import COLLECTIVES, ExecutionGraph, NodeKind

__all__ = ["COMM_TYPES", "KINDS", "RANK_IN_NAME", "node_from", "read", "recognises", "write"]

RANK_IN_NAME = re.compile(r"(?:^|\.)(\d+)\.(?:et|json)(?:\.gz)?$")
VERSION = b"1.0.0"
TEXT_BYTES = 64  # the first this many bytes of a trace contain one that no text has
NO_SPACE = dict.fromkeys(map(ord, "\t\r\n"))
# By Chakra's number of a collective; a reduce_scatter_block is a reduce_scatter.
COMM_TYPES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
NAME_TAG = 0x0A  # field 1, bytes
INVALID, METADATA, LOAD, STORE, COMP, SEND, RECV, COLL = range(8)
KINDS = {
    METADATA: NodeKind.HOST,
    LOAD: NodeKind.MEMORY,
    STORE: NodeKind.MEMORY,
    COMP: NodeKind.COMPUTE,
    SEND: NodeKind.SEND,
    RECV: NodeKind.RECV,
    COLL: NodeKind.COLLECTIVE,
}
WANTED = {
    name.encode(): name
    for name in (
        "is_cpu_op",
        "comm_type",
        "comm_size",
        "comm_src",
        "comm_dst",
        "comm_tag",
        "comm_priority",
        "pg_name",
        "num_ops",
        "tensor_size",
        "root",
        "choreo_stream",
        "choreo_duration_s",
        "choreo_size_bytes",
    )
}
Attributes = dict[str, float | int | str]


def recognises(head: bytes, name: str) -> bool:
    """Whether a file begins like a Chakra trace: a length, then a message of a version and attributes, or a node.

    Text can look like that as well: `{` may be a length, and the end of a line the number of a field.
    """
    if head[:TEXT_BYTES].decode("latin-1").translate(NO_SPACE).isprintable():
        return False
    try:
        size, start = wire.varint(head, 0)
        if start + size <= len(head):
            return size == 0 or next(wire.fields(head, start, start + size))[0] in (1, 2)
    except (TraceError, StopIteration):
        return False
    return head[start : start + 1] in (b"\x08", b"\x0a", b"\x12")


def read(data: bytes, name: str, findings: Findings) -> list[RankTrace]:
    """The nodes of one rank."""
    found = RANK_IN_NAME.search(name)
    messages = list(wire.delimited(data))
    if not messages:
        raise TraceError("the file has no message; a Chakra trace begins with its version")
    nodes = [node for at, end in messages[1:] if (node := _node(data, at, end, findings)) is not None]
    return [RankTrace(nodes, rank=int(found[1]) if found else None)]


def _node(data: bytes, at: int, end: int, findings: Findings) -> RawNode | None:
    number, label, kind, micros = 0, b"", INVALID, 0
    deps: list[int] = []
    control: list[int] = []
    attributes: Attributes = {}
    for field, form, value, stop in wire.fields(data, at, end):
        if field == 1 and form == wire.VARINT:
            number = value
        elif field == 2 and form == wire.BYTES:
            label = data[value:stop]
        elif field == 3 and form == wire.VARINT:
            kind = value
        elif field in (4, 5):
            into = control if field == 4 else deps
            into += [value] if form == wire.VARINT else wire.packed_varints(data, value, stop)
        elif field == 7 and form == wire.VARINT:
            micros = value
        elif field == 10 and form == wire.BYTES and stop - value > 2:
            _attribute(data, value, stop, attributes)
    waits = deps, control
    return node_from(number, label.decode(errors="replace"), kind, waits, micros, attributes, findings)


def node_from(  # noqa: PLR0917 - a node's own fields
    number: int,
    name: str,
    kind: int,
    waits: tuple[list[int], list[int]],
    micros: float,
    attributes: Attributes,
    findings: Findings,
) -> RawNode | None:
    """A node from Chakra's fields; None for records that are not part of the program. It has data and control deps."""
    if kind not in KINDS:
        if kind != INVALID:
            raise TraceError(f"node {number}, {shown(name)}, is of type {kind}, which Chakra does not have")
        findings.note("node without a type, left out", shown(name))
        return None
    found = KINDS[kind]
    data, control = waits
    if len(data) > 1 or control:
        data = list(dict.fromkeys(data))
        control = [dep for dep in dict.fromkeys(control) if dep not in data]
    node = RawNode(number, name, found, data, control)
    node.duration_s = float(attributes.get("choreo_duration_s", micros * 1e-6))
    if found is NodeKind.COMPUTE and attributes.get("is_cpu_op"):
        node.kind = NodeKind.HOST
    node.stream = int(attributes.get("choreo_stream", _STREAM.get(node.kind, -1)))
    node.flops = float(attributes.get("num_ops", 0))
    node.memory_bytes = float(attributes.get("tensor_size", 0))
    counted = node.flops or node.memory_bytes or found not in (NodeKind.COMPUTE, NodeKind.MEMORY, NodeKind.HOST)
    if not micros and "choreo_duration_s" not in attributes and counted:
        node.duration_s = float("nan")  # not measured
    size_bytes = float(attributes.get("choreo_size_bytes", attributes.get("comm_size", 0)))
    if found is NodeKind.COLLECTIVE and "comm_type" not in attributes:
        _without_type(node, bool(attributes.get("is_cpu_op")), findings)
    elif found is NodeKind.COLLECTIVE:
        kind_of = int(attributes["comm_type"])
        if not 0 <= kind_of < len(COMM_TYPES):
            raise TraceError(f"node {number}, {shown(name)}, has comm_type {kind_of}, which Chakra does not have")
        node.collective = COMM_TYPES[kind_of]
        node.size_bytes = size_bytes
        if node.collective in SHARDED and "choreo_size_bytes" not in attributes:
            node.shard_bytes = size_bytes
        node.group = str(attributes.get("pg_name", EVERYBODY))
        node.priority = int(attributes.get("comm_priority", 0))
        node.peer = int(attributes.get("root", 0 if node.collective in ROOTED else -1))
    elif found in (NodeKind.SEND, NodeKind.RECV):
        node.size_bytes = size_bytes
        node.peer = int(attributes.get("comm_dst" if found is NodeKind.SEND else "comm_src", -1))
        node.tag = int(attributes.get("comm_tag", 0))
    return node


def _without_type(node: RawNode, on_host: bool, findings: Findings) -> None:
    """PyTorch's calls around a collective are host work. A kernel of unknown size keeps its recorded time."""
    if on_host:
        node.kind, node.stream = NodeKind.HOST, _STREAM[NodeKind.HOST]
        return
    findings.note("collective without type and size; it keeps its recorded time", shown(node.name))
    node.kind, node.stream = NodeKind.COMPUTE, UNSIZED_STREAM


UNSIZED_STREAM = 3  # beside computation, copies and the host
# Chakra counts one rank's part of these.
SHARDED = ("all_gather", "gather")
ROOTED = ("reduce", "gather", "scatter", "broadcast")
_STREAM = {NodeKind.COMPUTE: 0, NodeKind.MEMORY: 1, NodeKind.HOST: 2}


def _attribute(data: bytes, at: int, end: int, into: Attributes) -> None:
    """Keep an attribute that a simulation needs. Its name comes first, and is short."""
    if data[at] != NAME_TAG or data[at + 1] >= 0x80:
        return
    start = at + 2 + data[at + 1]
    name = WANTED.get(data[at + 2 : start])
    if name is None:
        return
    for field, form, value, stop in wire.fields(data, start, end):
        if form == wire.BYTES:
            if field == 29:
                into[name] = data[value:stop].decode(errors="replace")
        elif field == 3:
            into[name] = struct.unpack("<d", value.to_bytes(8, "little"))[0]
        elif field == 5:
            into[name] = struct.unpack("<f", value.to_bytes(4, "little"))[0]
        elif field in (15, 17):  # zigzag
            into[name] = (value >> 1) ^ -(value & 1)
        else:
            into[name] = value - (1 << 64) if field in (7, 9) and value >> 63 else value


def write(graph: ExecutionGraph, path: Path) -> list[Path]:
    """A file for each rank, and one that says which ranks each group is; returns their paths."""
    prefix = path.with_suffix("") if path.suffix == ".et" else path
    if prefix.name in ("", ".."):
        raise UsageError(f"{shown(path)} is no name of files; write one like step, for step.0.et, step.1.et and so on")
    everybody = tuple(range(graph.ranks))
    groups = {number: str(number + 1) for number, group in enumerate(graph.groups) if group != everybody}
    written = []
    place = [0] * len(graph)
    for rank in range(graph.ranks):
        nodes = _nodes_of(graph, rank)
        for at, node in enumerate(nodes):
            place[node] = at
        parts = [wire.put_message(wire.put_bytes(1, VERSION))]
        parts += [wire.put_message(_put_node(graph, node, place, groups)) for node in nodes]
        file = prefix.with_name(f"{prefix.name}.{rank}.et")
        write_bytes(file, b"".join(parts))
        written.append(file)
    if groups:
        file = prefix.with_name(f"{prefix.name}.groups.json")
        write_text(file, json.dumps({name: list(graph.groups[number]) for number, name in groups.items()}))
        written.append(file)
    return written


def _nodes_of(graph: ExecutionGraph, rank: int) -> list[int]:
    nodes: list[int] = np.flatnonzero(graph.rank == rank).tolist()
    return nodes


def _put_node(graph: ExecutionGraph, node: int, place: list[int], groups: dict[int, str]) -> bytes:
    kind = NodeKind(graph.kind[node])
    types = {
        NodeKind.HOST: COMP,
        NodeKind.COMPUTE: COMP,
        NodeKind.MEMORY: LOAD,
        NodeKind.SEND: SEND,
        NodeKind.RECV: RECV,
        NodeKind.COLLECTIVE: COLL,
    }
    out = [wire.put_varint(1, place[node]), wire.put_bytes(2, graph.name_of(node).encode())]
    out.append(wire.put_varint(3, types[kind]))
    out += [wire.put_varint(5, place[dep]) for dep in graph.deps_of(node).tolist()]
    duration_s = float(graph.duration_s[node])
    if not math.isnan(duration_s):
        out.append(wire.put_varint(7, round(duration_s * 1e6)))
        out.append(_put_attribute("choreo_duration_s", wire.put_double(3, duration_s)))
    out.append(_put_attribute("is_cpu_op", wire.put_varint(27, int(kind is NodeKind.HOST))))
    size_bytes = float(graph.size_bytes[node])
    size = math.ceil(size_bytes)
    if kind in (NodeKind.SEND, NodeKind.RECV):
        ends = (graph.rank[node], graph.peer[node])
        src, dst = ends if kind is NodeKind.SEND else ends[::-1]
        if size_bytes != size:
            out.append(_put_attribute("choreo_size_bytes", wire.put_double(3, size_bytes)))
        numbers = {"comm_size": size, "comm_src": int(src), "comm_dst": int(dst), "comm_tag": int(graph.tag[node])}
    elif kind is NodeKind.COLLECTIVE:
        name, members = COLLECTIVES[graph.collective[node]], graph.groups[graph.group[node]]
        size = math.ceil(size_bytes / len(members)) if name in SHARDED else size
        if size_bytes != (size * len(members) if name in SHARDED else size):
            out.append(_put_attribute("choreo_size_bytes", wire.put_double(3, size_bytes)))
        numbers = {"comm_type": COMM_TYPES.index(name), "comm_size": size}
        numbers |= {"comm_priority": int(graph.priority[node])}
        if graph.peer[node] >= 0:
            numbers["root"] = int(graph.peer[node])
        if int(graph.group[node]) in groups:
            out.append(_put_attribute("pg_name", wire.put_bytes(29, groups[int(graph.group[node])].encode())))
    else:
        numbers = {"num_ops": int(graph.flops[node]), "tensor_size": int(graph.memory_bytes[node])}
        numbers |= {"choreo_stream": int(graph.stream[node])}
    out += [_put_attribute(name, wire.put_varint(9, value)) for name, value in numbers.items()]
    return b"".join(out)


def _put_attribute(name: str, value: bytes) -> bytes:
    return wire.put_bytes(10, wire.put_bytes(1, name.encode()) + value)
