"""Llama and the architectures that use its field names.

Defaults are those of the architecture's configuration class in transformers: a config.json only says where it differs.
"""

from __future__ import annotations

from dataclasses import replace

from choreo.workload.huggingface.fields import Config
from choreo.workload.model import Model
from choreo.workload.yarn import Yarn

__all__ = [
    "arcee",
    "cohere",
    "cohere2",
    "ernie",
    "exaone4",
    "glm4",
    "hunyuan",
    "llama",
    "mimo",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "qwen2",
    "qwen3",
    "rope_fields",
    "smollm3",
    "stablelm",
    "starcoder2",
    "used_window",
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


def used_window(model: Model, config: Config) -> Model:
    """Qwen's files give a window that is used only if `use_sliding_window` is set."""
    return model if config.flag("use_sliding_window", default=False) else replace(model, window=0, full_every=0)


def qwen2(config: Config, name: str) -> Model:
    """Qwen 2: biases on queries, keys and values."""
    return used_window(llama(config, name, qkv_bias=True), config)


def qwen3(config: Config, name: str) -> Model:
    """Qwen 3: norms on queries and keys."""
    return replace(used_window(llama(config, name), config), qk_norm=True)


def cohere(config: Config, name: str) -> Model:
    """Command R: attention and MLP in parallel, and scaled logits; R+ has norms on queries and keys."""
    model = llama(config, name, tied=True, norm="layer-no-bias")
    normed = config.flag("use_qk_norm", default=False)
    model = replace(model, qk_norm=normed, qk_norm_whole=normed)
    scale = config.real("logit_scale", default=0.0625)
    return replace(model, parallel_block=True, norms_per_layer=1, logit_scale=scale)


def cohere2(config: Config, name: str) -> Model:
    """Command R7B and Command A: windows, and no positions in layers without one."""
    model = windowed(cohere(config, name), config, 4096, 4)
    return replace(model, rope_skips=model.full_every)


def olmo(config: Config, name: str) -> Model:
    """OLMo: norms without parameters."""
    return llama(config, name, norm="layer-no-affine")


def olmo2(config: Config, name: str) -> Model:
    """OLMo 2: norms after attention and MLP rather than before, and over all heads of queries and of keys."""
    return replace(llama(config, name), norm_after=True, qk_norm=True, qk_norm_whole=True)


def olmo3(config: Config, name: str) -> Model:
    """OLMo 3: OLMo 2 with windows."""
    return windowed(olmo2(config, name), config, 4096, 4)


def exaone4(config: Config, name: str) -> Model:
    """EXAONE 4: norms after attention and MLP, and windows; layers without one have no positions."""
    pattern = config.data.get("sliding_window_pattern")
    if isinstance(pattern, str):  # as in "LLLG"
        config = Config({**config.data, "sliding_window_pattern": len(pattern)}, config.where, config.family)
    model = windowed(llama(config, name), config, 4096, 4)
    return replace(model, norm_after=True, qk_norm=True, rope_skips=model.full_every)


def ernie(config: Config, name: str) -> Model:
    """ERNIE 4.5."""
    return llama(config, name, tied=True, rope_base=500000.0)


def hunyuan(config: Config, name: str) -> Model:
    """Hunyuan's dense models: norms on queries and keys, after their positions."""
    return replace(llama(config, name), qk_norm=config.flag("use_qk_norm", default=True))


def mimo(config: Config, name: str) -> Model:
    """MiMo: Qwen 2 with layers that predict further tokens."""
    return replace(qwen2(config, name), mtp_layers=config.number("num_nextn_predict_layers", default=0))


def arcee(config: Config, name: str) -> Model:
    """Arcee: squared ReLU, no gate."""
    return replace(llama(config, name), gated=False, activation="squared-relu")


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
