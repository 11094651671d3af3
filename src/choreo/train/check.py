"""Refuse what `train` cannot run, with a one-sentence error, before any process is started."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from choreo.errors import PlanError, UsageError
from choreo.plan.memory.memory import model_state_bytes
from choreo.plan.software import get_software
from choreo.train.config import TrainConfig
from choreo.train.data.text import SYNTHETIC, open_text
from choreo.train.experiments.kinds import ALL_REDUCE
from choreo.train.rank.memory import available_bytes
from choreo.train.scale import TINY, scaled
from choreo.units import format_bytes
from choreo.workload import ConvNet, Model, Recommender, Workload

__all__ = ["check_config", "left_out"]

PRECISIONS = ("fp32", "bf16")
BACKENDS = ("choreo", "gloo")
DEVICES = ("cpu", "cuda")
TEMPERATURE_FROM = 8192  # tokens from which Llama 4 sharpens its attention
ROOM_FOR_STATE = 0.8  # of free memory, in a model that is proposed; the rest is for activations


def check_config(config: TrainConfig, ranks: int, whole: Workload | None = None) -> None:
    """Refuse what cannot be trained by this many ranks of a plan, not counting servers.

    `whole` is the model before it was scaled.

    >>> from choreo.workload import Plan, get_model
    >>> check_config(TrainConfig(get_model("gpt2-124m"), Plan(dp=3, precision="fp32"), global_batch=3), 2)
    Traceback (most recent call last):
        ...
    choreo.errors.PlanError: dp 3 × tp 1 × pp 1 × cp 1 is 3 devices, not 2; dp 2 would
    """
    _check_options(config)
    _check_model(config, ranks)
    if not config.on:
        _check_memory(config, whole or config.model)


def left_out(model: Model, seq: int) -> str:
    """The parts of a model that are not built, in words; "" if there are none.

    >>> from choreo.workload import get_model
    >>> left_out(get_model("deepseek-v3"), 64), left_out(get_model("llama3-8b"), 64)
    ('the bias that balances its experts, which stays zero', '')
    """
    found = [model.not_built] if model.not_built else []
    if model.router_bias and model.router_score == "sigmoid":
        found.append("the bias that balances its experts, which stays zero")
    if model.weighted_inputs and model.chunked and seq > TEMPERATURE_FROM:
        found.append(f"the temperature of its queries beyond {TEMPERATURE_FROM} tokens")
    return ", ".join(found)


def _check_model(config: TrainConfig, ranks: int) -> None:
    if isinstance(config.model, Model):
        _check_transformer(config, config.model, ranks)
    else:
        _check_replicas(config, ranks)


def _check_options(config: TrainConfig) -> None:
    for name, value, known in (("device", config.device, DEVICES), ("backend", config.backend, BACKENDS)):
        if value not in known:
            raise UsageError(f"{name} must be {' or '.join(known)}, not {value!r}")
    if config.plan.precision not in PRECISIONS:
        raise PlanError(f"choreo train computes in {' or '.join(PRECISIONS)}, not {config.plan.precision}")
    if not config.lr > 0:
        raise UsageError(f"lr must be above 0, not {config.lr}")
    if config.on not in ("", "ray"):
        raise UsageError(f"on must be ray, or None for this machine, not {config.on!r}")
    if not config.on and (config.address or config.placement != "pack"):
        raise UsageError("--address and --placement need --on ray")
    if config.on and config.elastic:
        raise UsageError("--elastic is for ranks on this machine; for Ray, use choreo.Elastic with choreo.run.on_ray")
    if config.resume and not config.checkpoint:
        raise UsageError("there is nothing to resume from; name the folder with --checkpoint DIR")
    if config.elastic and config.data_parallel != ALL_REDUCE:
        raise UsageError(f"--elastic sums gradients by an all_reduce that survives; leave out {config.data_parallel}")
    if config.checkpoint and config.servers:
        raise UsageError(f"--data-parallel {config.data_parallel} writes no checkpoints; leave out --checkpoint")


def _check_replicas(config: TrainConfig, ranks: int) -> None:
    """ResNet and DLRM are cut over data-parallel ranks only, and have their own samples."""
    plan, batch = config.plan, config.global_batch
    plan.data_parallel_only(config.model.name)
    if plan.dp != ranks:
        raise PlanError(f"dp {plan.dp} is not the {ranks} ranks there are; dp {ranks} would be")
    each = plan.dp * plan.micro_batch
    if batch % each:
        raise PlanError(
            f"global batch {batch} is not divisible by dp {plan.dp} × micro-batch {plan.micro_batch} = {each}; use a "
            f"global batch of {max(1, round(batch / each)) * each}"
        )
    if isinstance(config.model, ConvNet) and plan.micro_batch == 1:
        raise PlanError(
            f"{config.model.name} normalises over the images of a micro-batch, and one image is no batch; use "
            f"--micro-batch 2 --global-batch {2 * plan.dp}"
        )
    if config.data not in ("", SYNTHETIC):
        raise UsageError(f"{config.model.name} does not read text; leave out --data, its samples are synthetic")


def _check_transformer(config: TrainConfig, model: Model, ranks: int) -> None:
    plan = config.plan
    if model.learned_positions and config.seq > model.learned_positions:
        raise UsageError(
            f"seq {config.seq} is more than the {model.learned_positions} positions of {model.name}; --seq "
            f"{model.learned_positions} is the most"
        )
    plan.check(model, ranks, config.global_batch, config.seq, uneven_stages=True, trained=True)
    text = open_text(config.data, config.seq, config.seed)
    largest = int(text.tokens.max())
    if largest >= model.vocab:
        raise UsageError(
            f"{text.name} has bytes up to {largest}, and {model.name} a vocabulary of {model.vocab}; one of 256 "
            "holds every byte"
        )


def _check_memory(config: TrainConfig, whole: Workload) -> None:
    there = available_bytes()
    if config.device != "cpu" or not there:
        return
    model, plan, needed = config.model, config.plan, _state_bytes(config)
    if needed > there:
        scale = _scale_that_fits(config, whole, ROOM_FOR_STATE * there)
        cut = replace(config, plan=replace(plan, zero=3))
        shared = "; so would --zero 3, which cuts it over the replicas" if _state_bytes(cut) <= there else ""
        raise UsageError(
            f"{model.name} does not fit this machine: parameters, gradients and Adam's state of {config.ranks} ranks "
            f"take {format_bytes(needed, binary=False)}, and {format_bytes(there, binary=False)} are free; "
            f"--scale {scale} would fit{shared}"
        )


def _state_bytes(config: TrainConfig) -> float:
    """Parameters, gradients and Adam's state of all ranks."""
    model, plan = config.model, config.plan
    whole, further = float(model.parameters), 0
    if isinstance(model, Model):
        whole, further = whole + model.further_parameters, model.mtp_layers * model.has_experts(model.layers - 1)
    held = {plan.dp * plan.cp: whole / (plan.tp * plan.pp)}  # by the ranks that have the same
    if isinstance(model, Recommender):
        held = {plan.dp: model.dense_parameters + model.embedding_parameters / plan.dp}
    elif isinstance(model, Model) and model.experts:
        experts = (model.moe_layers + further) * model.experts * model.mlp_parameters(model.expert_ffn)
        held = {plan.dp * plan.cp: (whole - experts) / (plan.tp * plan.pp)}
        owners = plan.ep * (plan.etp or plan.tp)
        same = plan.dp * plan.cp * plan.tp // owners
        held[same] = held.get(same, 0.0) + experts / (owners * plan.pp)
    software = get_software("torch-eager")
    each = sum(
        float(part)
        for same, model in held.items()
        for part in model_state_bytes(model, same, plan.zero, software, "fp32")
    )
    return each * config.ranks


def _scale_that_fits(config: TrainConfig, whole: Workload, there: float) -> str:
    """The largest factor of two digits at which the same plan can train the model in that many bytes."""
    for factor in (*range(990, 99, -10), *range(99, 0, -1)):
        small = replace(config, model=scaled(whole, factor / 1000))
        if _state_bytes(small) <= there:
            with suppress(UsageError):
                _check_model(small, config.plan.gpus)
                return f"{factor / 1000:g}"
    return TINY
