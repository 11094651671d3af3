"""A step of what is no transformer: ResNet-50 and its kin, and DLRM, under data parallelism.

One graph is the whole model. Kernels run one after another, forward and backward; gradients are summed in buckets while
the backward pass goes on, and what the graph itself has to send (DLRM's all_to_all) is waited for by what reads it.
On a machine of the catalogue communication takes what NCCL would take there; on a network given as blocks, what the
simulation of its own schedule says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from choreo.errors import PlanError
from choreo.hardware import Device
from choreo.plan.collective_times import Cluster, collective_time
from choreo.plan.data_parallel.overlap import backward_exposed, slowed
from choreo.plan.software import Software
from choreo.topology import Topology
from choreo.workload import (
    Collective,
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

__all__ = ["GraphStep", "Network", "cluster_network", "evaluate_graph", "topology_network"]

# PyTorch's DistributedDataParallel and Horovod's fusion buffer: gradients leave in pieces of about this size.
BUCKET_BYTES = 25 << 20
GRADIENT_BYTES = 4  # gradients of these models are kept and summed in fp32
MOMENTUM_BYTES = 20  # SGD with momentum: read gradient, parameter and momentum, write the last two
KINDS = {"embedding": "gather"}

Network = Callable[[str, float], float]


@dataclass(frozen=True, slots=True)
class GraphStep:
    """What a step takes; times are seconds, of one device and of all of them alike."""

    name: str
    gpus: int
    global_batch: int
    step_time_s: float
    parts: Mapping[str, float]
    exposed_comm_s: Mapping[str, float]
    communication_s: Mapping[str, float]  # all of it, hidden or not
    sent_bytes: Mapping[str, float]  # sizes, as nccl-tests counts them
    replicated: float  # parameters that every device has
    tables: float  # parameters of which a device has a share: its own
    saved_bytes: float  # for the backward pass
    forward_s: float
    backward_s: float
    mfu: float

    @property
    def samples_per_s(self) -> float:
        """Of all devices."""
        return self.global_batch / self.step_time_s

    @property
    def exposed_share(self) -> float:
        """Of the step, what is spent waiting for communication."""
        return sum(self.exposed_comm_s.values()) / self.step_time_s


def cluster_network(cluster: Cluster, gpus: int) -> Network:
    """As NCCL would run it on the machine's first GPUs."""
    return lambda kind, size: float(collective_time(cluster, kind, size, gpus, 1))


def topology_network(topology: Topology, gpus: int, *, faster: float = 1.0) -> Network:
    """As the schedule that suits the network takes there, simulated."""
    from choreo.simulate import simulate, suggested_schedule

    def seconds(kind: str, size: float) -> float:
        if gpus == 1 or size <= 0:
            return 0.0
        schedule = suggested_schedule(kind, topology, gpus, along_dimensions=gpus == topology.num_devices)
        return simulate(schedule, topology, math.ceil(size)).time_s / faster

    return seconds


def evaluate_graph(
    net: ConvNet | Recommender,
    *,
    network: Network,
    gpus: int,
    global_batch: int,
    device: Device,
    software: Software,
    precision: str = "fp16",
    overlap: bool = True,
) -> GraphStep:
    """A data-parallel step of `global_batch` samples on so many devices."""
    if global_batch % gpus:
        near = max(1, round(global_batch / gpus)) * gpus
        raise PlanError(f"global batch {global_batch} does not divide by {gpus} GPUs; a global batch of {near} would")
    plan = Plan(dp=gpus, micro_batch=global_batch // gpus, precision=precision)
    plain = convnet_graph(net, plan) if isinstance(net, ConvNet) else recommender_graph(net, plan)
    forward = fuse(plain)
    backward = fuse(backward_graph(plain))
    timer = _Timer(device, software, precision, network)
    ahead, waited = timer.run(forward)
    back, waited_back = timer.run(backward)
    compute = sum(ahead.values()) + sum(back.values())
    whole = sum(tensor.elements(plain.mesh) for tensor in plain.weights if not tensor.sharding.states)
    reduce_s, exposed, added = timer.gradients(whole, sum(back.values()), gpus, overlap)
    own = sum(tensor.elements(plain.mesh) for tensor in plain.weights if tensor.sharding.states)
    # Rows of tables are updated where they were read; the rest of a table is left alone.
    optimizer = float(device.memory_time(whole * MOMENTUM_BYTES, "optimizer"))
    total = compute + sum(waited.values()) + sum(waited_back.values()) + exposed + added + optimizer + software.step_s
    shown = {kind: waited.get(kind, 0.0) + waited_back.get(kind, 0.0) for kind in {**waited, **waited_back}}
    if gpus > 1:
        shown["all_reduce"] = exposed
    flops = net.flops_per_image if isinstance(net, ConvNet) else net.flops_per_sample
    sent = {link.kind: 0.0 for link in (*forward.collectives, *backward.collectives)}
    for link in (*forward.collectives, *backward.collectives):
        sent[link.kind] += link.size_bytes
    if gpus > 1:
        sent["all_reduce"] = whole * GRADIENT_BYTES
    return GraphStep(
        net.name,
        gpus,
        global_batch,
        total,
        {
            "compute": compute,
            "communication": sum(shown.values()),
            "contention": added,
            "optimizer": optimizer + software.step_s,
        },
        shown,
        {**{kind: network(kind, size) for kind, size in sent.items() if kind != "all_reduce"}, "all_reduce": reduce_s}
        if gpus > 1
        else {},
        sent,
        whole,
        own,
        plain.saved_bytes(),
        sum(ahead.values()) + sum(waited.values()),
        sum(back.values()) + sum(waited_back.values()),
        3 * flops * global_batch / (total * gpus * device.peak(precision)),
    )


@dataclass(frozen=True, slots=True)
class _Timer:
    device: Device
    software: Software
    precision: str
    network: Network

    def run(self, graph: Graph) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of each operator; and by collective what is waited for, while work that does not need it goes on."""
        seconds = {node.name: self._kernel(node) for node in graph.operators}
        waited: dict[str, float] = {}
        made: dict[str, float] = {}
        clock = lane = 0.0
        for node in graph.nodes:
            ready = max((made.get(name, 0.0) for name in node.inputs), default=0.0)
            if isinstance(node, Collective):
                lane = max(lane, ready) + self.network(node.kind, node.size_bytes)
                made |= dict.fromkeys(node.outputs, lane)
                continue
            if ready > clock:
                late = [link.kind for link in graph.collectives if set(link.outputs) & set(node.inputs)]
                kind = late[-1] if late else "all_to_all"
                waited[kind] = waited.get(kind, 0.0) + ready - clock
            clock = max(clock, ready) + seconds[node.name]
            made |= dict.fromkeys(node.outputs, clock)
        if lane > clock:  # what is sent last, to where nothing waits for it but the end of the step
            kind = graph.collectives[-1].kind
            waited[kind] = waited.get(kind, 0.0) + lane - clock
        return seconds, waited

    def _kernel(self, op: Operator) -> float:
        if op.kind == "slice":
            return 0.0
        if op.kind == "matmul":
            took = float(self.device.batched_matmul_time(op.count, op.m, op.n, op.k, self.precision))
            # Convolutions read and write pixels: thin ones are bound by that.
            took = max(took, float(self.device.memory_time(op.bytes_moved, "copy")))
        else:
            took = float(self.device.memory_time(op.bytes_moved, KINDS.get(op.kind, op.kind)))
        return max(took / self.software.efficiency, self.software.host_s)

    def gradients(self, parameters: float, backward_s: float, gpus: int, overlap: bool) -> tuple[float, float, float]:
        """Seconds to sum the gradients, of these what shows, and what contention adds to the compute."""
        if gpus == 1:
            return 0.0, 0.0, 0.0
        size = parameters * GRADIENT_BYTES
        buckets = max(1, round(size / BUCKET_BYTES))
        each = self.network("all_reduce", size / buckets)
        if not overlap:
            return each * buckets, each * buckets, 0.0
        work = [backward_s / buckets] * buckets
        exposed = backward_exposed(work, [each] * buckets)
        return each * buckets, exposed, slowed(backward_s, each * buckets, self.software.contention) - backward_s
