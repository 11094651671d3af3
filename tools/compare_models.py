"""The models that `choreo train` builds beside those of Hugging Face's transformers: same weights, same logits.

    pip install transformers
    python tools/compare_models.py [FAMILY ...]

A small model of each family is made there with random weights, its config.json is read here, the weights are copied,
and the logits of random tokens are compared. `docs/how-to/train.md` says what other families have that is not built.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor

from choreo.train.models.parameters import Builder
from choreo.train.models.transformer import Stage
from choreo.train.parallel.mesh import Mesh
from choreo.workload import Model, Plan, get_model

State = dict[str, Tensor]

HIDDEN, LAYERS, HEADS, SEQ, WORDS = 64, 4, 4, 32, 256
TOLERANCE = 1e-4
SHAPE = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 96,
    "vocab_size": WORDS, "max_position_embeddings": 128, "num_key_value_heads": 2,
}  # fmt: skip
EXPERTS = {
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_group": 4, "topk_group": 2, "num_key_value_heads": HEADS,
}  # fmt: skip
LLAMA_3_1 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
WINDOWS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA_3_1},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                  "norm_topk_prob": True},
    "deepseek_v2": {**EXPERTS, **LATENT, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**EXPERTS, **LATENT, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "glm4_moe": {**EXPERTS, "head_dim": 16, "use_qk_norm": True},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
                "rope_parameters": {**YARN, "truncate": False}},
    "llama4_text": {"head_dim": 16, "num_local_experts": 4, "intermediate_size_mlp": 80, "attention_chunk_size": 8,
                    "interleave_moe_layer_step": 2, "rope_parameters": LLAMA_3_1, "attn_temperature_tuning": False},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0,
               "final_logit_softcapping": 3.0},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 20},
    "arcee": {},
    "cohere": {},
    "cohere2": {"sliding_window": 8, "layer_types": WINDOWS},
    "ernie4_5": {"head_dim": 16},
    "exaone4": {"sliding_window": 8, "layer_types": WINDOWS, "sliding_window_pattern": 4},
    "glm4_moe_lite": {**EXPERTS, **LATENT},
    "nemotron": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 8, "layer_types": WINDOWS},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "stablelm": {},
    "starcoder2": {},
    "gpt_neox": {"num_key_value_heads": HEADS},
    "bloom": {"n_layer": LAYERS, "n_head": HEADS},
    "gpt2": {"n_layer": LAYERS, "n_head": HEADS, "n_embd": HIDDEN, "n_positions": 128, "n_inner": 96},
}  # fmt: skip
# Names there, and what they are here. The first that fits is taken.
NAMES = (
    (r"(model\.embed_tokens|gpt_neox\.embed_in|transformer\.w(te|ord_embeddings))\.weight", "embedding"),
    (r"transformer\.wpe\.weight", "position_table"),
    (r"(lm_head|embed_out)\.weight", "head"),
    (r"transformer\.word_embeddings_layernorm", "embedding_norm"),
    (r"(model\.norm|gpt_neox\.final_layer_norm|transformer\.ln_f)\b", "norm"),
    (r"model\.(further\.\d+\.)", r"\1"),
    (r"mtp_block", "block"),
    (r"\bhnorm\b", "stream_norm"),
    (r"\benorm\b", "token_norm"),
    (r"\beh_proj\b", "join"),
    (r"\bpost_norm\b", "norm"),
    (r"(model\.layers|gpt_neox\.layers|transformer\.h)\.", "blocks."),
    (r"\b(self_attn|self_attention|attn|attention)\.", "attention."),
    (r"attention\.q_a_proj", "attention.query_down"),
    (r"attention\.q_a_layernorm", "attention.query_norm"),
    (r"attention\.kv_a_proj_with_mqa", "attention.down"),
    (r"attention\.kv_a_layernorm", "attention.norm"),
    (r"attention\.kv_b_proj", "attention.up"),
    (r"attention\.q(_b)?_proj", "attention.query"),
    (r"attention\.k_proj", "attention.key"),
    (r"attention\.v_proj", "attention.value"),
    (r"attention\.(o_proj|dense|c_proj)", "attention.out"),
    (r"attention\.q_norm", "attention.query_norm"),
    (r"attention\.k_norm", "attention.key_norm"),
    (r"\b(input_layernorm|ln_1)\b", "norms.before_attention"),
    (r"\bln_2\b", "norms.before_mlp"),
    (r"\bpre_feedforward_layernorm\b", "norms.before_mlp"),
    (r"\bpost_feedforward_layernorm\b", "norms.after_mlp"),
    (r"\b(block_sparse_moe|feed_forward)\.", "mlp."),
    (r"mlp\.(gate|router)\.weight", "mlp.router"),
    (r"mlp\.router\.bias", "mlp.router_bias"),
    (r"mlp\.shared_experts?\.", "mlp.shared."),
    (r"\b(dense_h_to_4h|c_fc|up_proj)\b", "up"),
    (r"\b(dense_4h_to_h|c_proj|down_proj)\b", "down"),
    (r"\bgate_proj\b", "gate"),
)


def main(names: list[str]) -> int:
    """Compare these families, or all; the exit code is 1 if one differs."""
    torch.manual_seed(0)
    wrong = 0
    for family in names or FAMILIES:
        with torch.no_grad():
            off = difference(family)
        wrong += off > TOLERANCE
        print(f"{family:12} logits differ by {off:.1e}{'' if off <= TOLERANCE else ', too much'}")
    return int(wrong > 0)


def difference(family: str) -> float:
    """The largest difference of a logit."""
    config = transformers.AutoConfig.for_model(family, **{**SHAPE, **FAMILIES[family]})
    there = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    _randomise(there)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        model = get_model(f"{folder}/config.json")
    assert isinstance(model, Model)
    mesh = Mesh(Plan(precision="fp32"), 0, torch.device("cpu"), grouped=False)
    here = Stage(Builder(0, mesh), model, SEQ, range(model.layers), "none")
    tokens = torch.randint(0, WORDS, (2, SEQ + model.mtp_layers))
    first, further = tokens[:, :SEQ], tokens[:, None, 1:] if model.mtp_layers else None
    logits, state = there(first).logits, dict(there.state_dict())
    if further is not None:
        logits, state = _with_further(there, first, further[:, 0], logits, state)
    state = translated(state, model, family)
    for name, parameter in here.named_parameters():
        assert parameter.shape == state[name].shape, (name, parameter.shape, state[name].shape)
        parameter.copy_(state[name])
    return float((logits - here(first, further)).abs().max())


def _with_further(there: Any, first: Tensor, further: Tensor, logits: Tensor, state: State) -> tuple[Tensor, State]:
    """Logits and weights with those of a module that predicts one more token."""
    module = transformers.modeling_layers.MtpModel(there, 1).float().eval()
    _randomise(module.layers)
    places = torch.arange(SEQ)[None]
    hidden = module.forward_layer(0, there.model(first).last_hidden_state, places, None, input_ids=further)
    state |= {f"model.further.{name}": value for name, value in module.layers.state_dict().items()}
    return torch.cat((logits, there.lm_head(hidden)), dim=1), state


def _randomise(model: Any) -> None:
    for name, one in model.named_parameters():
        if one.dim() > 1:
            one.normal_(std=one.shape[-1] ** -0.5)
        else:
            one.normal_(mean=float(name.endswith("weight")), std=0.1)
    for name, one in model.named_buffers():
        if "correction_bias" in name:
            one.zero_()


def translated(state: State, model: Model, family: str) -> State:
    """The weights under the names, and in the layout, that they have here."""
    out: State = {}
    for name, value in state.items():
        for one, part in _taken_apart(name, value, model, family).items():
            out[_translate(one, family)] = part
    return out


def _translate(name: str, family: str) -> str:
    after = family in {"olmo2", "olmo3", "exaone4", "gemma2", "gemma3_text"}  # their norms follow attention and MLP
    name = name.replace("post_attention_layernorm", "norms.after_attention" if after else "norms.before_mlp")
    for there, here in NAMES:
        name = re.sub(there, here, name)
    return name


def _taken_apart(name: str, value: Tensor, model: Model, family: str) -> State:
    """Fused weights one by one; queries and keys whose features turn in neighbouring pairs, with the pairs apart."""
    if family == "gpt2" and "weight" in name and value.dim() == 2 and ("c_" in name):
        value = value.T
    if family in {"nemotron", "gemma", "gemma2", "gemma3_text"} and "norm" in name and name.endswith("weight"):
        value = value + 1
    if family in {"llama4_text", "cohere", "cohere2", "ernie4_5"} and ("q_proj" in name or "k_proj" in name):
        value = value.unflatten(0, (-1, model.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
    if "eh_proj" in name:  # there the token comes first
        value = value.roll(value.shape[1] // 2, dims=1)
    if "query_key_value" in name:  # heads outside, queries, keys and values inside
        parts = value.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(1, 2)
        return {name.replace("query_key_value", f"{one}_proj"): part for one, part in zip("qkv", parts, strict=True)}
    if "c_attn" in name:
        return {name.replace("c_attn", f"{one}_proj"): part for one, part in zip("qkv", value.chunk(3), strict=True)}
    if model.latent and ("q_b_proj" in name or "kv_a_proj" in name):
        plain = model.latent.nope_dim if "q_b_proj" in name else model.latent.kv_rank
        per_head = value.unflatten(0, (HEADS if "q_b_proj" in name else 1, -1))
        pairs = per_head[:, plain:]
        return {name: torch.cat((per_head[:, :plain], pairs[:, 0::2], pairs[:, 1::2]), 1).flatten(0, 1)}
    if ".experts." in name and "_proj" in name:
        return _experts(name, value, family)
    return {name: value}


def _experts(name: str, value: Tensor, family: str) -> State:
    start, _, what = name.rpartition(".")
    bias = what.endswith("_bias")
    kind = "bias" if bias else "weight"
    if family in {"gpt_oss", "llama4_text"} and not bias:
        value = value.transpose(1, 2)
    out: State = {}
    for number, one in enumerate(value):
        if what.startswith("gate_up_proj"):
            gate, up = (one[0::2], one[1::2]) if family == "gpt_oss" else one.chunk(2)
            out[f"{start}.{number}.gate_proj.{kind}"], out[f"{start}.{number}.up_proj.{kind}"] = gate, up
        else:
            out[f"{start}.{number}.down_proj.{kind}"] = one
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the logits of trained models with those of transformers.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="all by default")
    sys.exit(main(parser.parse_args().families))
