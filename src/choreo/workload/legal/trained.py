"""The limits of `choreo train`. The planner does not use these rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from choreo.workload.choices import SCHEDULES
from choreo.workload.legal.rule import EVEN, Numbers, Request, Rule

if TYPE_CHECKING:
    from choreo.workload.plan import Plan

__all__ = ["TRAINED"]

INTERLEAVED, ZERO_BUBBLE = SCHEDULES.index("interleaved"), SCHEDULES.index("zero-bubble")


def _rule(
    reason: str,
    field: str,
    holds: Callable[[Request, Numbers], Any],
    sentence: Callable[[Request, Plan], str],
) -> Rule:
    """A rule for plans that `choreo train` is to run."""

    def asked(request: Request, t: Numbers) -> Any:
        return holds(request, t) if request.trained else t["dp"] > 0  # true for all plans

    return Rule(reason, field, asked, sentence)


TRAINED = (
    _rule(
        "etp other than tp",
        "etp",
        lambda r, t: (t["etp"] == 0) | (t["etp"] == t["tp"]),
        lambda r, plan: f"choreo train cuts experts as tensors, by tp {plan.tp}, not by etp {plan.etp}; etp 0",
    ),
    _rule(
        "state shared out within groups",
        "shard_size",
        lambda r, t: t["shard_size"] == 0,
        lambda r, plan: f"choreo train shares state out over all replicas, not over {plan.shard_size}; shard_size 0",
    ),
    _rule(
        "layers not split evenly",
        "split",
        lambda r, t: (t["pp"] == 1) | (t["split"] == EVEN),
        lambda r, plan: f"choreo train gives stages equal numbers of layers, not split {plan.split}; split even",
    ),
    _rule(
        "dualpipe",
        "schedule",
        lambda r, t: (t["pp"] == 1) | (t["schedule"] <= ZERO_BUBBLE),
        lambda r, plan: f"choreo train does not run {plan.schedule}; schedule zero-bubble, interleaved or 1f1b",
    ),
    _rule(
        "zero bubble with sharded parameters",
        "schedule",
        lambda r, t: (t["pp"] == 1) | (t["schedule"] != ZERO_BUBBLE) | (t["zero"] < 2),
        lambda r, plan: (
            f"torch computes wrong gradients for zero-bubble with zero {plan.zero} (fully_shard); schedule 1f1b, or "
            "zero 0 or 1, would be right"
        ),
    ),
    _rule(
        "zero bubble with several further tokens",
        "schedule",
        lambda r, t: (t["pp"] == 1) | (t["schedule"] != ZERO_BUBBLE) | (r.model.mtp_layers < 2),
        lambda r, plan: (
            f"torch cannot halve the backward pass of {r.model.mtp_layers} modules that read one embedding, as "
            "zero-bubble asks; schedule 1f1b would be right"
        ),
    ),
    _rule(
        "fewer key-value heads than tp",
        "tp",
        lambda r, t: t["tp"] <= r.model.kv_heads,
        lambda r, plan: (
            f"tp {plan.tp} is more than the {r.model.kv_heads} key-value heads of {r.model.name}, and each tensor rank "
            f"trains its own; tp {r.model.kv_heads} is the most"
        ),
    ),
    _rule(
        "sequence not divisible by 2 cp",
        "cp",
        lambda r, t: (t["cp"] == 1) | (r.seq % (2 * t["cp"]) == 0),
        lambda r, plan: (
            f"seq {r.seq} is not divisible by 2 × cp {plan.cp}, the chunks of context parallelism; use a seq "
            f"of {max(1, round(r.seq / (2 * plan.cp))) * 2 * plan.cp}"
        ),
    ),
    _rule(
        "fewer micro-batches than stages",
        "micro_batch",
        lambda r, t: (t["pp"] == 1) | (r.global_batch // (t["dp"] * t["micro_batch"]) >= t["pp"]),
        lambda r, plan: (
            f"a pipeline of pp {plan.pp} needs as many micro-batches, and there are "
            f"{plan.micro_batches(r.global_batch)}; a global batch of {plan.dp * plan.micro_batch * plan.pp} would do"
        ),
    ),
    _rule(
        "interleaved with one chunk a stage",
        "interleave",
        lambda r, t: (t["pp"] == 1) | (t["schedule"] != INTERLEAVED) | (t["interleave"] > 1),
        lambda r, plan: "schedule interleaved needs interleave 2 or more; interleave 2, or schedule 1f1b",
    ),
    _rule(
        "gpipe with several chunks a stage",
        "interleave",
        lambda r, t: (t["schedule"] != SCHEDULES.index("gpipe")) | (t["interleave"] == 1),
        lambda r, plan: f"gpipe runs one chunk of layers per stage, not interleave {plan.interleave}; interleave 1",
    ),
)
