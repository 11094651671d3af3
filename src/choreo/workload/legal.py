"""Whether a plan can be run: what must divide what, and the nearest choice that does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from choreo.errors import PlanError
from choreo.units import counted

if TYPE_CHECKING:
    from choreo.workload.model import Model
    from choreo.workload.plan import Plan

__all__ = ["check_plan"]


def check_plan(plan: Plan, model: Model, gpus: int, global_batch: int, seq: int) -> None:
    """Refuse the first thing that does not fit, in a sentence with the values and the nearest legal choice."""
    for name, value in (("gpus", gpus), ("global_batch", global_batch), ("seq", seq)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PlanError(f"{name} must be a whole number of at least 1, not {value!r}")
    _devices(plan, gpus)
    _tensors(plan, model)
    _stages(plan, model)
    _batch(plan, global_batch)
    _experts(plan, model)
    _sequence(plan, seq)


def divisors(number: int) -> list[int]:
    """All of them."""
    return [d for d in range(1, number + 1) if number % d == 0]


def _nearest(value: int, legal: Iterable[int]) -> str:
    """The legal choices on either side of a value."""
    choices = sorted(set(legal))
    below = [choice for choice in choices if choice < value][-1:]
    above = [choice for choice in choices if choice > value][:1]
    return " or ".join(str(choice) for choice in below + above)


def _devices(plan: Plan, gpus: int) -> None:
    if plan.gpus == gpus:
        return
    told = f"dp {plan.dp} × tp {plan.tp} × pp {plan.pp} × cp {plan.cp} is {counted(plan.gpus, 'device')}, not {gpus}"
    inner = plan.tp * plan.pp * plan.cp
    if gpus % inner == 0:
        raise PlanError(f"{told}; with dp {gpus // inner} it is")
    for name in ("pp", "tp", "cp"):
        value = int(getattr(plan, name))
        legal = [d for d in divisors(gpus) if gpus % (inner // value * d) == 0]
        if legal and gpus % (inner // value) == 0:
            raise PlanError(
                f"{told}, and no dp makes it so, for tp × pp × cp = {inner} does not divide {gpus}; {name} "
                f"{_nearest(value, legal)} would"
            )
    raise PlanError(
        f"{told}, and no dp makes it so, for tp × pp × cp = {inner} does not divide {gpus}; tp, pp and cp 1 would"
    )


def _tensors(plan: Plan, model: Model) -> None:
    tp = plan.tp
    for count, what in ((model.heads, "heads"), (model.ffn, "ffn"), (model.expert_ffn, "expert_ffn")):
        if count % tp:
            legal = [d for d in divisors(model.heads) if model.ffn % d == 0]
            raise PlanError(f"{what} {count} of {model.name} do not divide by tp {tp}; tp {_nearest(tp, legal)} would")
    if model.kv_heads % tp and tp % model.kv_heads:
        legal = [d for d in divisors(model.heads) if model.kv_heads % d == 0 or d % model.kv_heads == 0]
        raise PlanError(
            f"kv_heads {model.kv_heads} of {model.name} and tp {tp} do not divide each other; tp {_nearest(tp, legal)} "
            "would"
        )


def _stages(plan: Plan, model: Model) -> None:
    layers, pp, interleave = model.layers, plan.pp, plan.interleave
    if pp > layers:
        raise PlanError(f"pp {pp} is more than the {counted(layers, 'layer')} of {model.name}; pp {layers} is the most")
    if interleave > 1 and pp == 1:
        raise PlanError(f"interleave {interleave} needs a pipeline, and pp is 1; interleave 1, or pp 2 or more")
    # Megatron may count the embedding, the head or both as a layer each, so that 126 layers fill 64 stages.
    if interleave > 1 and all((layers + ends) % (pp * interleave) for ends in (0, 1, 2)):
        choices = [v for v in range(1, layers // pp + 1) if layers % (pp * v) == 0]
        if choices:
            hint = f"interleave {_nearest(interleave, choices)} would"
        else:
            hint = f"pp {_nearest(pp, (d for d in divisors(layers) if layers % (d * interleave) == 0)) or 1} would"
        raise PlanError(
            f"layers {layers} of {model.name} do not divide by pp {pp} × interleave {interleave} = {pp * interleave}; "
            f"{hint}"
        )


def _batch(plan: Plan, global_batch: int) -> None:
    each = plan.dp * plan.micro_batch
    if global_batch % each == 0:
        return
    told = f"global batch {global_batch} does not divide by dp {plan.dp} × micro-batch {plan.micro_batch} = {each}"
    if global_batch % plan.dp == 0:
        legal = divisors(global_batch // plan.dp)
        raise PlanError(f"{told}; micro-batch {_nearest(plan.micro_batch, legal)} would")
    nearest = max(1, round(global_batch / each)) * each
    raise PlanError(f"{told}; a global batch of {nearest} would")


def _experts(plan: Plan, model: Model) -> None:
    ep = plan.ep
    if ep == 1:
        return
    if not model.experts:
        raise PlanError(f"ep {ep} shares out experts, and {model.name} has none; ep 1")
    legal = [d for d in divisors(model.experts) if plan.dp * plan.cp % d == 0]
    if model.experts % ep:
        raise PlanError(
            f"experts {model.experts} of {model.name} do not divide by ep {ep}; ep {_nearest(ep, legal)} would"
        )
    if plan.dp * plan.cp % ep:
        raise PlanError(
            f"ep {ep} does not divide dp {plan.dp} × cp {plan.cp} = {plan.dp * plan.cp}, whose ranks share out the "
            f"experts; ep {_nearest(ep, legal)} would"
        )


def _sequence(plan: Plan, seq: int) -> None:
    for ways, told in (
        (plan.cp, f"cp {plan.cp}"),
        (plan.cp * plan.tp if plan.sequence_parallel else 1, f"cp {plan.cp} × tp {plan.tp} (sequence parallel)"),
    ):
        if seq % ways:
            raise PlanError(
                f"seq {seq} does not divide by {told} = {ways}; a seq of {max(1, round(seq / ways)) * ways} would"
            )
