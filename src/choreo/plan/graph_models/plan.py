"""The one plan of ResNet-50 and DLRM, as a step like any other: data parallelism with DLRM's tables sharded."""

from __future__ import annotations

from choreo.errors import PlanError
from choreo.hardware import Device
from choreo.plan.graph_models.step import GraphStep, evaluate_graph
from choreo.plan.network import Cluster
from choreo.plan.pipeline import Pipeline, PipelinePass
from choreo.plan.search.space import Fixed
from choreo.plan.software import Software
from choreo.plan.step import Step
from choreo.workload import ConvNet, Plan, Recommender

__all__ = ["graph_step"]

STATE_BYTES = {"parameters": 4, "gradients": 4, "optimizer": 4}
BUFFER_BYTES = 2 * 25e6  # two buckets of gradients


def graph_step(
    net: ConvNet | Recommender,
    *,
    cluster: Cluster,
    device: Device,
    software: Software,
    gpus: int,
    global_batch: int,
    precision: str,
    fixed: Fixed,
) -> tuple[Plan, Step]:
    """The plan of a model and its step; tokens are samples."""
    _check(net, gpus, global_batch, fixed)
    overlap = bool(fixed.get("overlap", True))
    found = evaluate_graph(
        net,
        cluster=cluster,
        gpus=gpus,
        global_batch=global_batch,
        device=device,
        software=software,
        precision=precision,
        overlap=overlap,
    )
    memory = _memory(found, gpus, software)
    allocated = sum(size for name, size in memory.items() if name not in ("context", "fragmentation"))
    plan = Plan(dp=gpus, micro_batch=global_batch // gpus, overlap=overlap, precision=precision)
    forward = found.forward_s
    tasks = (
        PipelinePass("F", 0, 0, 0, 0.0, forward),
        PipelinePass("B", 0, 0, 0, forward, forward + found.backward_s),
    )
    worst = max(found.parts, key=lambda part: found.parts[part])
    if worst == "communication":
        worst = f"dp {max(found.exposed_comm_s, key=lambda kind: found.exposed_comm_s[kind])}"
    return plan, Step(
        step_time_s=found.step_time_s,
        parts=found.parts,
        exposed_comm_s={f"dp {kind}": seconds for kind, seconds in found.exposed_comm_s.items()},
        bubble_s=0.0,
        memory=memory,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=allocated + memory["fragmentation"],
        device_bytes=device.memory_bytes,
        mfu=found.mfu,
        hfu=found.mfu,
        tokens_per_s_per_gpu=found.samples_per_s / gpus,
        bottleneck=worst,
        gpus=gpus,
        stage_memory=(memory,),
        pipeline=Pipeline(forward + found.backward_s, (forward + found.backward_s,), tasks),
        warnings=(software.warning,) if software.warning else (),
    )


def _check(net: ConvNet | Recommender, gpus: int, global_batch: int, fixed: Fixed) -> None:
    for name, value in (("gpus", gpus), ("global_batch", global_batch)):
        if isinstance(value, bool) or value < 1:
            raise PlanError(f"{name} must be a whole number of at least 1, not {value!r}")
    for name in ("tp", "pp", "cp", "ep"):
        if fixed.get(name, 1) != 1:
            raise PlanError(
                f"{net.name} is cut over dp alone, not {name} {fixed[name]}; {name} 1 and dp {gpus} would do"
            )
    if fixed.get("dp", gpus) != gpus:
        raise PlanError(f"dp {fixed['dp']} is not the {gpus} GPUs that share out the batch; dp {gpus} would do")


def _memory(found: GraphStep, gpus: int, software: Software) -> dict[str, float]:
    """Bytes on a device, by part."""
    memory = {name: found.replicated * width for name, width in STATE_BYTES.items()}
    memory["parameters"] += found.tables * STATE_BYTES["parameters"]
    memory["activations"] = found.saved_bytes
    memory["buffers"] = BUFFER_BYTES if gpus > 1 else 0.0
    memory["fragmentation"] = software.fragmentation * found.saved_bytes
    memory["context"] = software.context_bytes
    return memory
