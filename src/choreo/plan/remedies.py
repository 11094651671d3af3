"""What a plan that does not fit would need: single changes with which it fits, each with the memory it then takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from choreo.errors import ChoreoError
from choreo.plan.job import TrainingJob
from choreo.plan.search.search import detailed
from choreo.plan.software import get_software
from choreo.plan.software.ability import ability_of
from choreo.workload import Plan

__all__ = ["Remedy", "remedies"]

OFFLOAD, NARROW = "optimizer-offload", "bf16-gradients"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change, as an option of the command, the memory that is then needed, and what the program lacks for it."""

    option: str
    memory_bytes: float
    lacks: str = ""


def remedies(job: TrainingJob, plan: Plan) -> list[Remedy]:
    """Changes with which a plan fits, the least first: recomputation, ZeRO, narrower gradients, optimizer offload.

    >>> from choreo.plan import plan
    >>> found = plan("llama3-8b", cluster="hgx-h100", gpus=8, global_batch=8, seq=8192, dp=8, zero=0, recompute="none")
    >>> [remedy.option for remedy in found.remedies]
    ['--zero 2']
    """
    had = set(ability_of(job.software.name).lacks(plan))
    found = []
    for option, other, changed in _changes(job, plan):
        try:
            step = detailed(other, changed)
        except ChoreoError:
            continue
        if step.fits:
            new = [reason for reason in ability_of(other.software.name).lacks(changed) if reason not in had]
            found.append(Remedy(option, step.memory_bytes, new[0] if new else ""))
    # Of several ZeRO stages or ways to recompute, the first that suffices.
    first = {_kind(remedy): remedy for remedy in reversed(found)}
    return [remedy for remedy in found if first[_kind(remedy)] is remedy]


def _kind(remedy: Remedy) -> str:
    """What a change is about: options of a program are about different things."""
    name, _, value = remedy.option.partition(" ")
    return remedy.option if value.endswith((OFFLOAD, NARROW)) else name


def _changes(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, TrainingJob, Plan]]:
    again = ("none", "selective", "full")
    for recompute in again[again.index(plan.recompute) + 1 :]:
        yield f"--recompute {recompute}", job, replace(plan, recompute=recompute, recompute_modules="")
    if plan.dp * plan.cp > 1:
        for zero in range(plan.zero + 1, 4):
            yield f"--zero {zero}", job, replace(plan, zero=zero)
    wide = job.software.accumulate_bytes == 4 and job.precision in ("bf16", "fp8", "fp4")
    if wide and job.software.name.startswith("megatron-core"):
        # --grad-reduce-in-bf16
        narrow = f"{job.software.name}+{NARROW}"
        yield f"--software {narrow}", replace(job, software=get_software(narrow)), plan
    if not job.software.optimizer_offload:
        name = f"{job.software.name}+{OFFLOAD}"
        yield f"--software {name}", replace(job, software=get_software(name)), plan
