"""Predict a training run on this machine, with the planner's own functions for the same model and plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from choreo.errors import UsageError
from choreo.hardware import get_device
from choreo.plan import Software, Step, evaluate, get_software
from choreo.plan.network import Cluster, get_cluster
from choreo.plan.network.this_machine import THIS_MACHINE, ThisMachineModel
from choreo.plan.parameter_server import parameter_server
from choreo.train.config import TrainConfig
from choreo.train.experiments.kinds import KINDS
from choreo.train.result import Prediction
from choreo.train.scale import LAYERS_BETWEEN, shallow
from choreo.workload import Model

__all__ = ["predict"]

SOFTWARE = "choreo-train"
# Autocast casts an activation again for each matmul that reads it, and bias and norm gradients are reduced by slow
# kernels. Fitted to eager steps of four models on one H200, whose kernels were profiled.
EAGER_EFFICIENCY = 0.9


def predict(
    config: TrainConfig, cluster: str | Cluster | None = None, *, host_layer_s: float | None = None
) -> Prediction:
    """Seconds of a step, where they go, and what a rank holds besides the libraries.

    On CPUs it needs the results of `choreo calibrate` and `choreo calibrate --device cpu`, and says so if they are
    missing. On a GPU it takes the catalogue's device with the GPU's name, and one rank. `host_layer_s` is the measured
    time of the GPU's host per layer (`measure_host_pace`).
    """
    if not isinstance(config.model, Model):
        raise UsageError(f"{config.model.name} is not a transformer, and only transformers are predicted")
    on_gpu = config.device == "cuda"
    if on_gpu and config.ranks > 1:
        raise UsageError(f"on GPUs of this machine only a single rank is predicted, not {config.ranks}")
    if cluster is None:
        cluster = f"{get_device(gpu_name()).cluster}:1" if on_gpu else THIS_MACHINE
    found = _summing(config, get_cluster(cluster))
    software = _software(config)
    if on_gpu and host_layer_s is not None:
        software = replace(software, host_s=software.host_s * host_layer_s / _host_layer_s(config, found))
    step = _evaluate(config, found, software, timeline=True)
    parts = {**step.exposed_comm_s, "bubble": step.bubble_s, "optimizer": step.parts["optimizer"]}
    time_s = step.step_time_s
    if config.servers:
        alone_s = step.step_time_s - parts.pop("dp all_reduce", 0.0)
        parts["dp server"] = _served_s(config, found, alone_s)
        time_s = alone_s + parts["dp server"]
    # Copies of gradients and parameters count as compute, as they do when a step is measured.
    compute = time_s - sum(parts.values())
    timeline = () if config.servers else tuple(_timeline(step, parts))
    return Prediction(time_s, {"compute": compute, **parts}, step.peak_reserved_bytes, timeline)


def _timeline(step: Step, parts: Mapping[str, float]) -> Iterator[Mapping[str, Any]]:
    """Passes as simulated; the sums of gradients and the optimizer come after them."""
    for task in step.pipeline.tasks:
        at = {"micro_batch": task.micro_batch, "chunk": task.chunk, "start_s": task.start_s, "end_s": task.end_s}
        yield {"stage": task.stage, "name": task.kind, **at}
    sent = {name: seconds for name, seconds in parts.items() if name.startswith("dp ") or name == "pp all_reduce"}
    # The passes have already waited for some of the replicas' sums.
    left_s = max(0.0, step.step_time_s - step.pipeline.time_s - parts["optimizer"])
    share = min(1.0, left_s / max(sum(sent.values()), 1e-12))
    after = {name: seconds * share for name, seconds in sent.items()} | {"optimizer": parts["optimizer"]}
    start_s = step.pipeline.time_s
    for name, seconds in after.items():
        end_s = start_s + seconds
        for stage in range(len(step.pipeline.busy_s)):
            yield {"stage": stage, "name": name, "micro_batch": -1, "chunk": 0, "start_s": start_s, "end_s": end_s}
        start_s = end_s


def _evaluate(config: TrainConfig, cluster: Cluster, software: Software, *, timeline: bool = False) -> Step:
    gpus = 1 if config.device == "cuda" else None
    assert isinstance(config.model, Model)
    # torch's kernel computes the scores of all keys and masks those outside a window.
    model = replace(config.model, window=0, full_every=0, chunked=False)
    return evaluate(
        model,
        config.plan,
        cluster=cluster,
        gpus=gpus,
        global_batch=config.global_batch,
        seq=config.seq,
        software=software,
        timeline=timeline,
    )


def _host_layer_s(config: TrainConfig, cluster: Cluster) -> float:
    """The planner's time of a layer of a tiny model, which is the host's time alone."""
    less, more = (_evaluate(shallower, cluster, _software(shallower)).step_time_s for shallower in shallow(config))
    return (more - less) / LAYERS_BETWEEN


def _summing(config: TrainConfig, cluster: Cluster) -> Cluster:
    """The cluster with the all_reduce that gradients use."""
    algorithm, plan = KINDS[config.data_parallel], config.plan
    if not algorithm or not isinstance(cluster.network, ThisMachineModel):
        return cluster
    if plan.gpus != plan.dp:
        raise UsageError(f"{config.data_parallel} is predicted for replicas alone, not for {plan}")
    return replace(cluster, network=replace(cluster.network, all_reduce=algorithm))


def _served_s(config: TrainConfig, cluster: Cluster, alone_s: float) -> float:
    """The time that a step takes beyond `alone_s` because parameters are on servers.

    The bytes of all workers go into a server and out again. A worker waits for that if it waits for all others; if not,
    only for its own bytes, as long as the servers keep up.
    """
    workers, size = config.plan.dp, 4.0 * config.model.parameters
    bandwidth = cluster.network.bandwidth_bytes_per_s(config.ranks, 1)
    server = parameter_server(size / config.servers, workers, 1 / alone_s, bandwidth)
    all_s = 2 / server.most_steps_per_s
    return all_s if config.staleness == 0 else max(2 * size / bandwidth, all_s - alone_s)


def _software(config: TrainConfig) -> Software:
    """The software that choreo train runs: bf16 by autocast, which casts fp32 weights for each use and sums in fp32."""
    found = get_software(SOFTWARE)
    if config.device == "cuda":
        on_gpu = get_software("torch-compile" if config.compile else "torch-eager")
        efficiency = on_gpu.efficiency if config.compile else EAGER_EFFICIENCY
        return replace(on_gpu, further_moved=found.further_moved, efficiency=efficiency)
    return found if config.plan.precision == "fp32" else replace(found, stream_bytes=4, cast_weights=True)


def gpu_name() -> str:
    """The name of this machine's GPU."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("torch sees no GPU here")
    return str(torch.cuda.get_device_name())
