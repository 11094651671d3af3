"""What a plan sends in a step: by axis and collective, how many bytes through each device, over which links.

An all_reduce of n bytes among P ranks moves 2 (P - 1) / P n through each rank, an all_gather or reduce_scatter half of
that. A stage sends n to the next one once, a part from each of its tensor-parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from choreo.plan.job import TrainingJob
from choreo.plan.network import collective_time
from choreo.plan.network.nccl import NcclModel
from choreo.plan.pipeline.split import layers_per_stage
from choreo.plan.plan import link_of
from choreo.plan.stages import message_bytes
from choreo.workload import Plan, backward_graph, layer_graph

__all__ = ["Balance", "CollectiveTraffic", "balance", "traffic"]

THROUGH = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
GRADIENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class CollectiveTraffic:
    """One collective of a plan, as one device of the fullest stage sees it."""

    axes: str
    collective: str
    ranks: int
    size_bytes: float
    through_bytes: float  # bytes that one device sends
    times: int  # in a step
    link: str
    bandwidth_bytes_per_s: float  # a device's share of that link
    seconds: float  # each

    @property
    def step_bytes(self) -> float:
        """What a device sends in a step."""
        return self.through_bytes * self.times


def traffic(job: TrainingJob, plan: Plan) -> tuple[CollectiveTraffic, ...]:
    """Everything that a device of the largest stage sends in a step."""
    micro_batches = plan.micro_batches(job.global_batch)
    chunks = plan.interleave if plan.pp > 1 else 1
    counts = layers_per_stage(job.model, plan.pp, chunks, plan.split, job.seq, plan.precision)
    layers = max(sum(counts[device :: plan.pp]) for device in range(plan.pp))
    forward = layer_graph(job.model, plan, job.seq, job.model.layers - 1)
    found: dict[tuple[str, str, float], int] = {}
    for node in (*forward.collectives, *backward_graph(forward).collectives):
        key = ("+".join(node.axes), node.kind, node.size_bytes)
        found[key] = found.get(key, 0) + layers * micro_batches
    rows = [_row(job, plan, axes, kind, size, times) for (axes, kind, size), times in found.items()]
    if plan.pp > 1:
        size = float(message_bytes(job, plan.micro_batch, plan.cp))
        rows.append(_row(job, plan, "pp", "send", size / plan.tp, 2 * micro_batches))
    if plan.dp * plan.cp > 1:
        held = job.model.parameters / (plan.tp * plan.pp)
        if plan.zero == 0:
            rows.append(_row(job, plan, "dp", "all_reduce", held * GRADIENT_BYTES, 1))
        else:
            often = micro_batches if plan.zero == 3 and plan.pp == 1 else 1
            # Hybrid sharding sends these inside groups, and sums each shard across them.
            inside = plan if plan.shards == plan.dp else replace(plan, dp=plan.shards, shard_size=0)
            gathers = 2 * often if often > 1 else 1
            rows.append(_row(job, inside, "dp", "reduce_scatter", held * GRADIENT_BYTES, often))
            rows.append(_row(job, inside, "dp", "all_gather", held * plan.activation_bytes, gathers))
            if plan.shards < plan.dp:
                rows.append(_across(job, plan, held * GRADIENT_BYTES / (plan.shards * plan.cp), often))
    return tuple(rows)


def _across(job: TrainingJob, plan: Plan, size: float, times: int) -> CollectiveTraffic:
    """The sum of a rank's shard of the gradients over the groups of hybrid sharding."""
    ranks, stride = plan.dp // plan.shards, plan.tp * plan.cp * plan.shards
    seconds = float(collective_time(job.cluster, "all_reduce", size, ranks, stride))
    through = THROUGH["all_reduce"] * (ranks - 1) / ranks * size
    network = job.cluster.network
    bandwidth = network.bandwidth_bytes_per_s(ranks, stride)
    return CollectiveTraffic(
        "dp", "all_reduce", ranks, size, through, times, network.link(ranks, stride), bandwidth, seconds
    )


def _row(  # noqa: PLR0917 -- a row of a table
    job: TrainingJob, plan: Plan, axes: str, kind: str, size: float, times: int
) -> CollectiveTraffic:
    ranks, stride = _group(plan, axes)
    name = link_of(job.cluster, plan, axes)
    through = size if kind == "send" else THROUGH[kind] * (ranks - 1) / ranks * size
    seconds = float(collective_time(job.cluster, "sendrecv" if kind == "send" else kind, size, ranks, stride))
    bandwidth = job.cluster.network.bandwidth_bytes_per_s(ranks, stride)
    return CollectiveTraffic(axes, kind, ranks, size, through, times, name, bandwidth, seconds)


def _group(plan: Plan, axes: str) -> tuple[int, int]:
    if axes == "pp":
        return 2, plan.tp * plan.cp * plan.dp
    names = ("cp", "dp") if axes == "dp" else tuple(axes.split("+"))
    return plan.group(names)


@dataclass(frozen=True, slots=True)
class Balance:
    """How fast links inside a server must be so that tensor parallelism waits no longer than the pipeline."""

    ratio: float  # of inside to between, at least
    inside_bytes_per_s: float  # a device's link inside its server
    between_bytes_per_s: float  # what a server has to the others, all its adapters together

    @property
    def holds(self) -> bool:
        """Whether the links inside a server are fast enough."""
        return self.inside_bytes_per_s >= self.ratio * self.between_bytes_per_s


def balance(job: TrainingJob, plan: Plan) -> Balance | None:
    """For tensor parallelism inside servers and a pipeline between them; None for any other plan."""
    network = job.cluster.network
    if not isinstance(network, NcclModel) or plan.tp == 1 or plan.pp == 1 or plan.tp > network.node_gpus:
        return None
    # An all_reduce of n moves 2 (P - 1) / P n over each device's link while the server sends n to the next one.
    return Balance(2 * (plan.tp - 1) / plan.tp, network.system.intra_bytes_per_s, network.system.network_bytes_per_s)
