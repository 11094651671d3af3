"""The graph of a transformer under a plan: embedding, one layer, and the output layer with its loss.

Weights are cut as in Megatron (Shoeybi et al. 2019): the first matrix of attention and of the MLP by columns, the
second by rows, tables by vocabulary. With sequence parallelism (Korthikanti et al. 2022) the activations between them
are cut along the sequence. The resharding rule finds the collectives that this needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from choreo.errors import PlanError
from choreo.workload.graph.attention import attention
from choreo.workload.graph.build import Builder, Dims
from choreo.workload.graph.graph import Graph
from choreo.workload.graph.mlp import experts, mlp
from choreo.workload.graph.sharding import Sharding, cut_along
from choreo.workload.mesh import mesh_of
from choreo.workload.model import Model
from choreo.workload.plan import Plan

__all__ = ["CONTEXT", "Options", "embedding_graph", "further_token_graph", "head_graph", "layer_graph"]

CONTEXT = ("all_gather", "ring", "ulysses")
CACHED = 256


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the software that runs a layer, beyond the model and the plan."""

    flash: bool = True  # attention as one kernel that keeps no scores
    dropout: bool = False
    context: str = "all_gather"  # how context parallelism brings keys and values together
    regather: bool = True  # keep a rank's part of gathered activations, and gather again in the backward pass


@dataclass(frozen=True, slots=True)
class LayerBuilder:
    """The state of a layer under construction, shared by its parts."""

    build: Builder
    model: Model
    options: Options
    tokens: Dims  # batch and sequence, of all ranks
    whole: Sharding  # activations at the matrices: cut over dp and cp alone
    stream: Sharding  # and between them: with sequence parallelism over tp as well
    windowed: bool = False  # queries see a window of the keys

    @property
    def tp(self) -> int:
        """Ranks of tensor parallelism."""
        return self.build.mesh["tp"]

    @property
    def expert_axis(self) -> str:
        """The axis that cuts one expert's matrices: that of tensor parallelism, unless the plan says otherwise."""
        return "tp" if self.build.mesh["etp"] == self.tp else "etp"

    @property
    def hidden(self) -> Dims:
        """Dims of the residual stream."""
        return (*self.tokens, ("hidden", self.model.hidden))


def layer_graph(
    model: Model,
    plan: Plan,
    seq: int,
    layer: int = 0,
    *,
    flash: bool = True,
    dropout: bool | None = None,
    context: str = "all_gather",
    regather: bool = True,
) -> Graph:
    """The forward graph of one layer, for one micro-batch, at one rank. The same arguments give the same object.

    >>> from choreo.workload import get_model
    >>> graph = layer_graph(get_model("llama3-8b"), Plan(tp=8), seq=4096)
    >>> [(node.kind, node.axes, node.ranks) for node in graph.collectives]
    [('all_reduce', ('tp',), 8), ('all_reduce', ('tp',), 8)]
    """
    options = _options(model, flash, dropout, context, regather)
    return _layer(model, _relevant(plan), seq, model.has_experts(layer), model.has_window(layer), options)


def embedding_graph(model: Model, plan: Plan, seq: int, *, dropout: bool | None = None) -> Graph:
    """The forward graph from token ids to the input of the first layer.

    >>> from choreo.workload import get_model
    >>> embedding_graph(get_model("llama3-8b"), Plan(), seq=4096).parameters
    525336576.0
    """
    return _embedding(model, _relevant(plan), seq, _options(model, True, dropout, CONTEXT[0], True))


def head_graph(model: Model, plan: Plan, seq: int, *, regather: bool = True, shared: bool = False) -> Graph:
    """The forward graph from the output of the last layer to the loss; a `shared` output layer is counted elsewhere.

    >>> from choreo.workload import get_model
    >>> [node.kind for node in head_graph(get_model("llama3-8b"), Plan(tp=8), seq=4096).collectives]
    ['all_reduce', 'all_reduce', 'all_reduce']
    """
    return _head(model, _relevant(plan), seq, _options(model, True, False, CONTEXT[0], regather), shared)


def further_token_graph(model: Model, plan: Plan, seq: int) -> Graph:
    """The part before a layer that predicts a further token (DeepSeek-V3): its token's embedding joins the stream.

    >>> from choreo.workload import get_model
    >>> further_token_graph(get_model("deepseek-v3"), Plan(), seq=4096).parameters == 2 * 7168**2 + 2 * 7168
    True
    """
    return _further_token(model, _relevant(plan), seq, _options(model, True, False, CONTEXT[0], True))


def _options(model: Model, flash: bool, dropout: bool | None, context: str, regather: bool) -> Options:
    if context not in CONTEXT:
        raise PlanError(f"context must be one of {', '.join(CONTEXT)}, not {context!r}")
    return Options(flash, model.dropout if dropout is None else dropout, context, regather)


def _relevant(plan: Plan) -> Plan:
    """The plan with only the fields that change a graph, so that the cache finds it."""
    return Plan(
        dp=plan.dp,
        tp=plan.tp,
        cp=plan.cp,
        ep=plan.ep,
        etp=plan.etp if plan.etp != plan.tp else 0,
        sequence_parallel=plan.sequence_parallel,
        micro_batch=plan.micro_batch,
        precision="fp32" if plan.activation_bytes == 4 else "bf16",
    )


def _block(name: str, model: Model, plan: Plan, seq: int, options: Options, *, windowed: bool = False) -> LayerBuilder:
    mesh: Mapping[str, int] = mesh_of(plan)
    build = Builder(name, mesh, plan.activation_bytes, regather=options.regather)
    whole = cut_along(mesh, dp="batch", cp="sequence")
    stream = cut_along(mesh, dp="batch", cp="sequence", tp="sequence") if plan.sequence_parallel else whole
    return LayerBuilder(
        build, model, options, (("batch", plan.micro_batch * plan.dp), ("sequence", seq)), whole, stream, windowed
    )


@lru_cache(maxsize=CACHED)
def _layer(  # noqa: PLR0917 -- all that a graph depends on
    model: Model, plan: Plan, seq: int, moe: bool, windowed: bool, options: Options
) -> Graph:
    block = _block("moe_layer" if moe else "layer", model, plan, seq, options, windowed=windowed)
    build = block.build
    stream = build.input("input", block.hidden, block.stream)
    read = norm(block, "attention_norm", stream)
    attended = attention(block, read)
    if model.parallel_block:
        again = read if model.norms_per_layer == 1 else norm(block, "mlp_norm", stream)
        grown = mlp(block, "mlp", again, model.ffn)
        (both,) = build.operator(
            "branches", "elementwise", [attended, grown], [("branches", block.hidden)], keep_partial=True, sums=True
        )
        leaving = residual(block, "mlp", both, stream)
    else:
        between = residual(block, "attention", attended, stream)
        again = norm(block, "mlp_norm", between)
        grown = experts(block, again) if moe else mlp(block, "mlp", again, model.ffn)
        leaving = residual(block, "mlp", grown, between)
    build.output(leaving, block.stream)
    return build.graph()


def norm(block: LayerBuilder, name: str, given: str) -> str:
    """A norm over the hidden features. It keeps its input, and one or two statistics per token."""
    build, model = block.build, block.model
    dims = block.hidden[-1:]
    weights = [build.weight(f"{name}.weight", dims)] if model.norm != "layer-no-affine" else []
    weights += [build.weight(f"{name}.bias", dims)] if model.norm == "layer" else []
    statistics = (f"{name}.statistics", block.tokens, 4.0 if model.norm == "rms" else 8.0)
    (output,) = build.operator(
        name,
        "norm",
        [given],
        [(name, block.hidden)],
        want=block.stream,
        weights=weights,
        saves=[given, statistics[0]],
        states=[statistics],
    )
    return output


def residual(block: LayerBuilder, name: str, given: str, stream: str) -> str:
    """Add a branch's output to the residual stream, after the norm, bias and dropout that the model may have there."""
    build, model, dims = block.build, block.model, block.hidden
    if model.norms_per_layer == 4:
        given = norm(block, f"{name}_post_norm", given)
    if model.bias and block.tp > 1:  # the bias of a matrix cut by rows is added after the sum
        weight = build.weight(f"{name}_out.bias", dims[-1:])
        (given,) = build.operator(
            f"{name}_bias",
            "elementwise",
            [given],
            [(f"{name}_biased", dims)],
            want=block.stream,
            weights=[weight],
            sums=True,
        )
    if block.options.dropout:
        given = dropped(block, f"{name}_dropout", given)
    (output,) = build.operator(
        f"{name}_residual", "elementwise", [given, stream], [(f"{name}_residual", dims)], want=block.stream, sums=True
    )
    return output


def dropped(block: LayerBuilder, name: str, given: str) -> str:
    """Dropout on the residual stream. It keeps a mask of one byte per element."""
    mask = (f"{name}.mask", block.hidden, 1.0)
    (output,) = block.build.operator(
        name, "dropout", [given], [(name, block.hidden)], want=block.stream, saves=[mask[0]], states=[mask]
    )
    return output


def _vocab(block: LayerBuilder) -> float:
    """Rows of the vocabulary table, padded to a multiple of tp."""
    return block.tp * math.ceil(block.model.vocab / block.tp)


@lru_cache(maxsize=CACHED)
def _embedding(model: Model, plan: Plan, seq: int, options: Options) -> Graph:
    block = _block("embedding", model, plan, seq, options)
    build = block.build
    ids = build.input("tokens", block.tokens, block.whole, role="data", item_bytes=8)
    table = build.weight("token_embedding", (("vocab", _vocab(block)), ("hidden", model.hidden)), tp="vocab")
    rows = math.prod(size for _, size in block.hidden) / build.mesh["dp"] / build.mesh["cp"] * build.item_bytes
    (output,) = build.operator(
        "lookup",
        "embedding",
        [ids],
        [("embedded", block.hidden)],
        want=block.whole,
        weights=[table],
        saves=[ids],
        bytes_read=rows / block.tp + build.bytes(ids),
    )
    if model.learned_positions:
        positions = build.weight("position_embedding", (("positions", model.learned_positions), block.hidden[-1]))
        (output,) = build.operator(
            "positions",
            "elementwise",
            [output],
            [("positioned", block.hidden)],
            want=block.stream,
            weights=[positions],
            sums=True,
        )
    if model.embedding_norm:
        output = norm(block, "embedding_norm", output)
    if options.dropout:
        output = dropped(block, "embedding_dropout", output)
    build.output(output, block.stream)
    return build.graph()


@lru_cache(maxsize=CACHED)
def _further_token(model: Model, plan: Plan, seq: int, options: Options) -> Graph:
    block = _block("further_token", model, plan, seq, options)
    build, hidden = block.build, model.hidden
    stream = build.input("input", block.hidden, block.stream)
    embedded = build.input("embedded", block.hidden, block.stream)
    norms = [norm(block, "stream_norm", stream), norm(block, "token_norm", embedded)]
    both = (*block.tokens, ("pair", 2 * hidden))
    (joined,) = build.operator("join", "copy", norms, [("joined", both)], want=block.stream)
    weight = build.weight("join.weight", (("pair", 2 * hidden), block.hidden[-1]))
    (output,) = build.matmul("joined", joined, [weight], [("further", block.hidden)], want=block.stream)
    build.output(output, block.stream)
    return build.graph()


@lru_cache(maxsize=CACHED)
def _head(model: Model, plan: Plan, seq: int, options: Options, shared: bool) -> Graph:
    block = _block("head", model, plan, seq, options)
    build, tokens = block.build, block.tokens
    stream = build.input("input", block.hidden, block.stream)
    read = norm(block, "final_norm", stream)
    vocab = ("vocab", _vocab(block))
    role = "tied" if model.tied_embeddings or shared else "weight"
    name = "token_embedding" if model.tied_embeddings else "output"
    weight = build.weight(name, (block.hidden[-1], vocab), role=role, tp="vocab")
    bias = [build.weight("output.bias", (vocab,), role=role, tp="vocab")] if model.head_bias else []
    (logits,) = build.matmul("logits", read, [weight], [("logits", (*tokens, vocab))], want=block.whole, bias=bias)
    if model.logit_cap:
        size = (*tokens, vocab)
        (bent,) = build.operator(
            "logits_activation", "elementwise", [logits], [("bent_logits", size)], saves=["bent_logits"]
        )
        (logits,) = build.operator("logits_cap", "elementwise", [bent], [("capped_logits", size)])
    labels = build.input("labels", tokens, block.whole, role="data", item_bytes=8)
    (top,) = build.operator("logits_max", "reduction", [logits], [("logits_max", tokens)], item_bytes=4, role="data")
    odds = ("probabilities", (*tokens, vocab), 4.0)
    total, right = build.operator(
        "softmax",
        "cross_entropy",
        [logits, top, labels],
        [("exponentials", tokens), ("label_logits", tokens)],
        want=(build.tensors[logits].sharding, block.whole, block.whole),
        item_bytes=4,
        states=[odds],
        saves=["probabilities", labels],
    )
    (loss,) = build.operator("loss", "elementwise", [total, right], [("loss", tokens)], want=block.whole, item_bytes=4)
    build.output(loss, block.whole)
    return build.graph()
