"""A step of a ResNet or DLRM under data parallelism.

One graph is the whole model. Kernels run one after another, forward and backward. Gradients are summed in buckets
during the backward pass. An operator waits for the collectives that deliver its inputs, such as DLRM's all_to_all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from choreo.errors import PlanError
from choreo.hardware import Device
from choreo.plan.data_parallel.overlap import backward_exposed, slowed
from choreo.plan.network import Cluster, collective_time
from choreo.plan.software import Software
from choreo.workload import (
    CollectiveOp,
    ConvNet,
    Graph,
    Operator,
    Plan,
    Recommender,
    backward_graph,
    convnet_graph,
    fuse,
    recommender_graph,
)

__all__ = ["GraphStep", "evaluate_graph"]

# PyTorch's DistributedDataParallel and Horovod's fusion buffer send gradients in pieces of about this size.
BUCKET_BYTES = 25 << 20
GRADIENT_BYTES = 4  # gradients of these models are kept and summed in fp32
MOMENTUM_BYTES = 20  # SGD with momentum: read gradient, parameter and momentum, write the last two
KINDS = {"embedding": "gather"}


@dataclass(frozen=True, slots=True)
class GraphStep:
    """The figures of a step; times are in seconds, the same on every device."""

    global_batch: int
    step_time_s: float
    parts: Mapping[str, float]
    exposed_comm_s: Mapping[str, float]
    replicated: float  # parameters that every device has
    tables: float  # parameters of embedding tables, sharded over the devices
    saved_bytes: float  # for the backward pass
    forward_s: float
    backward_s: float
    mfu: float

    @property
    def samples_per_s(self) -> float:
        """Samples per second, on all devices together."""
        return self.global_batch / self.step_time_s


def evaluate_graph(
    net: ConvNet | Recommender,
    *,
    cluster: Cluster,
    gpus: int,
    global_batch: int,
    device: Device,
    software: Software,
    precision: str = "fp16",
    overlap: bool = True,
) -> GraphStep:
    """A data-parallel step of `global_batch` samples on `gpus` devices."""
    if global_batch % gpus:
        near = max(1, round(global_batch / gpus)) * gpus
        raise PlanError(f"global batch {global_batch} is not divisible by {gpus} GPUs; use a global batch of {near}")
    plan = Plan(dp=gpus, micro_batch=global_batch // gpus, precision=precision)
    plain = convnet_graph(net, plan) if isinstance(net, ConvNet) else recommender_graph(net, plan)
    forward = fuse(plain)
    backward = fuse(backward_graph(plain))
    timer = _Timer(device, software, precision, cluster, gpus)
    ahead, waited = timer.run(forward)
    back, waited_back = timer.run(backward)
    compute = sum(ahead.values()) + sum(back.values())
    whole = sum(tensor.elements(plain.mesh) for tensor in plain.weights if not tensor.sharding.states)
    exposed, added = timer.gradients(whole, sum(back.values()), overlap)
    own = sum(tensor.elements(plain.mesh) for tensor in plain.weights if tensor.sharding.states)
    # Only the rows of a table that were read are updated.
    optimizer = float(device.memory_time(whole * MOMENTUM_BYTES, "optimizer"))
    total = compute + sum(waited.values()) + sum(waited_back.values()) + exposed + added + optimizer + software.step_s
    shown = {kind: waited.get(kind, 0.0) + waited_back.get(kind, 0.0) for kind in {**waited, **waited_back}}
    if gpus > 1:
        shown["all_reduce"] = exposed
    flops = net.flops_per_image if isinstance(net, ConvNet) else net.flops_per_sample
    return GraphStep(
        global_batch=global_batch,
        step_time_s=total,
        parts={
            "compute": compute,
            "communication": sum(shown.values()),
            "contention": added,
            "optimizer": optimizer + software.step_s,
        },
        exposed_comm_s=shown,
        replicated=whole,
        tables=own,
        saved_bytes=plain.saved_bytes(),
        forward_s=sum(ahead.values()) + sum(waited.values()),
        backward_s=sum(back.values()) + sum(waited_back.values()),
        mfu=3 * flops * global_batch / (total * gpus * device.peak(precision)),
    )


@dataclass(frozen=True, slots=True)
class _Timer:
    device: Device
    software: Software
    precision: str
    cluster: Cluster
    gpus: int

    def run(self, graph: Graph) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of each operator, and the seconds that operators wait for each collective."""
        seconds = {node.name: self._kernel(node) for node in graph.operators}
        waited: dict[str, float] = {}
        made: dict[str, float] = {}
        clock = lane = 0.0
        for node in graph.nodes:
            ready = max((made.get(name, 0.0) for name in node.inputs), default=0.0)
            if isinstance(node, CollectiveOp):
                lane = max(lane, ready) + self._collective(node.kind, node.size_bytes)
                made |= dict.fromkeys(node.outputs, lane)
                continue
            if ready > clock:
                late = [sent.kind for sent in graph.collectives if set(sent.outputs) & set(node.inputs)]
                kind = late[-1] if late else "all_to_all"
                waited[kind] = waited.get(kind, 0.0) + ready - clock
            clock = max(clock, ready) + seconds[node.name]
            made |= dict.fromkeys(node.outputs, clock)
        if lane > clock:  # the step waits for the last collective even if no operator does
            kind = graph.collectives[-1].kind
            waited[kind] = waited.get(kind, 0.0) + lane - clock
        return seconds, waited

    def _kernel(self, op: Operator) -> float:
        if op.kind == "slice":
            return 0.0
        if op.kind == "matmul":
            took = float(self.device.batched_matmul_time(op.count, op.m, op.n, op.k, self.precision))
            # Convolutions with few channels are bound by the pixels they read and write.
            took = max(took, float(self.device.memory_time(op.bytes_moved, "copy")))
        else:
            took = float(self.device.memory_time(op.bytes_moved, KINDS.get(op.kind, op.kind)))
        return max(took / self.software.efficiency, self.software.host_s * self.device.host_pace)

    def _collective(self, kind: str, size_bytes: float) -> float:
        return float(collective_time(self.cluster, kind, size_bytes, self.gpus))

    def gradients(self, parameters: float, backward_s: float, overlap: bool) -> tuple[float, float]:
        """Exposed seconds of summing gradients, and what contention adds to the compute."""
        if self.gpus == 1:
            return 0.0, 0.0
        size = parameters * GRADIENT_BYTES
        buckets = max(1, round(size / BUCKET_BYTES))
        each = self._collective("all_reduce", size / buckets)
        if not overlap:
            return each * buckets, 0.0
        work = [backward_s / buckets] * buckets
        exposed = float(backward_exposed(work, [each] * buckets))
        return exposed, float(slowed(backward_s, each * buckets, self.software.contention)) - backward_s
