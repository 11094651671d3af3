"""The MLP of a layer, dense or a mixture of experts: up cut by columns, an activation, down cut by rows.

Routing puts tokens into a tensor that is cut over the ranks that sent them; the experts need it cut by expert. The
resharding rule turns that into the all_to_all of dispatch, and the reverse into the all_to_all of combine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from choreo.workload.graph.build import Dims
from choreo.workload.graph.sharding import Sharding, cut_along

if TYPE_CHECKING:
    from choreo.workload.graph.transformer import LayerBuilder

__all__ = ["experts", "mlp"]


def mlp(block: LayerBuilder, name: str, given: str, ffn: int) -> str:
    """A dense MLP; its output is still a partial sum over tp."""
    return _up_and_down(block, name, given, ffn, rows=block.tokens, want=block.whole)


def _up_and_down(
    block: LayerBuilder, name: str, given: str, ffn: int, *, rows: Dims, want: Sharding, count: int = 0
) -> str:
    """Both matrices and the activation; with `count` experts the weights have one more dim."""
    build, model = block.build, block.model
    hidden, inner = block.hidden[-1], ("ffn", ffn)
    several: Dims = (("experts", count),) if count else ()
    cuts = {block.expert_axis: "ffn", "ep": "experts"} if count else {"tp": "ffn"}
    ups = (f"{name}_gate", f"{name}_up") if model.gated else (f"{name}_up",)
    weights = [build.weight(f"{up}.weight", (*several, hidden, inner), **cuts) for up in ups]
    biases = [build.weight(f"{up}.bias", (*several, inner), **cuts) for up in ups] if model.bias else []
    local = count / build.mesh["ep"] if count else 1
    outputs = [(up, (*rows, inner)) for up in ups]
    projected = build.matmul(f"{name}_up", given, weights, outputs, want=want, bias=biases, count=local)
    active = f"{name}_active"
    if model.gated:
        gate, up = projected
        (bent,) = build.operator(
            f"{name}_activation", "elementwise", [gate], [(f"{name}_bent", (*rows, inner))], saves=[gate]
        )
        (act,) = build.operator(
            f"{name}_multiply", "elementwise", [bent, up], [(active, (*rows, inner))], saves=[bent, up]
        )
    else:
        (act,) = build.operator(
            f"{name}_activation", "elementwise", projected, [(active, (*rows, inner))], saves=projected
        )
    down = build.weight(f"{name}_down.weight", (*several, inner, hidden), **cuts)
    added = model.bias and (count or block.tp == 1)
    cut = {"ep": "experts"} if count else {}
    down_bias = [build.weight(f"{name}_out.bias", (*several, hidden), **cut)] if added else []
    (out,) = build.matmul(
        f"{name}_down", act, [down], [(f"{name}_down", (*rows, hidden))], want=want, bias=down_bias, count=local
    )
    return out


def experts(block: LayerBuilder, given: str) -> str:
    """Route, dispatch, compute, combine; shared experts run beside it."""
    build, model, mesh, tokens = block.build, block.model, block.build.mesh, block.tokens
    hidden, choices = block.hidden[-1], ("choices", model.experts)
    weight = build.weight("router.weight", (hidden, choices))
    bias = [build.weight("router.bias", (choices,))] if model.router_bias else []
    (scores,) = build.matmul("router", given, [weight], [("router", (*tokens, choices))], want=block.stream, bias=bias)
    (odds,) = build.operator(
        "router_softmax", "softmax", [scores], [("router_odds", (*tokens, choices))], saves=[scores]
    )
    chosen = (*tokens, ("chosen", model.experts_per_token))
    (routes,) = build.operator("routes", "reduction", [odds], [("routes", chosen)], item_bytes=8, role="data")
    routed = math.prod(size for _, size in tokens) * model.experts_per_token
    # A row is a token at one of its experts, so the dim `experts` adds nothing to the size.
    rows: Dims = (("tokens", routed), ("experts", 1))
    # Without sequence parallelism tensor-parallel ranks have the same tokens.
    spread = {block.expert_axis: "tokens"} if block.tp == 1 or block.stream != block.whole else {}
    at_home = cut_along(mesh, ep="tokens", edp="tokens", **spread)
    at_work = cut_along(mesh, edp="tokens")
    (sent,) = build.operator(
        "dispatch",
        "copy",
        [given, routes],
        [("dispatched", (*rows, hidden))],
        want=block.stream,
        output_sharding=at_home,
    )
    done = _up_and_down(block, "expert", sent, model.expert_ffn, rows=rows, want=at_work, count=model.experts)
    partial = {} if spread or block.tp == 1 else {"tp": "+"}
    (output,) = build.operator(
        "combine",
        "copy",
        [done, odds],
        [("combined", block.hidden)],
        want=(at_home.but(partial), block.stream),
        output_sharding=block.stream.but(partial),
        saves=[odds],  # what experts made was weighted before their second matrix
    )
    if not model.shared_experts:
        return output
    shared = mlp(block, "shared", given, model.shared_ffn)
    if model.shared_gate:
        gate = build.weight("shared_expert_gate.weight", (hidden, ("one", 1)))
        (open_,) = build.matmul(
            "shared_expert_gate", given, [gate], [("shared_expert_gate", (*tokens, ("one", 1)))], want=block.stream
        )
        (shared,) = build.operator(
            "shared_gated",
            "elementwise",
            [shared, open_],
            [("shared_gated", block.hidden)],
            want=block.stream,
            saves=[shared, open_],
        )
    alike = build.tensors[output].sharding == build.tensors[shared].sharding
    (both,) = build.operator(
        "experts_sum",
        "elementwise",
        [output, shared],
        [("experts_sum", block.hidden)],
        want=None if alike else block.stream,
        keep_partial=alike,
        sums=True,
    )
    return both
