"""What if: the step time of a job with faster or slower links, devices or memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from choreo.errors import UnknownNameError, UsageError
from choreo.hardware import Device
from choreo.plan.job import TrainingJob
from choreo.plan.network import Cluster
from choreo.plan.plan import Planning, plan
from choreo.plan.search.search import detailed
from choreo.plan.software import Software
from choreo.workload import Plan

__all__ = [
    "FACTORS",
    "VARIABLES",
    "WhatIfCurve",
    "WhatIfPoint",
    "vary",
    "vary_device",
    "vary_place",
    "vary_software",
    "what_if",
]

VARIABLES: Mapping[str, str] = {
    "bandwidth": "bandwidth of all links",
    "latency": "latency of all links",
    "compute": "everything that a device and its host do",
    "flops": "FLOP/s of the devices",
    "memory-bandwidth": "their memory's bandwidth",
    "memory": "their memory",
}
# What a page shows, and for which factors.
SHOWN = ("bandwidth", "latency", "flops", "memory-bandwidth", "memory")
FACTORS = (0.25, 0.5, 0.707, 1.0, 1.414, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class WhatIfPoint:
    """The step time at one factor, and the plan if another one is best there."""

    factor: float
    step_time_s: float
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class WhatIfCurve:
    """The step time as one quantity varies."""

    name: str
    points: tuple[WhatIfPoint, ...]


def vary_device(device: Device, name: str, factor: float) -> Device:
    """A device of `factor` times the FLOP/s, memory or memory bandwidth."""
    title = f"{device.name}, {factor:g} times the {name}"
    if name == "flops":
        peaks = {precision: peak * factor for precision, peak in device.peak_flops.items()}
        return replace(device, name=title, peak_flops=peaks)
    if name == "memory-bandwidth":
        bandwidth = device.memory_bandwidth_bytes_per_s * factor
        return replace(device, name=title, memory_bandwidth_bytes_per_s=bandwidth)
    return replace(device, name=title, memory_bytes=int(device.memory_bytes * factor))


def vary_place(cluster: Cluster, device: Device, name: str, factor: float) -> tuple[Cluster, Device]:
    """A cluster and its device with one quantity multiplied by `factor`."""
    if name not in VARIABLES:
        raise UnknownNameError("quantity", name, VARIABLES)
    if not factor > 0:
        raise UsageError(f"a factor must be more than zero, not {factor:g}; 2 doubles the {name}")
    if factor == 1 or name == "compute":
        return cluster, device
    if name == "bandwidth":
        return replace(cluster, faster=cluster.faster * factor), device
    if name == "latency":
        return replace(cluster, delay=cluster.delay * factor), device
    return cluster, vary_device(device, name, factor)


def vary_software(software: Software, name: str, factor: float) -> Software:
    """A program whose kernels and host are `factor` times as fast, if "compute" varies."""
    if name != "compute" or factor == 1:
        return software
    return replace(
        software,
        efficiency=software.efficiency * factor,
        host_s=software.host_s / factor,
        step_s=software.step_s / factor,
    )


def vary(job: TrainingJob, name: str, factor: float) -> TrainingJob:
    """The same job with one quantity multiplied by `factor`."""
    cluster, device = vary_place(job.cluster, job.device, name, factor)
    return replace(job, cluster=cluster, device=device, software=vary_software(job.software, name, factor))


def what_if(planning: Planning, one: Plan, factors: Iterable[float] = FACTORS) -> tuple[WhatIfCurve, ...]:
    """The step time of a plan as each quantity varies. If memory varies, the best plan may change."""
    job = planning.job
    if job is None:
        return _what_if_graph(planning, factors)
    found = []
    for name in SHOWN:
        points = []
        for factor in factors:
            other = vary(job, name, factor)
            if name != "memory":
                points.append(WhatIfPoint(factor, detailed(other, one).step_time_s))
            else:
                best = _best_within(planning, job, other, one)
                if best is not None:
                    changed = best if best != one else None
                    points.append(WhatIfPoint(factor, detailed(other, best).step_time_s, changed))
        found.append(WhatIfCurve(name, tuple(points)))
    return tuple(found)


def _what_if_graph(planning: Planning, factors: Iterable[float]) -> tuple[WhatIfCurve, ...]:
    """The same for models that have one plan."""
    found = []
    for name in SHOWN:
        points = []
        for factor in factors:
            cluster, device = vary_place(planning.cluster, planning.device, name, factor)
            other = plan(
                planning.workload,
                cluster=cluster,
                gpus=planning.gpus,
                global_batch=planning.global_batch,
                precision=planning.precision,
                software=vary_software(planning.software, name, factor),
                device=device,
            )
            if other.best.step.fits:
                points.append(WhatIfPoint(factor, other.best.step.step_time_s))
        found.append(WhatIfCurve(name, tuple(points)))
    return tuple(found)


def _best_within(planning: Planning, was: TrainingJob, job: TrainingJob, one: Plan) -> Plan | None:
    """The estimated best plan within the available memory; None if none fits."""
    if planning.found is None:
        return one if detailed(job, one).fits else None
    guess = planning.found.estimate
    if job.device.memory_bytes == was.device.memory_bytes:
        return one
    fits = np.flatnonzero(guess.memory_bytes <= job.device.memory_bytes)
    if not len(fits):
        return None
    best = planning.found.space.plan(int(fits[np.argmin(guess.time_s[fits])]))
    here = detailed(job, one)
    if here.fits and here.step_time_s <= detailed(job, best).step_time_s:
        return one
    return best
