"""Check whether a plan can be run: one table of rules, each with a reason, a test and a hint.

A test takes the numbers of one plan, or columns with those of many: the same expression serves both. The search counts
plans by reason. A single plan is refused with the message of the first rule it breaks, which gives the values and the
nearest choice that works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from choreo.errors import PlanError
from choreo.units import counted
from choreo.workload.choices import SPLITS
from choreo.workload.legal.dual import DUAL_RULES
from choreo.workload.legal.rule import Numbers, Request, Rule, row_of
from choreo.workload.legal.stages import chunks_hold, divisors, rounds_hold, stages_hold
from choreo.workload.legal.trained import TRAINED

if TYPE_CHECKING:
    from choreo.workload.plan import Plan

__all__ = ["RULES", "broken_rule", "check_plan"]


def check_plan(plan: Plan, request: Request) -> None:
    """Refuse a plan that breaks a rule, in a sentence with the nearest choice that works."""
    rule = broken_rule(plan, request)
    if rule is not None:
        raise PlanError(rule.sentence(request, plan))


def broken_rule(plan: Plan, request: Request) -> Rule | None:
    """The first rule that a plan breaks."""
    row = row_of(plan)
    return next((rule for rule in RULES if not rule.holds(request, row)), None)


def _near(request: Request, plan: Plan, field: str, values: Iterable[int], *others: str) -> str:
    """The nearest values of a field, below and above the plan's, that break no rule of that field or of `others`."""
    rules = [rule for rule in RULES if rule.field in (field, *others)]
    row = row_of(plan)
    legal = [v for v in values if all(rule.holds(request, row | {field: v}) for rule in rules)]
    return _nearest(int(getattr(plan, field)), legal)


def _nearest(value: int, legal: Sequence[int]) -> str:
    below = [choice for choice in legal if choice < value][-1:]
    above = [choice for choice in legal if choice > value][:1]
    return " or ".join(str(choice) for choice in below + above)


def _tell_devices(request: Request, plan: Plan) -> str:
    gpus, inner = request.gpus, plan.tp * plan.pp * plan.cp
    problem = f"dp {plan.dp} × tp {plan.tp} × pp {plan.pp} × cp {plan.cp} is {counted(plan.gpus, 'device')}, not {gpus}"
    if gpus % inner == 0:
        return f"{problem}; dp {gpus // inner} would"
    problem += f", and no dp makes up for it: tp × pp × cp = {inner} does not divide {gpus}"
    for name in ("pp", "tp", "cp"):
        rest = inner // int(getattr(plan, name))
        if gpus % rest == 0:
            return f"{problem}; {name} {_nearest(int(getattr(plan, name)), divisors(gpus // rest))} would"
    return f"{problem}; tp, pp and cp 1 would"


def _tell_tensors(request: Request, plan: Plan) -> str:
    model, tp = request.model, plan.tp
    near = _near(request, plan, "tp", divisors(model.heads))
    for count, what in ((model.heads, "heads"), (model.ffn, "ffn"), (model.expert_ffn, "expert_ffn")):
        if count % tp:
            return f"{what} {count} of {model.name} are not divisible by tp {tp}; use tp {near}"
    return f"kv_heads {model.kv_heads} of {model.name} and tp {tp} do not divide each other; tp {near} would"


def _tell_stages(request: Request, plan: Plan) -> str:
    model, pp = request.model, plan.pp
    if pp > model.layers:
        layers = counted(model.layers, "layer")
        return f"pp {pp} is more than the {layers} of {model.name}; pp {model.layers} is the most"
    if plan.split not in SPLITS:
        return _tell_listed(request, plan)
    stages = range(1, model.layers + 1)
    near = _near(request, plan, "pp", stages, "interleave") or _near(request, plan, "pp", stages)
    return f"layers {model.layers} of {model.name} are not divisible by pp {pp}; use pp {near}"


def _tell_listed(request: Request, plan: Plan) -> str:
    layers, listed = request.model.layers, request.listed
    problem = f"the split {plan.split} gives {sum(listed)} layers to {counted(len(listed), 'stage')}"
    stages = plan.pp * plan.interleave
    return f"{problem}, and {request.model.name} has {layers} in {stages} (pp {plan.pp} × interleave {plan.interleave})"


def _tell_chunks(request: Request, plan: Plan) -> str:
    model, pp, interleave = request.model, plan.pp, plan.interleave
    chunks = f"pp {pp} × interleave {interleave} = {pp * interleave}"
    near = _near(request, plan, "interleave", range(1, model.layers // pp + 1))
    return f"layers {model.layers} of {model.name} are not divisible by {chunks}; use interleave {near}"


def _tell_rounds(request: Request, plan: Plan) -> str:
    count = plan.micro_batches(request.global_batch)
    near = _near(request, plan, "micro_batch", divisors(request.global_batch // plan.dp))
    hint = f"micro-batch {near} would" if near else "interleave 1 does not need that"
    return f"interleaving needs micro-batches in rounds of pp {plan.pp}, and there are {count}; {hint}"


def _tell_batch(request: Request, plan: Plan) -> str:
    batch, each = request.global_batch, plan.dp * plan.micro_batch
    problem = f"global batch {batch} is not divisible by dp {plan.dp} × micro-batch {plan.micro_batch} = {each}"
    if batch % plan.dp == 0:
        return f"{problem}; use micro-batch {_near(request, plan, 'micro_batch', divisors(batch // plan.dp))}"
    return f"{problem}; use a global batch of {max(1, round(batch / each)) * each}"


def _tell_experts(request: Request, plan: Plan) -> str:
    model, ep = request.model, plan.ep
    if not model.experts:
        return f"ep {ep} shares out experts, and {model.name} has none; ep 1"
    near = _near(request, plan, "ep", divisors(model.experts))
    if model.experts % ep:
        return f"experts {model.experts} of {model.name} are not divisible by ep {ep}; use ep {near}"
    if plan.etp in (0, plan.tp):
        ranks = f"dp {plan.dp} × cp {plan.cp} = {plan.dp * plan.cp}"
        folded = "" if plan.tp == 1 else "; with etp 1 tensor-parallel ranks share them out too"
        return f"ep {ep} does not divide {ranks}, whose ranks share out the experts; ep {near} would{folded}"
    ranks = f"dp {plan.dp} × cp {plan.cp} × tp {plan.tp} = {plan.dp * plan.cp * plan.tp}"
    return f"ep {ep} × etp {plan.etp} does not divide {ranks}, whose ranks share out the experts; ep {near} would"


def _tell_width(request: Request, plan: Plan) -> str:
    model, etp = request.model, plan.etp
    if not model.experts:
        return f"etp {etp} cuts experts, and {model.name} has none; etp 0"
    if model.expert_ffn % etp:
        near = _near(request, plan, "etp", divisors(model.expert_ffn))
        return f"expert_ffn {model.expert_ffn} of {model.name} is not divisible by etp {etp}; use etp {near}"
    return (
        f"etp {etp} beside tp {plan.tp} needs sequence parallelism, for else tensor-parallel ranks have the same "
        f"tokens; sequence_parallel, or etp {plan.tp}"
    )


def _width(t: Numbers) -> Any:
    """Ranks that cut one expert."""
    return np.where(t["etp"] == 0, t["tp"], t["etp"])


def _tell_shards(request: Request, plan: Plan) -> str:
    near = _near(request, plan, "shard_size", divisors(plan.dp))
    return f"dp {plan.dp} is not divisible by shard_size {plan.shard_size}; use shard_size {near}"


def _tell_sequence(request: Request, plan: Plan) -> str:
    ways, factors = plan.cp, f"cp {plan.cp}"
    if request.seq % ways == 0:
        ways = plan.cp * plan.tp
        factors = f"cp {plan.cp} × tp {plan.tp} = {ways} (sequence parallel)"
    near = max(1, round(request.seq / ways)) * ways
    return f"seq {request.seq} is not divisible by {factors}; use a seq of {near}"


RULES = (
    Rule(
        "devices other than there are",
        "dp",
        lambda r, t: t["dp"] * t["tp"] * t["pp"] * t["cp"] == r.gpus,
        _tell_devices,
    ),
    Rule(
        "heads not divisible by tp",
        "tp",
        lambda r, t: r.model.heads % t["tp"] == 0,
        _tell_tensors,
    ),
    Rule(
        "key-value heads not divisible by tp",
        "tp",
        lambda r, t: (r.model.kv_heads % t["tp"] == 0) | (t["tp"] % r.model.kv_heads == 0),
        _tell_tensors,
    ),
    Rule(
        "width of the MLP not divisible by tp",
        "tp",
        lambda r, t: (r.model.ffn % t["tp"] == 0) & ((t["etp"] > 0) | (r.model.expert_ffn % t["tp"] == 0)),
        _tell_tensors,
    ),
    Rule("layers not divisible by pp", "pp", stages_hold, _tell_stages),
    Rule(
        "sequence not divisible by cp",
        "cp",
        lambda r, t: r.seq % t["cp"] == 0,
        _tell_sequence,
    ),
    Rule(
        "experts not divisible by ep",
        "ep",
        lambda r, t: (t["ep"] == 1) | ((r.model.experts > 0) & (r.model.experts % t["ep"] == 0)),
        _tell_experts,
    ),
    Rule(
        "width of the experts not divisible by etp",
        "etp",
        lambda r, t: (t["etp"] == 0) | ((r.model.experts > 0) & (r.model.expert_ffn % np.maximum(1, t["etp"]) == 0)),
        _tell_width,
    ),
    Rule(
        "tp x cp x dp not divisible by ep x etp",
        "ep",
        lambda r, t: t["dp"] * t["cp"] * t["tp"] % (t["ep"] * _width(t)) == 0,
        _tell_experts,
    ),
    Rule(
        "a shard size without ZeRO",
        "zero",
        lambda r, t: (t["shard_size"] == 0) | (t["zero"] > 0),
        lambda r, plan: f"shard_size {plan.shard_size} goes with ZeRO, and zero is 0; zero 1 to 3, or shard_size 0",
    ),
    Rule(
        "replicas not divisible by the shard size",
        "shard_size",
        lambda r, t: t["dp"] % np.maximum(1, t["shard_size"]) == 0,
        _tell_shards,
    ),
    Rule(
        "state of experts shared out within groups",
        "shard_size",
        lambda r, t: (t["shard_size"] == 0) | (t["ep"] == 1),
        lambda r, plan: (
            f"shard_size {plan.shard_size} beside ep {plan.ep} is not planned, for experts have fewer replicas; "
            "shard_size 0, or ep 1"
        ),
    ),
    Rule(
        "batch not divisible by dp x micro-batch",
        "micro_batch",
        lambda r, t: r.global_batch % (t["dp"] * t["micro_batch"]) == 0,
        _tell_batch,
    ),
    Rule("layers not divisible by pp x interleave", "interleave", chunks_hold, _tell_chunks),
    Rule("micro-batches not divisible by pp, as interleaving needs", "micro_batch", rounds_hold, _tell_rounds),
    Rule(
        "sequence not divisible by cp x tp, as sequence parallelism needs",
        "sequence_parallel",
        lambda r, t: (t["sequence_parallel"] == 0) | (r.seq % (t["cp"] * t["tp"]) == 0),
        _tell_sequence,
    ),
    Rule(
        "etp other than tp without sequence parallelism",
        "etp",
        lambda r, t: (t["sequence_parallel"] == 1) | (t["tp"] == 1) | (t["etp"] == 0) | (t["etp"] == t["tp"]),
        _tell_width,
    ),
    Rule(
        "interleaving without a pipeline",
        "interleave",
        lambda r, t: (t["interleave"] == 1) | (t["pp"] > 1),
        lambda r, plan: f"interleave {plan.interleave} needs a pipeline, and pp is 1; interleave 1, or pp 2 or more",
    ),
    *DUAL_RULES,
    *TRAINED,
)
