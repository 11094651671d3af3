"""Features of a config.json that `choreo train` does not build. Parameter counts and plans do not depend on them."""

from __future__ import annotations

from choreo.workload.huggingface.fields import Config

__all__ = ["not_built"]

BUILT_POSITIONS = ("", "default", "llama3", "yarn", "mrope")  # mrope is the usual one for text
OUTPUT_BIASED = ("llama", "granite", "phimoe")  # where attention_bias is of all four matrices of attention
WINDOWED_POSITIONS = ("olmo3",)  # where only layers without a window have stretched positions
NORMS_LAST = ("hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe")  # norms of queries and keys follow their positions
ROUTING = {"phimoe": "routing by SparseMixer", "ernie4_5_moe": "a bias that balances scores by softmax"}
# muP's multipliers (Granite), and what leaves everything as it is.
MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")


def not_built(config: Config) -> str:
    """A list in words; "" if everything is built.

    >>> not_built(Config({"rope_scaling": {"type": "linear", "factor": 4}}, "config.json", "llama"))
    'linear positions for long contexts'
    """
    found = []
    nested = config.inside("rope_parameters")
    for place in (nested, nested.inside("full_attention"), config.inside("rope_scaling")):
        kind = place.text("rope_type", "") or place.text("type", "")
        if kind not in BUILT_POSITIONS:
            found.append(f"{kind} positions for long contexts")
    if config.family in WINDOWED_POSITIONS and (nested.data or config.data.get("rope_scaling")):
        found.append("positions that differ in layers with a window")
    if config.family in NORMS_LAST:
        found.append("norms of queries and keys after their positions")
    if config.family.startswith("cohere") and config.flag("use_qk_norm", default=False):
        found.append("norms of queries and keys with weights for each head")
    found += [ROUTING[config.family]] if config.family in ROUTING else []
    biased, everywhere = (config.flag(name, default=False) for name in ("attention_bias", "mlp_bias"))
    if config.family in OUTPUT_BIASED and biased and not everywhere:
        found.append("biases of attention's outputs")
    if any(place.real("clip_qkv", default=0.0) for place in (config, config.inside("attn_config"))):
        found.append("clipped queries, keys and values")
    found += [f"its {name}" for name in MULTIPLIERS if config.real(name, default=1.0) != 1.0]
    return ", ".join(dict.fromkeys(found))
