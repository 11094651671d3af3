"""FLOPs, spelled out. A product of m × k by k × n is 2 m n k; backward is twice forward; nothing else is counted.

Forward, for one token of a sequence of s, in a layer of hidden size h with a heads of d features and kv for keys:

    queries, keys, values    2 h (a + 2 kv) d
    scores and their use     2 · 2 s a d        halved where causal attention is counted as half; where a query sees
                                                k keys in the mean of a window, 2 k stands for s
    output                   2 a d h
    MLP                      2 · 2 h f, or 2 · 3 h f if gated, by as many experts as the token goes to
    router                   2 h E

and once, after the last layer, 2 h V for the logits. A layer that predicts a further token is one more of the last
kind, a product of 2 h by h, and logits of its own. Looking up an embedding is no product. A step of B sequences is
3 B s times that; recomputing adds the forward pass of the blocks ("full") or of the scores ("selective"). For a GPT
(f = 4h, a d = h, kv = a) a block is 24 h² + 4 s h a token, and with full recomputation of l blocks the step is

    96 B s l h² (1 + s / 6h + V / 16lh)

which is equation 3 of Narayanan et al. (2021); without, 72 B s l h² (1 + s / 6h + V / 12lh).
"""

from __future__ import annotations

from choreo.errors import UsageError
from choreo.workload.model import CAUSAL, Model

__all__ = ["forward_flops", "forward_flops_per_token", "hardware_flops", "model_flops"]


def forward_flops(model: Model, seq: int, *, causal: str = "full") -> dict[str, float]:
    """Forward FLOPs of one token by part, all layers together.

    >>> from choreo.workload import get_model
    >>> {name: f"{flops:.3g}" for name, flops in forward_flops(get_model("llama3-8b"), 8192).items()}
    {'projections': '2.68e+09', 'scores': '4.29e+09', 'mlp': '1.13e+10', 'router': '0', 'logits': '1.05e+09'}
    """
    if causal not in CAUSAL:
        raise UsageError(f"causal attention is counted {' or '.join(CAUSAL)}, not {causal!r}")
    hidden, heads = model.hidden, model.heads
    matrices = 3 if model.gated else 2
    moe = model.moe_layers
    if latent := model.latent:
        queries = heads * latent.query_dim
        projections = hidden * latent.q_rank + latent.q_rank * queries if latent.q_rank else hidden * queries
        projections += hidden * (latent.kv_rank + latent.rope_dim)
        projections += latent.kv_rank * heads * (latent.nope_dim + latent.value_dim)
    else:
        projections = hidden * (heads + 2 * model.kv_heads) * model.head_dim
    projections += heads * model.value_dim * hidden
    routed = model.experts_per_token * model.expert_ffn + model.shared_ffn
    gate = hidden * (model.experts + model.shared_gate)
    more, last = model.mtp_layers, model.layers - 1
    moe += more * model.has_experts(last)
    dense = model.layers + more - moe
    windowed = model.window_layers + more * model.has_window(last)
    keys = float((model.layers + more - windowed) * seq)
    if windowed:
        keys += 2 * windowed * model.seen_keys(seq, windowed=True)
    return {
        "projections": 2.0 * (model.layers + more) * projections + 2.0 * more * 2 * hidden**2,
        "scores": CAUSAL[causal] * 2.0 * keys * heads * (model.query_dim + model.value_dim),
        "mlp": 2.0 * matrices * hidden * (dense * model.ffn + moe * routed),
        "router": 2.0 * moe * gate,
        "logits": 2.0 * (1 + more) * hidden * model.vocab,
    }


def forward_flops_per_token(model: Model, seq: int, *, causal: str = "full") -> float:
    """Forward FLOPs of one token.

    >>> from choreo.workload import get_model
    >>> f"{forward_flops_per_token(get_model('llama3-8b'), 8192):.4g}"
    '1.93e+10'
    """
    return sum(forward_flops(model, seq, causal=causal).values())


def model_flops(model: Model, seq: int, global_batch: int, *, causal: str = "full") -> float:
    """FLOPs of a step, forward and backward, without recomputation: what MFU counts.

    >>> from choreo.workload import get_model
    >>> f"{model_flops(get_model('llama3-8b'), 8192, global_batch=128):.4g}"
    '6.073e+16'
    """
    return 3.0 * global_batch * seq * forward_flops_per_token(model, seq, causal=causal)


def hardware_flops(
    model: Model, seq: int, global_batch: int, *, recompute: str = "none", causal: str = "full"
) -> float:
    """FLOPs of a step with what is recomputed: what HFU counts.

    >>> from choreo.workload import get_model
    >>> f"{hardware_flops(get_model('llama3-8b'), 8192, global_batch=128, recompute='full'):.4g}"
    '7.987e+16'
    """
    if recompute not in ("none", "selective", "full"):
        raise UsageError(f"recompute must be none, selective or full, not {recompute!r}")
    parts = forward_flops(model, seq, causal=causal)
    again = {"none": 0.0, "selective": parts["scores"], "full": sum(parts.values()) - parts["logits"]}[recompute]
    return global_batch * seq * (3.0 * sum(parts.values()) + again)
