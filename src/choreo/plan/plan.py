"""`plan`: which plan is best for this model, cluster and batch, and why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from choreo.hardware import Device
from choreo.plan.graph_models.plan import graph_step
from choreo.plan.job import TrainingJob
from choreo.plan.network import Cluster, get_cluster
from choreo.plan.search import Found, detailed, search
from choreo.plan.software import Software, get_software
from choreo.plan.space import FIELDS, Fixed
from choreo.plan.step import Step
from choreo.results import drawn
from choreo.topology import Topology
from choreo.workload import Model, Plan, Workload, get_workload

__all__ = ["Planned", "Planning", "link_of", "plan"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what a step of it takes and needs."""

    plan: Plan
    step: Step
    limit: str  # what limits it: "compute", "bubble", "tp all_reduce on NVLink", ...

    def _repr_html_(self) -> str:
        return drawn(self)

    def to_json(self) -> dict[str, object]:
        """As plain values."""
        step = self.step
        return {
            "plan": self.plan.fields(),
            "step_time_s": step.step_time_s,
            "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
            "mfu": step.mfu,
            "hfu": step.hfu,
            "memory_bytes": step.memory_bytes,
            "memory": dict(step.memory),
            "fits": step.fits,
            "exposed_comm_s": dict(step.exposed_comm_s),
            "bubble_s": step.bubble_s,
            "bottleneck": self.limit,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Planning:
    """The best plans, best first, and what was ruled out on the way. For what is no transformer `job` is None."""

    workload: Workload
    cluster: Cluster
    device: Device
    software: Software
    gpus: int
    global_batch: int
    seq: int
    precision: str
    plans: tuple[Planned, ...]
    considered: int
    ruled_out: Mapping[str, int]
    seconds: float
    job: TrainingJob | None = field(default=None, repr=False)
    found: Found | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        return drawn(self)

    @property
    def best(self) -> Planned:
        """The best plan."""
        return self.plans[0]

    def to_json(self) -> dict[str, object]:
        """As plain values."""
        return {
            "model": self.workload.name,
            "cluster": self.cluster.name,
            "network_model": self.cluster.network.name,
            "gpus": self.gpus,
            "plans": [planned.to_json() for planned in self.plans],
            "considered": self.considered,
            "ruled_out": dict(self.ruled_out),
            "seconds": self.seconds,
        }


def plan(
    model: str | Path | Workload,
    *,
    cluster: str | Topology | Cluster,
    gpus: int,
    global_batch: int,
    seq: int = 0,
    precision: str = "bf16",
    software: str | Software = "megatron-core",
    device: str | Device | None = None,
    best: int = 5,
    **fixed: int | bool | str,
) -> Planning:
    """The best plans for a model on so many GPUs of a cluster; `fixed` holds fields of the plan: tp=8, zero=1.

    With every field of a plan fixed that one is evaluated. ResNet-50 and DLRM have one plan: data parallelism.
    """
    start = time.perf_counter()
    workload = get_workload(model)
    Plan(precision=precision)  # refuses one that is not known
    place = get_cluster(cluster)
    chip = place.chip(device)
    place = replace(place, device=chip)
    place.check_gpus(gpus)
    program = get_software(software)
    about = (workload, place, chip, program, gpus, global_batch, seq, precision)
    if not isinstance(workload, Model):
        one, step = graph_step(
            workload,
            cluster=place,
            device=chip,
            software=program,
            gpus=gpus,
            global_batch=global_batch,
            precision=precision,
            fixed=fixed,
        )
        return Planning(*about, (_planned(place, one, step),), 1, {}, time.perf_counter() - start)
    job = TrainingJob(workload, gpus, global_batch, seq, place, chip, program, precision)
    if all(name in fixed for name in FIELDS):
        one = Plan(**fixed, precision=precision)  # type: ignore[arg-type]
        planned = (_planned(place, one, detailed(job, one)),)
        return Planning(*about, planned, 1, {}, time.perf_counter() - start, job)
    found = search(job, fixed=_known(fixed), best=best)
    plans = tuple(_planned(place, one, step) for one, step in found.plans)
    return Planning(*about, plans, found.considered, found.ruled_out, time.perf_counter() - start, job, found)


def _known(fixed: Fixed) -> Fixed:
    """Names that a plan has are looked at by the search; whatever else was said is a mistake it tells."""
    return {name: value for name, value in fixed.items() if value is not None}


def _planned(cluster: Cluster, one: Plan, step: Step) -> Planned:
    axes, _, kind = step.bottleneck.partition(" ")
    limit = step.bottleneck
    if not step.fits:
        limit = "memory"
    elif limit == "recompute":
        limit = "memory (recomputation)"
    elif kind and axes != "data":
        limit = f"{limit} on {link_of(cluster, one, axes)}"
    return Planned(one, step, limit)


def link_of(cluster: Cluster, one: Plan, axes: str) -> str:
    """The links that a group of ranks along these axes ("tp", "cp+dp") crosses."""
    if axes == "pp":
        ranks, stride = 2, one.tp * one.cp * one.dp
    else:
        names = tuple(axes.split("+"))
        ranks, stride = one.group(("cp", "dp") if names == ("dp",) else names)
    return cluster.network.link(ranks, stride)
