"""Plans with the same stages, as columns: which layers each stage has, and what they cost.

Plans with the same pp, the same chunks per device and the same split have the same stages. Figures of stages are
matrices of stages by plans; one plan is a matrix of one column. Many plans are estimated from the distinct stages, one
plan is evaluated with all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import LayerTable
from choreo.plan.layer.work import KINDS, LAYERS, WITH_EXPERTS
from choreo.plan.memory.offload import offloaded_adam_s
from choreo.plan.network import collective_time
from choreo.plan.pipeline.dual import DUAL
from choreo.plan.pipeline.split import PipelineStage, stage_list
from choreo.plan.search.space import Space
from choreo.plan.software.ability import ability_of
from choreo.workload.plan import SCHEDULES, WIDE

__all__ = [
    "PlanBatch",
    "accumulation_s",
    "batch_plans",
    "message_bytes",
    "message_s",
    "optimizer_s",
    "replica_host_s",
    "shared_table_s",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kinds = tuple[str, ...]

# Adam over fp32 parameters: read gradient and parameter, write the parameter; a 16-bit copy is written. Moments are
# read and written in addition.
ADAM_BYTES, COPY_BYTES = 12, 2
# The norm of the gradients is one more read, setting them to zero one more write.
NORM_BYTES, ZERO_BYTES = 4, 4


@dataclass(frozen=True, eq=False)
class PlanBatch:
    """Plans of a space with the same stages. Arrays have one number per plan, or one row per stage."""

    job: TrainingJob
    table: LayerTable
    plans: Ints  # rows of the space
    columns: Mapping[str, Ints]  # fields of these plans
    pp: int
    chunks: int
    stages: tuple[PipelineStage, ...]
    alike: tuple[int, ...]  # how many stages of the pipeline each of them stands for
    schedule: str = "1f1b"  # a DualPipe's name, if all plans have that

    @cached_property
    def index(self) -> Ints:
        """The position of each stage in the pipeline, as a column."""
        return np.array([stage.index for stage in self.stages])[:, None]

    @property
    def copies(self) -> int:
        """How many stages hold the same layers: DualPipe's devices have those of both directions."""
        return 2 if self.schedule == "dualpipe" else 1

    @cached_property
    def micro_batches(self) -> Ints:
        """Micro-batches per step that pass each of a plan's layers at one device."""
        return self.job.global_batch // (self.columns["dp"] * self.columns["micro_batch"] * self.copies)

    @cached_property
    def replicas(self) -> Ints:
        """Ranks that have the same parameters, experts excepted."""
        return self.columns["dp"] * self.columns["cp"]

    @cached_property
    def shards(self) -> Ints:
        """Ranks that ZeRO shards the state over, experts excepted."""
        sizes = self.columns["shard_size"]
        return np.where(sizes > 0, sizes, self.columns["dp"]) * self.columns["cp"] * self.copies

    @cached_property
    def expert_replicas(self) -> Ints:
        """Ranks that have the same experts."""
        tp, etp = self.columns["tp"], self.columns["etp"]
        ranks = self.columns["ep"] * np.where(etp == 0, tp, etp)
        return np.asarray(self.replicas * tp // ranks * self.copies)

    @cached_property
    def _counts(self) -> dict[str, Ints]:
        return {kind: np.array([[stage.layers.count(kind)] for stage in self.stages]) for kind in KINDS}

    @cached_property
    def _kinds(self) -> frozenset[str]:
        """The kinds of layers that there are in any stage."""
        return frozenset(kind for stage in self.stages for kind in stage.layers)

    def count(self, kind: str) -> Ints:
        """How many layers of a kind each stage has, as a column."""
        return self._counts[kind]

    @cached_property
    def recomputed(self) -> Floats:
        """The share of a stage's layers that are recomputed, where those are counted."""
        most = -(-self.job.model.layers // self.pp)
        asked = self.columns["recompute_layers"]
        return np.where(asked > 0, np.minimum(asked / most, 1.0), 1.0)

    @cached_property
    def _recomputes_some(self) -> bool:
        """Whether a plan recomputes some layers of a stage, but not all."""
        return bool((self.recomputed < 1).any())

    def layer(self, kind: str, field: str) -> Floats:
        """A figure of one kind of layer: the mean of the recomputed layers and the others."""
        found = self.table.get(kind, field, self.plans)
        if self._recomputes_some:
            plain = self.table.without().get(kind, field, self.plans)
            return np.asarray(plain + self.recomputed * (found - plain))
        return found

    def total(self, field: str, kinds: Kinds = KINDS) -> Floats:
        """A figure summed over the layers of each stage, of some kinds."""
        found = np.zeros((len(self.stages), len(self.plans)))
        for kind in kinds:
            if kind in self._kinds:
                found += self._counts[kind] * self.layer(kind, field)
        return found

    @property
    def shares_table(self) -> bool:
        """Whether the two ends of the pipeline have a copy each of an embedding that is tied or reused."""
        return self.pp > 1 and (self.job.model.tied_embeddings or self.job.model.mtp_layers > 0)

    @cached_property
    def parameters(self) -> Floats:
        """Parameters of each stage. A stage with a head has its own copy of an embedding that is tied or reused."""
        model, held = self.job.model, self.total("parameters")
        if self.shares_table:
            used = self._counts["head"] * model.tied_embeddings + self._counts["further token"]
            held = held + np.minimum(used, 1) * (model.vocab * model.hidden / self.columns["tp"])
        return held

    @cached_property
    def expert_parameters(self) -> Floats:
        """Parameters of the experts of each stage."""
        return self.total("expert_parameters", WITH_EXPERTS)

    def take(self, chosen: Ints) -> PlanBatch:
        """Some of the plans."""
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return PlanBatch(
            self.job,
            self.table,
            self.plans[chosen],
            columns,
            self.pp,
            self.chunks,
            self.stages,
            self.alike,
            self.schedule,
        )


def batch_plans(job: TrainingJob, space: Space, table: LayerTable, plans: Ints, *, every_stage: bool) -> PlanBatch:
    """Plans of a space with the same pp, chunks and split, which all or none have one of the schedules `DUAL`.

    All stages are there, or one of each set of identical ones.
    """
    columns = {name: column[plans] for name, column in space.columns.items()}
    pp = int(columns["pp"][0])
    chunks = int(columns["interleave"][0]) if pp > 1 else 1
    split = space.splits[int(columns["split"][0])] if pp > 1 else "even"
    named = SCHEDULES[int(columns["schedule"][0])]
    schedule = named if pp > 1 and named in DUAL else "1f1b"
    about = {"seq": job.seq, "precision": job.precision, "program": job.software.stage_split, "schedule": schedule}
    stages = stage_list(job.model, pp, chunks, split, **about)
    chunks = len(stages[0].chunks)
    alike = (1,) * pp
    if not every_stage:
        # Of identical stages the first holds the most micro-batches, and so needs the most memory.
        found = Counter(stage.layers for stage in stages)
        first = {stage.layers: stage for stage in reversed(stages)}
        stages, alike = tuple(first[layers] for layers in found), tuple(found.values())
    return PlanBatch(job, table, plans, columns, pp, chunks, stages, alike, schedule)


def message_bytes(job: TrainingJob, micro_batch: npt.ArrayLike, cp: npt.ArrayLike) -> Floats:
    """The activations that one stage sends to the next, over all tensor-parallel ranks."""
    width = 4 if job.precision in WIDE else 2
    return np.asarray(np.asarray(micro_batch) * job.seq / cp * job.model.hidden * width)


def message_s(batch: PlanBatch) -> Floats:
    """Seconds of a message between stages. Tensor-parallel ranks send a part each, and gather the rest if needed."""
    job, columns = batch.job, batch.columns
    if batch.pp == 1:
        return np.zeros(len(batch.plans))
    size = message_bytes(job, columns["micro_batch"], columns["cp"])
    seconds = collective_time(job.cluster, "sendrecv", size / columns["tp"], 2, job.gpus // batch.pp)
    gathered = (columns["sequence_parallel"] == 0) & (columns["tp"] > 1)
    for tp in np.unique(columns["tp"][gathered]).tolist():
        here = gathered & (columns["tp"] == tp)
        seconds[here] += collective_time(job.cluster, "all_gather", size[here], tp, 1)
    return seconds


def shared_table_s(batch: PlanBatch) -> Floats:
    """Seconds in which the two ends of a pipeline sum the gradients of the embedding that both have a copy of.

    Only for `choreo train`: the constants of other programs were fitted to whole steps, which have it.
    """
    if not batch.shares_table or not ability_of(batch.job.software.name).trained:
        return np.zeros(len(batch.plans))
    job, columns = batch.job, batch.columns
    held = job.model.vocab * job.model.hidden / columns["tp"] / np.where(columns["zero"] >= 2, batch.shards, 1)
    far = job.gpus // batch.pp * (batch.pp - 1)
    return collective_time(job.cluster, "all_reduce", held * job.software.gradient_bytes, 2, far)


def accumulation_s(batch: PlanBatch) -> Floats:
    """Seconds per step and stage to accumulate the gradients of the micro-batches after the first.

    The gradient of the embedding is filled with zeros in every micro-batch, and added to that of the output layer where
    both are one table.
    """
    model, further, time_s = batch.job.model, batch.job.software.further_moved, batch.job.device.memory_time
    moved = batch.parameters * further
    table = (batch.count("embedding") > 0) * (model.vocab * model.hidden / batch.columns["tp"])
    tied = (batch.count("head") > 0) & model.tied_embeddings
    filled = table * (further > 0) * (ZERO_BYTES + further * tied)
    found = (batch.micro_batches - 1) * time_s(moved, "elementwise") * (moved > 0)
    return np.asarray(found + batch.micro_batches * time_s(filled, "elementwise") * (filled > 0))


def replica_host_s(batch: PlanBatch) -> Floats:
    """Seconds per step of the host's work for replicas, at each stage.

    torch's DDP has a hook per tensor, and its own work; fully_shard has hooks before and after every pass of a layer.
    """
    software, zero = batch.job.software, batch.columns["zero"]
    by_ddp = software.ddp_operators * batch.total("tensors") + software.ddp_step_operators
    # The embedding, the head and everything else are one more module.
    modules = 1 + sum(batch.count(kind) for kind in LAYERS)
    by_shards = software.shard_operators * modules * batch.micro_batches
    operators = np.where(zero == 0, by_ddp, np.where(zero >= 2, by_shards, 0.0))
    return np.asarray(np.where(batch.replicas > 1, operators * batch.job.device.launch_s, 0.0))


def optimizer_s(batch: PlanBatch) -> Floats:
    """Seconds of the optimizer at each stage: it moves the rank's shard of the state, and its gradients."""
    held, experts = batch.parameters, batch.expert_parameters
    if batch.job.software.frozen:
        return np.zeros_like(held)
    zero, shards = batch.columns["zero"], batch.shards
    owned = (held - experts) / np.where(zero > 0, shards, 1)
    owned += experts / np.where(zero > 0, batch.expert_replicas, 1)
    gradients = held / np.where(zero >= 2, shards, 1)
    copies = COPY_BYTES if batch.job.software.parameter_bytes == 2 else 0
    normed = batch.job.software.gradient_norm
    # Without the norm, gradients are dropped; only those in ZeRO-1's buffer are set to zero.
    zeroed = gradients * (normed | (zero == 1))
    adam = ADAM_BYTES + 2 * batch.job.software.moment_bytes
    if batch.job.software.optimizer_offload:
        kept = batch.job.device.memory_time(zeroed * ZERO_BYTES, "optimizer")
        return offloaded_adam_s(owned, adam, batch.job.device) + kept
    moved = owned * (adam + copies + NORM_BYTES * normed) + zeroed * ZERO_BYTES
    tensors = np.where((zero == 1) & (batch.replicas > 1), 1, batch.total("tensors"))  # ZeRO-1 has its shard in one
    operators = batch.job.software.adam_operators * tensors + batch.job.software.adam_step_operators
    return batch.job.device.memory_time(moved, "optimizer") + operators * batch.job.device.launch_s
