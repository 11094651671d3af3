"""PyTorch profiler traces (Kineto, Chrome's JSON).

With GPU kernels: a node is a kernel or copy on its stream. It waits for the previous one on its stream, and for
whatever ended last on another stream before it began. The remaining gap is host time. So the graph, with the recorded
times of collectives, reproduces the recorded time. A simulation replaces the times of collectives.

Without a GPU: the leaf operators, one after another. A collective is assumed to block; the execution trace of the same
run has the real dependencies.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from choreo.errors import TraceError, shown
from choreo.trace.formats.torch_names import ITEM_BYTES, collective_of, group_ranks, size_from_elements
from choreo.trace.raw import EVERYBODY, Findings, RankTrace, RawNode
from choreo.workload.execution import NodeKind

__all__ = ["durations_by_function", "has_kernels", "operators", "parse", "rank_trace", "read", "recognises"]

ON_DEVICE = {"kernel": NodeKind.COMPUTE, "gpu_memcpy": NodeKind.MEMORY, "gpu_memset": NodeKind.MEMORY}
ROUNDING_S = 1e-6  # older traces have whole microseconds
HOST_STREAM = 1 << 20
MOST_US = 1e18  # larger than the time since 1970, even if given in nanoseconds by mistake


def recognises(head: bytes, name: str) -> bool:
    """Whether it is Chrome's JSON with PyTorch's traceEvents."""
    text = head.decode(errors="replace")
    return text.lstrip("\ufeff \t\r\n").startswith("{") and (
        '"traceEvents"' in text or '"schemaVersion"' in text or '"deviceProperties"' in text
    )


def parse(data: bytes) -> dict[str, Any]:
    """The document; TraceError if it is damaged."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TraceError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError("it has no list of traceEvents")
    return document


def read(data: bytes, name: str, findings: Findings) -> list[RankTrace]:
    """The nodes of one rank."""
    document = parse(data)
    events = list(_complete(document["traceEvents"]))
    kernels = [event for event in events if _is_on_device(event)]
    nodes, groups = _device_nodes(kernels, findings) if kernels else _operator_nodes(events, findings)
    if not nodes:
        raise TraceError("no event of it is a kernel or an operator that took time")
    return [rank_trace(document, nodes, groups)]


def has_kernels(document: Mapping[str, Any]) -> bool:
    """Whether it has GPU kernels."""
    return any(isinstance(event, dict) and _is_on_device(event) for event in document["traceEvents"])


def _is_on_device(event: Mapping[str, Any]) -> bool:
    category = event.get("cat")
    return isinstance(category, str) and category in ON_DEVICE


def rank_trace(document: Mapping[str, Any], nodes: list[RawNode], groups: dict[str, tuple[int, ...]]) -> RankTrace:
    """The nodes with the document's ranks and groups."""
    about = document.get("distributedInfo")
    if not isinstance(about, Mapping):
        return RankTrace(nodes, groups=groups)
    world, configs = about.get("world_size"), about.get("pg_config")
    for config in configs if isinstance(configs, list) else ():
        if isinstance(config, Mapping):
            size = config.get("pg_size", 0)
            ranks = group_ranks(config.get("ranks", []), size if isinstance(size, int) else 0)
            if ranks:
                groups.setdefault(str(config.get("pg_name")), ranks)
    rank = about.get("rank")
    return RankTrace(
        nodes,
        rank=rank if isinstance(rank, int) else None,
        world_size=world if isinstance(world, int) and world > 0 else None,
        groups=groups,
    )


def durations_by_function(document: Mapping[str, Any]) -> dict[tuple[int, str], float]:
    """How long each operator took, by its record-function id and name."""
    found = {}
    for event in _complete(document["traceEvents"]):
        function = _arguments(event).get("Record function id")
        if isinstance(function, int) and function:
            found[function, str(event["name"])] = float(event["dur"]) * 1e-6
    return found


def _complete(events: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """The events that have a beginning and a length."""
    for event in events:
        if not isinstance(event, dict):
            raise TraceError(f"an event is an object, not {str(event)[:40]}")
        if event.get("ph") == "X" and isinstance(event.get("name"), str):
            for key in ("ts", "dur"):
                if not _is_time(event.get(key, 0 if key == "dur" else None)):
                    raise TraceError(f"{shown(event['name'])} has no time: {key} is {str(event.get(key))[:20]!r}")
            event.setdefault("dur", 0.0)
            yield event


def _is_time(value: object) -> bool:
    """Whether it is a number of microseconds."""
    return isinstance(value, int | float) and abs(value) < MOST_US


def _device_nodes(
    kernels: list[dict[str, Any]], findings: Findings
) -> tuple[list[RawNode], dict[str, tuple[int, ...]]]:
    kernels.sort(key=lambda event: (event["ts"], -event["dur"]))
    nodes: list[RawNode] = []
    groups: dict[str, tuple[int, ...]] = {}
    ends: dict[int, list[float]] = {}  # by stream, in the order of time
    last: dict[int, list[int]] = {}
    for event in kernels:
        arguments = _arguments(event)
        stream = arguments.get("stream", event.get("tid"))
        stream = stream if isinstance(stream, int) and 0 <= stream < HOST_STREAM else 0
        begins, ended = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
        deps, ready = _before(stream, begins, ends, last)
        if deps and begins - ready > ROUNDING_S:
            nodes.append(RawNode(len(nodes), "host", NodeKind.HOST, deps, duration_s=begins - ready))
            nodes[-1].stream = HOST_STREAM + stream
            deps = [len(nodes) - 1]
        node = RawNode(len(nodes), event["name"], ON_DEVICE[event["cat"]], deps)
        node.duration_s, node.stream = ended - begins, stream
        if "nccl" in event["name"].lower():
            _communicates(node, arguments, groups, findings)
        nodes.append(node)
        ends.setdefault(stream, []).append(max(ended, ends[stream][-1] if ends.get(stream) else ended))
        last.setdefault(stream, []).append(node.id)
    return nodes, groups


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, Mapping) else {}


def _before(
    stream: int, begins: float, ends: Mapping[int, list[float]], last: Mapping[int, list[int]]
) -> tuple[list[int], float]:
    """What a kernel waited for, judging by times: the previous one on its stream, and a later one elsewhere."""
    deps, ready = [], 0.0
    if stream in ends:
        deps.append(last[stream][-1])
        ready = ends[stream][-1]
    for other, times in ends.items():
        if other == stream:
            continue
        at = bisect_right(times, begins + ROUNDING_S) - 1
        if at >= 0 and times[at] > ready:
            ready = times[at]
            deps = [*deps[: stream in ends], last[other][at]]
    return deps, min(ready, begins)


def _communicates(
    node: RawNode, arguments: Mapping[str, Any], groups: dict[str, tuple[int, ...]], findings: Findings
) -> None:
    """Make an NCCL kernel a collective, if the event says which."""
    collective = collective_of(str(arguments.get("Collective name", "")))
    ins, outs = (arguments.get(f"{way} msg nelems", 0) for way in ("In", "Out"))
    item_bytes = ITEM_BYTES.get(str(arguments.get("dtype", "")).lower())
    if (
        collective in ("", "send", "recv")
        or item_bytes is None
        or not isinstance(ins, int)
        or not isinstance(outs, int)
    ):
        findings.note(
            "kernel of NCCL without collective, size or peer; it keeps its recorded time", shown(node.name)[:60]
        )
        return
    node.kind, node.collective = NodeKind.COLLECTIVE, collective
    node.size_bytes = size_from_elements(collective, ins, outs, item_bytes)
    node.group = str(arguments.get("Process Group Name", EVERYBODY))
    size = arguments.get("Group size", 0)
    ranks = group_ranks(arguments.get("Process Group Ranks", ""), size if isinstance(size, int) else 0)
    if ranks:
        groups.setdefault(node.group, ranks)
    root = arguments.get("Root")
    if collective in ("broadcast", "reduce", "gather", "scatter"):
        node.peer = root if isinstance(root, int) and root else (ranks or (0,))[0]


def operators(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The leaf operators, in order of time; calls made by a collective do not count."""
    found: list[dict[str, Any]] = []
    open_until = float("-inf")
    parents: list[dict[str, Any]] = []
    ordered = sorted(
        (event for event in events if event.get("cat") == "cpu_op"), key=lambda event: (event["ts"], -event["dur"])
    )
    for event in ordered:
        if event["ts"] < open_until:
            continue
        while parents and parents[-1]["ts"] + parents[-1]["dur"] <= event["ts"]:
            parents.pop()
        if found and found[-1] in parents:
            found.pop()
        if event["name"].startswith("c10d::") and collective_of(event["name"]):
            open_until = event["ts"] + event["dur"]
        parents.append(event)
        found.append(event)
    return found


def _operator_nodes(
    events: list[dict[str, Any]], findings: Findings
) -> tuple[list[RawNode], dict[str, tuple[int, ...]]]:
    nodes: list[RawNode] = []
    until = None
    for event in operators(events):
        after = [len(nodes) - 1] if nodes else []
        if until is not None and event["ts"] - until > ROUNDING_S * 1e6:
            nodes.append(RawNode(len(nodes), "host", NodeKind.HOST, after, duration_s=(event["ts"] - until) * 1e-6))
            after = [len(nodes) - 1]
        node = RawNode(len(nodes), event["name"], NodeKind.COMPUTE, after, duration_s=event["dur"] * 1e-6)
        collective = collective_of(event["name"]) if event["name"].startswith("c10d::") else ""
        sizes = _sizes(_arguments(event)) if collective else []
        if collective in ("send", "recv") or (collective and not sizes):
            findings.note(
                "operator of torch.distributed without size or peer; it keeps its recorded time", event["name"]
            )
        elif collective:
            node.kind, node.collective = NodeKind.COLLECTIVE, collective
            node.size_bytes = 0.0 if collective == "barrier" else max(sizes)
            node.peer = 0 if collective in ("broadcast", "reduce", "gather", "scatter") else -1
        nodes.append(node)
        until = event["ts"] + event["dur"]
    return nodes, {}


def _sizes(arguments: Any) -> list[float]:
    """The bytes of each tensor argument of an operator, if recorded."""
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not (isinstance(dims, list) and isinstance(types, list)):
        return []
    found = []
    for dim, kind in zip(dims, types, strict=False):
        parts = dim if isinstance(dim, list) and dim and isinstance(dim[0], list) else [dim] if dim else []
        item_bytes = ITEM_BYTES.get(str(kind).lower(), 4 if kind == "TensorList" else 0)
        if item_bytes and parts and all(map(_is_shape, parts)):
            found.append(item_bytes * sum(math.prod(map(float, shape)) for shape in parts))
    return [size for size in found if size]


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(type(length) is int and 0 <= length < 1 << 60 for length in shape)
