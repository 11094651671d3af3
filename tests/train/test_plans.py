"""Every plan trains the same model: the losses are those of one process, to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

from choreo.train import TrainConfig
from choreo.train.scale import scaled
from choreo.workload import Model, Plan, get_model, get_workload
from tests.helpers.ranks.train import TorchRanks

SEQ, STEPS = 32, 3
TOLERANCE = 2e-5


def small(name: str, **changes: object) -> Model:
    model = scaled(get_model(name), "tiny")
    assert isinstance(model, Model)
    return replace(model, **changes)  # type: ignore[arg-type]


MODELS = {
    "gpt2": small("gpt2-124m"),
    "llama": small("llama3-8b", kv_heads=2),
    "neox": small("gpt-neox-20b"),
    "qwen": small("llama3-8b", qk_norm=True, qkv_bias=True, norms_per_layer=4, tied_embeddings=True),
    "mixtral": small("mixtral-8x7b"),
    "deepseek": small("deepseek-v3"),
    "bloom": small("bloom-7.1b"),
    "olmo": small("llama3-8b", norm_after=True, qk_norm=True, qk_norm_whole=True, rotary_share=0.5),
    "gpt-oss": small("gpt-oss-20b", window=5),
    "gemma": small("gemma-2-9b", window=5, score_cap=0.1, logit_cap=0.5, rope_base_windowed=100.0),
    "two further": small("deepseek-v3", mtp_layers=2),
    "llama4": small("llama4-scout", window=8),
    "shared": small("mixtral-8x7b", bias=True, router_bias=True, shared_experts=1, shared_gate=True, dense_layers=1),
}


OTHERS = {"resnet": scaled(get_workload("resnet-50"), "tiny"), "dlrm": scaled(get_workload("dlrm"), "tiny")}


def plan(**fields: object) -> Plan:
    return Plan(precision="fp32", **fields)  # type: ignore[arg-type]


def config(name: str, one: Plan, **changes: object) -> TrainConfig:
    return replace(TrainConfig((MODELS | OTHERS)[name], one, global_batch=8, seq=SEQ, steps=STEPS), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Callable[[int], TorchRanks]]:
    started: dict[int, TorchRanks] = {}
    yield lambda count: started.setdefault(count, TorchRanks(count, "choreo"))
    for one in started.values():
        one.stop()


@pytest.fixture(scope="module")
def alone(ranks: Callable[[int], TorchRanks]) -> Callable[[str], list[float]]:
    # Batch norms see one micro-batch, so theirs must have the same size.
    return cache(lambda model: ranks(1).losses(config(model, plan(micro_batch=4 if model == "resnet" else 8))))


CHEAP: list[tuple[str, Plan]] = [
    ("gpt2", plan(dp=2)),
    ("gpt2", plan(tp=2, micro_batch=4)),
    ("gpt2", plan(pp=2, micro_batch=2)),
    ("llama", plan(dp=2, zero=1)),
    ("llama", plan(dp=2, zero=3, micro_batch=2)),
    ("llama", plan(cp=2, micro_batch=8)),
    ("mixtral", plan(dp=2, ep=2)),
    ("deepseek", plan(tp=2, sequence_parallel=True, micro_batch=8)),
    ("olmo", plan(tp=2, micro_batch=8)),
    ("gpt-oss", plan(cp=2, micro_batch=8)),
    ("deepseek", plan(pp=2, micro_batch=4)),
    ("gemma", plan(tp=2, micro_batch=8)),
    ("llama", plan(dp=2, tp=2, sequence_parallel=True, micro_batch=2)),
    ("gpt2", plan(dp=2, pp=2, zero=2, schedule="gpipe")),
    ("gpt2", plan(dp=2, pp=2, micro_batch=2)),  # no forward pass between the backward passes of the first stage
    ("llama", plan(pp=2, tp=2, schedule="zero-bubble")),
    ("resnet", plan(dp=2, micro_batch=4)),
    ("dlrm", plan(dp=2, micro_batch=2)),
]
GRID: list[tuple[str, Plan]] = [
    *(("gpt2", plan(dp=count, zero=zero)) for count in (2, 4) for zero in (0, 1, 2, 3)),
    *((model, plan(tp=count)) for model in ("gpt2", "neox", "qwen", "mixtral", "shared") for count in (2, 4)),
    *((model, plan(tp=2, sequence_parallel=True)) for model in ("gpt2", "neox", "qwen", "mixtral", "shared")),
    *(
        ("qwen", plan(pp=count, schedule=schedule, interleave=2 if schedule == "interleaved" else 1))
        for count in (2, 4)
        for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble")
        if (count, schedule) != (4, "interleaved")
    ),
    *(("gpt2", plan(cp=count)) for count in (2, 4)),
    *(
        (model, one)
        for model in ("deepseek", "bloom", "olmo", "gpt-oss", "llama4", "gemma", "two further")
        for one in (
            plan(tp=2), plan(tp=4, sequence_parallel=True), plan(cp=2), plan(pp=2), plan(dp=2, zero=3),
            plan(dp=2, tp=2, recompute="selective"), plan(tp=2, cp=2, recompute="full"),
        )
    ),
    *((model, plan(dp=4, ep=4)) for model in ("deepseek", "gpt-oss", "llama4")),
    *(("deepseek", plan(dp=2, zero=zero)) for zero in (0, 1, 2)),
    *(
        ("two further", plan(pp=2, schedule=schedule, interleave=2 if schedule == "interleaved" else 1))
        for schedule in ("gpipe", "interleaved")
    ),
    ("two further", plan(pp=4)),
    ("deepseek", plan(pp=2, schedule="zero-bubble")),
    ("deepseek", plan(pp=2, dp=2, zero=1)),
    ("deepseek", plan(pp=2, dp=2, zero=3)),
    ("deepseek", plan(pp=2, tp=2, sequence_parallel=True)),
    ("deepseek", plan(pp=2, cp=2, recompute="full")),
    *(("mixtral", plan(dp=4, ep=count, zero=zero)) for count in (2, 4) for zero in (0, 1, 2, 3)),
    *(("shared", plan(dp=4, ep=count, zero=zero)) for count in (2, 4) for zero in (0, 1, 2, 3)),
    *(("gpt2", plan(dp=2, recompute=how, zero=zero)) for how in ("selective", "full") for zero in (0, 3)),
    *(("llama", plan(pp=2, dp=2, zero=zero)) for zero in (0, 1, 2, 3)),
    ("llama", plan(pp=2, dp=2, schedule="gpipe")),
    *(("llama", plan(tp=2, dp=2, zero=zero)) for zero in (1, 2, 3)),
    ("gpt2", plan(pp=2, dp=2, schedule="zero-bubble", zero=1)),
    ("gpt2", plan(pp=2, dp=2, schedule="interleaved", interleave=2)),
    ("gpt2", plan(tp=2, cp=2)),
    ("gpt2", plan(dp=2, cp=2, zero=3)),
    ("mixtral", plan(dp=2, cp=2, ep=4)),
    ("mixtral", plan(tp=2, dp=2, ep=2)),
    ("mixtral", plan(tp=2, cp=2, ep=2, sequence_parallel=True)),
    ("mixtral", plan(pp=2, dp=2, ep=2)),
    ("qwen", plan(dp=2, tp=2, pp=2)),
    ("gpt2", plan(dp=2, tp=2, pp=2, zero=3)),
    ("qwen", plan(cp=2, tp=2, pp=2, sequence_parallel=True)),
    ("gpt2", plan(cp=2, dp=2, pp=2, zero=1, schedule="zero-bubble")),
    ("mixtral", plan(dp=2, tp=2, pp=2, ep=2, zero=1)),
    ("gpt2", plan(dp=3, tp=1)),
    *(("resnet", plan(dp=2, micro_batch=4, zero=zero)) for zero in (1, 2, 3)),
    *(("dlrm", plan(dp=4, zero=zero)) for zero in (0, 1, 2, 3)),
]  # fmt: skip


def same(found: list[float], expected: list[float]) -> None:
    assert found == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize(
    "model", ["gpt2", "dlrm", *(pytest.param(name, marks=pytest.mark.grid) for name in ("mixtral", "resnet"))]
)
def test_the_loss_falls(ranks: Callable[[int], TorchRanks], model: str) -> None:
    batch, steps, lr = (128, 20, 1e-2) if model == "dlrm" else (16, 12, 5e-3)
    losses = ranks(1).losses(config(model, plan(micro_batch=batch), global_batch=batch, steps=steps, lr=lr))
    assert sum(losses[-3:]) < 0.97 * sum(losses[:3])


@pytest.mark.parametrize(("model", "one"), CHEAP, ids=lambda value: str(value).replace(" ", "-"))
def test_a_plan_gives_the_losses_of_one_process(
    ranks: Callable[[int], TorchRanks], alone: Callable[[str], list[float]], model: str, one: Plan
) -> None:
    same(ranks(one.gpus).losses(config(model, one)), alone(model))


@pytest.mark.grid
@pytest.mark.parametrize(("model", "one"), GRID, ids=lambda value: str(value).replace(" ", "-"))
def test_every_plan_gives_the_losses_of_one_process(
    ranks: Callable[[int], TorchRanks], alone: Callable[[str], list[float]], model: str, one: Plan
) -> None:
    if one.dp == 3:
        changed = config(model, one, global_batch=9)
        return same(ranks(3).losses(changed), ranks(1).losses(replace(changed, plan=plan(micro_batch=9))))
    same(ranks(one.gpus).losses(config(model, one)), alone(model))
    return None


@pytest.mark.grid
@pytest.mark.parametrize("fields", [{"dp": 2, "zero": 3}, {"tp": 2}, {"pp": 2}, {"cp": 2}], ids=str)
def test_bf16_gives_nearly_the_losses_of_one_process(
    ranks: Callable[[int], TorchRanks], fields: dict[str, object]
) -> None:
    one = Plan(precision="bf16", **fields)  # type: ignore[arg-type]
    found = ranks(2).losses(config("llama", one))
    assert found == pytest.approx(ranks(1).losses(config("llama", Plan(micro_batch=8))), rel=5e-3)


def test_a_vocabulary_that_is_rounded_up_has_the_same_loss_and_gradients() -> None:
    import torch

    from choreo.train.models.transformer import output_layer
    from choreo.train.parallel.tensor import cross_entropy

    x, weight = torch.randn(6, 8), torch.randn(13, 8)
    found = []
    for multiple in (1, 16):
        given = x.clone().requires_grad_(), weight.clone().requires_grad_()
        logits = output_layer(*given, None, multiple)
        loss = cross_entropy(logits, torch.tensor([0, 12, 5, 3, 12, 1]), 0, 13, None)
        loss.backward()
        found.append((logits.shape[1], loss, *(one.grad for one in given)))
    (narrow, *one), (wide, *other) = found
    assert (narrow, wide) == (13, 16)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)
