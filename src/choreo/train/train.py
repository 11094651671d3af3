"""`train`: run a real model under a parallel plan, and compare measurements with predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from choreo.checks import check_ranks, whole_number
from choreo.errors import TrainingError, UsageError
from choreo.pytorch import check_torch
from choreo.train.best import best_plan
from choreo.train.check import check_config, left_out
from choreo.train.config import TrainConfig
from choreo.train.data.text import SYNTHETIC
from choreo.train.experiments.kinds import ALL_REDUCE, check_kind
from choreo.train.launch import run_ranks
from choreo.train.predict import predict
from choreo.train.result import Prediction, TrainingRun, TrainingStep
from choreo.train.scale import scaled
from choreo.workload import Model, Plan, Workload, get_workload

__all__ = ["train"]

SEQ = 64
ROUNDING = {"fp32": 1e-4, "bf16": 2e-2}  # the allowed relative difference between a plan's loss and that of one process


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

    `model` is a name from the catalogue or a config.json, scaled down by `scale` ("tiny", or a factor). Without a
    `plan`, the planner's best for this machine is used, or data parallelism if the machine was not measured. The
    default `global_batch` is one sequence per rank; with a plan it is a micro-batch per replica, or in a pipeline twice
    as many as it has stages. `data` is a file whose bytes are the tokens, "synthetic", or by default the text that
    comes with Choreo. `check` also trains with one process, and compares the losses. `on_step` is called after every
    step, and `on_note` with remarks for the user.

    `checkpoint` is a folder that gets a checkpoint every so many steps and at the end. A run whose folder has one
    resumes from it, under any plan and number of ranks; `steps` counts from the beginning. With `resume`, there must be
    one. `on="ray"` runs the ranks on the Ray cluster at `address`, placed as `placement` says. With `elastic`, the run
    survives ranks that are killed or stopped, and restarts up to `restarts` of them; without a plan they are then
    replicas.

    `data_parallel` is how replicas sum their gradients, one of `KINDS`. `servers` and `staleness` are for its
    asynchronous parameter servers.

    >>> run = train("gpt2-124m", scale="tiny", ranks=1, steps=2, global_batch=2, seq=16)
    >>> len(run.steps), run.losses[1] < run.losses[0]
    (2, True)
    """
    check_torch("training")
    whole = get_workload(model)
    workload = scaled(whole, scale)
    ranks = check_ranks(ranks if ranks is not None else plan.gpus if plan is not None else 1)
    seq = SEQ if seq is None else whole_number("seq", seq)
    if plan is None:
        global_batch = ranks if global_batch is None else whole_number("global_batch", global_batch)
        # Only replicas survive without a restart, sum gradients in their own way, or run unmeasured on a cluster.
        replicas = on or data_parallel != ALL_REDUCE or elastic
        plan = Plan(dp=ranks, precision="fp32") if replicas else best_plan(workload, ranks, global_batch, seq, device)
    servers, staleness = check_kind(
        data_parallel, plan, workload, servers=servers, staleness=staleness, device=device, backend=backend
    )
    config = TrainConfig(
        model=workload,
        plan=plan,
        global_batch=whole_number("global_batch", _batch_of(plan) if global_batch is None else global_batch),
        seq=seq,
        steps=whole_number("steps", steps),
        data=str(Path(data).absolute()) if data and data != SYNTHETIC else str(data),
        seed=whole_number("seed", seed, least=0),
        lr=float(lr),
        device=device,
        backend=backend,
        compile=compile,
        checkpoint=str(Path(checkpoint).absolute()) if checkpoint else "",
        checkpoint_every=whole_number("checkpoint_every", checkpoint_every),
        resume=resume,
        on=on or "",
        address=address,
        placement=placement,
        elastic=elastic,
        restarts=whole_number("restarts", restarts, least=0),
        data_parallel=data_parallel,
        servers=servers,
        staleness=staleness,
    )
    check_config(config, ranks, whole)
    run = _run(config, on_step, on_note)
    return _checked(run, config) if check else run


def _batch_of(plan: Plan) -> int:
    """The default batch of a plan: a micro-batch per replica, or enough of them to fill a pipeline."""
    return plan.dp * plan.micro_batch * (1 if plan.pp == 1 else 2 * plan.pp)


def _run(
    config: TrainConfig,
    on_step: Callable[[TrainingStep], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> TrainingRun:
    if on_note is not None and isinstance(config.model, Model) and (missing := left_out(config.model, config.seq)):
        on_note(f"{config.model.name} is trained without {missing}")
    prediction = None if config.on else _prediction(config, on_note)
    steps: list[TrainingStep] = []
    early: dict[int, dict[str, Any]] = {}  # steps that were reported before the one before them
    ended: dict[str, Any] = {}  # what rank 0 says at the end

    def take(report: dict[str, Any]) -> None:
        nonlocal prediction
        if "step" in report:
            # In an elastic run every rank reports every step, and after a restart some are reported again.
            early.setdefault(report["step"]["step"], report["step"])
            while (number := steps[-1].step + 1 if steps else 0 if config.survives else min(early)) in early:
                reported = early[number]
                steps.append(TrainingStep(**reported, predicted_s=prediction.time_s if prediction else None))
                if on_step is not None:
                    on_step(steps[-1])
        elif "host_layer_s" in report:
            prediction = prediction and _prediction(config, on_note, report["host_layer_s"])
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
        seq=config.seq if isinstance(config.model, Model) else 0,
        steps=tuple(steps),
        memory_bytes=ended["memory_bytes"],
        predicted_memory_bytes=prediction.memory_bytes if prediction else None,
        predicted_parts={} if prediction is None else prediction.parts,
        data_parallel=config.data_parallel,
        traffic=tuple(ended.get("traffic", ())),
        staleness=ended.get("staleness", {}),
        timeline=tuple(ended.get("timeline", ())),
        predicted_timeline=() if prediction is None else prediction.timeline,
    )


def _prediction(
    config: TrainConfig, on_note: Callable[[str], None] | None, host_layer_s: float | None = None
) -> Prediction | None:
    """The prediction for a run, or None and a note why there is none, as on an unmeasured machine."""
    try:
        return predict(config, host_layer_s=host_layer_s)
    except UsageError as error:
        if on_note is not None:
            on_note(f"no prediction: {error}")
        return None


def _checked(run: TrainingRun, config: TrainConfig) -> TrainingRun:
    """The run together with the losses of one process."""
    alone = Plan(micro_batch=config.plan.micro_batch, precision=config.plan.precision)
    first = run.steps[0].step  # for a run that resumed from a checkpoint
    single = replace(
        config, plan=alone, checkpoint="", resume=False, on="", elastic=False, data_parallel=ALL_REDUCE, servers=0,
        staleness=0,
    )  # fmt: skip
    losses = _run(single).losses[first:]
    errors = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(run.losses, losses, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    found = {
        "losses": losses,
        "error": errors[worst],
        "step": first + worst,
        "same": errors[worst] <= ROUNDING[config.plan.precision],
    }
    return TrainingRun(**{name: getattr(run, name) for name in TrainingRun.columns} | {"check": found})
