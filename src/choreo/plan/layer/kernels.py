"""What a layer costs at one rank: the time of its kernels on a device, phase by phase, and what it asks to be sent.

The graph says which operators there are and how large they are at one rank; the device says how long a kernel of that
kind and shape takes. Nothing here depends on the constants of a program, so costs are computed once for each layer and
kept: fitting and searching read them again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from choreo.hardware import Device
from choreo.plan.layer.framework_kernels import beside, memory_kernel
from choreo.plan.layer.recompute import recomputed
from choreo.plan.software import Style
from choreo.workload import Collective, Graph, Model, Operator, Plan, embedding_graph, head_graph, layer_graph
from choreo.workload.graph.backward import backward_graph
from choreo.workload.graph.fuse import fuse

__all__ = ["Block", "Phase", "block", "fused", "layer_plan", "part_graph", "phase_cost"]

# Bytes of a number that is quantised: read in 16 bits, written in 8, and once more transposed.
CAST_READ, CAST_WRITTEN = 2, 2
# Tokens are not dealt evenly, and everybody waits for the busiest expert: what capacity is usually left for that (Fedus
# et al., Switch Transformers, 2021, train with capacity factors of 1.0 to 1.25).
IMBALANCE = 1.2
# What hand-written fusions merge (bias and activation; bias, dropout and sum); norms and softmax stay by themselves.
BY_HAND = ("dropout", "elementwise")
# The first flash attention took twice as long as the second (Dao, FlashAttention-2, 2023, figures 4 to 7).
FLASH_1 = 2.0
# Matrix products whose operands stay in sixteen bits where the others are of eight: the router and the output layer.
WIDE_PRODUCTS = ("head", "logits", "router", "core_")


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds of kernels of one pass over a block, by what they are bound by, and how many there are."""

    matmul_s: float = 0.0
    attention_s: float = 0.0
    memory_s: float = 0.0
    kernels: int = 0
    flops: float = 0.0

    @property
    def time_s(self) -> float:
        """All kernels, one after another."""
        return self.matmul_s + self.attention_s + self.memory_s


@dataclass(frozen=True, slots=True)
class Block:
    """One layer, the embedding, or the head, for one micro-batch at one rank."""

    forward: Phase
    recompute: Phase
    dgrad: Phase
    wgrad: Phase
    collectives: tuple[Collective, ...]
    saved_bytes: float
    input_bytes: float
    working_bytes: float  # kept by one forward pass without recomputation
    widest_bytes: float  # of the tensors between two operators of the backward pass, where there are most
    parameters: float
    expert_parameters: float
    tensors: int  # parameter tensors, each a message where a program sends them one by one


def layer_plan(plan: Plan) -> Plan:
    """What of a plan a layer's cost depends on, the rest at its default."""
    return Plan(
        dp=plan.ep,
        tp=plan.tp,
        cp=plan.cp,
        ep=plan.ep,
        sequence_parallel=plan.sequence_parallel,
        micro_batch=plan.micro_batch,
        recompute=plan.recompute,
        precision=plan.precision,
    )


@lru_cache(maxsize=16384)
def block(  # noqa: PLR0917 -- all that the cost depends on: the key by which it is kept
    part: str, model: Model, plan: Plan, seq: int, layer: int, device: Device, style: Style
) -> Block:
    """The cost of a part of the model; `plan` should be a `layer_plan`, so that it is found again."""
    forward = part_graph(part, model, plan, seq, layer, style)
    in_layer = part == "layer"
    kept = recomputed(forward, plan.recompute if in_layer else "none", style, plan.precision if in_layer else "bf16")
    again = replace(forward, nodes=kept.nodes)
    back = fused(backward_graph(forward), style)
    operators = {
        "forward": fused(forward, style).operators,
        "recompute": fused(again, style).operators,
        "dgrad": tuple(op for op in back.operators if op.phase == "dgrad"),
        "wgrad": tuple(op for op in back.operators if op.phase == "wgrad"),
    }
    phases = {name: phase_cost(ops, name, model, forward, device, plan, style) for name, ops in operators.items()}
    collectives = [*forward.collectives]
    collectives += [replace(found, phase="recompute") for found in again.collectives]
    collectives += [replace(found, phase="dgrad") for found in back.collectives]
    return Block(
        **phases,
        collectives=tuple(collectives),
        saved_bytes=kept.saved_bytes,
        input_bytes=forward.bytes_of(forward.inputs) * style.stream_bytes / plan.activation_bytes,
        working_bytes=recomputed(forward, "none", style).saved_bytes,
        widest_bytes=max((op.bytes_written + op.bytes_read / 2 for op in operators["dgrad"]), default=0.0),
        parameters=forward.parameters,
        expert_parameters=forward.expert_parameters,
        tensors=len(forward.weights),
    )


def part_graph(part: str, model: Model, plan: Plan, seq: int, layer: int, style: Style) -> Graph:  # noqa: PLR0917 -- all that a graph depends on
    """The forward graph of a part of the model, as the program runs it."""
    if part == "embedding":
        return embedding_graph(model, plan, seq)
    if part == "head":
        return head_graph(model, plan, seq, regather=style.regather)
    return layer_graph(
        model, plan, seq, layer, flash=style.attention > 0, context=style.context, regather=style.regather
    )


def fused(graph: Graph, style: Style) -> Graph:
    """Neighbours merged: by a compiler all that are memory-bound, by hand not across norms and softmax."""
    if style.fusion == "none":
        return graph
    if style.fusion == "compiler":
        return fuse(graph)
    return fuse(graph, BY_HAND)


def phase_cost(  # noqa: PLR0917 -- all that its kernels depend on
    operators: Iterable[Operator], phase: str, model: Model, graph: Graph, device: Device, plan: Plan, style: Style
) -> Phase:
    """The kernels of some operators, and those that the program has beside them."""
    found = [op for op in operators if op.kind != "slice"]
    products: dict[str, list[Operator]] = {}
    matmul_s = attention_s = memory_s = 0.0
    kernels = 0
    wide = "bf16" if plan.precision in ("fp8", "fp4") else plan.precision
    for op in found:
        if op.kind == "matmul":
            used = wide if op.name.startswith(WIDE_PRODUCTS) else plan.precision
            products.setdefault(used, []).append(op)
            kernels += 1
        elif op.kind == "attention":
            # Context parallelism deals early and late rows to each rank, so that all have half of the keys to see.
            keys, causal = (op.n / 2, False) if op.causal and op.m < op.n else (op.n, op.causal)
            flash = max(2, style.attention)
            seconds = device.attention_time(
                op.batch, op.heads, op.m, keys, op.k, causal, wide, phase == "dgrad", flash=flash
            )
            attention_s += float(seconds) * (FLASH_1 if style.attention == 1 else 1.0)
            kernels += 1 + 2 * (phase == "dgrad")
        else:
            moved, launches, kind = memory_kernel(op, phase, model, style)
            memory_s += float(device.memory_time(moved, kind)) + (launches - 1) * device.launch_s
            kernels += launches
    for used, ops in products.items():
        shapes = np.array([_shape(op, plan) for op in ops]).T
        matmul_s += float(np.sum(device.batched_matmul_time(shapes[0], shapes[1], shapes[2], shapes[3], used)))
        if used in ("fp8", "fp4"):
            memory_s += sum(_quantised(op, device, style) for op in ops)
            kernels += 2 * len(ops)
    for moved, kind in beside(phase, model, graph, plan, style, products=any(products.values())):
        memory_s += float(device.memory_time(moved, kind))
        kernels += 1
    return Phase(matmul_s, attention_s, memory_s, kernels, sum(op.flops for op in found))


def _shape(op: Operator, plan: Plan) -> tuple[float, float, float, float]:
    """Count and sizes of a product; where experts are spread over ranks, those of the rank with the most tokens."""
    if plan.ep == 1 or not op.name.startswith("expert_"):
        return op.count, op.m, op.n, op.k
    if op.phase == "wgrad":
        return op.count, op.m, op.n, op.k * IMBALANCE
    return op.count, op.m * IMBALANCE, op.n, op.k


def _quantised(op: Operator, device: Device, style: Style) -> float:
    """Casting the operands of a product to eight bits, with the transposed copy that the backward pass will want.

    Hand-written layers have the norm or activation before write eight bits at once, and keep the weights' cast from one
    micro-batch to the next.
    """
    if op.phase == "wgrad":
        return 0.0  # both operands were cast for the other products
    rows = op.count * op.m * op.k
    if style.fusion == "hand" and op.phase == "forward":
        return float(device.memory_time(rows * CAST_WRITTEN, "cast"))
    operands = rows + (op.count * op.k * op.n if op.phase == "forward" else 0.0)
    return float(device.memory_time(operands * (CAST_READ + CAST_WRITTEN), "cast"))
