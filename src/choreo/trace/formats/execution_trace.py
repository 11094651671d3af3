"""PyTorch execution traces (ExecutionTraceObserver, schema 1.0.x to 1.1.1).

Its nodes are calls, each with its caller. The leaf calls run one after another on the host. A collective runs
asynchronously: whatever reads its tensors waits for it. The durations of operators are in the profiler's trace of the
same run, joined by the record-function id *and* the name. Without it computation takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from choreo.checks import MAX_RANKS
from choreo.errors import TraceError, shown
from choreo.trace.formats import kineto
from choreo.trace.formats.torch_names import ITEM_BYTES, collective_of, group_ranks, size_from_elements
from choreo.trace.raw import EVERYBODY, Findings, RankTrace, RawNode
from choreo.workload.execution import NodeKind

__all__ = ["join", "read", "recognises"]

MOST_ELEMENTS = 1 << 60

# Gloo's work for a collective, in its own thread.
GLOO = "gloo:"
FUNCTION = "rf_id"
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def recognises(head: bytes, name: str) -> bool:
    """Whether it is JSON with PyTorch's schema of an execution trace."""
    text = head.decode(errors="replace").lstrip("\ufeff \t\r\n")
    return text.startswith("{") and '"schema"' in text[:200] and '"nodes"' in text


# The fields read from each call. Others are skipped without creating objects; values of other types are accepted.
Scalar = str | int | float | bool | None


class _Attribute(msgspec.Struct, gc=False):
    name: Any = None
    value: Any = None


class _Values(msgspec.Struct, gc=False):
    values: Any = ()


Side = _Values | list[Any] | Scalar


class _Call(msgspec.Struct, gc=False):
    id: int
    name: Any = ""
    ctrl_deps: int | None = None
    parent: int | None = None
    inputs: Side = None
    outputs: Side = None
    attrs: list[_Attribute | list[Any] | Scalar] | _Attribute | Scalar = None
    rf_id: Any = 0

    def __post_init__(self) -> None:
        self.name = str(self.name)
        if self.ctrl_deps is None:
            self.ctrl_deps = self.parent or 0

    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        found = self.attrs if isinstance(self.attrs, list) else ()
        return {str(attribute.name): attribute.value for attribute in found if isinstance(attribute, _Attribute)}

    def function(self) -> int:
        """PyTorch's record-function id."""
        value = self.rf_id
        for attribute in self.attrs if isinstance(self.attrs, list) else ():
            if isinstance(attribute, _Attribute) and attribute.name == FUNCTION:
                value = attribute.value
                break
        return value if isinstance(value, int) else 0


class _Document(msgspec.Struct):
    nodes: list[_Call]
    schema: Any = ""


def read(data: bytes, name: str, findings: Findings) -> list[RankTrace]:
    """The nodes of one rank, without times."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.ValidationError as error:
        raise TraceError(f"it has no list of nodes with ids, each a number: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TraceError(f"it is not JSON: {error}") from None
    schema = str(document.schema)
    if not schema.startswith("1."):
        raise TraceError(f"its schema is {shown(schema)}; 1.0.x and 1.1.x can be read")
    groups, world = _groups(document.nodes)
    return [RankTrace(_nodes(document.nodes, findings), world_size=world, groups=groups)]


def _nodes(calls: list[_Call], findings: Findings) -> list[RawNode]:
    calls.sort(key=lambda call: call.id)
    parents = {call.ctrl_deps for call in calls}
    inside: set[int | None] = set()  # calls made by collectives
    talks = {call.id for call in calls if _is_call(call)}
    described = {call.ctrl_deps for call in calls if call.name == "record_param_comms"}
    for call in calls:
        parent = call.ctrl_deps
        if parent in inside or (parent in talks and parent not in described):
            inside.add(call.id)
    nodes: list[RawNode] = []
    writer: dict[Any, int] = {}  # the last collective that wrote each storage
    outstanding: list[int] = []
    previous: list[int] = []
    asked: RawNode | None = None  # the last collective, until the call that executes it is found
    for call in calls:
        number = call.id
        if asked is not None and call.name.startswith(GLOO):
            asked.work, asked = (call.function(), call.name), None
            continue
        leaf = number not in parents or (number in talks and number not in described)
        if not leaf or number in inside or call.name.startswith(("[pytorch|", "##")):
            continue
        read_, written = _storages(call.inputs), _storages(call.outputs)
        node = RawNode(len(nodes), call.name, NodeKind.COMPUTE, list(previous), duration_s=0.0)
        waits = {writer[storage] for storage in read_ if storage in writer}
        node.deps += sorted(waits.difference(previous))
        node.function = call.function()
        if number in talks and _communicates(node, call, findings):
            for storage in {*read_, *written}:
                writer[storage] = node.id
            outstanding.append(node.id)
            asked = node
        else:
            for storage in written:
                writer.pop(storage, None)
            previous = [node.id]
        nodes.append(node)
    if outstanding:
        after = [*previous, *(node_id for node_id in outstanding if node_id not in previous)]
        nodes.append(RawNode(len(nodes), "end", NodeKind.HOST, after, duration_s=0.0))
    return nodes


def join(data: bytes, profile: bytes, name: str, findings: Findings) -> list[RankTrace]:
    """The trace of one rank from both files: with a GPU the profiler's kernels, otherwise its operator times."""
    document = kineto.parse(profile)
    (trace,) = read(data, name, findings)
    if kineto.has_kernels(document):
        (found,) = kineto.read(profile, name, findings)
        found.groups |= trace.groups
        found.world_size = found.world_size or trace.world_size
        return [found]
    _give_times(trace, kineto.durations_by_function(document), findings)
    return [kineto.rank_trace(document, trace.nodes, trace.groups)]


def _give_times(trace: RankTrace, durations: Mapping[tuple[int, str], float], findings: Findings) -> None:
    """Give nodes the times of the profiler's trace: those with the same id and the same name.

    The time of a collective is that of the work that executes it: the call itself only enqueues it.
    """
    for node in trace.nodes:
        if node.work is not None:
            node.duration_s = durations.get(node.work, float("nan"))
    operators = [node for node in trace.nodes if node.kind is NodeKind.COMPUTE]
    ids = {function for function, _ in durations}
    for node in operators:
        node.duration_s = durations.get((node.function, node.name), 0.0)
    known = sum((node.function, node.name) in durations for node in operators)
    other = sum(node.function in ids for node in operators) - known
    findings.note("operator whose id belongs to another name in the profiler's trace; it takes no time", count=other)
    if known < len(operators) // 2:
        raise TraceError(
            f"{known} of {len(operators)} operators have the same id and name in the profiler's trace; the two files "
            "are not of one run"
        )


def _is_call(call: _Call) -> bool:
    name = call.name
    if name == "record_param_comms":
        return bool(collective_of(_described(call)[0]))
    return name.startswith(("c10d::", "_c10d_functional::")) and bool(collective_of(name))


def _described(call: _Call) -> tuple[str, Any, int]:
    """The collective, group and size that record_param_comms gives: as attributes, or by position in older traces."""
    attributes, values = call.attributes(), _side(call.inputs)
    texts = [value for value in values if isinstance(value, str) and collective_of(value)]
    name = str(attributes.get("collective_name") or (texts[0] if texts else ""))
    group = attributes.get("pg_name")
    if group is None:
        group = next(
            (value[0] for value in values if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)),
            "0",
        )
    size = attributes.get("pg_size")
    return name, group, size if isinstance(size, int) else 0


def _communicates(node: RawNode, call: _Call, findings: Findings) -> bool:
    attributes = call.attributes()
    ins, outs = _tensor_bytes(call.inputs), _tensor_bytes(call.outputs)
    if node.name == "record_param_comms":
        name, group, _ = _described(call)
        collective = collective_of(name)
        node.name = name
        node.group = str(group)
        item_bytes = ITEM_BYTES.get(str(attributes.get("dtype", "")).lower())
        counts = attributes.get("in_msg_nelems"), attributes.get("out_msg_nelems")
        if item_bytes and all(isinstance(count, int) for count in counts):
            node.size_bytes = size_from_elements(collective, float(counts[0] or 0), float(counts[1] or 0), item_bytes)
        else:
            node.size_bytes = max(ins, outs)
    else:
        collective = collective_of(node.name)
        node.size_bytes = max(ins, outs) if collective != "all_to_all" else ins or outs
        node.group = EVERYBODY
    if collective in ("send", "recv") or (not node.size_bytes and collective != "barrier"):
        findings.note("call of torch.distributed without size or peer, left out of the communication", shown(node.name))
        return False
    node.kind, node.collective, node.duration_s = NodeKind.COLLECTIVE, collective, float("nan")
    node.peer = 0 if collective in ROOTED else -1
    return True


def _tensors(values: Any) -> list[list[Any]]:
    """The tensors among some values: [tensor, storage, offset, elements, bytes per element, device], also in lists."""
    found: list[list[Any]] = []
    waiting = (
        [values] if isinstance(values, list) else []
    )  # no recursion: a file may nest its lists as deep as it likes
    while waiting:
        value = waiting.pop()
        if len(value) == 6 and type(value[5]) is str and all(type(number) is int for number in value[:5]):
            if not (0 <= value[3] < MOST_ELEMENTS and 0 <= value[4] < MOST_ELEMENTS):
                raise TraceError(f"a tensor has {str(value[3])[:40]} elements of {str(value[4])[:40]} bytes")
            found.append(value)
        else:
            waiting.extend(inner for inner in reversed(value) if type(inner) is list)
    return found


def _side(side: Side) -> list[Any]:
    values = side.values if isinstance(side, _Values) else side
    return values if isinstance(values, list) else []


def _storages(side: Side) -> list[tuple[int, str]]:
    return [(tensor[1], tensor[5]) for tensor in _tensors(_side(side)) if tensor[1]]


def _tensor_bytes(side: Side) -> float:
    """The largest tensor, or list of tensors, on one side of a call."""
    return max((sum(float(tensor[3]) * tensor[4] for tensor in _tensors(value)) for value in _side(side)), default=0.0)


def _groups(calls: Sequence[_Call]) -> tuple[dict[str, tuple[int, ...]], int | None]:
    """The groups that a trace describes when they are made, and how many ranks there are."""
    groups: dict[str, tuple[int, ...]] = {}
    world = None
    for call in calls:
        attributes = call.attributes() if call.name == "record_param_comms" else {}
        size = attributes.get("pg_size")
        if isinstance(size, int) and 0 < size <= MAX_RANKS:
            first, stride = attributes.get("global_rank_start", 0), attributes.get("global_rank_stride", 1)
            if isinstance(first, int) and isinstance(stride, int) and first >= 0 and 0 < stride <= MAX_RANKS:
                groups.setdefault(
                    str(attributes.get("pg_name", "0")), tuple(range(first, first + size * stride, stride))
                )
        if call.name != "## process_group:init ##":
            continue
        for text in _side(call.inputs):
            try:
                described = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError, TypeError):
                continue
            for entry in described if isinstance(described, list) else ():
                size = entry.get("group_size", 0) if isinstance(entry, dict) else None
                if not isinstance(size, int) or not 0 <= size <= MAX_RANKS:
                    raise TraceError(f"a group is described by its name, ranks and size, not {str(entry)[:60]}")
                ranks = group_ranks(entry.get("ranks", []), size) or tuple(range(size))
                groups[str(entry.get("pg_name"))] = ranks
                if entry.get("pg_desc") == "default_pg":
                    world = size
    if world is None:
        world = max((max(ranks) + 1 for ranks in groups.values() if ranks), default=None)
    return {name: ranks for name, ranks in groups.items() if ranks}, world
