"""Options of torchtitan's train.py.

torchtitan takes a model from its own list, so only those can be trained by options alone. The list is as of 2026-08-21.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from choreo.plan.pipeline.split import layers_per_stage
from choreo.plan.software.ability import ability_of

if TYPE_CHECKING:
    from choreo.plan.job import TrainingJob
    from choreo.workload import Plan

__all__ = ["torchtitan_lacks", "torchtitan_notes", "torchtitan_options"]

# Modules and configurations for models of the catalogue.
MODELS = MappingProxyType(
    {
        "llama3-8b": ("llama3", "llama3_8b"),
        "llama3-70b": ("llama3", "llama3_70b"),
        "qwen3-0.6b": ("qwen3", "qwen3_0_6b"),
        "qwen3-1.7b": ("qwen3", "qwen3_1_7b"),
        "qwen3-14b": ("qwen3", "qwen3_14b"),
        "qwen3-32b": ("qwen3", "qwen3_32b"),
        "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
        "deepseek-v2-lite": ("deepseek_v3", "deepseek_v3_16b"),
        "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
        "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
        "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
    }
)
# Configurations that compute in fp8.
FP8 = MappingProxyType(
    {"llama3-405b": ("llama3", "llama3_405b"), "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b_float8")}
)
# PyTorch's names of schedules, with one chunk of layers per stage and with several.
SINGLE = {"gpipe": "GPipe", "1f1b": "1F1B"}
SEVERAL = {"1f1b": "Interleaved1F1B", "interleaved": "Interleaved1F1B", "zero-bubble": "InterleavedZeroBubble"}
SEVERAL |= {"dualpipev": "DualPipeV"}


def torchtitan_lacks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What a model or a plan has that torchtitan has no option for."""
    model = job.model
    if model.name not in _configurations(plan):
        yield f"it has no configuration of {model.name} in {plan.precision}"
    if job.software.frozen:
        yield "adapters, whose options choreo does not print"
    reasons = ability_of("torchtitan").lacks(plan)
    yield from reasons
    if plan.pp > 1 and not reasons:
        names = SINGLE if plan.interleave == 1 else SEVERAL
        if plan.schedule not in names:
            yield f"{plan.schedule} with {'one chunk' if plan.interleave == 1 else 'several chunks'} a stage"
        if _less_layers(job, plan) is None:
            yield "these numbers of layers by stage"
    if plan.zero == 0 and plan.cp > 1:
        yield "context parallelism without sharding"
    if model.mtp_layers:
        yield "layers that predict further tokens, which its configuration leaves out"
    if job.software.activation_offload or job.software.optimizer_offload:
        yield "offload to the host, which choreo prices as Megatron does it"
    if model.experts and plan.expert_tp > 1:
        yield "experts cut by tensor parallelism, which it spreads over those ranks instead"
    if plan.recompute_layers:
        yield "recomputation of some layers"
    if "+async-tp" in job.software.name and "+compile" not in job.software.name:
        yield "async tensor parallelism without the compiler; torchtitan+compile+async-tp has both"


def _configurations(plan: Plan) -> Mapping[str, tuple[str, str]]:
    return {"bf16": MODELS, "fp8": FP8}.get(plan.precision, {})


def torchtitan_notes(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """Notes that go with the options."""
    yield f"for torchtitan of August 2026, with torchrun on {plan.gpus} ranks; add --hf_assets_path for the tokenizer"
    if plan.precision == "fp8" and job.software.fp8_scaling != "row":
        yield "its fp8 has a scale a row; --software torchtitan+rowwise plans for that"
    if job.model.name == "deepseek-v2-lite":
        yield "its deepseek_v3_16b is DeepSeek-V2-Lite"


def torchtitan_options(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """The options; the last argument chooses how activations are recomputed."""
    module, config = _configurations(plan)[job.model.name]
    yield f"--module {module} --config {config}"
    yield f"--training.max_context_length {job.seq}"
    yield f"--training.num_tokens_per_microbatch_per_dp_rank {plan.micro_batch * job.seq}"
    yield f"--training.num_tokens_per_train_step {job.global_batch * job.seq}"
    shards = plan.shards if plan.zero else 1
    yield f"--parallelism.data_parallel_replicate_degree {plan.dp // shards}"
    yield f"--parallelism.data_parallel_shard_degree {shards}"
    if plan.zero:
        yield f"--parallelism.fsdp_reshard_after_forward {'never' if plan.zero == 2 else 'always'}"
    yield f"--parallelism.tensor_parallel_degree {plan.tp}"
    if plan.tp > 1 and not plan.sequence_parallel:
        yield "--parallelism.no-enable_sequence_parallel"
    yield f"--parallelism.context_parallel_degree {plan.cp}"
    yield f"--parallelism.expert_parallel_degree {plan.ep}"
    yield f"--parallelism.pipeline_parallel_degree {plan.pp}"
    if plan.pp > 1:
        yield from _pipeline(job, plan)
    if plan.pp > 1 or job.model.experts:
        yield "--training.disable_cuda_graphs"
    # Its configurations cut the tokens of the loss into eight parts, and differ in what they compile.
    yield f"--loss.num_chunks {job.software.loss_chunks}"
    if "+compile" in job.software.name:
        loss = "" if "+eager-loss" in job.software.name else ",loss"
        yield f"--compile.enable --compile.components model{loss}"
    else:
        yield "--compile.no-enable"
    asynchronous = "+async-tp" in job.software.name and plan.tp > 1
    yield f"--compile.{'' if asynchronous else 'no-'}enable_async_tensor_parallel"
    yield f"activation-checkpoint:{plan.recompute}"


def _pipeline(job: TrainingJob, plan: Plan) -> Iterator[str]:
    names = SINGLE if plan.interleave == 1 else SEVERAL
    yield f"--parallelism.pipeline_parallel_schedule {names[plan.schedule]}"
    yield f"--parallelism.num_pp_microbatches {plan.micro_batches(job.global_batch)}"
    first, last = _less_layers(job, plan) or (0, 0)
    stages = plan.pp * plan.interleave
    yield f"--parallelism.pipeline_parallel_first_stage_less_layers {first}"
    yield f"--parallelism.pipeline_parallel_last_stage_less_layers {last}"
    yield f"--parallelism.pipeline_parallel_layers_per_stage {-(-(job.model.layers + first + last) // stages)}"


def _less_layers(job: TrainingJob, plan: Plan) -> tuple[int, int] | None:
    """How many fewer layers the first and the last stage have, if torchtitan can make the plan's split.

    It counts the embedding and the head as a number of layers and deals out all of them, the remainder to the first
    stages.
    """
    layers, stages = job.model.layers, plan.pp * plan.interleave
    wanted = layers_per_stage(job.model, plan.pp, plan.interleave, plan.split, job.seq, plan.precision)
    for first in range(3):
        for last in range(6):
            each, more = divmod(layers + first + last, stages)
            counts = [each + (stage < more) for stage in range(stages)]
            counts[0] -= first
            counts[-1] -= last
            # The layers per stage must give the right number of stages, and no stage may have fewer layers than it
            # leaves out.
            whole = -(-(layers + first + last) // -(-(layers + first + last) // stages)) == stages
            if tuple(counts) == wanted and whole and max(first, last) <= each:
                return first, last
    return None
