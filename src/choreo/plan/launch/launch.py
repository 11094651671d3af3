"""How to run a plan with other programs: options to paste, or why there are none.

A plan that a program cannot express gets no options: those of a similar plan or model would take a different time and
train something else. `tools/check_launch_options.py` checks the options with the programs' own parsers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from choreo.plan.launch.megatron import megatron_notes, megatron_options
from choreo.plan.launch.megatron_lacks import megatron_lacks
from choreo.plan.launch.torchtitan import torchtitan_lacks, torchtitan_notes, torchtitan_options

if TYPE_CHECKING:
    from choreo.plan.job import TrainingJob
    from choreo.workload import Plan

__all__ = ["Launch", "launches"]

# Makers of devices that neither program runs on.
ELSEWHERE = ("google", "amazon", "intel")
NEWER = ("bf16", "fp8", "fp4")  # precisions that older devices do not have


@dataclass(frozen=True, slots=True)
class Launch:
    """One program's options for a plan, with notes; or what the program lacks, and no options."""

    program: str
    options: tuple[str, ...]  # quoted for a shell
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def launches(job: TrainingJob, plan: Plan) -> tuple[Launch, ...]:
    """The options for Megatron-LM and torchtitan.

    >>> from choreo.plan import plan
    >>> found = plan("llama3-8b", cluster="hgx-h100", gpus=8, global_batch=8, seq=4096, tp=8, zero=1)
    >>> [len(one.options) > 0 for one in launches(found.job, found.best.plan)]
    [True, False]
    """
    found = []
    for program, lacks, options, notes in (
        ("Megatron-LM", megatron_lacks, megatron_options, megatron_notes),
        ("torchtitan", torchtitan_lacks, torchtitan_options, torchtitan_notes),
    ):
        missing = tuple(_device_lacks(job, plan) or lacks(job, plan))
        if missing:
            found.append(Launch(program, (), (), missing))
            continue
        single = [one for option in options(job, plan) for one in re.split(r" (?=--)", option)]
        found.append(Launch(program, tuple(single), tuple(notes(job, plan))))
    return tuple(found)


def _device_lacks(job: TrainingJob, plan: Plan) -> list[str]:
    """Why no program runs the plan on this device."""
    if job.device.family in ELSEWHERE:
        return [f"it does not run on {job.device.chip}"]
    absent = plan.precision in NEWER and job.device.precision(plan.precision) != plan.precision
    return [f"{plan.precision}, in which {job.device.name} has no matmuls"] if absent else []
