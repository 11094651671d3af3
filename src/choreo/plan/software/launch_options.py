"""A plan as command-line options of Megatron-LM and of torchtitan.

Notes beside the options say what a program cannot do, and what it does instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from choreo.workload import Model, Plan

__all__ = ["megatron_options", "torchtitan_options"]

# torchtitan uses PyTorch's names of schedules.
TORCH_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "ZBVZeroBubble",
}
MEGATRON_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def megatron_options(model: Model, plan: Plan, *, global_batch: int, seq: int) -> tuple[list[str], list[str]]:
    """Options for Megatron-LM's pretrain_gpt.py, and notes."""
    options = [*_megatron_model(model, seq), *_megatron_cut(model, plan, global_batch)]
    notes = []
    if plan.pp > 1 and plan.schedule in ("gpipe", "zero-bubble"):
        notes.append(f"Megatron-LM has no schedule {plan.schedule}: it runs 1f1b")
    if plan.pp > 1 and plan.zero >= 2:
        notes.append(f"ZeRO-{plan.zero} beside a pipeline needs Megatron-FSDP, which gathers for every micro-batch")
    return options, notes


def _megatron_model(model: Model, seq: int) -> Iterator[str]:
    yield f"--num-layers {model.layers}"
    yield f"--hidden-size {model.hidden}"
    yield f"--ffn-hidden-size {model.ffn}"
    yield f"--num-attention-heads {model.heads}"
    if model.kv_heads != model.heads and model.latent is None:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.kv_heads}"
    if model.latent is None and model.head_dim * model.heads != model.hidden:
        yield f"--kv-channels {model.head_dim}"
    if latent := model.latent:
        yield "--multi-latent-attention"
        if latent.q_rank:
            yield f"--q-lora-rank {latent.q_rank}"
        yield f"--kv-lora-rank {latent.kv_rank}"
        yield f"--qk-head-dim {latent.nope_dim}"
        yield f"--qk-pos-emb-head-dim {latent.rope_dim}"
        yield f"--v-head-dim {latent.value_dim}"
    yield f"--seq-length {seq}"
    yield f"--max-position-embeddings {max(seq, model.learned_positions)}"
    if not model.learned_positions:
        yield f"--position-embedding-type {'rope' if model.rotary else 'none'}"
    if model.norm == "rms":
        yield "--normalization RMSNorm"
    if model.gated:
        yield "--swiglu"
    if not model.bias:
        yield "--disable-bias-linear"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    if model.experts:
        yield f"--num-experts {model.experts}"
        yield f"--moe-router-topk {model.experts_per_token}"
        yield f"--moe-ffn-hidden-size {model.expert_ffn}"
        if model.shared_experts:
            yield f"--moe-shared-expert-intermediate-size {model.shared_ffn}"


def _megatron_cut(  # noqa: PLR0912 -- an option, a branch
    model: Model, plan: Plan, global_batch: int
) -> Iterator[str]:
    yield f"--tensor-model-parallel-size {plan.tp}"
    yield f"--pipeline-model-parallel-size {plan.pp}"
    if plan.interleave > 1:
        yield f"--num-layers-per-virtual-pipeline-stage {model.layers // (plan.pp * plan.interleave)}"
    if plan.cp > 1:
        yield f"--context-parallel-size {plan.cp}"
    if plan.ep > 1:
        yield f"--expert-model-parallel-size {plan.ep}"
        yield "--moe-grouped-gemm"
        yield "--moe-token-dispatcher-type alltoall"
    if plan.sequence_parallel:
        yield "--sequence-parallel"
    yield f"--micro-batch-size {plan.micro_batch}"
    yield f"--global-batch-size {global_batch}"
    if plan.zero == 1:
        yield "--use-distributed-optimizer"
    if plan.zero >= 2:
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {MEGATRON_SHARDING[plan.zero]}"
    if plan.overlap and plan.dp * plan.cp > 1:
        yield "--overlap-grad-reduce"
        if plan.zero:
            yield "--overlap-param-gather"
    if plan.recompute == "selective":
        yield "--recompute-activations"
    if plan.recompute == "full":
        yield "--recompute-granularity full"
        yield f"--recompute-method {'block' if plan.recompute_layers else 'uniform'}"
        chunks = plan.interleave if plan.pp > 1 else 1
        yield f"--recompute-num-layers {-(-plan.recompute_layers // chunks) if plan.recompute_layers else 1}"
    match plan.precision:
        case "bf16" | "fp16":
            yield f"--{plan.precision}"
        case "fp8":
            yield "--bf16"
            yield "--fp8-format hybrid"
        case "fp4":
            yield "--bf16"
            yield "--fp4-format e2m1"
    yield "--use-flash-attn"


def torchtitan_options(model: Model, plan: Plan, *, global_batch: int, seq: int) -> tuple[list[str], list[str]]:
    """Options for torchtitan's train.py, and notes."""
    replicas = plan.dp * plan.cp
    options = [
        f"--training.seq_len {seq}",
        f"--training.global_batch_size {global_batch}",
        f"--training.local_batch_size {plan.micro_batch * (plan.micro_batches(global_batch) if plan.pp > 1 else 1)}",
        f"--parallelism.data_parallel_replicate_degree {plan.dp if plan.zero == 0 else 1}",
        f"--parallelism.data_parallel_shard_degree {1 if plan.zero == 0 else plan.dp}",
        f"--parallelism.tensor_parallel_degree {plan.tp}",
        f"--parallelism.pipeline_parallel_degree {plan.pp}",
        f"--parallelism.context_parallel_degree {plan.cp}",
    ]
    notes = []
    if plan.pp > 1:
        options.append(f"--parallelism.pipeline_parallel_schedule {TORCH_SCHEDULES[plan.schedule]}")
        options.append(f"--parallelism.pipeline_parallel_microbatch_size {plan.micro_batch}")
        if plan.interleave > 1:
            each = model.layers // (plan.pp * plan.interleave)
            options.append(f"--parallelism.pipeline_parallel_layers_per_stage {each}")
    if plan.ep > 1:
        options.append(f"--parallelism.expert_parallel_degree {plan.ep}")
    if plan.zero in (1, 2) and replicas > 1:
        options.append("--parallelism.fsdp_reshard_after_forward never")
        if plan.zero == 1:
            notes.append("torchtitan shards gradients and parameters too: this is its nearest to ZeRO-1")
    if plan.tp > 1 and not plan.sequence_parallel:
        notes.append("torchtitan's tensor parallelism is always sequence parallel too")
    options.append(f"--activation_checkpoint.mode {plan.recompute}")
    if plan.recompute == "selective":
        options.append("--activation_checkpoint.selective_ac_option op")
    if plan.precision == "fp8":
        options.append("--model.converters float8")
    return options, notes
