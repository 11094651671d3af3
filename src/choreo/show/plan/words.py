"""A plan in words: the job, how it is split, and where its time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from choreo.units import counted, format_count, format_time

if TYPE_CHECKING:
    from choreo.plan import Planned, Planning, Step
    from choreo.plan.training_run import TrainingRun
    from choreo.workload import Plan

__all__ = ["kernels", "limits", "notes", "plan_words", "run_words", "shares", "title"]

ZERO = ("", "optimizer state sharded (ZeRO-1)", "gradients sharded too (ZeRO-2)", "parameters sharded too (ZeRO-3)")


def title(planning: Planning, *, varied: str = "", global_batch: str = "") -> str:
    """What was asked, in one line.

    Without the quantity that is `varied`, named as `choreo plan --vary` does; `global_batch` is how it was written.
    """
    work = planning.workload
    model = "models" if varied == "model" else f"{work.name} ({format_count(work.parameters)} parameters)"
    gpus = "" if varied == "gpus" else f"{planning.gpus} "
    device = "GPUs" if varied in ("device", "cluster") else planning.device.name
    where = "" if varied == "cluster" else f" of {planning.cluster.name}"
    batch = "" if varied == "global-batch" else f"global batch {global_batch or planning.global_batch}"
    if planning.job is not None and varied != "seq":
        batch = f"{batch or 'sequences'} of {planning.seq} tokens"
    settings = [batch] if batch else []
    settings += [planning.precision] if varied != "precision" else []
    settings += [planning.software.name] if varied != "software" else []
    network = "" if varied == "cluster" else f"; network: {planning.cluster.network.name}"
    return f"{model} on {gpus}{device}{where}: {', '.join(settings)}{network}"


def run_words(run: TrainingRun) -> list[str]:
    """What a whole run takes, and what failures do to it where that is known."""
    cost = "" if run.cost is None else f", {run.cost:,.0f} at the price given"
    days = f"{run.days:,.{0 if run.days >= 100 else 1}f} days" if run.days >= 2 else _long(run.days * 86400)
    told = [f"{format_count(run.tokens)} tokens in {days}, {run.gpu_hours:,.0f} GPU-hours{cost}"]
    if run.failure_s is not None and run.checkpoint_interval_s is not None and run.checkpoint_s is not None:
        best = f"best with a checkpoint every {_long(run.checkpoint_interval_s)}, of {_long(run.checkpoint_s)} each"
        told.append(f"goodput {100 * run.goodput:.1f} %: a failure every {_long(run.failure_s)}, {best}")
    return told


def _long(seconds: float) -> str:
    """Seconds as hours or minutes where they are many."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return format_time(seconds)


def notes(planning: Planning) -> str:
    """The warnings of the best plan's step, as they follow a line of text."""
    return "".join(f". Note: {warning}" for warning in planning.best.step.warnings)


def plan_words(plan: Plan) -> str:
    """A plan in words."""
    cut = ", ".join(
        f"{name} {getattr(plan, name)}" for name in ("dp", "tp", "pp", "cp", "ep") if getattr(plan, name) > 1
    )
    cut += f", etp {plan.etp}" if plan.etp else ""
    within = f" within groups of {plan.shard_size}" if plan.shard_size else ""
    words = [cut or "one device", ZERO[plan.zero] + within, "sequence parallel" if plan.sequence_parallel else ""]
    words.append(f"micro-batch {plan.micro_batch}")
    if plan.pp > 1:
        words.append(plan.schedule + (f" in {plan.interleave} chunks" if plan.interleave > 1 else ""))
        if plan.split != "even":
            words.append("layers balanced" if plan.split == "balanced" else f"layers {plan.split}")
    if plan.recompute != "none":
        part = f" of {counted(plan.recompute_layers, 'layer')} per stage" if plan.recompute_layers else ""
        part += f" of {plan.recompute_modules.replace(',', ', ')}" if plan.recompute_modules else ""
        words.append(f"{plan.recompute} recomputation{part}")
    if not plan.overlap:
        words.append("nothing overlapped")
    return "; ".join(word for word in words if word)


def limits(planning: Planning, planned: Planned, most: int = 3) -> str:
    """What takes the step's time, the largest part first, with its share."""
    total = planned.step.step_time_s
    largest = sorted(shares(planning, planned).items(), key=lambda part: -part[1])
    return ", ".join(
        f"{name} {100 * seconds / total:.0f} %" for name, seconds in largest[:most] if seconds / total >= 0.005
    )


def kernels(step: Step) -> dict[str, float]:
    """Seconds of compute by kind of kernel; they add up to the step's compute. Nothing where it is not known."""
    total = sum(step.kernels.values())
    return {name: seconds * step.parts["compute"] / total for name, seconds in step.kernels.items()} if total else {}


def shares(planning: Planning, planned: Planned) -> dict[str, float]:
    """The parts of the step's time, which add up to it; communication by collective and link."""
    from choreo.plan.plan import link_of

    step = planned.step
    words = {"recompute": "recomputation (memory)"}
    sent_parts = ("communication", "data parallel")
    found = {words.get(name, name): seconds for name, seconds in step.parts.items() if name not in sent_parts}
    sent = step.parts.get("communication", 0.0) + step.parts.get("data parallel", 0.0)
    total = sum(seconds for name, seconds in step.exposed_comm_s.items() if name != "pp send")
    for name, seconds in step.exposed_comm_s.items():
        if name != "pp send" and total > 0:
            axes = name.split(" ")[0]
            found[f"{name} on {link_of(planning.cluster, planned.plan, axes)}"] = seconds * sent / total
    return found
