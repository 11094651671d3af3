"""Options of Megatron-LM's pretrain_gpt.py: the model, the cut, and how it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from choreo.plan.launch.megatron_lacks import offloaded_layers
from choreo.plan.pipeline.split import layers_per_stage
from choreo.workload.plan import SPLITS

if TYPE_CHECKING:
    from choreo.plan.job import TrainingJob
    from choreo.workload import Model, Plan, Yarn

__all__ = ["megatron_notes", "megatron_options"]

SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
PADDING = 128  # Megatron-LM pads the vocabulary to a multiple of this times tp by default
NEWER = ("blackwell",)  # architectures that need no CUDA_DEVICE_MAX_CONNECTIONS, and have mxfp8
SCALING = {"tensor": "delayed", "current": "tensorwise", "block": "blockwise", "row": "tensorwise"}
LATENT_YARN = (32.0, 1.0, 4096)  # beta_fast, beta_slow and first_seq, for which latent attention has no options
CONTEXT = {"ring": "p2p", "all_gather": "allgather"}


def megatron_notes(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """Notes that go with the options."""
    mock = f"--mock-data --tokenizer-type NullTokenizer --vocab-size {job.model.vocab - 1}"
    yield f"add data, tokenizer and learning rate; to try it without: {mock} --train-iters 10 --lr 1e-4"
    latent, yarn = job.model.latent, job.model.yarn
    if latent and not latent.q_rank:
        yield "without a rank of the queries Megatron-LM normalises their input once more, which the model does not"
    if yarn and latent and (yarn.beta_fast, yarn.beta_slow, yarn.first_seq) != LATENT_YARN:
        yield (
            f"the model's YaRN has beta_fast {yarn.beta_fast:g}, beta_slow {yarn.beta_slow:g} and {yarn.first_seq} "
            "positions at first; for latent attention Megatron-LM has no options for them, and takes 32, 1 and 4096"
        )
    if plan.tp * plan.cp > 1 and plan.zero < 2 and job.device.architecture not in NEWER:
        # With one queue no all_to_all runs beside the compute of another micro-batch.
        queues = 32 if job.software.several_queues and job.software.ep_overlap and plan.ep > 1 else 1
        yield f"set CUDA_DEVICE_MAX_CONNECTIONS={queues} in the environment"
    if plan.zero >= 2:
        yield "leave CUDA_DEVICE_MAX_CONNECTIONS unset"


def megatron_options(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """The options, quoted for a shell."""
    yield from _model(job.model, job.seq)
    if job.model.experts:
        yield from _experts(job.model)
        yield from _dispatch(job, plan)
    yield from _vocabulary(job.model, plan)
    yield from _cut(job, plan)
    counts = layers_per_stage(job.model, plan.pp, _chunks(plan), plan.split, job.seq, plan.precision)
    yield from _stages(counts, plan, job.model.mtp_layers)
    yield from _data_parallel(job, plan)
    yield from _memory(job, plan)
    yield from _precision(job, plan)


def _model(model: Model, seq: int) -> Iterator[str]:
    yield f"--num-layers {model.layers}"
    yield f"--hidden-size {model.hidden}"
    yield f"--ffn-hidden-size {model.ffn}"
    yield f"--num-attention-heads {model.heads}"
    if latent := model.latent:
        yield "--multi-latent-attention"
        if latent.q_rank:
            yield f"--q-lora-rank {latent.q_rank}"
        yield f"--kv-lora-rank {latent.kv_rank}"
        yield f"--qk-head-dim {latent.nope_dim}"
        yield f"--qk-pos-emb-head-dim {latent.rope_dim}"
        yield f"--v-head-dim {latent.value_dim}"
    else:
        if model.kv_heads != model.heads:
            yield f"--group-query-attention --num-query-groups {model.kv_heads}"
        if model.head_dim * model.heads != model.hidden:
            yield f"--kv-channels {model.head_dim}"
    if model.qk_norm or model.latent:
        yield "--qk-layernorm"
    if model.qk_l2_norm:
        yield "--qk-l2-norm"
    yield from _positions(model, seq)
    yield from _attention(model, seq)
    if model.norm == "rms":
        yield "--normalization RMSNorm"
    yield f"--norm-epsilon {model.norm_eps:g}"
    yield from _activation(model)
    if not model.bias:
        yield "--disable-bias-linear"
        if model.qkv_bias:
            yield "--add-qkv-bias"
    if not model.dropout:
        yield "--attention-dropout 0.0 --hidden-dropout 0.0"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"


def _attention(model: Model, seq: int) -> Iterator[str]:
    """Attention windows, and multi-token prediction."""
    if model.window and model.window < seq:
        yield f"--window-size {model.window - 1},0"
        if model.full_every:
            yield f"--window-attn-skip-freq {model.full_every}"
    if model.mtp_layers:
        yield f"--mtp-num-layers {model.mtp_layers} --mtp-loss-scaling-factor 0.1"


def _positions(model: Model, seq: int) -> Iterator[str]:
    yield f"--seq-length {seq}"
    yield f"--max-position-embeddings {max(seq, model.learned_positions)}"
    if model.learned_positions:
        yield "--position-embedding-type learned_absolute"
    else:
        kind = "yarn" if model.yarn and not model.latent else "rope"
        yield f"--position-embedding-type {kind} --rotary-base {model.rope_base:.0f}"
        if model.yarn:
            yield from _stretched(model, model.yarn)
        if model.rotary_share != 1:
            yield f"--rotary-percent {model.rotary_share:g}"
        if model.rope_skips:
            yield f"--no-rope-freq {model.rope_skips}"
        if model.rope_scaling:
            yield f"--use-rope-scaling --rope-scaling-factor {model.rope_scaling:g}"


def _stretched(model: Model, yarn: Yarn) -> Iterator[str]:
    yield f"--rotary-scaling-factor {yarn.factor:g}"
    if yarn.mscale and yarn.mscale_all:
        yield f"--mscale {yarn.mscale:g} --mscale-all-dim {yarn.mscale_all:g}"
    if not model.latent:
        yield f"--yarn-original-max-position-embeddings {yarn.first_seq}"
        yield f"--yarn-beta-fast {yarn.beta_fast:g} --yarn-beta-slow {yarn.beta_slow:g}"
        if not yarn.rounded:
            yield "--no-yarn-correction-range-round-to-int"


def _activation(model: Model) -> Iterator[str]:
    match model.activation:
        case "silu":
            yield "--swiglu"
        case "clipped-swiglu":
            yield "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0 --no-bias-gelu-fusion"
            yield "--softmax-type learnable"  # only gpt-oss, which has sinks
        case "squared-relu":
            yield "--squared-relu"


def _experts(model: Model) -> Iterator[str]:
    yield f"--num-experts {model.experts}"
    yield f"--moe-router-topk {model.experts_per_token}"
    yield f"--moe-ffn-hidden-size {model.expert_ffn}"
    if model.dense_layers or model.moe_every > 1:
        yield f"--moe-layer-freq '{_frequency(model)}'"
    if model.shared_experts:
        yield f"--moe-shared-expert-intermediate-size {model.shared_ffn}"
    if model.shared_gate:
        yield "--moe-shared-expert-gate"
    yield "--moe-grouped-gemm --moe-permute-fusion --moe-router-dtype fp32"
    if model.router_score == "sigmoid":
        yield "--moe-router-score-function sigmoid"
        if model.router_bias:
            yield "--moe-router-enable-expert-bias"
        if model.experts_per_token == 1:
            yield "--moe-apply-probs-on-input"
        yield "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-4"
    else:
        yield "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3"
        if not model.router_normalised or model.experts_per_token == 1:
            yield "--moe-router-pre-softmax"
    if model.router_scale:
        yield f"--moe-router-topk-scaling-factor {model.router_scale:g}"
    if model.router_groups:
        yield f"--moe-router-num-groups {model.router_groups}"
        yield f"--moe-router-group-topk {model.router_groups_per_token}"


def _dispatch(job: TrainingJob, plan: Plan) -> Iterator[str]:
    if job.software.dispatch == "deepep":
        yield "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep"
    else:
        yield "--moe-token-dispatcher-type alltoall"
    if job.software.ep_overlap and plan.ep > 1:
        yield "--overlap-moe-expert-parallel-comm"


def _frequency(model: Model) -> str:
    """Which layers have experts, as a Python list.

    >>> from choreo.workload import get_model
    >>> _frequency(get_model("deepseek-v3")), _frequency(get_model("llama4-maverick"))
    ('[0]*3+[1]*58', '[0,1]*24')
    """
    has = [int(model.has_experts(layer)) for layer in range(model.layers)]
    period = has[: model.moe_every]
    if model.moe_every > 1 and has == period * (model.layers // model.moe_every):
        return f"[{','.join(map(str, period))}]*{model.layers // model.moe_every}"
    return "+".join(f"[{value}]*{len(list(same))}" for value, same in groupby(has))


def _vocabulary(model: Model, plan: Plan) -> Iterator[str]:
    """No padding where the vocabulary divides by tp; otherwise Megatron-LM's own."""
    fits = [size for size in (PADDING, 64, 32, 16, 8, 4, 2, 1) if model.vocab % (size * plan.tp) == 0]
    yield f"--make-vocab-size-divisible-by {fits[0] if fits else PADDING}"


def _chunks(plan: Plan) -> int:
    return plan.interleave if plan.pp > 1 else 1


def _cut(job: TrainingJob, plan: Plan) -> Iterator[str]:
    yield f"--tensor-model-parallel-size {plan.tp}"
    if plan.tp > 1 and plan.sequence_parallel:
        yield "--sequence-parallel"
        if job.software.tp_overlap > 0:
            yield "--tp-comm-overlap"
    yield f"--pipeline-model-parallel-size {plan.pp}"
    if plan.cp > 1:
        yield f"--context-parallel-size {plan.cp} --cp-comm-type {CONTEXT[job.software.context]}"
    if job.model.experts:
        yield f"--expert-model-parallel-size {plan.ep} --expert-tensor-parallel-size {plan.expert_tp}"
    yield f"--micro-batch-size {plan.micro_batch}"
    yield f"--global-batch-size {job.global_batch}"


def _stages(counts: Sequence[int], plan: Plan, further: int) -> Iterator[str]:
    """The layers of each virtual stage: equal, with the embedding and the loss counted as layers, or listed."""
    chunks, most = _chunks(plan), max(counts)
    first, last = most - counts[0], most - counts[-1]
    middle = counts[1:-1]
    if len(counts) == 1:
        return
    if all(count == most for count in middle) and first in (0, 1) and last in (0, 1):
        if chunks > 1:
            yield f"--num-layers-per-virtual-pipeline-stage {most}"
        if first:
            yield "--account-for-embedding-in-pipeline-split"
        if last:
            yield "--account-for-loss-in-pipeline-split"
    elif chunks == 1 and len(set(middle)) <= 1 and counts[0] and counts[-1]:
        yield f"--decoder-first-pipeline-num-layers {counts[0]}"
        yield f"--decoder-last-pipeline-num-layers {counts[-1]}"
    else:
        yield f"--pipeline-model-parallel-layout '{_layout(counts, further, alone=plan.split not in SPLITS)}'"


def _layout(counts: Sequence[int], further: int = 0, *, alone: bool = True) -> str:
    """The layers of stages in Megatron-LM's notation: E embedding, t layer, m multi-token prediction layer, L loss.

    >>> _layout([3, 2, 2, 2, 0, 0]), _layout([3, 2, 2, 2, 0, 0], further=1)
    ('Ettt|(tt|)*3|L', 'Ettt|(tt|)*3m|L')
    >>> _layout([4, 4, 3, 0], further=1)
    'Etttt|tttt|tttm|L'
    """
    letters = ["t" * count for count in counts]
    letters[-2 if alone and len(counts) > 1 and not counts[-1] else -1] += "m" * further
    parts = [f"E{letters[0]}|"]
    for held, same in groupby(letters[1:-1]):
        times = len(list(same))
        parts.append(f"({held}|)*{times}" if times > 1 else f"{held}|")
    return "".join([*parts, f"{letters[-1]}L"])


def _data_parallel(job: TrainingJob, plan: Plan) -> Iterator[str]:
    if plan.zero:
        yield "--use-distributed-optimizer"
    if plan.zero >= 2:
        yield f"--use-megatron-fsdp --data-parallel-sharding-strategy {SHARDING[plan.zero]}"
        yield "--ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion"
    if plan.zero and plan.shards < plan.dp:
        yield f"--num-distributed-optimizer-instances {plan.dp // plan.shards}"
    if plan.overlap and plan.dp * plan.cp > 1:
        yield "--overlap-grad-reduce"
        if plan.zero:
            yield "--overlap-param-gather"
    wide = job.software.accumulate_bytes != 2
    if plan.precision == "fp16" and wide:
        yield "--accumulate-allreduce-grads-in-fp32"
    elif plan.precision not in ("fp32", "fp16") and not wide:
        yield "--grad-reduce-in-bf16"


def _memory(job: TrainingJob, plan: Plan) -> Iterator[str]:
    if job.software.moment_bytes == 4 or job.software.optimizer_offload:
        yield "--use-precision-aware-optimizer"
    if job.software.moment_bytes == 4:
        yield "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    if job.software.optimizer_offload:
        yield "--optimizer-cpu-offload"
    if job.software.activation_offload:
        yield f"--cpu-offloading-num-layers {offloaded_layers(job)}"
    if plan.recompute == "selective":
        yield f"--recompute-granularity selective --recompute-modules {' '.join(plan.modules or ('core_attn',))}"
    if plan.recompute == "full" and plan.recompute_layers:
        each = plan.recompute_layers // _chunks(plan)
        yield f"--recompute-granularity full --recompute-method block --recompute-num-layers {each}"
    elif plan.recompute == "full":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def _scaling(job: TrainingJob, plan: Plan) -> str:
    """What has a scale in eight bits, by Megatron-LM's names."""
    if job.device.architecture in NEWER:
        return "mxfp8"
    recipe = SCALING[job.software.fp8_scaling]
    # Recomputing an operand loses the scaling factors of the steps before.
    return "tensorwise" if recipe == "delayed" and {"layernorm", "moe_act"} & set(plan.modules) else recipe


def _precision(job: TrainingJob, plan: Plan) -> Iterator[str]:
    match plan.precision:
        case "fp16":
            yield "--fp16"
        case "bf16":
            yield "--bf16"
        case "fp8":
            recipe = _scaling(job, plan)
            yield f"--bf16 --fp8-format hybrid --fp8-recipe {recipe}"
            # With the host's optimizer, Megatron gathers parameters of eight bits with one scale for each tensor only.
            if job.software.gathered_fp8_bytes == 1 and plan.zero and not job.software.optimizer_offload:
                yield "--fp8-param-gather"
                if recipe == "mxfp8" and plan.zero == 1:
                    yield "--reuse-grad-buf-for-mxfp8-param-ag"
        case "fp4":
            yield "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4"
