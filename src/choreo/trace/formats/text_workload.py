"""The text workloads of ASTRA-sim 1.0 and SimAI: a layer per row, with compute and communication of its three passes.

A row is `name -1 FORWARD INPUT-GRADIENT WEIGHT-GRADIENT update`, and each pass is nanoseconds, a collective and bytes.
The first line names the kind of parallelism. Forward and input-gradient communication is tensor parallel and blocks.
Weight gradients are reduced between data-parallel ranks during the rest of the backward pass. For an all_gather
ASTRA-sim counts one shard, SimAI the whole vector.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from choreo.checks import MAX_RANKS
from choreo.errors import TraceError, shown
from choreo.trace.raw import EVERYBODY, MOST_DIGITS, Findings, RankTrace, RawNode
from choreo.workload.execution import NodeKind

__all__ = ["read", "recognises"]

KINDS = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}
HEADER = re.compile(
    r"^\s*(DATA|MODEL|MICRO|HYBRID\w*|TRANSFORMER\w*|DLRM\w*|DISTRIBUTED_INFERENCE|NONE)\b([^\n]*)\n\s*(\d+)\s*\n"
)


@dataclass(frozen=True, slots=True)
class _Pass:
    compute_s: float
    collective: str
    size_bytes: float
    group: str


@dataclass(frozen=True, slots=True)
class _Layer:
    name: str
    forward: _Pass
    input_gradient: _Pass
    weight_gradient: _Pass
    update_s: float


def recognises(head: bytes, name: str) -> bool:
    """Whether it begins with a kind of parallelism and a number of layers."""
    return HEADER.match(head.decode(errors="replace")) is not None


def read(data: bytes, name: str, findings: Findings) -> list[RankTrace]:
    """The step of one rank; all others do the same."""
    text = data.decode(errors="replace")
    header = HEADER.match(text)
    if header is None:
        raise TraceError("it does not begin with a kind of parallelism and a number of layers")
    policy, count = header[1], _whole("the number of layers", header[3])
    settings = {key: _whole(key, value) for key, value in re.findall(r"\b(\w+):\s*(\d+)", header[2])}
    world = settings.get("all_gpus")
    groups, by_pass = _groups(policy, settings, findings)
    rows = [line.split() for line in text[header.end() :].splitlines() if line.strip()]
    if len(rows) < count:
        raise TraceError(f"it promises {count} layers and has {len(rows)}")
    layers = [_layer(row, at, by_pass, findings) for at, row in enumerate(rows[:count])]
    nodes = _step(layers, shards=world is None)
    used = {node.group for node in nodes if node.kind is NodeKind.COLLECTIVE}
    groups = {group: ranks for group, ranks in groups.items() if group in used}
    return [RankTrace(nodes, rank=0, world_size=world, groups=groups, of_all=True)]


def _whole(what: str, digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise TraceError(f"{shown(what)} is {digits[:MOST_DIGITS]}..., which is too large")
    return int(digits)


def _groups(
    policy: str, settings: dict[str, int], findings: Findings
) -> tuple[dict[str, tuple[int, ...]], tuple[str, str, str]]:
    """The groups of rank 0 by name, and which of them each pass uses."""
    if policy == "DATA":
        return {}, ("", "", EVERYBODY)
    if policy in ("MODEL", "DISTRIBUTED_INFERENCE"):
        return {}, (EVERYBODY, EVERYBODY, "")
    world = settings.get("all_gpus")
    if world is None:
        if policy != "MICRO":
            findings.note("kind of parallelism whose groups the file does not say; all ranks are one group", policy)
        return {}, (EVERYBODY, EVERYBODY, EVERYBODY)
    tensor, experts, stages = (settings.get(name, 1) or 1 for name in ("model_parallel_NPU_group", "ep", "pp"))
    if stages > 1:
        raise TraceError(
            f"it is the stage of a pipeline of {stages}, and whole steps of pipelines are not in such files"
        )
    if not 1 <= world <= MAX_RANKS or world % (tensor * experts):
        raise TraceError(f"{world} ranks are not a multiple of tensor x expert parallelism, {tensor} x {experts}")
    groups = {
        "tp": tuple(range(tensor)),
        "dp": tuple(range(0, world, tensor)),
        "ep": tuple(range(0, tensor * experts, tensor)),
        "dp_ep": tuple(range(0, world, tensor * experts)),
    }
    return groups, ("tp", "tp", "dp")


def _layer(row: list[str], at: int, by_pass: tuple[str, str, str], findings: Findings) -> _Layer:
    if len(row) < 12:
        raise TraceError(f"layer {at + 1} has {len(row)} columns; name, -1, three times three, and the update are 12")
    try:
        passes = [_pass(row[first : first + 3], group) for first, group in zip((2, 5, 8), by_pass, strict=True)]
        return _Layer(row[0], passes[0], passes[1], passes[2], float(row[11]) * 1e-9)
    except ValueError as error:
        raise TraceError(f"layer {at + 1}, {shown(row[0])}: {error}") from None


def _pass(columns: list[str], group: str) -> _Pass:
    kind, _, suffix = columns[1].partition("_")
    if columns[1] == "NONE" or float(columns[2]) == 0:
        return _Pass(float(columns[0]) * 1e-9, "", 0.0, "")
    if kind not in KINDS:
        raise ValueError(f"{shown(columns[1])} is no collective that is known: {', '.join(KINDS)}, NONE")
    return _Pass(float(columns[0]) * 1e-9, KINDS[kind], float(columns[2]), suffix.lower() or group)


def _step(layers: list[_Layer], *, shards: bool) -> list[RawNode]:
    nodes: list[RawNode] = []

    def compute(name: str, seconds: float, after: list[int]) -> list[int]:
        if seconds <= 0 and after:
            return after
        nodes.append(RawNode(len(nodes), name, NodeKind.COMPUTE, after, duration_s=max(seconds, 0.0)))
        return [len(nodes) - 1]

    def communicate(name: str, phase: _Pass, after: list[int]) -> list[int]:
        if not phase.collective:
            return after
        node = RawNode(len(nodes), name, NodeKind.COLLECTIVE, after, collective=phase.collective, group=phase.group)
        node.size_bytes = phase.size_bytes
        if shards and phase.collective == "all_gather":
            node.shard_bytes = phase.size_bytes
        nodes.append(node)
        return [len(nodes) - 1]

    last: list[int] = []
    for layer in layers:
        last = compute(f"{layer.name} forward", layer.forward.compute_s, last)
        last = communicate(f"{layer.name} forward", layer.forward, last)
    reduced: list[tuple[_Layer, list[int]]] = []
    for layer in reversed(layers):
        last = compute(f"{layer.name} weight gradient", layer.weight_gradient.compute_s, last)
        gradients = communicate(f"{layer.name} weight gradient", layer.weight_gradient, last)
        reduced.append((layer, gradients))
        last = compute(f"{layer.name} input gradient", layer.input_gradient.compute_s, last)
        last = communicate(f"{layer.name} input gradient", layer.input_gradient, last)
    for layer, gradients in reduced:
        last = compute(f"{layer.name} update", layer.update_s, [*dict.fromkeys((*last, *gradients))])
    return nodes
