"""What a model or a plan has that Megatron-LM has no option for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from choreo.plan.software.ability import ability_of
from choreo.units import counted

if TYPE_CHECKING:
    from choreo.plan.job import TrainingJob
    from choreo.workload import Model, Plan

__all__ = ["megatron_lacks", "offloaded_layers"]


def megatron_lacks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What a model or a plan has that Megatron-LM has no option for."""
    model = job.model
    yield from ability_of("megatron-core" + "+ep-overlap" * bool(job.software.ep_overlap)).lacks(plan)
    if model.parallel_block:
        yield "attention and MLP in parallel"
    if model.norms_per_layer != 2:
        yield f"{counted(model.norms_per_layer, 'norm')} a layer"
    if model.norm_after:
        yield "norms after attention and MLP"
    if model.qk_norm_whole:
        yield "norms over all heads of queries and keys"
    if model.embedding_norm:
        yield "a norm after the embedding"
    if model.norm not in ("rms", "layer"):
        yield "layer norms without a bias"
    if model.head_bias:
        yield "a bias of the output layer"
    if not model.rotary and not model.learned_positions:
        yield "positions that are neither learned nor rotary (ALiBi)"
    if model.chunked and model.window < job.seq:
        yield f"attention in chunks of {model.window}"
    known = ("silu", "clipped-swiglu") if model.gated else ("gelu", "gelu-tanh", "squared-relu")
    if model.activation not in known:
        yield f"{'a gated MLP' if model.gated else 'an MLP'} with {model.activation}"
    yield from _plan_lacks(job, plan)


def _plan_lacks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What a plan has that there is no option for."""
    model = job.model
    if model.experts and model.bias and plan.expert_tp > 1:
        yield "biases of experts that tensor parallelism cuts"
    yield from _absent_modules(model, plan)
    if plan.cp > 1 and job.seq % (2 * plan.cp):
        yield f"sequences of {job.seq} that are not divisible by 2 cp = {2 * plan.cp}"
    if job.software.moment_bytes == 4 and plan.zero == 0:
        yield "moments in bf16 without a distributed optimizer"
    if job.software.optimizer_offload and plan.zero == 0:
        yield "an optimizer at the host that is not distributed"
    yield from _offload_lacks(job, plan)
    if job.software.stored_bytes == 1:
        yield "inputs of activation functions stored in fp8, which no option asks for"
    if job.software.dispatch_bytes == 1 and plan.ep > 1:
        yield "tokens dispatched in fp8, which no option asks for"
    if job.software.ep_overlap and plan.ep > 1 and plan.precision == "fp32":
        yield "an overlapped all_to_all in fp32"
    if "graphs" in job.software.name:
        yield "CUDA graphs, whose options choreo does not print"
    if "+token-drop" in job.software.name:
        yield "tokens dropped beyond a capacity, whose options choreo does not print"
    if plan.precision == "tf32":
        yield "tf32"
    if plan.precision in ("fp8", "fp4") and plan.zero >= 2:
        yield f"{plan.precision} beside Megatron-FSDP, which choreo does not price"


def _absent_modules(model: Model, plan: Plan) -> Iterator[str]:
    """Modules to compute again that the model does not have."""
    absent = {"mla_up_proj": model.latent is None, "moe_act": not model.experts, "moe": not model.experts}
    absent["shared_experts"] = not model.shared_experts
    for name in plan.modules:
        if absent.get(name, False):
            yield f"a module {name} to compute again, which {model.name} does not have"


def _offload_lacks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What there is no option for where activations are at the host."""
    if job.software.activation_offload and (plan.pp > 1 or plan.recompute != "none"):
        yield "activations at the host beside a pipeline or recomputation"
    elif job.software.activation_offload and not 0 < offloaded_layers(job) < job.model.layers:
        yield "activations of all layers at the host"


def offloaded_layers(job: TrainingJob) -> int:
    """How many layers' activations are offloaded; Megatron-LM counts layers, not a share of each."""
    return round(job.software.activation_offload * job.model.layers)
