"""`train`: run a real model under a parallel plan, and set what was measured beside what was predicted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from choreo.checks import check_ranks, whole_number
from choreo.errors import PlanError, TrainingError, UsageError
from choreo.plan.memory import model_state_bytes
from choreo.plan.software import get_software
from choreo.train.best import best_plan
from choreo.train.config import TrainConfig
from choreo.train.data import SYNTHETIC, open_text
from choreo.train.experiments.kinds import ALL_REDUCE, check_kind
from choreo.train.memory import available_bytes
from choreo.train.predict import prediction_of
from choreo.train.ranks import run_ranks
from choreo.train.result import TrainingRun, TrainingStep
from choreo.train.scale import scaled
from choreo.units import format_bytes
from choreo.workload import Model, Plan, Recommender, Workload, get_workload

__all__ = ["train"]

SEQ = 64
PRECISIONS = ("fp32", "bf16")
BACKENDS = ("choreo", "gloo")
DEVICES = ("cpu", "cuda")
ROUNDING = {"fp32": 1e-4, "bf16": 2e-2}  # how far, relatively, a plan's loss may be from that of one process


def train(
    model: str | Path | Workload,
    *,
    ranks: int | None = None,
    plan: Plan | None = None,
    steps: int = 10,
    global_batch: int | None = None,
    seq: int | None = None,
    data: str | Path = "",
    scale: str | float = 1,
    seed: int = 0,
    lr: float = 1e-3,
    device: str = "cpu",
    backend: str = "choreo",
    compile: bool = False,  # noqa: A002 - as torch calls it
    checkpoint: str | Path = "",
    checkpoint_every: int = 100,
    resume: bool = False,
    on: str | None = None,
    address: str = "",
    placement: str = "pack",
    elastic: bool = False,
    restarts: int = 3,
    data_parallel: str = ALL_REDUCE,
    servers: int | None = None,
    staleness: int | None = None,
    check: bool = False,
    on_step: Callable[[TrainingStep], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> TrainingRun:
    """Train a model under a plan, in as many processes as it has ranks.

    `model` is a name of the catalogue or a config.json, made small by `scale` ("tiny", or a factor). Without a plan it
    is the planner's best for this machine, or, where that was not measured, the batch cut over the ranks. `data` is any
    file, of which the bytes are the tokens, "synthetic", or the text that comes with Choreo. `check` trains with one
    process as well, and compares the losses. `on_step` is called after every step, and `on_note` with what a reader
    should know beside.

    `checkpoint` is a folder that gets a checkpoint every so many steps and at the end. A run whose folder has one goes
    on from there, under any plan and number of ranks; `steps` counts from the beginning. With `resume` there must be
    one. `on="ray"` runs the ranks on the Ray cluster at `address`, placed as `placement` says. With `elastic` the run
    survives ranks that are killed or stopped, and up to `restarts` of them are started again.

    `data_parallel` is how replicas sum their gradients, one of `KINDS`; `servers` and `staleness` are for its
    asynchronous parameter servers.

    >>> run = train("gpt2-124m", scale="tiny", ranks=1, steps=2, global_batch=2, seq=16)
    >>> len(run.steps), run.losses[1] < run.losses[0]
    (2, True)
    """
    config = make_config(
        model, ranks=ranks, plan=plan, steps=steps, global_batch=global_batch, seq=seq, data=data, scale=scale,
        seed=seed, lr=lr, device=device, backend=backend, compile=compile, checkpoint=checkpoint,
        checkpoint_every=checkpoint_every, resume=resume, on=on, address=address, placement=placement,
        elastic=elastic, restarts=restarts, data_parallel=data_parallel, servers=servers, staleness=staleness,
    )  # fmt: skip
    run = _run(config, on_step, on_note)
    return _checked(run, config) if check else run


def make_config(
    model: str | Path | Workload,
    *,
    ranks: int | None,
    plan: Plan | None,
    steps: int,
    global_batch: int | None,
    seq: int | None,
    data: str | Path,
    scale: str | float,
    seed: int,
    lr: float,
    device: str,
    backend: str,
    compile: bool = False,  # noqa: A002 - as torch calls it
    checkpoint: str | Path = "",
    checkpoint_every: int = 100,
    resume: bool = False,
    on: str | None = None,
    address: str = "",
    placement: str = "pack",
    elastic: bool = False,
    restarts: int = 3,
    data_parallel: str = ALL_REDUCE,
    servers: int | None = None,
    staleness: int | None = None,
) -> TrainConfig:
    """Everything that was asked for, refused in a sentence where it cannot be done."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError("training needs PyTorch, which is not installed here: pip install 'choreo[torch]'")
    workload = scaled(get_workload(model), scale)
    for name, value, known in (("device", device, DEVICES), ("backend", backend, BACKENDS)):
        if value not in known:
            raise UsageError(f"{name} must be {' or '.join(known)}, not {value!r}")
    if not lr > 0:
        raise UsageError(f"lr must be above 0, not {lr}")
    ranks = check_ranks(ranks if ranks is not None else plan.gpus if plan is not None else 1)
    seq = SEQ if seq is None else whole_number("seq", seq)
    if plan is None:
        batch = ranks if global_batch is None else whole_number("global_batch", global_batch)
        told = on or data_parallel != ALL_REDUCE
        plan = Plan(dp=ranks, precision="fp32") if told else best_plan(workload, ranks, batch, seq, device)
    if plan.precision not in PRECISIONS:
        raise PlanError(f"choreo train computes in {' or '.join(PRECISIONS)}, not {plan.precision}")
    servers, staleness = check_kind(
        data_parallel, plan, workload, servers=servers, staleness=staleness, device=device, backend=backend
    )
    config = TrainConfig(
        workload,
        plan,
        whole_number("global_batch", _batch_of(plan) if global_batch is None else global_batch),
        seq,
        whole_number("steps", steps),
        str(Path(data).absolute()) if data and data != SYNTHETIC else str(data),
        whole_number("seed", seed, least=0),
        float(lr),
        device,
        backend,
        compile,
        str(Path(checkpoint).absolute()) if checkpoint else "",
        whole_number("checkpoint_every", checkpoint_every),
        resume,
        on or "",
        address,
        placement,
        elastic,
        whole_number("restarts", restarts, least=0),
        data_parallel,
        servers,
        staleness,
    )
    if on not in (None, "ray"):
        raise UsageError(f"on must be ray, or None for this machine, not {on!r}")
    if not on and (address or placement != "pack"):
        raise UsageError("--address and --placement need --on ray")
    if on and elastic:
        raise UsageError("--elastic is for ranks on this machine; for Ray, use choreo.Elastic with choreo.run.on_ray")
    if resume and not checkpoint:
        raise UsageError("there is nothing to resume from; name the folder with --checkpoint DIR")
    if elastic and data_parallel != ALL_REDUCE:
        raise UsageError(f"--elastic sums gradients by an all_reduce that survives; leave out {data_parallel}")
    if checkpoint and servers:
        raise UsageError(f"--data-parallel {data_parallel} writes no checkpoints; leave out --checkpoint")
    _check(config, ranks)
    return config


def _batch_of(plan: Plan) -> int:
    """The batch where none was given: a micro-batch a replica, or enough of them to fill a pipeline."""
    return plan.dp * plan.micro_batch * (1 if plan.pp == 1 else 2 * plan.pp)


def _check(config: TrainConfig, ranks: int) -> None:
    """Refuse what cannot be trained, before any process is started."""
    model = config.model
    if isinstance(model, Model):
        _check_transformer(config, model, ranks)
    else:
        _check_replicas(config, ranks)
    if not config.on:
        _check_memory(config)


def _check_replicas(config: TrainConfig, ranks: int) -> None:
    """ResNet and DLRM are cut over data parallel ranks alone, and have samples of their own."""
    plan, batch = config.plan, config.global_batch
    plan.data_parallel_only(config.model.name)
    if plan.dp != ranks:
        raise PlanError(f"dp {plan.dp} is not the {ranks} ranks there are; dp {ranks} would be")
    each = plan.dp * plan.micro_batch
    if batch % each:
        raise PlanError(
            f"global batch {batch} does not divide by dp {plan.dp} × micro-batch {plan.micro_batch} = {each}; a global "
            f"batch of {max(1, round(batch / each)) * each} would"
        )
    if config.data not in ("", SYNTHETIC):
        raise UsageError(f"{config.model.name} does not read text; leave out --data, its samples are synthetic")


def _check_transformer(config: TrainConfig, model: Model, ranks: int) -> None:
    plan = config.plan
    if model.latent is not None:
        raise UsageError(f"{model.name} has latent attention, which choreo train does not build; a Mixtral would do")
    if not model.rotary and not model.learned_positions:
        raise UsageError(f"{model.name} has ALiBi, which choreo train does not build; a Llama would do")
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
    state = sum(model_state_bytes(each, plan.dp * plan.cp, plan.zero, get_software("torch-eager"), "fp32"))
    needed, there = float(state) * config.ranks, available_bytes()
    if config.device == "cpu" and there and needed > there:
        fits = there / needed
        raise UsageError(
            f"{model.name} does not fit this machine: parameters, gradients and Adam's state of {config.ranks} ranks "
            f"take {format_bytes(needed, binary=False)}, and {format_bytes(there, binary=False)} are free; --scale "
            f"{max(0.001, fits ** (1 / 3) * 0.8):.2g} would fit, and --zero 3 cuts it over the replicas"
        )


def _run(
    config: TrainConfig,
    on_step: Callable[[TrainingStep], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> TrainingRun:
    prediction = None if config.on else prediction_of(config)
    steps: list[TrainingStep] = []
    early: dict[int, dict[str, Any]] = {}  # steps that were reported before the one before them
    ended: dict[str, Any] = {}  # what rank 0 says at the end

    def take(report: dict[str, Any]) -> None:
        if "step" in report:
            # In an elastic run every rank reports every step, and after a restart some are reported again.
            early.setdefault(report["step"]["step"], report["step"])
            while (number := steps[-1].step + 1 if steps else 0 if config.survives else min(early)) in early:
                told = early[number]
                steps.append(TrainingStep(**told, predicted_s=prediction.time_s if prediction else None))
                if on_step is not None:
                    on_step(steps[-1])
        elif "note" in report:
            if on_note is not None:
                on_note(report["note"])
        else:
            most = max(ended.get("memory_bytes", 0.0), report["memory_bytes"])
            ended.update(report, memory_bytes=most)

    run_ranks(config, take)
    if not steps or steps[-1].step != config.steps - 1:
        raise TrainingError(f"the ranks ended after {len(steps)} of {config.steps} steps without a word")
    return TrainingRun(
        model=config.model.name,
        plan=config.plan,
        ranks=config.ranks,
        device=config.device,
        backend=config.backend,
        global_batch=config.global_batch,
        seq=config.seq,
        steps=tuple(steps),
        memory_bytes=ended["memory_bytes"],
        predicted_memory_bytes=prediction.memory_bytes if prediction else None,
        predicted_parts={} if prediction is None else prediction.parts,
        data_parallel=config.data_parallel,
        traffic=tuple(ended.get("traffic", ())),
        staleness=ended.get("staleness", {}),
    )


def _checked(run: TrainingRun, config: TrainConfig) -> TrainingRun:
    """The run with the losses of one process beside its own."""
    alone = Plan(micro_batch=config.plan.micro_batch, precision=config.plan.precision)
    first = run.steps[0].step  # of a run that went on from a checkpoint
    one = replace(
        config, plan=alone, checkpoint="", resume=False, on="", elastic=False, data_parallel=ALL_REDUCE, servers=0,
        staleness=0,
    )  # fmt: skip
    losses = _run(one).losses[first:]
    errors = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(run.losses, losses, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    found = {
        "losses": losses,
        "error": errors[worst],
        "step": first + worst,
        "same": errors[worst] <= ROUNDING[config.plan.precision],
    }
    return TrainingRun(**{name: getattr(run, name) for name in TrainingRun.columns} | {"check": found})
