"""`plan`: which plan is best for this model, cluster and batch, and why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from choreo.errors import PlanError, UsageError
from choreo.hardware import Device
from choreo.plan.graph_models.plan import graph_step
from choreo.plan.job import TrainingJob
from choreo.plan.network import Cluster, get_cluster
from choreo.plan.remedies import Remedy, remedies
from choreo.plan.search.search import Found, detailed, search
from choreo.plan.search.space import FIELDS
from choreo.plan.software import Software, get_software
from choreo.plan.software.ability import ability_of
from choreo.plan.software.defaults import usual_program
from choreo.plan.step import STEP_FIGURES, Step
from choreo.results import Result, result
from choreo.topology import Topology
from choreo.workload import Model, Plan, Workload, get_workload

__all__ = ["HEADROOM", "Planned", "Planning", "least_gpus", "link_of", "plan"]

# The share of the memory that a search leaves free: of measured groups of plans, no pick below 90 % ran out of memory.
HEADROOM = 0.1
MOST_GPUS = 1 << 17
TRIED = 40  # plans to look through for some that choreo train can run
MAY_BE_LEFT = (
    "split",
    "recompute_layers",
    "recompute_modules",
    "etp",
    "shard_size",
)  # where one plan is given completely


@result
class Planned(Result):
    """A plan, and the time and memory of its step."""

    columns: ClassVar[tuple[str, ...]] = ("plan", *STEP_FIGURES, "bottleneck")

    plan: Plan
    step: Step
    bottleneck: str  # "compute", "bubble", "tp all_reduce on NVLink", ...

    def to_dict(self) -> dict[str, Any]:
        """The plan's fields, and the figures of its step."""
        figures = self.step.to_dict()
        return (
            {"plan": self.plan.fields()}
            | {name: figures[name] for name in STEP_FIGURES}
            | {"bottleneck": self.bottleneck}
        )

    def summary(self) -> str:
        """The plan and its step."""
        return f"{self.plan}: {self.step.summary()}"


@result(eq=False)
class Planning(Result):
    """The best plans, best first, and what was ruled out. `job` is None for ResNet-50 and DLRM."""

    columns: ClassVar[tuple[str, ...]] = (
        "model",
        "cluster",
        "network_model",
        "gpus",
        "device",
        "software",
        "global_batch",
        "seq",
        "plans",
        "equal",
        "considered",
        "ruled_out",
        "seconds",
    )

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
    job: TrainingJob | None = None
    found: Found | None = None

    @property
    def model(self) -> str:
        """The name of what is trained."""
        return self.workload.name

    @property
    def network_model(self) -> str:
        """What the times of collectives come from: "nccl", "simulated", "torus" or "this-machine"."""
        return self.cluster.network.name

    @property
    def best(self) -> Planned:
        """The best plan."""
        return self.plans[0]

    @property
    def equal(self) -> int:
        """How many of the first plans are as good as the best, as far as the errors of predictions can tell."""
        most = self.best.step.step_time_range_s[1]
        return sum(one.step.fits == self.best.step.fits and one.step.step_time_range_s[0] <= most for one in self.plans)

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Single changes with which the best plan would fit, if it does not."""
        return () if self.job is None or self.best.step.fits else tuple(remedies(self.job, self.best.plan))

    def to_dict(self) -> dict[str, Any]:
        """The job, its best plans, and what was ruled out."""
        names = {"cluster": self.cluster.name, "device": self.device.name, "software": self.software.name}
        return {name: names[name] if name in names else self._plain(name) for name in self.columns}

    def summary(self) -> str:
        """The job and its best plan."""
        return f"{self.model} on {self.gpus} GPUs of {self.cluster.name}: {self.best.summary()}"


def plan(
    model: str | Path | Workload,
    *,
    cluster: str | Topology | Cluster,
    global_batch: int,
    gpus: int | None = None,
    seq: int | None = None,
    precision: str = "bf16",
    software: str | Software | None = None,
    device: str | Device | None = None,
    best: int = 5,
    headroom: float = HEADROOM,
    **fixed: int | bool | str,
) -> Planning:
    """The best plans for a model on `gpus` devices of a cluster. `fixed` are fields of the plan: tp=8, zero=1.

    Without `gpus`, the plan is for all devices of the cluster. A transformer needs `seq`, the tokens per sequence.
    With every field fixed, that one plan is evaluated. ResNet-50 and DLRM have one plan: data parallelism. The search
    leaves a share `headroom` of the memory free where it can, for predictions of memory are not exact. `software` is
    Megatron-core by default, JAX on TPUs and `choreo train` on this machine.

    >>> found = plan("llama3-8b", cluster="hgx-h100", gpus=8, global_batch=16, seq=4096, tp=8, pp=1, cp=1)
    >>> print(found.best.plan.tp, found.best.step.fits, found.cluster.network.name)
    8 True nccl
    """
    start = time.perf_counter()
    workload = get_workload(model)
    if not 0 <= headroom < 1:
        raise UsageError(f"headroom must be a share of the memory from 0 to 1, as in 0.1, not {headroom!r}")
    if best < 1:
        raise UsageError(f"best must be at least 1, not {best!r}")
    Plan(precision=precision)  # refuses one that is not known
    place = get_cluster(cluster)
    chip = place.chip(device)
    gpus = place.gpus if gpus is None else gpus
    if gpus is None and chip.family == "cpu":
        gpus = chip.sms  # a rank a core
    if gpus is None:
        raise UsageError(
            f"{place.name} does not say how many devices there are; give gpus, as in gpus=512, or the number of nodes, "
            f"as in {place.name}:64"
        )
    place.check_gpus(gpus)
    chip, place = chip.for_ranks(gpus), place.for_ranks(gpus)
    place = replace(place, device=chip)
    program = get_software(usual_program(chip.family) if software is None else software)
    if seq is None and isinstance(workload, Model):
        raise UsageError(f"give seq, how many tokens a sequence of {workload.name} has: seq={workload.max_seq or 8192}")
    about = (workload, place, chip, program, gpus, global_batch, seq or 0, precision)
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
    job = TrainingJob(workload, gpus, global_batch, seq or 0, place, chip, program, precision, headroom)
    if all(name in fixed for name in FIELDS if name not in MAY_BE_LEFT):
        one = Plan(**fixed, precision=precision)  # type: ignore[arg-type]
        planned = (_planned(place, one, detailed(job, one)),)
        return Planning(*about, planned, 1, {}, time.perf_counter() - start, job)
    given = {name: value for name, value in fixed.items() if value is not None}
    trained = ability_of(program.name).trained
    found = search(job, fixed=given, best=max(best, TRIED) if trained else best)
    kept = [(one, step) for one, step in found.plans if not trained or _can_be_trained(job, one)] or found.plans
    plans = tuple(_planned(place, one, step) for one, step in kept[:best])
    return Planning(*about, plans, found.considered, found.ruled_out, time.perf_counter() - start, job, found)


def _can_be_trained(job: TrainingJob, one: Plan) -> bool:
    """Whether `choreo train` can run a plan, within what torch can do."""
    try:
        one.check(job.model, job.gpus, job.global_batch, job.seq, uneven_stages=True, trained=True)
    except PlanError:
        return False
    return True


def least_gpus(
    model: str | Path | Workload, *, cluster: str | Topology | Cluster, global_batch: int | str = "1/gpu", **more: Any
) -> Planning:
    """The plan on the least number of devices whose memory suffices: parts of a node, then whole nodes.

    A batch of "2/gpu" is two sequences for each device.

    >>> least_gpus("llama3-8b", cluster="hgx-h100", global_batch=64, seq=4096).gpus
    4
    """
    place = get_cluster(cluster)
    most = min(place.gpus or MOST_GPUS, MOST_GPUS)
    refusal: PlanError | None = None
    for gpus in _counts(max(1, int(place.node_gpus)), most):
        batch = global_batch if isinstance(global_batch, int) else int(global_batch.split("/")[0]) * gpus
        try:
            found = plan(model, cluster=place, gpus=gpus, global_batch=batch, **more)
        except PlanError as error:
            refusal = refusal or error
            continue
        if found.best.step.memory_bytes <= (1 - more.get("headroom", HEADROOM)) * found.best.step.device_bytes:
            return found
    problem = (
        f"no number of devices of {place.name} up to {most} holds {get_workload(model).name} with a global batch of"
    )
    hint = f"a plan for some was refused: {refusal}" if refusal else "a shorter sequence or more devices would"
    raise PlanError(f"{problem} {global_batch}; {hint}")


def _counts(node: int, most: int) -> list[int]:
    """Numbers of devices to try, from the smallest: parts of a node, nodes, and powers of two.

    >>> _counts(8, 60), _counts(72, 150)
    ([1, 2, 4, 8, 16, 24, 32, 40, 48, 56], [1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 36, 64, 72, 128, 144])
    """
    inside = [count for count in range(1, node) if node % count == 0]
    many = [node * nodes << power for power in range(most.bit_length()) for nodes in (4, 5, 6, 7)]
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({count for count in (*inside, node, 2 * node, 3 * node, *many, *powers) if count <= most})


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
