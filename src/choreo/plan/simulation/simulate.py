"""Simulate a plan's step on its topology, and compare it with the closed-form estimate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from choreo.errors import UsageError
from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import tabulate
from choreo.plan.pipeline.dual import DUAL
from choreo.plan.plan import Planning
from choreo.plan.search.search import detailed
from choreo.plan.search.space import space_of
from choreo.plan.simulation.graph import MOST_NODES, folded_step
from choreo.plan.stages import batch_plans
from choreo.plan.step import Step
from choreo.simulate.execution import WorkloadSimulation
from choreo.simulate.execution.rules import Rule, parse_rules
from choreo.simulate.execution.runner import Runner, check_order
from choreo.simulate.packets.settings import Packets
from choreo.topology import Topology, get_topology
from choreo.units import counted
from choreo.workload import Plan

__all__ = ["PlanSimulation", "simulate_plan"]


@dataclass(frozen=True, slots=True, eq=False)
class PlanSimulation:
    """A step twice: estimated in closed form, and simulated with its collectives sharing links."""

    plan: Plan
    step: Step
    run: WorkloadSimulation

    @property
    def ratio(self) -> float:
        """Simulated over estimated time, without what the estimate adds for stragglers and the host's fixed work."""
        return self.run.time_s / self.estimated_s

    @property
    def estimated_s(self) -> float:
        """The estimate of the simulated part."""
        return self.step.step_time_s - self.step.parts["stragglers"]

    def to_dict(self) -> dict[str, Any]:
        """What `choreo plan --simulate --json` prints."""
        return {
            "plan": self.plan.fields(),
            "estimated_s": self.estimated_s,
            "simulated_s": self.run.time_s,
            "ratio": self.ratio,
            "simulation": self.run.to_dict(),
        }


def simulate_plan(
    planning: Planning,
    *,
    topology: Topology | str | Path | None = None,
    algorithm: str = "suggested",
    order: str = "fifo",
    at_once: int = 1,
    packets: Packets | None = None,
    fold: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> PlanSimulation:
    """Simulate the best plan's step: all ranks, pipeline, tensor, expert and data parallelism on the topology.

    The topology is the cluster's unless another is given, whose first devices are then the ranks. `algorithm`, `order`
    and `at_once` are those of `simulate_workload`. With `packets` every packet is followed, which is for short steps.
    Otherwise ranks that do the same at the same time are simulated once, unless `fold` is false; the result is the
    same.

    >>> from choreo import plan
    >>> found = plan("llama3.2-1b", cluster="hgx-h100:1", global_batch=16, seq=2048, tp=2, pp=2, zero=0)
    >>> 0.8 < simulate_plan(found).ratio < 1.3
    True
    """
    if planning.job is None:
        raise UsageError(f"{planning.model} is planned by its graph, and only steps of transformers are simulated")
    best, job = planning.best.plan, planning.job
    if best.shards < best.dp:
        raise UsageError(f"hybrid sharding (shard_size {best.shard_size}) is not simulated; leave shard_size 0")
    if best.pp > 1 and best.schedule in DUAL:
        raise UsageError(f"{best.schedule} is not simulated on the topology; plan with --schedule 1f1b or interleaved")
    step = detailed(job, best, timeline=True)
    space = space_of([best])
    table = tabulate(job, space)
    batch = batch_plans(job, space, table, np.array([0]), every_stage=True)
    network = _topology(job) if topology is None else get_topology(topology)
    if best.gpus > network.num_devices:
        raise UsageError(
            f"the plan is for {counted(best.gpus, 'GPU')}, and {network.name} has "
            f"{counted(network.num_devices, 'device')}; take a larger topology"
        )
    check_order(order, at_once)
    rule = Rule(network, *parse_rules(algorithm))
    runner = Runner(network, np.arange(best.gpus), rule, order == "lifo", at_once, progress, packets=packets)
    # Randomly drawn paths make ranks differ.
    found = runner.run_folded(folded_step(batch, best, step.pipeline), fold=fold and packets is None)
    if found is None:
        raise UsageError(
            f"on {network.name} the {counted(best.gpus, 'rank')} of this plan do different things at different times, "
            f"and so have more than {MOST_NODES:.0e} nodes; take fewer devices, replicas or micro-batches: --dp 2 "
            "--global-batch ..."
        )
    folded, times, wire = found
    run = WorkloadSimulation(
        folded.graph,
        network,
        times,
        wire.link_bytes,
        wire.link_busy_s,
        folded.stands_in,
        packet_reports=tuple(wire.reports),
    )
    return PlanSimulation(best, step, run)


def _topology(job: TrainingJob) -> Topology:
    """The network of the devices that the job uses."""
    if job.cluster.gpus is None:
        return get_topology(f"{job.cluster.name}:{math.ceil(job.gpus / job.cluster.node_gpus)}")
    return get_topology(job.cluster.name)
