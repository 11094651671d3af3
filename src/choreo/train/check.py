"""What `train` refuses, each with a one-sentence error, before any process is started."""

from __future__ import annotations

from choreo.errors import PlanError, UsageError
from choreo.plan.memory.memory import model_state_bytes
from choreo.plan.software import get_software
from choreo.train.config import TrainConfig
from choreo.train.data.text import SYNTHETIC, open_text
from choreo.train.experiments.kinds import ALL_REDUCE
from choreo.train.rank.memory import available_bytes
from choreo.units import format_bytes
from choreo.workload import ConvNet, Model, Recommender

__all__ = ["check_config"]

PRECISIONS = ("fp32", "bf16")
BACKENDS = ("choreo", "gloo")
DEVICES = ("cpu", "cuda")


def check_config(config: TrainConfig, ranks: int) -> None:
    """Refuse what cannot be trained by this many ranks of a plan, not counting servers.

    >>> from choreo.workload import Plan, get_model
    >>> check_config(TrainConfig(get_model("gpt2-124m"), Plan(dp=3, precision="fp32"), global_batch=3), 2)
    Traceback (most recent call last):
        ...
    choreo.errors.PlanError: dp 3 × tp 1 × pp 1 × cp 1 is 3 devices, not 2; dp 2 would
    """
    _check_options(config)
    model = config.model
    if isinstance(model, Model):
        _check_transformer(config, model, ranks)
    else:
        _check_replicas(config, ranks)
    if not config.on:
        _check_memory(config)


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


def _check_memory(config: TrainConfig) -> None:
    model, plan = config.model, config.plan
    each = model.parameters / (plan.tp * plan.pp)
    if isinstance(model, Recommender):
        each = model.dense_parameters + model.embedding_parameters / plan.dp

    def needed(zero: int) -> float:
        state = sum(model_state_bytes(each, plan.dp * plan.cp, zero, get_software("torch-eager"), "fp32"))
        return float(state) * config.ranks

    there = available_bytes()
    if config.device == "cpu" and there and needed(plan.zero) > there:
        scale = max(0.001, (there / needed(plan.zero)) ** (1 / 3) * 0.8)
        shared = "; so would --zero 3, which cuts it over the replicas" if needed(3) <= there else ""
        raise UsageError(
            f"{model.name} does not fit this machine: parameters, gradients and Adam's state of {config.ranks} ranks "
            f"take {format_bytes(needed(plan.zero), binary=False)}, and {format_bytes(there, binary=False)} are free; "
            f"--scale {scale:.2g} would fit{shared}"
        )
