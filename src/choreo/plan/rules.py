"""What can be run: the rules of `Plan.check` for whole columns of plans, and what each program has.

A rule is a reason and a test. Those of a cut of the devices come first, then those of how it is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.workload import Model
from choreo.workload.plan import SCHEDULES

__all__ = ["SAME", "Ability", "Columns", "ability_of", "cut_reason", "divisors", "even", "run_rules"]

Columns = dict[str, npt.NDArray[np.int64]]
Rule = Callable[[Columns], npt.NDArray[np.bool_]]
SAME = "the same as another plan"
ROUND = 32  # layers: a number that stages divide


@dataclass(frozen=True, slots=True)
class Ability:
    """What a program has: its schedules, its ZeRO stages, and whether it cuts tensors, layers and sequences."""

    name: str = ""
    schedules: tuple[str, ...] = SCHEDULES
    zero: tuple[int, ...] = (0, 1, 2, 3)
    zero_beside_pipeline: int = 3  # the highest
    tensors: bool = True
    stages: bool = True
    contexts: bool = True
    experts_alone: bool = True  # expert and tensor parallelism together without sequence parallelism


# Megatron-LM: its schedules are 1F1B with and without interleaving, its distributed optimizer is ZeRO-1, and it asks
# for sequence parallelism where experts and tensors are both cut.
MEGATRON = Ability("Megatron", ("1f1b", "interleaved"), (0, 1), 1, experts_alone=False)
ABILITIES = {
    "megatron": MEGATRON,
    "megascale": MEGATRON,
    "nanotron": Ability("nanotron", ("gpipe", "1f1b"), (0, 1), 1, contexts=False),
    "fsdp": Ability("FSDP", zero=(0, 2, 3), tensors=False, stages=False, contexts=False),
    "torchtitan": Ability("torchtitan", zero=(0, 2, 3)),
    "torch": Ability("PyTorch by itself", zero=(0,), tensors=False, stages=False, contexts=False),
}


def ability_of(software: str) -> Ability:
    """What is known of a program; of an unknown one, that it can do everything."""
    name = software.strip().lower()
    return next((found for prefix, found in ABILITIES.items() if name.startswith(prefix)), Ability())


def divisors(number: int) -> list[int]:
    """Those of a number, from the smallest."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def even(layers: int, stages: int, others: int = 3) -> bool:
    """Whether layers divide into stages.

    Some models are a few layers short of a round number, so that embedding, head and a second head for prediction take
    their places (Llama 3.1 405B's 126, Qwen3's 94, DeepSeek-V3's 61): there up to so many `others` count as layers.
    """
    if stages > layers:
        return False
    whole = (layers + extra for extra in range(1, others + 1) if (layers + extra) % ROUND == 0)
    return layers % stages == 0 or any(total % stages == 0 for total in whole)


def cut_reason(  # noqa: PLR0917 -- all that the rules are about
    model: Model,
    cut: tuple[int, int, int, int, int],
    global_batch: int,
    seq: int,
    fixed: Mapping[str, object],
    ability: Ability,
) -> str:
    """Why no plan with this dp, tp, pp, cp, ep can be run; nothing if one can."""
    dp, tp, pp, cp, ep = cut
    reasons = (
        (tp > 1 and not ability.tensors and "tp" not in fixed, f"{ability.name} has no tensor parallelism"),
        (pp > 1 and not ability.stages and "pp" not in fixed, f"{ability.name} has no pipeline"),
        (cp > 1 and not ability.contexts and "cp" not in fixed, f"{ability.name} has no context parallelism"),
        (model.heads % tp, "heads not divisible by tp"),
        (model.kv_heads % tp and tp % model.kv_heads, "key-value heads not divisible by tp"),
        (model.ffn % tp or model.expert_ffn % tp, "width of the MLP not divisible by tp"),
        (not even(model.layers, pp), "layers not divisible by pp"),
        (seq % cp, "sequence not divisible by cp"),
        (ep > 1 and (not model.experts or model.experts % ep), "experts not divisible by ep"),
        (dp * cp % ep, "dp x cp not divisible by ep"),
        (global_batch % dp, "batch not divisible by dp x micro-batch"),
    )
    return next((reason for broken, reason in reasons if broken), "")


def run_rules(
    model: Model, global_batch: int, seq: int, fixed: Mapping[str, object], ability: Ability
) -> list[tuple[str, Rule]]:
    """Rules of how a cut is run, in the order they are asked. What the user fixed is not held against a program."""
    able = np.array([name in ability.schedules or "schedule" in fixed for name in SCHEDULES])
    stages_even = np.array([s > 0 and even(model.layers, s) for s in range(model.layers + 1)])
    chunks_even = np.array([s > 0 and even(model.layers, s, 2) for s in range(model.layers + 1)])
    one_by_one, interleaved = SCHEDULES.index("1f1b"), SCHEDULES.index("interleaved")

    def whole(t: Columns) -> npt.NDArray[np.bool_]:
        return np.asarray(global_batch % (t["dp"] * t["micro_batch"]) == 0)

    def chunks(t: Columns) -> npt.NDArray[np.bool_]:
        stages = t["pp"] * t["interleave"]
        at = np.minimum(stages, model.layers)
        good = np.where(t["interleave"] > 1, chunks_even[at], stages_even[at])
        return np.asarray((t["pp"] == 1) | ((stages <= model.layers) & good))

    def groups(t: Columns) -> npt.NDArray[np.bool_]:
        micro_batches = global_batch // (t["dp"] * t["micro_batch"])
        return np.asarray((t["interleave"] == 1) | (t["pp"] == 1) | (micro_batches % t["pp"] == 0))

    def sequence(t: Columns) -> npt.NDArray[np.bool_]:
        return np.asarray((t["sequence_parallel"] == 0) | (seq % (t["cp"] * t["tp"]) == 0))

    def schedule(t: Columns) -> npt.NDArray[np.bool_]:
        return np.asarray(able[t["schedule"]] | (t["pp"] == 1))

    def stage(t: Columns) -> npt.NDArray[np.bool_]:
        return np.asarray(
            np.isin(t["zero"], ability.zero) & ((t["pp"] == 1) | (t["zero"] <= ability.zero_beside_pipeline))
        )

    def streams(t: Columns) -> npt.NDArray[np.bool_]:
        return np.asarray((t["ep"] == 1) | (t["tp"] == 1) | (t["sequence_parallel"] == 1))

    def distinct(t: Columns) -> npt.NDArray[np.bool_]:
        good = np.ones(len(t["dp"]), np.bool_)
        if "schedule" not in fixed:
            good &= (t["pp"] > 1) | (t["schedule"] == one_by_one)
            if "interleave" in fixed:
                good &= (t["schedule"] == interleaved) == (t["interleave"] > 1)
        if "sequence_parallel" not in fixed:
            good &= (t["tp"] > 1) | (t["sequence_parallel"] == 0)
        replicas = t["dp"] * t["cp"]
        if "zero" not in fixed:
            good &= (replicas > 1) | (t["zero"] == 0)
        if "overlap" not in fixed:
            good &= (replicas > 1) | (t["overlap"] == 1)
        return good

    rules: list[tuple[str, Rule]] = [
        ("batch not divisible by dp x micro-batch", whole),
        ("layers not divisible by pp x interleave", chunks),
        ("micro-batches not divisible by pp, as interleaving needs", groups),
        ("sequence not divisible by cp x tp, as sequence parallelism needs", sequence),
        (SAME, distinct),
        (f"a schedule that {ability.name} does not have", schedule),
    ]
    if not ability.experts_alone and "sequence_parallel" not in fixed:
        rules.append((f"experts and tensors cut without sequence parallelism, as {ability.name} does not", streams))
    if "zero" not in fixed:
        rules.append((f"a ZeRO stage that {ability.name} does not have there", stage))
    return rules
