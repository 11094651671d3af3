"""Choose the plan of a run that was started without one: the planner's best for this machine."""

from __future__ import annotations

from choreo.errors import UsageError
from choreo.plan import plan
from choreo.plan.network.this_machine import THIS_MACHINE
from choreo.train.predict import SOFTWARE
from choreo.workload import Model, Plan, Workload

__all__ = ["best_plan"]

BEST = 20  # plans to look through for one that fits


def best_plan(workload: Workload, ranks: int, global_batch: int, seq: int, device: str = "cpu") -> Plan:
    """The fastest plan that fits. On a GPU, for ResNet and DLRM, and on an unmeasured machine: data parallelism only.

    >>> from choreo.workload import get_model
    >>> print(best_plan(get_model("gpt2-124m"), 1, 8, 64))
    mb1 fp32
    """
    replicas = Plan(dp=ranks, precision="fp32")
    if ranks == 1 or device != "cpu" or not isinstance(workload, Model):
        return replicas
    try:
        found = plan(
            workload,
            cluster=THIS_MACHINE,
            gpus=ranks,
            global_batch=global_batch,
            seq=seq,
            precision="fp32",
            software=SOFTWARE,
            best=BEST,
        )
    except UsageError:  # the machine was not measured
        return replicas
    return next((candidate.plan for candidate in found.plans if candidate.step.fits), replicas)
