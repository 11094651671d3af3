"""What one layer does at one rank with one micro-batch: its passes, what it keeps, and what it holds.

The kinds of layers are: the embedding; a dense layer or one with experts, possibly with windowed attention; the head;
and the module that joins the embedding of a further token to the stream, with its own head (multi-token prediction).
Nothing here depends on the device or on a program's constants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from choreo.plan.layer.kernels import LayerPass, list_kernels
from choreo.plan.layer.recompute import Recomputed, recomputed
from choreo.plan.software import Style
from choreo.workload import Graph, Model, Plan, embedding_graph, head_graph, layer_graph
from choreo.workload.graph.backward import backward_graph
from choreo.workload.graph.fuse import fuse
from choreo.workload.graph.transformer import further_token_graph

__all__ = [
    "HEADS",
    "KINDS",
    "LAYERS",
    "OUTSIDE",
    "PASSES",
    "WITH_EXPERTS",
    "LayerWork",
    "further_kinds",
    "layer_kind",
    "layer_work",
]

LAYERS = ("dense", "experts", "dense window", "experts window")
WITH_EXPERTS = ("experts", "experts window")
HEADS = ("head", "further head")
OUTSIDE = ("embedding", *HEADS, "further token")  # kinds of layers that are never recomputed
KINDS = (*LAYERS, *OUTSIDE)
PASSES = ("forward", "recompute", "dgrad", "wgrad")
# What hand-written fusions merge (bias and activation; bias, dropout and sum); norms and softmax stay separate.
BY_HAND = ("dropout", "elementwise")


@dataclass(frozen=True, slots=True, eq=False)
class LayerWork:
    """The passes of a layer for one micro-batch at one rank, in the order of `PASSES`, and sizes."""

    passes: tuple[LayerPass, ...]
    saved_bytes: float  # kept from the forward pass to the backward pass
    input_bytes: float
    working_bytes: float  # kept by one forward pass without recomputation
    widths_bytes: tuple[float, ...]  # tensors between two operators of the backward pass, for each operator
    parameters: float
    expert_parameters: float
    tensors: int  # parameter tensors, each a message where a program sends them one by one


def layer_kind(model: Model, layer: int) -> str:
    """The kind of a numbered layer."""
    kind = "experts" if model.has_experts(layer) else "dense"
    return f"{kind} window" if model.has_window(layer) else kind


def further_kinds(model: Model) -> tuple[str, ...]:
    """The kinds of layers of one multi-token prediction module: join the embedding, a layer like the last, a head."""
    return ("further token", layer_kind(model, model.layers - 1), "further head")


@lru_cache(maxsize=8192)
def layer_work(kind: str, model: Model, plan: Plan, seq: int, style: Style) -> LayerWork:
    """The work of a kind of layer. It is cached, so callers should reset fields of the plan that a layer ignores."""
    both = _both_ways(kind, model, plan.without_recomputation(), seq, style)
    forward, seen, widths = both.forward, both.seen, both.widths_bytes
    inside = kind in LAYERS
    kept = recomputed(seen, plan.recompute, style, plan.precision, plan.modules) if inside else both.kept
    if plan.modules:
        # A module's output exists again while the rest of the layer runs backward.
        again_bytes = recomputed(seen, "none", style, plan.precision).saved_bytes - kept.saved_bytes
        widths = tuple(width + again_bytes for width in widths)
    again = replace(forward, nodes=kept.nodes)
    repeat = list_kernels(_fused(again, style).operators, "recompute", model, forward, plan, style)
    working, saved = both.kept.saved_bytes, kept.saved_bytes
    if model.norm == "rms":
        beside = style.norm_kept * forward.bytes_of(
            name for op in forward.operators if op.kind == "norm" for name in op.outputs
        )
        working += beside
        saved += 0.0 if inside and plan.recompute == "full" else beside
    # The head keeps what it gathered too, unless that is gathered again.
    gathered = {name for node in forward.collectives for name in node.outputs if kind in HEADS}
    return LayerWork(
        passes=(both.ahead, replace(repeat, collectives=again.collectives), both.dgrad, both.wgrad),
        saved_bytes=saved,
        input_bytes=forward.bytes_of(forward.inputs) * max(1.0, style.stream_bytes / plan.activation_bytes)
        + forward.bytes_of(gathered & set(forward.saved("none"))),
        working_bytes=working,
        widths_bytes=widths,
        parameters=both.parameters,
        expert_parameters=both.expert_parameters,
        tensors=len(forward.weights),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _BothWays:
    """What a layer has regardless of recomputation."""

    forward: Graph
    seen: Graph  # determines which tensors are kept
    kept: Recomputed  # without recomputation, in 16 bits
    ahead: LayerPass
    dgrad: LayerPass
    wgrad: LayerPass
    widths_bytes: tuple[float, ...]
    parameters: float
    expert_parameters: float


@lru_cache(maxsize=8)  # the same layer is requested with each way to recompute, one after another
def _both_ways(kind: str, model: Model, plan: Plan, seq: int, style: Style) -> _BothWays:
    forward = _graph(kind, model, plan, seq, style)
    fused = _fused(forward, style)
    # Hand-fused kernels keep nothing in between; a compiler decides for itself what to keep.
    seen = fused if style.fusion == "hand" else forward
    back = _fused(backward_graph(forward), style)
    dgrad = [op for op in back.operators if op.phase == "dgrad"]
    wgrad = [op for op in back.operators if op.phase == "wgrad" and not style.frozen]
    ahead = list_kernels(fused.operators, "forward", model, forward, plan, style)
    return _BothWays(
        forward,
        seen,
        recomputed(seen, "none", style),
        replace(ahead, collectives=forward.collectives),
        replace(list_kernels(dgrad, "dgrad", model, forward, plan, style), collectives=back.collectives),
        list_kernels(wgrad, "wgrad", model, forward, plan, style),
        tuple(op.bytes_written + op.bytes_read / 2 for op in dgrad),
        forward.parameters,
        forward.expert_parameters,
    )


def _graph(kind: str, model: Model, plan: Plan, seq: int, style: Style) -> Graph:
    """The forward graph of a kind of layer, as the program runs it."""
    if kind == "embedding":
        return embedding_graph(model, plan, seq)
    if kind in HEADS:
        return head_graph(model, plan, seq, regather=style.regather, shared=kind != "head")
    if kind == "further token":
        return further_token_graph(model, plan, seq)
    layer = next(number for number in range(model.layers) if layer_kind(model, number) == kind)
    flash = style.attention > 0 and (model.fused_scores or style.fusion != "none")
    return layer_graph(model, plan, seq, layer, flash=flash, context=style.context, regather=style.regather)


def _fused(graph: Graph, style: Style) -> Graph:
    """The graph with neighbours fused: by a compiler all memory-bound ones, by hand all but norms and softmax."""
    if style.fusion == "none":
        return graph
    return fuse(graph) if style.fusion == "compiler" else fuse(graph, BY_HAND)
