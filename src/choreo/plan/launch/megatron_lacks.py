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
    yield from ability_of("megatron-core" + "+ep-overlap" * bool(job.software.ep_overlap)).lacks(plan)
    yield from _model_lacks(job.model, job.seq)
    yield from _plan_lacks(job, plan)


def _model_lacks(model: Model, seq: int) -> Iterator[str]:
    """What a model has that there is no option for."""
    activations = ("silu", "clipped-swiglu") if model.gated else ("gelu", "gelu-tanh", "squared-relu")
    several_scores = model.experts_per_token > 1 and model.router_score == "sigmoid"
    lacks = {
        model.not_built: model.not_built != "",
        "attention and MLP in parallel": model.parallel_block,
        f"{counted(model.norms_per_layer, 'norm')} a layer": model.norms_per_layer != 2,
        "norms after attention and MLP": model.norm_after,
        "norms over all heads of queries and keys": model.qk_norm_whole,
        "a norm after the embedding": model.embedding_norm,
        "layer norms without a bias": model.norm not in ("rms", "layer"),
        "a bias of the output layer": model.head_bias,
        "positions that are neither learned nor rotary (ALiBi)": not (model.rotary or model.learned_positions),
        f"attention in chunks of {model.window}": model.chunked and model.window < seq,
        f"{'a gated MLP' if model.gated else 'an MLP'} with {model.activation}": model.activation not in activations,
        "scores or logits that are capped or scaled": any((model.score_cap, model.logit_cap, model.logit_scale)),
        "scaled embeddings": model.scaled_embeddings,
        "sigmoid scores of a token's experts that do not add up to one": several_scores and not model.router_normalised,
    }
    yield from (reason for reason, there in lacks.items() if there)


def _plan_lacks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What a plan has that there is no option for."""
    model = job.model
    if model.experts and model.bias and plan.expert_tp > 1:
        yield "biases of experts that tensor parallelism cuts"
    yield from _absent_modules(model, plan)
    chunks = plan.interleave if plan.pp > 1 else 1
    if plan.recompute_layers % chunks:
        layers = counted(plan.recompute_layers, "layer")
        yield f"recomputation of {layers} of a stage in {chunks} chunks, which all recompute as many"
    if plan.cp > 1 and job.seq % (2 * plan.cp):
        yield f"sequences of {job.seq} that are not divisible by 2 cp = {2 * plan.cp}"
    if job.software.moment_bytes == 4 and plan.zero == 0:
        yield "moments in bf16 without a distributed optimizer"
    if job.software.optimizer_offload and plan.zero == 0:
        yield "an optimizer at the host that is not distributed"
    yield from _offload_lacks(job, plan)
    yield from _software_lacks(job, plan)


def _software_lacks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What the priced program does and there is no option for."""
    software = job.software
    lacks = {
        "inputs of activation functions stored in fp8, which no option asks for": software.stored_bytes == 1,
        "tokens dispatched in fp8, which no option asks for": software.dispatch_bytes == 1 and plan.ep > 1,
        "an overlapped all_to_all in fp32": software.ep_overlap and plan.ep > 1 and plan.precision == "fp32",
        "a loss of some of the tokens at a time": software.loss_chunks > 1,
        "adapters, whose options choreo does not print": software.frozen,
        "CUDA graphs, whose options choreo does not print": "graphs" in software.name,
        "tokens dropped beyond a capacity, whose options choreo does not print": "+token-drop" in software.name,
        "a scale for each row in fp8": plan.precision == "fp8" and software.fp8_scaling == "row",
        "tf32": plan.precision == "tf32",
    }
    yield from (reason for reason, there in lacks.items() if there)


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
