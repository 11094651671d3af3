"""Two models and a step of theirs, for what must hold of steps."""

from __future__ import annotations

from choreo.plan.step import Step, evaluate
from choreo.workload import Model, Plan

GPT = Model("gpt", 24, 2048, 16, vocab=51200, learned_positions=2048, bias=True, norm="layer", tied_embeddings=True)
LLAMA = Model("llama", 32, 4096, 32, kv_heads=8, ffn=14336, gated=True, vocab=128256)


def step(model: Model = LLAMA, plan: Plan | None = None, *, batch: int = 64, **more: object) -> Step:
    plan = plan or Plan(dp=4, tp=4, pp=2, sequence_parallel=True, micro_batch=1)
    options: dict[str, object] = {"cluster": "hgx-h100", "global_batch": batch, "seq": 4096}
    return evaluate(model, plan, **{**options, **more})  # type: ignore[arg-type]
