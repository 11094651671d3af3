"""Llama and the architectures that use its field names.

Defaults are those of the architecture's configuration class in transformers: a config.json only says where it differs.
"""

from __future__ import annotations

from dataclasses import replace

from choreo.workload.huggingface.fields import Config
from choreo.workload.model import Latent, Model
from choreo.workload.yarn import Yarn

__all__ = [
    "cohere",
    "deepseek",
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "llama",
    "llama4",
    "minimax_m2",
    "mixtral",
    "nemotron",
    "olmo",
    "olmo2",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen_moe",
    "rope_fields",
    "smollm3",
    "stablelm",
    "starcoder2",
    "windowed",
]

# Names of activations there and here; others are the architecture's usual one.
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu", "relu2": "squared-relu",
}  # fmt: skip

SHARES = ("partial_rotary_factor", "rotary_pct")  # of the features of a head that have a position
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon")


def llama(
    config: Config,
    name: str,
    *,
    tied: bool = False,
    qkv_bias: bool = False,
    norm: str = "rms",
    rotary_share: float = 1.0,
    rope_base: float = 10000.0,
) -> Model:
    """Llama, and the architectures with its field names and shape."""
    heads, rope = config.number("num_attention_heads"), rope_fields(config)
    scaling = rope if rope.data else config.inside("rope_scaling")
    biased = config.flag("attention_bias", "bias", "use_bias", default=False)
    all_biased = biased and config.flag("mlp_bias", default=False)
    model = Model(
        name,
        layers=config.number("num_hidden_layers"),
        hidden=config.number("hidden_size"),
        heads=heads,
        kv_heads=config.number("num_key_value_heads", default=heads),
        head_dim=config.number("head_dim", default=0),
        ffn=config.number("intermediate_size"),
        gated=True,
        vocab=config.number("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=tied),
        bias=all_biased,
        qkv_bias=qkv_bias or (biased and not all_biased),
        norm=norm,
        dropout=config.share("attention_dropout", "hidden_dropout", "resid_pdrop") > 0,
        max_seq=config.number("max_position_embeddings", default=0),
        activation=ACTIVATIONS.get(config.text("hidden_act", ""), ""),
        norm_eps=config.real(*EPSILONS, default=1e-6 if norm == "rms" else 1e-5),
        rope_base=rope.real("rope_theta", default=config.real("rope_theta", default=rope_base)),
        rope_scaling=scaling.real("factor", default=0.0) if scaling.text("rope_type", "") == "llama3" else 0.0,
        yarn=_yarn(scaling, config),
        rotary_share=rope.share(*SHARES) or config.share(*SHARES) or rotary_share,
    )
    return windowed(model, config)


def rope_fields(config: Config) -> Config:
    """The fields of rotary positions where transformers 5 has them: an object, or one for each kind of layer."""
    found = config.inside("rope_parameters")
    return found.inside("full_attention") if "full_attention" in found.data else found


def _yarn(scaling: Config, config: Config) -> Yarn | None:
    """YaRN's fields, if positions are stretched so."""
    if "yarn" not in (scaling.text("rope_type", ""), scaling.text("type", "")):
        return None
    longest = config.number("max_position_embeddings", default=4096)
    return Yarn(
        factor=max(1.0, scaling.real("factor", default=1.0)),
        first_seq=max(1, scaling.number("original_max_position_embeddings", default=longest)),
        beta_fast=scaling.real("beta_fast", default=0.0) or 32.0,
        beta_slow=scaling.real("beta_slow", default=0.0) or 1.0,
        mscale=scaling.real("mscale", default=0.0),
        mscale_all=scaling.real("mscale_all_dim", default=0.0),
        rounded=scaling.flag("truncate", default=True),
    )


def windowed(model: Model, config: Config, window: int = 0, full_every: int = 0) -> Model:
    """The model with sliding windows: their width, and how often a layer has none; arguments are the defaults."""
    if not config.flag("use_sliding_window", default=True):
        return replace(model, window=0, full_every=0)
    window = config.number("sliding_window", default=0 if "sliding_window" in config.data else window)
    full_every = config.number("sliding_window_pattern", default=full_every)
    layers = config.data.get("layer_types")
    if isinstance(layers, list):
        full = layers.count("full_attention")
        window = window if full < len(layers) else 0
        full_every = round(len(layers) / full) if full else 0
    return replace(model, window=window, full_every=full_every if window else 0)


def _full(model: Model, config: Config) -> Model:
    """Qwen's files give a window that is used only if `use_sliding_window` is set."""
    return model if config.flag("use_sliding_window", default=False) else replace(model, window=0, full_every=0)


def qwen2(config: Config, name: str) -> Model:
    """Qwen 2: biases on queries, keys and values."""
    return _full(llama(config, name, qkv_bias=True), config)


def qwen3(config: Config, name: str) -> Model:
    """Qwen 3: norms on queries and keys."""
    return replace(_full(llama(config, name), config), qk_norm=True)


def cohere(config: Config, name: str) -> Model:
    """Command R: attention and MLP in parallel, and scaled logits."""
    model = llama(config, name, tied=True, norm="layer-no-bias")
    scale = config.real("logit_scale", default=0.0625)
    return replace(model, parallel_block=True, norms_per_layer=1, logit_scale=scale)


def olmo(config: Config, name: str) -> Model:
    """OLMo: norms without parameters."""
    return llama(config, name, norm="layer-no-affine")


def olmo2(config: Config, name: str) -> Model:
    """OLMo 2: norms after attention and MLP rather than before, and over all heads of queries and of keys."""
    return replace(llama(config, name), norm_after=True, qk_norm=True, qk_norm_whole=True)


def glm4(config: Config, name: str) -> Model:
    """GLM 4 of 2025: norms after attention and MLP as well."""
    return replace(llama(config, name, rotary_share=0.5), norms_per_layer=4)


def stablelm(config: Config, name: str) -> Model:
    """StableLM: layer norms."""
    bias = config.flag("use_qkv_bias", default=False)
    return llama(config, name, qkv_bias=bias, norm="layer", rotary_share=0.25)


def smollm3(config: Config, name: str) -> Model:
    """SmolLM 3: every fourth layer has no positions."""
    model = llama(config, name, tied=True, rope_base=2e6)
    return replace(model, rope_skips=config.number("no_rope_layer_interval", default=4))


def nemotron(config: Config, name: str) -> Model:
    """Nemotron: squared ReLU, no gate."""
    model = llama(config, name, norm="layer", rotary_share=0.5)
    return replace(model, gated=False, activation="squared-relu")


def starcoder2(config: Config, name: str) -> Model:
    """StarCoder 2: biases everywhere, no gate."""
    model = llama(config, name, tied=True, norm="layer")
    bias = config.flag("use_bias", default=True)
    return replace(model, gated=False, activation="gelu-tanh", bias=bias, qkv_bias=False)


def mixtral(config: Config, name: str, *, rope_base: float = 1e6) -> Model:
    """Mixtral: every MLP is a mixture of experts."""
    model = llama(config, name, rope_base=rope_base)
    return replace(
        model,
        experts=config.number("num_local_experts", "num_experts"),
        experts_per_token=config.number("num_experts_per_tok"),
        expert_ffn=model.ffn,
    )


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
        _full(llama(config, name, qkv_bias=not qk_norm), config),
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
    model = deepseek(config, name, score=score)
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
