"""Mixtures of experts that use Llama's field names for the rest.

Defaults are those of the architecture's configuration class in transformers.
"""

from __future__ import annotations

from dataclasses import replace

from choreo.errors import ModelError
from choreo.workload.huggingface.fields import Config
from choreo.workload.huggingface.llama import ernie, llama, used_window, windowed
from choreo.workload.model import Latent, Model

__all__ = [
    "deepseek",
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "ernie_moe",
    "glm4_moe",
    "gpt_oss",
    "granite_moe",
    "hunyuan_moe",
    "llama4",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
]


def mixtral(config: Config, name: str, *, rope_base: float = 1e6) -> Model:
    """Mixtral: every MLP is a mixture of experts."""
    model = llama(config, name, rope_base=rope_base)
    return replace(
        model,
        experts=config.number("num_local_experts", "num_experts"),
        experts_per_token=config.number("num_experts_per_tok"),
        expert_ffn=model.ffn,
    )


def olmoe(config: Config, name: str) -> Model:
    """OLMoE: norms over all heads of queries and of keys."""
    normalised = config.flag("norm_topk_prob", default=False)
    model = mixtral(config, name, rope_base=10000.0)
    return replace(model, qk_norm=True, qk_norm_whole=True, router_normalised=normalised)


def granite_moe(config: Config, name: str) -> Model:
    """Granite with experts."""
    return mixtral(config, name, rope_base=10000.0)


def phimoe(config: Config, name: str) -> Model:
    """Phi-3.5-MoE: layer norms, and biases of attention and of the output layer."""
    biased = config.flag("lm_head_bias", default=False)
    return replace(mixtral(config, name), norm="layer", head_bias=biased)


def gpt_oss(config: Config, name: str) -> Model:
    """GPT-OSS: Mixtral's shape with biases and attention sinks."""
    model = replace(mixtral(config, name, rope_base=150000.0), activation="clipped-swiglu", attention_sinks=True)
    model = replace(model, bias=True, qkv_bias=False, router_bias=True)
    return windowed(model, config, 128, 2)


def qwen_moe(config: Config, name: str, *, qk_norm: bool) -> Model:
    """Qwen's experts; Qwen 2 has a shared one with a gate."""
    width = config.divisor("moe_intermediate_size")
    shared = 0 if qk_norm else config.number("shared_expert_intermediate_size", default=0)
    listed = config.data.get("mlp_only_layers")
    return replace(
        used_window(llama(config, name, qkv_bias=not qk_norm), config),
        qk_norm=qk_norm,
        experts=config.number("num_experts", "num_local_experts"),
        experts_per_token=config.number("num_experts_per_tok"),
        expert_ffn=width,
        router_normalised=config.flag("norm_topk_prob", default=False),
        shared_experts=shared // width,
        shared_gate=shared > 0,
        dense_layers=len(listed) if isinstance(listed, list) else 0,
        moe_every=config.number("decoder_sparse_step", default=1),
    )


def qwen2_moe(config: Config, name: str) -> Model:
    """Qwen 2 with experts."""
    return qwen_moe(config, name, qk_norm=False)


def qwen3_moe(config: Config, name: str) -> Model:
    """Qwen 3 with experts."""
    return qwen_moe(config, name, qk_norm=True)


def deepseek(config: Config, name: str, *, score: str = "softmax", rotary_share: float = 1.0) -> Model:
    """DeepSeek's experts with plain attention; V2 and V3 have latent attention. `score` is the router's default."""
    groups = config.number("n_group", default=0)
    return replace(
        llama(config, name, rotary_share=rotary_share),
        experts=config.number("n_routed_experts"),
        experts_per_token=config.number("num_experts_per_tok"),
        expert_ffn=config.number("moe_intermediate_size"),
        shared_experts=config.number("n_shared_experts", default=0),
        dense_layers=config.number("first_k_dense_replace", default=0),
        moe_every=config.number("moe_layer_freq", default=1),
        router_score="sigmoid" if config.text("scoring_func", score) == "sigmoid" else "softmax",
        router_normalised=config.flag("norm_topk_prob", default=score == "sigmoid"),
        router_scale=config.real("routed_scaling_factor", default=0.0),
        router_groups=groups if groups > 1 else 0,
        router_groups_per_token=config.number("topk_group", default=0) if groups > 1 else 0,
        mtp_layers=config.number("num_nextn_predict_layers", default=0),
    )


def deepseek_v2(config: Config, name: str, *, score: str = "softmax") -> Model:
    """DeepSeek-V2: latent attention."""
    latent = Latent(
        kv_rank=config.divisor("kv_lora_rank"),
        nope_dim=config.divisor("qk_nope_head_dim"),
        rope_dim=config.number("qk_rope_head_dim"),
        value_dim=config.divisor("v_head_dim"),
        q_rank=config.number("q_lora_rank", default=0),
    )
    model = deepseek(config.with_defaults({"head_dim": latent.value_dim}), name, score=score)
    return replace(model, latent=latent, kv_heads=model.heads, head_dim=latent.value_dim)


def deepseek_v3(config: Config, name: str) -> Model:
    """DeepSeek-V3: V2 with a bias that balances the experts."""
    return replace(deepseek_v2(config, name, score="sigmoid"), router_bias=True)


def glm4_moe(config: Config, name: str, *, rotary_share: float = 0.5) -> Model:
    """GLM 4.5: DeepSeek's experts with plain attention."""
    model = deepseek(config, name, score="sigmoid", rotary_share=rotary_share)
    return replace(model, qk_norm=config.flag("use_qk_norm", default=False), router_bias=True)


def dots1(config: Config, name: str) -> Model:
    """dots.llm1: GLM 4.5 with norms on queries and keys."""
    return replace(glm4_moe(config, name, rotary_share=1.0), qk_norm=True)


def minimax_m2(config: Config, name: str) -> Model:
    """MiniMax-M2: Mixtral's shape with a norm over all heads of queries and of keys."""
    model = mixtral(config, name)
    share = config.number("rotary_dim", default=model.head_dim) / model.head_dim
    whole = config.flag("use_qk_norm", default=True)
    model = replace(model, qk_norm=whole, qk_norm_whole=whole, rotary_share=share)
    return replace(model, router_score="sigmoid", router_bias=True)


def llama4(config: Config, name: str) -> Model:
    """Llama 4: experts are as wide as `intermediate_size`, dense layers as `intermediate_size_mlp`."""
    width, interval = config.number("intermediate_size"), config.number("no_rope_layer_interval", default=4)
    return replace(
        llama(config, name, rope_base=500000.0),
        ffn=config.number("intermediate_size_mlp", default=width),
        experts=config.number("num_local_experts"),
        experts_per_token=config.number("num_experts_per_tok", default=1),
        expert_ffn=width,
        shared_experts=1,
        moe_every=config.number("interleave_moe_layer_step", default=1),
        router_score="sigmoid",
        weighted_inputs=True,
        window=config.number("attention_chunk_size", default=8192),
        full_every=interval,
        chunked=True,
        rope_skips=interval,
        qk_l2_norm=config.flag("use_qk_norm", default=True),
    )


def hunyuan_moe(config: Config, name: str) -> Model:
    """Hunyuan: experts and shared experts as wide as `intermediate_size`, and norms after the positions."""
    if config.flag("use_cla", default=False):
        raise ModelError("use_cla is set: layers share their keys and values, which is not known here")
    config = Config({**config.data, **_same_in_all_layers(config)}, config.where, config.family)
    model = llama(config, name)
    return replace(
        model,
        qk_norm=config.flag("use_qk_norm", default=True),
        experts=config.number("num_experts"),
        experts_per_token=config.number("moe_topk", default=1),
        expert_ffn=config.number("moe_intermediate_size", default=model.ffn),
        shared_experts=config.number("num_shared_expert", default=1),
    )


def _same_in_all_layers(config: Config) -> dict[str, object]:
    """The fields that list a number for each layer, as one number."""
    found: dict[str, object] = {}
    for field in ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"):
        listed = config.data.get(field)
        if isinstance(listed, list):
            if listed.count(listed[0] if listed else None) != len(listed) or not listed:
                raise ModelError(f"{field} is not the same in all layers, which is not known here")
            found[field] = listed[0]
    return found


def ernie_moe(config: Config, name: str) -> Model:
    """ERNIE 4.5 with experts, whose router has a bias."""
    model, layers = ernie(config, name), config.number("num_hidden_layers")
    last = config.data.get("moe_layer_end_index")
    if isinstance(last, int) and last not in (-1, layers - 1):
        raise ModelError(f"moe_layer_end_index {last} is not the last of {layers} layers, which is not known here")
    return replace(
        model,
        experts=config.number("moe_num_experts"),
        experts_per_token=config.number("moe_k"),
        expert_ffn=config.number("moe_intermediate_size"),
        shared_experts=config.number("moe_num_shared_experts", default=0),
        dense_layers=config.number("moe_layer_start_index", default=0),
        moe_every=config.divisor("moe_layer_interval", default=1),
        router_bias=True,
    )
