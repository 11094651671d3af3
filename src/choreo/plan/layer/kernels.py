"""The kernels of one pass over a layer, as data, and how long they take on a device.

The graph says which operators there are and how large they are at one rank. `list_kernels` turns them into kernels,
each with a kind and a few sizes. `time_kernels` asks the device, for any number of passes and micro-batches at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from choreo.hardware import Device
from choreo.plan.layer.framework_kernels import beside, expert_bias, memory_kernel
from choreo.plan.software import Style
from choreo.workload import CollectiveOp, Graph, Model, Operator, Plan

__all__ = ["AttentionKind", "LayerKernel", "LayerPass", "MatmulKind", "MemoryKind", "list_kernels", "time_kernels"]

Floats = npt.NDArray[np.float64]

# Bytes per quantised element: read in 16 bits, written in 8, and once more transposed.
CAST_READ, CAST_WRITTEN = 2, 2
MOST_KERNELS = 32.0  # for the experts of a rank
# torch's grouped product of eight bits with a scale a row, over those of the experts one by one, on an H200.
ROW_EXPERTS = 1.3
# Of what an operator takes the host: a product of one of several experts, which a loop in C++ launches (4 us of 24).
IN_LOOP = 0.15
PLAIN = 0.4  # the same of torch's own operator, without a module around it (10 us of 24)
# Of `expert_operators`, those of the router and of counting tokens, which are all alike from step to step.
ROUTING = 1 / 8
# What is launched one by one beside a CUDA graph of attention and the router, by the names of operators.
BESIDE_GRAPHS = ("expert_", "dispatch", "combine", "mlp_", "shared_")
# The first flash attention took twice as long as the second (Dao, FlashAttention-2, 2023, figures 4 to 7).
FLASH_1 = 2.0
# Matmuls whose operands stay in 16 bits where others use 8: the router and the output layer.
WIDE_PRODUCTS = ("head", "logits", "router", "core_")


class MatmulKind(NamedTuple):
    """A matmul; sizes are count, m, n, k."""

    precision: str
    split: bool = False

    def seconds(self, device: Device, sizes: Floats) -> Floats:
        """Seconds of each kernel; `sizes` has a row for each size."""
        count, m, n, k = sizes
        return device.batched_matmul_time(count, m, n, k, self.precision, split=self.split)


class AttentionKind(NamedTuple):
    """Fused attention; sizes are batch, heads, queries, keys, features."""

    causal: bool
    precision: str
    backward: bool
    flash: int

    def seconds(self, device: Device, sizes: Floats) -> Floats:
        """Seconds of each kernel; `sizes` has a row for each size."""
        batch, heads, queries, keys, features = sizes
        return device.attention_time(
            batch, heads, queries, keys, features, self.causal, self.precision, self.backward, flash=self.flash
        )


class MemoryKind(NamedTuple):
    """A memory-bound kernel; the size is bytes moved."""

    kind: str

    def seconds(self, device: Device, sizes: Floats) -> Floats:
        """Seconds of each kernel; `sizes` has a row for each size."""
        return device.memory_time(sizes[0], self.kind)


KernelKind = MatmulKind | AttentionKind | MemoryKind
# There are few kinds and many kernels, so each kind is one object.
_matmul, _memory = lru_cache(maxsize=64)(MatmulKind), lru_cache(maxsize=64)(MemoryKind)


class LayerKernel(NamedTuple):
    """One kernel or several identical ones: kind, sizes, and a factor on the device's time."""

    kind: KernelKind
    sizes: tuple[float, ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class LayerPass:
    """One pass over a layer: its kernels, the number of launches, and what is sent."""

    kernels: tuple[LayerKernel, ...]
    launches: float
    extra_launches: int  # extra launches of operators that the program runs as several kernels
    flops: float
    backward: bool = False
    collectives: tuple[CollectiveOp, ...] = ()
    choices: tuple[int, int] = (0, 0)  # experts per token, and the most nodes these are on


@dataclass(slots=True)
class _Asked:
    """Kernels of one kind: which pass each belongs to, and its sizes at two micro-batches."""

    passes: list[int] = field(default_factory=list)
    less: list[tuple[float, ...]] = field(default_factory=list)
    more: list[tuple[float, ...]] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)


def time_kernels(
    less: Sequence[LayerPass], more: Sequence[LayerPass], steps: Floats, device: Device
) -> dict[type[KernelKind], Floats]:
    """Seconds of the kernels of each pass, by class of kind: arrays of passes by `steps`.

    A pass is given at two micro-batches: step 0 has the sizes of `less`, step 1 those of `more`.
    """
    asked: dict[KernelKind, _Asked] = defaultdict(_Asked)
    for number, (one, other) in enumerate(zip(less, more, strict=True)):
        for small, large in zip(one.kernels, other.kernels, strict=True):
            found = asked[large.kind]
            found.passes.append(number)
            found.less.append(small.sizes)
            found.more.append(large.sizes)
            found.factors.append(large.factor)
    times = {kind: np.zeros((len(less), len(steps))) for kind in (MatmulKind, AttentionKind, MemoryKind)}
    for kind, found in asked.items():
        start, end = np.array(found.less), np.array(found.more)
        sizes = start + steps[:, None, None] * (end - start)  # steps x kernels x sizes
        seconds = kind.seconds(device, np.moveaxis(sizes, -1, 0)) * np.array(found.factors)
        np.add.at(times[type(kind)], np.array(found.passes), seconds.T)
    times[MemoryKind] += np.array([one.extra_launches * device.launch_s for one in more])[:, None]
    return times


def list_kernels(  # noqa: PLR0917 -- all that kernels depend on
    operators: Iterable[Operator], phase: str, model: Model, graph: Graph, plan: Plan, style: Style
) -> LayerPass:
    """The kernels of some operators, and the extra ones that the program runs."""
    found = [op for op in operators if op.kind != "slice"]
    kernels: list[LayerKernel] = []
    launches, extra = 0.0, 0
    wide = "bf16" if plan.precision in ("fp8", "fp4") else plan.precision
    for op in found:
        if op.kind == "matmul":
            used = wide if op.name.startswith(WIDE_PRODUCTS) else plan.precision
            # Experts are multiplied one by one, each with its own kernel; very many share kernels.
            by_expert = op.name.startswith("expert_")
            each = min(op.count, MOST_KERNELS) if by_expert else 1.0
            count, *shape = _shape(op, plan, style)
            eight = used in ("fp8", "fp4")
            split = eight and (style.split_sums == "always" or (style.split_sums == "backward" and phase != "forward"))
            slower = ROW_EXPERTS if by_expert and eight and style.fp8_scaling == "row" else 1.0
            kernels.append(LayerKernel(_matmul(used, split), (count / each, *shape), each * slower))
            launched = 1 if each == 1 else each * IN_LOOP
            extra += round(style.expert_row_operators * each) if by_expert else 0
            if eight:
                kernels += _casts(op, style, each)
                launched *= 3
        elif op.kind == "attention":
            steps = list(_attention(op, wide, phase, style))
            kernels += steps
            # A kernel for each rank's keys, and a merge for each but the first.
            count = 1 if len(steps) == 1 else round(2 * op.n / op.m) - 1
            launched = count * (1 + 2 * (phase == "dgrad"))
        else:
            moved, pieces, kind = memory_kernel(op, phase, model, plan, style)
            kernels.append(LayerKernel(_memory(kind), (moved,)))
            launched = pieces
            extra += pieces - 1
        launches += 0 if _in_graph(op, style) else launched
    products = any(op.kind == "matmul" for op in found)
    again = phase == "recompute" and any(op.name.startswith("dispatch") for op in found)
    routed = "dispatched" in graph.tensors and (phase in ("forward", "dgrad") or again)
    for moved, kind, pieces in beside(phase, model, graph, plan, style, products=products, routed=routed):
        kernels.append(LayerKernel(_memory(kind), (moved / pieces,), pieces))
        launches += pieces
    if routed:
        for moved, kind, pieces in expert_bias(graph, model, phase, style):
            kernels.append(LayerKernel(_memory(kind), (moved / pieces,), pieces))
            launches += PLAIN * pieces
        launches += style.expert_operators * (1 if style.graphs == "none" else 1 - ROUTING)
        extra += style.expert_kernels
    choices = (model.experts_per_token, model.expert_nodes)
    flops = sum(op.flops for op in found)
    return LayerPass(tuple(kernels), launches, extra, flops, phase in ("dgrad", "wgrad"), choices=choices)


def _in_graph(op: Operator, style: Style) -> bool:
    """Whether an operator is launched with others as one CUDA graph."""
    if style.graphs == "router":
        return op.name.startswith("route")
    return style.graphs == "attention" and not op.name.startswith(BESIDE_GRAPHS)


def _attention(op: Operator, precision: str, phase: str, style: Style) -> Iterator[LayerKernel]:
    """Fused attention. With context parallelism a rank attends to its own keys, and to those of the others one by one.

    Each rank has early and late rows, so that all have the same work. For its own keys the mask is causal; for another
    rank's, either half of its rows see all keys or all rows see half of them. Ranks advance together, so the slower
    case counts: half of the rows. Each step's output is then merged with that of the steps before.
    """
    backward = phase == "dgrad"
    slower = FLASH_1 if style.attention == 1 else 1.0
    flash = max(2, style.attention)
    own, masked = AttentionKind(True, precision, backward, flash), op.causal and op.m < op.n
    if not masked or not style.merged_bytes:
        keys, causal = (op.n / 2, False) if masked else (op.n, op.causal)
        kind = AttentionKind(causal, precision, backward, flash)
        yield LayerKernel(kind, (op.batch, op.heads, op.m, keys, op.k), slower)
        return
    steps = op.n / op.m - 1
    yield LayerKernel(own, (op.batch, op.heads, op.m, op.m, op.k), slower)
    yield LayerKernel(own._replace(causal=False), (op.batch, op.heads, op.m / 2, op.m, op.k), slower * steps)
    queries = op.batch * op.heads * op.m * op.k
    moved = queries * style.merged_bytes
    if backward:
        moved = (queries + 2 * op.batch * op.kv_heads * op.m * op.k) * style.merged_gradient_bytes
    yield LayerKernel(_memory("elementwise"), (moved,), steps)


def _shape(op: Operator, plan: Plan, style: Style) -> tuple[float, float, float, float]:
    """Count and sizes of a matmul. With expert parallelism they are those of the rank with the most tokens."""
    if plan.ep == 1 or not op.name.startswith("expert_"):
        return op.count, op.m, op.n, op.k
    if op.phase == "wgrad":
        return op.count, op.m, op.n, op.k * style.imbalance
    return op.count, op.m * style.imbalance, op.n, op.k


def _casts(op: Operator, style: Style, pieces: float) -> Iterator[LayerKernel]:
    """Kernels that cast a matmul's operands to 8 bits, with a transposed copy for the backward pass.

    Weight gradients reuse operands that were cast for the other matmuls, and the weights' cast is kept from one
    micro-batch to the next. In hand-written layers the preceding norm or activation writes 8 bits directly, if a
    tensor's scale comes from the steps before; a scale of this step they find as they write 16 bits, where others take
    another pass. Tokens reach experts in 16 bits, and each expert's are cast by a kernel of their own. Blocks of 128
    lie otherwise in the transposed copy, which is a pass too. With one scale per row, every matmul casts both operands,
    and there is no copy.
    """
    if style.fp8_scaling == "row":
        operands = op.count * (op.m * op.k + op.k * op.n)
        yield LayerKernel(_memory("cast"), (operands * (CAST_READ + CAST_WRITTEN / 2),))
        return
    if op.phase == "wgrad":
        return
    rows = op.count * op.m * op.k
    routed = op.name.startswith("expert_")
    written = style.fusion == "hand" and op.phase == "forward" and not routed  # by a norm or an activation
    if written and style.fp8_scaling != "block":
        moved = CAST_WRITTEN + CAST_READ * (style.fp8_scaling == "current")
        yield LayerKernel(_memory("cast"), (rows * moved,))
        return
    read = CAST_READ * (1 if style.fp8_scaling == "tensor" else 2)
    kept = style.fusion == "hand" or op.phase != "forward"
    operands = rows + (0.0 if kept else op.count * op.k * op.n)
    yield LayerKernel(_memory("cast"), (operands * (read + CAST_WRITTEN) / pieces,), pieces)
