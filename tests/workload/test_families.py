"""Families of models: windows, caps, routers and further tokens, as their config.json says them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from choreo.workload import (
    Model,
    get_model,
    read_config,
)
from choreo.workload.flops import forward_flops

CONFIGS = Path(__file__).parents[1] / "data" / "models"


@pytest.mark.parametrize(
    ("file", "window", "full_every", "chunked"),
    [
        ("mistral-7b", 4096, 0, False),
        ("gpt-oss-20b", 128, 2, False),
        ("gemma-2-9b", 4096, 2, False),
        ("gemma-3-4b", 4096, 6, False),
        ("gemma-3-27b", 1024, 6, False),
        ("command-r7b", 4096, 4, False),
        ("olmo-3-32b", 4096, 4, False),
        ("exaone-4.0-32b", 4096, 4, False),  # says "LLLG"
        ("llama-4-scout", 8192, 4, True),
        ("qwen2-7b", 0, 0, False),  # names a window that it does not use
        ("llama-3.1-8b", 0, 0, False),
    ],
)
def test_windows_are_read(file: str, window: int, full_every: int, chunked: bool) -> None:
    model = read_config(CONFIGS / f"{file}.json")
    assert (model.window, model.full_every, model.chunked) == (window, full_every, chunked)


def test_what_only_some_families_have_is_read() -> None:
    gemma, oss, scout = (
        read_config(CONFIGS / f"{name}.json") for name in ("gemma-2-9b", "gpt-oss-20b", "llama-4-scout")
    )
    assert (gemma.score_cap, gemma.logit_cap, gemma.score_dim, gemma.scaled_embeddings) == (50.0, 30.0, 256.0, True)
    assert (oss.attention_sinks, oss.fused_scores, scout.weighted_inputs, scout.fused_scores) == (
        True,
        False,
        True,
        True,
    )
    later = read_config(CONFIGS / "gemma-3-4b.json")
    assert (later.score_cap, later.logit_cap, later.rope_base, later.rope_base_windowed) == (0.0, 0.0, 1e6, 1e4)
    assert all(get_model(name).fused_scores for name in ("gemma-3-27b", "llama4-scout", "deepseek-v3"))


def test_layers_without_a_window_may_have_no_positions() -> None:
    for name in ("command-r7b", "exaone-4.0-32b"):
        assert read_config(CONFIGS / f"{name}.json").rope_skips == 4
    assert read_config(CONFIGS / "olmo-3-32b.json").rope_skips == 0


def test_what_is_not_built_is_told() -> None:
    told = {
        "command-r-plus": "norms of queries and keys with weights for each head",
        "hunyuan-a13b": "norms of queries and keys after their positions",
        "phi-3.5-moe": "routing by SparseMixer, biases of attention's outputs",
        "ernie-4.5-300b-a47b": "a bias that balances scores by softmax",
    }
    for name, words in told.items():
        assert read_config(CONFIGS / f"{name}.json").not_built == get_model(name).not_built == words


def test_a_window_sees_what_it_sees() -> None:
    """Keys counted one by one."""
    seq, width = 12, 4
    slid = Model("slid", 6, 8, 2, window=width, full_every=3)
    cut = replace(slid, chunked=True)
    # A query sees itself and those before it; the formula is that of a continuous triangle, half a key less.
    sliding = [min(row + 1, width) - 0.5 for row in range(seq)]
    chunks = [row % width + 1 - 0.5 for row in range(seq)]
    assert slid.seen_keys(seq, windowed=True) == pytest.approx(np.mean(sliding), abs=0.5)
    assert cut.seen_keys(seq, windowed=True) == pytest.approx(np.mean(chunks))
    assert [slid.has_window(layer) for layer in range(6)] == [True, True, False] * 2
    assert slid.window_layers == 4
    # A window as long as the sequence is none.
    long = replace(slid, window=seq)
    assert forward_flops(long, seq) == pytest.approx(forward_flops(replace(long, window=0, full_every=0), seq))
    assert forward_flops(slid, seq)["scores"] < forward_flops(long, seq)["scores"]


def test_a_further_token_is_a_layer_and_a_head_more() -> None:
    model = get_model("deepseek-v3")
    assert model.mtp_layers == read_config(CONFIGS / "deepseek-v3.json").mtp_layers == 1
    alone = replace(model, mtp_layers=0)
    assert model.parameters == alone.parameters
    more = {name: flops - forward_flops(alone, 4096)[name] for name, flops in forward_flops(model, 4096).items()}
    assert more["logits"] == forward_flops(alone, 4096)["logits"]
    assert more["scores"] == pytest.approx(forward_flops(alone, 4096)["scores"] / 61)
    assert more["router"] == pytest.approx(forward_flops(alone, 4096)["router"] / 58)


NEWER: dict[str, dict[str, object]] = {
    "olmo2": {},
    "glm": {"head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5, "num_key_value_heads": 2},
    "glm4": {"head_dim": 16, "attention_bias": True, "num_key_value_heads": 2},
    "seed_oss": {"head_dim": 32, "attention_bias": True, "num_key_value_heads": 2},
    "minimax_m2": {"head_dim": 16, "rotary_dim": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2,
              "first_k_dense_replace": 1, "routed_scaling_factor": 2.5},
}  # fmt: skip
SMALLEST = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 100}  # fmt: skip


def small(family: str, **fields: object) -> Model:
    return read_config({"model_type": family, **SMALLEST, **NEWER.get(family, {}), **fields}, name=family)


def test_newer_families_have_the_parameters_of_their_layers() -> None:
    attention, mlp, around = 4 * 64 * 64, 3 * 64 * 96, 2 * 100 * 64 + 64
    narrow = 2 * 64 * 64 + 2 * 64 * 32
    assert small("olmo2").parameters == 2 * (attention + mlp + 2 * 64 + 2 * 64) + around, "norms over all heads"
    assert small("glm").parameters == 2 * (narrow + 64 + 32 + 32 + mlp + 2 * 64) + around
    assert small("glm4").parameters == small("glm").parameters + 2 * 2 * 64
    assert small("seed_oss").parameters == 2 * (2 * narrow + 2 * (64 + 32 + 32) + mlp + 2 * 64) + around
    router = 64 * 8 + 8
    assert small("minimax_m2").parameters == 2 * (attention + 8 * mlp + router + 4 * 64) + around
    experts = 10 * 3 * 64 * 32 + router
    assert small("dots1").parameters == 2 * (attention + 2 * 64 + 2 * 16) + mlp + experts + around


def test_routers_score_as_their_family_does_unless_the_file_says_so() -> None:
    glm = {**NEWER["dots1"], "use_qk_norm": True}
    assert small("glm4_moe", **glm).router_score == "sigmoid"
    assert small("glm4_moe", **glm, scoring_func="softmax").router_score == "softmax"
    assert small("deepseek", **NEWER["dots1"]).router_score == "softmax"
    assert small("minimax_m2").rotary_share == 0.5
    # Weights that add up to one are the default of some, and a field says otherwise.
    assert small("dots1", **NEWER["dots1"]).router_normalised
    assert not small("deepseek", **NEWER["dots1"]).router_normalised
    assert small("deepseek", **NEWER["dots1"], norm_topk_prob=True).router_normalised


def test_biases_that_are_not_built_are_reported() -> None:
    assert small("llama", attention_bias=True).not_built == "biases of attention's outputs"
    assert not small("llama", attention_bias=True, mlp_bias=True).not_built
    assert not small("seed_oss", attention_bias=True).not_built


@pytest.mark.parametrize(("family", "field"), [("starcoder2", "norm_epsilon"), ("olmo2", "rms_norm_eps")])
def test_the_epsilon_of_norms_is_found_by_any_of_its_names(family: str, field: str) -> None:
    assert small(family, **{field: 3e-4}).norm_eps == 3e-4
    assert small("starcoder2").norm_eps == 1e-5
