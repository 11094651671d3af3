"""The layers of models against what their papers say, one query at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from choreo.errors import ModelError
from choreo.train.scale import scaled
from choreo.workload import Model, Plan, Yarn, get_model
from choreo.workload.huggingface.config import read_config

SEQ = 12


def built(model: Model) -> tuple[Any, dict[str, np.ndarray]]:
    import torch

    from choreo.train.models.parameters import Builder
    from choreo.train.models.transformer import Stage
    from choreo.train.parallel.mesh import Mesh

    mesh = Mesh(Plan(precision="fp32"), 0, torch.device("cpu"), grouped=False)
    stage = Stage(Builder(1, mesh), model, SEQ, range(model.layers), "none")
    return stage, {name: one.detach().double().numpy() for name, one in stage.named_parameters()}


def attend(
    qkv: tuple[np.ndarray, np.ndarray, np.ndarray], score: Callable[[int, int], float], model: Model, sink: float
) -> np.ndarray:
    """One head; `score` is added for a query and a key, minus infinity where it is not seen."""
    queries, keys, values = qkv
    out = np.zeros((len(queries), values.shape[1]))
    for q in range(len(queries)):
        scores = keys @ queries[q] / math.sqrt(model.score_dim or len(queries[q]))
        if model.latent and model.yarn:
            scores *= (0.1 * model.yarn.mscale_all * math.log(model.yarn.factor) + 1) ** 2
        if model.score_cap:
            scores = model.score_cap * np.tanh(scores / model.score_cap)
        scores += [score(q, k) for k in range(len(keys))]
        out[q] = np.exp(scores) / (np.exp(scores).sum() + np.exp(sink)) @ values
    return out


def stretched(pair: int, dim: int, base: float, yarn: Yarn) -> float:
    """How much slower a pair of features turns: by its rank between those that turn so often in the first sequences."""
    limits = [dim * math.log(yarn.first_seq / rounds / math.tau) / 2 / math.log(base) for rounds in (32, 1)]
    first, last = (math.floor(limits[0]), math.ceil(limits[1])) if yarn.rounded else limits
    slow = min(1.0, max(0.0, (pair - max(first, 0)) / (min(last, dim - 1) - max(first, 0))))
    return 1 - slow + slow / yarn.factor


def rotated(x: np.ndarray, dim: int, model: Model) -> np.ndarray:
    out, base, yarn = x.copy(), model.rope_base, model.yarn
    more = 1.0 if yarn is None or yarn.mscale else 0.1 * math.log(yarn.factor) + 1
    for position in range(len(x)):
        for pair in range(dim // 2):
            angle = position * base ** (-2 * pair / dim) * (stretched(pair, dim, base, yarn) if yarn else 1)
            a, b = x[position, pair], x[position, pair + dim // 2]
            out[position, pair] = more * (a * math.cos(angle) - b * math.sin(angle))
            out[position, pair + dim // 2] = more * (b * math.cos(angle) + a * math.sin(angle))
    return out


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps))


def attended(model: Model, score: Callable[[int, int, int], float]) -> tuple[np.ndarray, np.ndarray]:
    """What the first layer's attention gives, and what it should by plain arithmetic with this score of each head."""
    import torch

    from choreo.train.models.rotary import turns_of

    stage, weights = built(model)
    x = np.random.default_rng(0).normal(size=(SEQ, model.hidden))
    one = torch.from_numpy(x).float()[None]
    found = stage.blocks["0"].attention(one, turns_of(model, stage.positions, one.dtype))[0].detach().numpy()
    own = {name.removeprefix("blocks.0.attention."): w for name, w in weights.items() if "blocks.0.attention." in name}
    heads = []
    for head in range(model.heads):
        if latent := model.latent:
            narrow = rms(x @ own["query_down.weight"].T, model.norm_eps)
            query = (narrow @ own["query.weight"].T).reshape(SEQ, model.heads, -1)[:, head]
            kept, place = np.split(x @ own["down.weight"].T, [latent.kv_rank], axis=1)
            both = (rms(kept, model.norm_eps) @ own["up.weight"].T).reshape(SEQ, model.heads, -1)[:, head]
            key, value = np.split(both, [latent.nope_dim], axis=1)
            content, position = np.split(query, [latent.nope_dim], axis=1)
            place, position = (rotated(one, latent.rope_dim, model) for one in (place, position))
            query, key = np.hstack((content, position)), np.hstack((key, place))
        else:
            at = head * model.kv_heads // model.heads
            query, key, value = (
                (x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", 0)).reshape(SEQ, -1, model.head_dim)[:, number]
                for name, number in (("query", head), ("key", at), ("value", at))
            )
            if model.rotary and not model.learned_positions:
                dim = int(model.head_dim * model.rotary_share)
                query, key = (rotated(one, dim, model) for one in (query, key))
        sink = own["sinks"][head] if model.attention_sinks else -math.inf
        heads.append(attend((query, key, value), lambda q, k, head=head: score(head, q, k), model, sink))  # type: ignore[misc]
    expected = np.hstack(heads) @ own["out.weight"].T + own.get("out.bias", 0)
    return found, expected


def small(name: str, **changes: object) -> Model:
    model = scaled(get_model(name), "tiny")
    assert isinstance(model, Model)
    return replace(model, **changes)  # type: ignore[arg-type]


def seen(condition: bool) -> float:
    return 0.0 if condition else -math.inf


CASES: dict[str, tuple[Model, Callable[[int, int, int], float]]] = {
    "latent": (small("deepseek-v3"), lambda _, q, k: seen(k <= q)),
    "not stretched": (small("deepseek-v3", yarn=None), lambda _, q, k: seen(k <= q)),
    "grouped": (small("llama3-8b", kv_heads=2, rope_scaling=0.0), lambda _, q, k: seen(k <= q)),
    "partial": (small("gpt-neox-20b"), lambda _, q, k: seen(k <= q)),
    "window": (small("mistral-7b", window=4), lambda _, q, k: seen(q - 4 < k <= q)),
    "chunks": (small("mistral-7b", window=4, chunked=True), lambda _, q, k: seen(k <= q and k // 4 == q // 4)),
    "sinks": (small("gpt-oss-20b", window=4), lambda _, q, k: seen(q - 4 < k <= q)),
    "capped": (small("gemma-2-27b", kv_heads=2, score_cap=0.01, window=0), lambda _, q, k: seen(k <= q)),
    "alibi": (small("bloom-7.1b"), lambda head, q, k: (k - q) * 2.0 ** (-2 * (head + 1)) if k <= q else -math.inf),
}


@pytest.mark.parametrize("case", CASES)
def test_attention_is_what_the_paper_says(case: str) -> None:
    found, expected = attended(*CASES[case])
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_logits_are_capped_and_scaled_and_embeddings_too() -> None:
    import torch

    plain = small("gemma-2-9b", scaled_embeddings=False, logit_cap=0.0)
    tokens = torch.arange(SEQ)[None]
    x = built(plain)[0]._embed(tokens)
    torch.testing.assert_close(built(replace(plain, scaled_embeddings=True))[0]._embed(tokens), 8 * x)
    logits = built(plain)[0](tokens)
    capped = built(replace(plain, logit_cap=0.3))[0](tokens)
    scaled_down = built(replace(plain, logit_scale=0.5))[0](tokens)
    torch.testing.assert_close(capped, 0.3 * torch.tanh(logits / 0.3))
    torch.testing.assert_close(scaled_down, 0.5 * logits)


def test_an_experts_input_is_weighted_where_the_model_says_so() -> None:
    import torch

    model = small("llama4-scout", shared_experts=0)
    assert model.weighted_inputs
    mlp = built(model)[0].blocks["0"].mlp
    x = torch.randn(1, 3, model.hidden, generator=torch.Generator().manual_seed(0))
    scores = torch.sigmoid(x[0] @ mlp.router.T)
    for token, (score, expert) in enumerate(zip(*scores.max(-1), strict=True)):
        expected = mlp.experts[int(expert)](score * x[:, token])
        torch.testing.assert_close(mlp(x)[:, token], expected)


def test_in_bf16_experts_see_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from choreo.train.models import experts

    mlp = built(small("mixtral-8x7b", bias=True))[0].blocks["0"].mlp
    seen: list[int] = []
    for one in mlp.experts:
        one.up.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    found = []
    for even in (experts.EVEN_ROWS, 1):
        monkeypatch.setattr(experts, "EVEN_ROWS", even)
        x = torch.randn(1, 77, mlp.model.hidden, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = mlp(x)
        out.float().square().sum().backward()
        found.append((out.detach(), x.grad, mlp.router.grad.clone()))
        mlp.zero_grad()
    padded, plain = seen[: len(mlp.experts)], seen[len(mlp.experts) :]
    assert padded == [-(-rows // 16) * 16 for rows in plain]
    assert len(set(plain)) > len(set(padded))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-3)


def test_the_loss_has_a_share_of_each_further_token() -> None:
    import torch

    from choreo.train.models.further_token import FURTHER_WEIGHT, further_tokens

    model = small("deepseek-v3", mtp_layers=2)
    stage, _ = built(model)
    rows = torch.randint(0, 256, (2, SEQ + 1), generator=torch.Generator().manual_seed(0))
    read, targets = further_tokens(rows, torch.arange(SEQ), 2)
    logits = stage(rows[:, :SEQ], read)
    odds = logits.detach().double().log_softmax(-1).unflatten(1, (3, SEQ))
    expected = 0.0
    for ahead, weight in ((1, 1.0), (2, FURTHER_WEIGHT / 2), (3, FURTHER_WEIGHT / 2)):
        for row in range(2):
            for at in range(SEQ + 1 - ahead):
                expected -= weight * odds[row, ahead - 1, at, rows[row, at + ahead]].item()
    assert stage.loss(logits, targets).item() == pytest.approx(expected, rel=1e-6)


def test_a_router_by_sigmoid_stays_in_the_best_groups() -> None:
    import torch

    from choreo.train.models.router import route

    model = replace(
        Model("m", 1, 8, 2, experts=6, experts_per_token=2, router_groups=3, router_groups_per_token=1),
        router_score="sigmoid",
        router_scale=2.5,
    )
    # The best expert is in a group whose best two together are not the best.
    logits = torch.tensor([[4.0, -9.0, 2.0, 1.0, 0.0, 0.5]])
    gates, chosen = route(model, logits)
    assert sorted(chosen[0].tolist()) == [2, 3]
    assert gates.sum().item() == pytest.approx(2.5)
    one = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-1))
    assert gates.max().item() == pytest.approx(2.5 * one[0] / sum(one))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_a_router_normalises_or_not(score: str) -> None:
    import torch

    from choreo.train.models.router import route

    model = replace(Model("m", 1, 8, 2, experts=4, experts_per_token=2), router_score=score)
    logits = torch.tensor([[2.0, -1.0, 1.0, 0.0]])
    odds = (logits.sigmoid() if score == "sigmoid" else logits.softmax(-1))[0]
    for normalised, scale in ((True, 0.0), (True, 3.0), (False, 0.0), (False, 3.0)):
        gates, chosen = route(replace(model, router_normalised=normalised, router_scale=scale), logits)
        total = (odds[0] + odds[2]).item() if normalised else 1.0
        assert chosen[0].tolist() == [0, 2]
        assert gates[0].tolist() == pytest.approx([one * (scale or 1) / total for one in odds[[0, 2]].tolist()])


def test_groups_that_cannot_hold_a_tokens_experts_are_refused() -> None:
    with pytest.raises(ModelError, match="6 experts are not divisible by router_groups 4; use 3 groups"):
        Model("m", 1, 8, 2, experts=6, experts_per_token=2, router_groups=4, router_groups_per_token=1)
    with pytest.raises(ModelError, match="3 experts are in router_groups_per_token 1 of 3 groups of 2; 2 to 3 would"):
        Model("m", 1, 8, 2, experts=6, experts_per_token=3, router_groups=3, router_groups_per_token=1)


@pytest.mark.parametrize("factor", ["tiny", 0.01, 0.05, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3", "kimi-k2", "llama4-maverick"])
def test_a_scaled_model_routes_to_groups_that_hold_a_tokens_experts(name: str, factor: str | float) -> None:
    model = scaled(get_model(name), factor)  # which is refused if they do not
    assert isinstance(model, Model)
    assert factor not in (0.25, 0.5) or model.router_groups == get_model(name).router_groups


@pytest.mark.parametrize("nested", [False, True])
def test_rotary_fields_are_read_where_either_transformers_writes_them(tmp_path: Path, nested: bool) -> None:
    config: dict[str, object] = {
        "model_type": "glm4_moe", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }  # fmt: skip
    rope = {"rope_theta": 1e6, "partial_rotary_factor": 0.25}
    config.update({"rope_parameters": {**rope, "rope_type": "default"}} if nested else rope)
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_config(tmp_path)
    assert (model.rope_base, model.rotary_share, model.rope_scaling) == (1e6, 0.25, 0.0)


def test_stretched_positions_are_read() -> None:
    config = {
        "model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
        "v_head_dim": 8, "max_position_embeddings": 65536,
        "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 24, "mscale": 0.707, "mscale_all_dim": 0.707},
    }  # fmt: skip
    model = read_config(config)
    assert model.yarn == Yarn(16.0, 65536, 24.0, 1.0, 0.707, 0.707)
    assert not model.not_built


def test_llamas_scaling_is_read_where_transformers_5_writes_it() -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 256,
        "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5},
    }  # fmt: skip
    model = read_config(config)
    assert (model.rope_base, model.rope_scaling) == (5e5, 8.0)
