"""Attention in a layer: queries, keys and values cut by columns (heads), the output matrix by rows.

Under context parallelism the kernel needs all keys and values ("all_gather", or "ring", which moves the same bytes
while the kernel runs), or whole sequences of fewer heads ("ulysses").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from choreo.workload.graph.build import Dims
from choreo.workload.model import NORMS, Latent

if TYPE_CHECKING:
    from choreo.workload.graph.transformer import LayerBuilder

__all__ = ["attention"]

EDGES = 128  # extra keys that a window's kernel reads: half a block at each of its edges


def attention(block: LayerBuilder, given: str) -> str:
    """From the norm's output to the branch's output, still a partial sum over tp."""
    build, model = block.build, block.model
    if model.latent:
        queries, keys, values = _latent(block, model.latent, given)
    else:
        queries, keys, values = _projected(block, given)
    core = _Core(block, queries, keys, values)
    mixed = _flash(block, core) if block.options.flash else _unfused(block, core)
    inner = ("heads", model.heads * model.value_dim)
    if model.attention_sinks:
        build.weight("attention_sinks", (("heads", model.heads),), tp="heads")
    weight = build.weight("attention_out.weight", (inner, block.hidden[-1]), tp="heads")
    bias = [build.weight("attention_out.bias", block.hidden[-1:])] if model.bias and block.tp == 1 else []
    (output,) = build.matmul(
        "attention_out", mixed, [weight], [("attention_out", block.hidden)], want=block.whole, bias=bias
    )
    return output


def _keys(block: LayerBuilder) -> int:
    """Key-value heads of all ranks together; where there are fewer heads than ranks, each rank has a copy of one."""
    return max(block.model.kv_heads, block.tp)


def _projected(block: LayerBuilder, given: str) -> tuple[str, str, str]:
    build, model, tokens = block.build, block.model, block.tokens
    widths = {"query": model.heads * model.head_dim} | dict.fromkeys(("key", "value"), _keys(block) * model.head_dim)
    dims: dict[str, Dims] = {name: (*tokens, ("heads", width)) for name, width in widths.items()}
    weights = [build.weight(f"{name}.weight", (block.hidden[-1], dims[name][-1]), tp="heads") for name in widths]
    with_bias = widths if model.bias or model.qkv_bias else ()
    bias = [build.weight(f"{name}.bias", dims[name][-1:], tp="heads") for name in with_bias]
    queries, keys, values = build.matmul("qkv", given, weights, list(dims.items()), want=block.whole, bias=bias)
    if model.qk_norm:
        queries = _head_norm(block, queries, dims["query"])
        keys = _head_norm(block, keys, dims["key"])
    return (*_rotated(block, queries, keys), values)


def _head_norm(block: LayerBuilder, name: str, dims: Dims) -> str:
    build, model = block.build, block.model
    parts = ("weight", "bias")[: NORMS[model.norm]]
    if model.qk_norm_whole:
        weights = [build.weight(f"{name}_norm.{part}", dims[-1:], tp="heads") for part in parts]
    else:
        weights = [build.weight(f"{name}_norm.{part}", (("head_features", model.head_dim),)) for part in parts]
    statistics = (f"{name}_norm.statistics", (*dims[:-1], ("heads", dims[-1][1] / model.head_dim)), 4.0)
    (output,) = build.operator(
        f"{name}_norm",
        "norm",
        [name],
        [(f"{name}_norm", dims)],
        weights=weights,
        saves=[name, statistics[0]],
        states=[statistics],
    )
    return output


def _rotated(block: LayerBuilder, queries: str, keys: str) -> tuple[str, str]:
    """Rotary positions; nothing is kept for the backward pass."""
    if block.model.learned_positions or not block.model.rotary:
        return queries, keys
    tensors = block.build.tensors
    outputs = [("rotated_query", tensors[queries].dims), ("rotated_key", tensors[keys].dims)]
    turned_queries, turned_keys = block.build.operator("rotary", "elementwise", [queries, keys], outputs)
    return turned_queries, turned_keys


def _latent(block: LayerBuilder, latent: Latent, given: str) -> tuple[str, str, str]:
    """DeepSeek's latent attention: narrow matrices that every tp rank has whole, then wide ones cut by heads."""
    build, heads, tokens = block.build, block.model.heads, block.tokens
    hidden = block.hidden[-1]
    query = ("heads", heads * latent.query_dim)
    if latent.q_rank:
        rank = ("query_rank", latent.q_rank)
        down = build.weight("query_down.weight", (hidden, rank))
        (narrow,) = build.matmul("query_down", given, [down], [("query_down", (*tokens, rank))], want=block.stream)
        narrow = _rank_norm(block, narrow, (*tokens, rank))
        up = build.weight("query.weight", (rank, query), tp="heads")
        (queries,) = build.matmul("query", narrow, [up], [("query", (*tokens, query))], want=block.whole)
    else:
        up = build.weight("query.weight", (hidden, query), tp="heads")
        (queries,) = build.matmul("query", given, [up], [("query", (*tokens, query))], want=block.whole)
    rank, turned = ("kv_rank", latent.kv_rank), ("rope", latent.rope_dim)
    downs = [build.weight("kv_down.weight", (hidden, rank)), build.weight("key_rope.weight", (hidden, turned))]
    narrow, positions = build.matmul(
        "kv_down", given, downs, [("kv_down", (*tokens, rank)), ("key_rope", (*tokens, turned))], want=block.stream
    )
    narrow = _rank_norm(block, narrow, (*tokens, rank))
    plain, value = ("heads", heads * latent.nope_dim), ("heads", heads * latent.value_dim)
    ups = [
        build.weight("key.weight", (rank, plain), tp="heads"),
        build.weight("value.weight", (rank, value), tp="heads"),
    ]
    keys, values = build.matmul(
        "kv", narrow, ups, [("key", (*tokens, plain)), ("value", (*tokens, value))], want=block.whole
    )
    by_heads = build.tensors[keys].sharding
    rotated, whole_keys = build.operator(
        "rotary",
        "elementwise",
        [queries, keys, positions],
        [("rotated_query", (*tokens, query)), ("rotated_key", (*tokens, query))],
        want=(build.tensors[queries].sharding, by_heads, block.whole),
    )
    return rotated, whole_keys, values


def _rank_norm(block: LayerBuilder, name: str, dims: Dims) -> str:
    build = block.build
    weight = build.weight(f"{name}_norm.weight", dims[-1:])
    statistics = (f"{name}_norm.statistics", dims[:-1], 4.0)
    (output,) = build.operator(
        f"{name}_norm",
        "norm",
        [name],
        [(f"{name}_norm", dims)],
        want=block.stream,
        weights=[weight],
        saves=[name, statistics[0]],
        states=[statistics],
    )
    return output


class _Core:
    """The common start of every way to compute attention: the shardings of its inputs and its sizes at one rank."""

    def __init__(self, block: LayerBuilder, queries: str, keys: str, values: str) -> None:
        build, model, mesh = block.build, block.model, block.build.mesh
        self.names = (queries, keys, values)
        by_heads = build.tensors[queries].sharding
        if block.options.context == "ulysses":
            inside = {"cp": "heads"} if mesh["cp"] > 1 else {}
            self.wants = (by_heads.but(inside),) * 3
        else:
            whole = by_heads.but({"cp": None})
            self.wants = (by_heads, whole, whole)
        self.how = "ring" if block.options.context == "ring" else ""
        self.dims = (*block.tokens, ("heads", model.heads * model.value_dim))
        query = build.tensors[queries]
        self.batch = query.local("batch", mesh, self.wants[0])
        self.heads = query.local("heads", mesh, self.wants[0]) / model.query_dim
        self.rows = query.local("sequence", mesh, self.wants[0])
        self.seq = block.tokens[1][1]


def _flash(block: LayerBuilder, core: _Core) -> str:
    """One fused kernel, which keeps its inputs, its output and a statistic per row."""
    build, model, seq = block.build, block.model, core.seq
    windowed = block.windowed and model.window < seq
    visible, whole = seq, True
    pieces = 1.0
    if windowed and model.chunked:  # each chunk is a sequence of its own
        pieces = seq / model.window
        visible = model.window
    elif windowed:
        visible, whole = model.seen_keys(seq, windowed=True) + EDGES, False
    products = core.batch * core.heads
    width = model.query_dim + model.value_dim
    (output,) = build.operator(
        "attention",
        "attention",
        core.names,
        [("attention", core.dims)],
        want=core.wants,
        saves=(*core.names, "attention", "attention.statistics"),
        states=[("attention.statistics", (*block.tokens, ("heads", model.heads)), 4.0)],
        how=core.how,
        shape=(core.rows / pieces, visible, model.query_dim, products),
        flops=2 * products * core.rows * (2 * model.seen_keys(seq, windowed=windowed)) * width,
        batch=core.batch * pieces,
        heads=core.heads,
        kv_heads=build.tensors[core.names[1]].local("heads", build.mesh, core.wants[1]) / model.query_dim,
        causal=whole,
    )
    return output


def _unfused(block: LayerBuilder, core: _Core) -> str:
    """Scores, softmax and their product with the values, each a kernel of its own."""
    build, model, seq = block.build, block.model, core.seq
    queries, keys, values = core.names
    products = core.batch * core.heads
    square: Dims = (block.tokens[0], ("heads", model.heads), block.tokens[1], ("keys", seq))
    (scores,) = build.operator(
        "core_scores",
        "matmul",
        [queries, keys],
        [("scores", square)],
        want=core.wants[:2],
        saves=[queries, keys],
        how=core.how,
        shape=(core.rows, seq, model.query_dim, products),
    )
    if model.score_cap:
        (bent,) = build.operator(
            "core_activation", "elementwise", [scores], [("bent_scores", square)], saves=["bent_scores"]
        )
        (scores,) = build.operator("core_cap", "elementwise", [bent], [("capped_scores", square)])
    if not model.fused_scores:
        (scores,) = build.operator("core_mask", "elementwise", [scores], [("masked_scores", square)])
    (odds,) = build.operator(
        "core_softmax", "softmax", [scores], [("attention_odds", square)], saves=["attention_odds"]
    )
    if block.options.dropout:
        mask = ("core_dropout.mask", square, 1.0)
        (odds,) = build.operator(
            "core_dropout", "dropout", [odds], [("dropped_odds", square)], saves=[mask[0]], states=[mask]
        )
    (output,) = build.operator(
        "core_context",
        "matmul",
        [odds, values],
        [("attention", core.dims)],
        want=(build.tensors[odds].sharding, core.wants[2]),
        saves=[odds, values],
        how=core.how,
        shape=(core.rows, model.value_dim, seq, products),
    )
    return output
