"""Kernels that a framework runs in place of the graph's operators, and extra ones.

Under autocast the residual stream, norms and sums are fp32, and the operands of matmuls are cast. Norms written in
elementary operations are many kernels. A loss computed in fp32 passes over the logits many times. All of it is counted
in bytes read and written.
"""

from __future__ import annotations

from collections.abc import Iterator

from choreo.plan.software import Style
from choreo.workload import Graph, Model, Operator, Plan

__all__ = ["beside", "expert_bias", "memory_kernel"]

MEMORY_KINDS = {"embedding": "gather"}
# Bytes moved per element of the residual stream, in 16 bits and in fp32: by a norm (its result is cast), by a sum.
NORM = {"forward": (4, 14), "dgrad": (6, 18)}
SUM = {"forward": (6, 10), "dgrad": (6, 18)}  # backward: the sum of two gradients, and the cast of one of them
# Norms in elementary fp32 operations: cast, square, mean, scale, cast back, weight; and their backward.
COMPOSITE_NORM = {"forward": (34, 7), "dgrad": (70, 12)}  # bytes, kernels
# The same where everything is fp32: square, mean, scale, weight; their backward, and the sum of two gradients.
COMPOSITE_NORM_FP32 = {"forward": (28, 6), "dgrad": (84, 12)}
NARROW_NORM_FP32 = {"forward": 8, "dgrad": 12}
COMPOSITE_ROTATION = {"forward": (20, 3), "dgrad": (20, 3)}
# Scores that torch casts to fp32, scales, masks, passes through softmax and casts back, and so their gradients: bytes
# that one fused kernel moves, bytes that all move, and how many they are.
TORCH_SOFTMAX = {"forward": (4, 36, 5), "dgrad": (6, 40, 5)}
# torch.topk of the scores of 128 and 256 experts takes as long as a reduction of this many times its bytes, on an H200.
TOP_K_MOVED = 60
# Megatron adds the experts' last bias, times a token's probability in fp32, by plain operators (in its TEGroupedMLP):
# product, sum, concatenation and cast forward; backward two casts, a concatenation, and for either factor a product and
# its sum. Bytes for each number of the rows, kernels of an expert, and kernels of all experts together.
EXPERT_BIAS = {"forward": (28, 2, 2), "dgrad": (40, 5, 3)}
# The forward share of the loss's memory traffic.
LOSS_FORWARD = 0.45
# Extra bytes per parameter that a matmul moves if it accumulates fp32 gradients itself: see `accumulate_moved`.
IN_PRODUCT = 8


def memory_kernel(op: Operator, phase: str, model: Model, plan: Plan, style: Style) -> tuple[float, int, str]:
    """Bytes, launches and kind of a memory-bound operator as the program runs it."""
    wide = plan.activation_bytes == 4  # training in fp32
    direction = "dgrad" if phase in ("dgrad", "wgrad") else "forward"
    moved, launches = op.bytes_moved, 1
    kind = "activation" if op.name.split(".")[0].endswith("_activation") else MEMORY_KINDS.get(op.kind, op.kind)
    if op.name.startswith("routes"):
        return op.bytes_moved * TOP_K_MOVED, 1, kind
    if op.kind in ("cross_entropy", "reduction"):
        return 0.0, 1, kind  # `beside` counts all passes of the loss over the logits
    if op.kind == "norm":
        if style.composite == "all" and style.fusion == "none" and model.norm == "rms":
            narrow = NARROW_NORM_FP32[direction] if wide else NORM[direction][0]
            all_moved, launches = (COMPOSITE_NORM_FP32 if wide else COMPOSITE_NORM)[direction]
            return moved * all_moved / narrow, launches, "elementwise"
        if style.stream_bytes == 4 and not wide:
            narrow, cast = NORM[direction]
            moved *= cast / narrow if style.fusion == "none" else 1.5
            launches = 2 if style.fusion == "none" else 1
    elif op.kind == "elementwise" and ("residual" in op.name or ":sum" in op.name):
        if style.stream_bytes == 4 and not wide:
            narrow, cast = SUM[direction]
            moved *= cast / narrow if style.fusion == "none" else 1.5
    elif op.name.startswith("core_softmax") and style.softmax == "torch":
        narrow, all_moved, launches = TORCH_SOFTMAX[direction]
        moved *= all_moved / narrow
    elif kind == "activation" and style.wide_activations and not wide:
        moved *= 2  # of 16 bits, at the rate of fp32
    elif op.name.startswith("rotary") and style.composite != "none" and style.fusion == "none":
        all_moved, launches = COMPOSITE_ROTATION[direction]
        moved *= all_moved / 4
    return moved, launches, kind


def beside(
    phase: str, model: Model, graph: Graph, plan: Plan, style: Style, *, products: bool, routed: bool
) -> Iterator[tuple[float, str, int]]:
    """Bytes, kind and number of kernels that the graph has no operators for: casts, copies, the loss, sums.

    `routed` says that the pass sends tokens to experts.
    """
    if graph.name == "head" and phase in ("forward", "dgrad"):
        logits = graph.tensors["logits"].elements(graph.mesh)
        share = LOSS_FORWARD if phase == "forward" else 1 - LOSS_FORWARD
        yield logits * style.loss_bytes * share, style.loss_kind, 1
    if routed:
        yield from _sorted(graph, plan, style)
    if not products:
        return
    if style.cast_weights and phase in ("forward", "wgrad"):
        # fp32 to 16 bits before use; the gradient the other way.
        yield graph.parameters * 6, "cast", 1
    if phase == "wgrad" and style.accumulate_moved:
        yield graph.parameters * style.accumulate_moved, "elementwise", _accumulated(graph, style)
    if phase == "wgrad" and model.bias and style.fusion != "compiler":
        for op in graph.operators:
            if op.kind == "matmul" and any(name.endswith(".bias") for name in op.weights):
                yield op.m * op.n * op.count * plan.activation_bytes, "reduction", 1
    if phase == "dgrad" and graph.name.endswith("layer") and "query" in graph.tensors and style.fusion != "compiler":
        # Gradients of queries, keys and values are concatenated.
        yield 2 * graph.bytes_of(name for name in ("query", "key", "value")), "copy", 1
    if style.attention == 0 and phase in ("forward", "dgrad") and "attention" in graph.tensors:
        # Heads are concatenated again.
        yield 2 * graph.bytes_of(["attention"]), "copy", 1


def expert_bias(graph: Graph, model: Model, phase: str, style: Style) -> Iterator[tuple[float, str, int]]:
    """What adds the bias of the experts' last matrix, where it is not part of the product."""
    if not (model.bias and style.pads_experts):
        return
    down = next(op for op in graph.operators if op.name.startswith("expert_down"))
    moved, each, besides = EXPERT_BIAS["dgrad" if phase == "dgrad" else "forward"]
    yield down.count * down.m * down.n * moved, "elementwise", round(each * down.count) + besides


def _accumulated(graph: Graph, style: Style) -> int:
    """Kernels that accumulate gradients: one for each tensor whose matmul does not do it. A matmul has one tensor."""
    count = 0
    for op in graph.operators:
        if op.kind == "matmul" and op.weights:
            biased = any(name.endswith(".bias") for name in op.weights)
            count += biased + (style.accumulate_moved != IN_PRODUCT)
        else:
            count += len(op.weights)
    return max(count, 1)


def _sorted(graph: Graph, plan: Plan, style: Style) -> Iterator[tuple[float, str, int]]:
    """Copies that sort tokens by expert, and back: one kernel each, or as they arrive.

    Two more pad each expert's rows for 8-bit matmuls, and remove the padding again.
    """
    if style.dispatch != "all_to_all":
        return
    moved = 4 * graph.bytes_of(["dispatched"])
    if graph.mesh["ep"] > 1:
        yield moved, "copy", 2
    if style.pads_experts and plan.precision in ("fp8", "fp4"):
        yield moved, "copy", 2
