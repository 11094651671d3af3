"""The training loop of one rank: build its part of the model, train step after step, and report measurements."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from choreo.errors import TrainingError
from choreo.train.config import TrainConfig
from choreo.train.experiments.kinds import KINDS
from choreo.train.parallel.data import Optimizers, finish_gradients, replicate
from choreo.train.parallel.mesh import Mesh
from choreo.train.rank.accelerator import Accelerator
from choreo.train.rank.core_wait import core_wait_s
from choreo.train.rank.fingerprint import compare_fingerprints
from choreo.train.rank.host_pace import measure_host_pace
from choreo.train.rank.parts import STRAGGLERS, Clock
from choreo.train.rank.task import Task, make_task
from choreo.train.rank.traffic import take_traffic, total_traffic
from choreo.workload import Model

if TYPE_CHECKING:
    from choreo.train.checkpoint.checkpoint import Checkpoints
    from choreo.train.parallel.pipeline import Pipeline

__all__ = ["AUTOCAST", "Report", "train_rank"]

Report = Callable[[dict[str, Any]], None]
AUTOCAST = {"bf16": torch.bfloat16}
CORE_WAIT = "core_wait_s"  # in a rank's report of a step


def train_rank(config: TrainConfig, report: Report) -> None:
    """Train in an existing process group. Rank 0 reports every step, and the totals at the end."""
    rank = dist.get_rank()
    compare_fingerprints(config)
    _load_libraries(config)
    accelerator = Accelerator(config.device)
    accelerator.reset_peak()
    mesh = Mesh(config.plan, rank, accelerator.device, KINDS[config.data_parallel], grouped=not config.servers)
    clock = Clock(mesh.axis_of, accelerator.synchronize)
    peak = accelerator.peak_flops_per_s(config.plan.precision, config.plan.gpus) if rank == 0 else 0.0
    if accelerator.on_gpu and config.ranks == 1 and isinstance(config.model, Model):
        pace_s = measure_host_pace(config, lambda small: Trainer(small, mesh, clock).step)
        report({"host_layer_s": pace_s})
        torch.compiler.reset()  # or the model itself is compiled for any shape, having been seen in several
        accelerator.reset_peak()
    try:
        found = (_train_with_servers if config.servers else _train)(config, mesh, clock, peak, report)
        everybody = _gathered({"memory": float(accelerator.peak_bytes()), **found})
        if rank == 0:
            traffic = total_traffic([answer["traffic"] for answer in everybody], config.steps if config.servers else 1)
            seen = [ahead for answer in everybody for ahead in answer.get("staleness", ())]
            report(
                {
                    "memory_bytes": max(answer["memory"] for answer in everybody),
                    "traffic": traffic,
                    "timeline": [
                        {"rank": rank, **span._asdict()}
                        for rank, answer in enumerate(everybody)
                        for span in answer.get("timeline", ())
                    ],
                    "staleness": {str(ahead): seen.count(ahead) for ahead in sorted(set(seen))},
                }
            )
    finally:
        mesh.close()


def _train(config: TrainConfig, mesh: Mesh, clock: Clock, peak: float, report: Report) -> dict[str, Any]:
    """Train together with all ranks; returns what this rank sent in the last step, when everything was set up."""
    trainer = Trainer(config, mesh, clock)
    checkpoints = _checkpoints(config, trainer)
    traffic: dict[str, list[int]] = {}
    try:
        first = 0 if checkpoints is None else checkpoints.resume(lambda sentence: report({"note": sentence}))
        with clock.listening():
            for step in range(first, config.steps):
                take_traffic(mesh)  # what was sent between steps does not count
                spent = trainer.step(step)
                traffic = take_traffic(mesh)
                reports = _gathered(spent)
                if mesh.rank == 0:
                    report({"step": _summed_up(trainer.task, step, reports, peak)})
                _refuse_nan(step, reports)
                if checkpoints is not None:
                    checkpoints.after(step + 1)
    finally:
        if checkpoints is not None:
            checkpoints.close()
    # What the host of a GPU did says little about the GPU.
    return {"traffic": traffic, "timeline": [] if config.device == "cuda" else clock.spans}


def _train_with_servers(config: TrainConfig, mesh: Mesh, clock: Clock, peak: float, report: Report) -> dict[str, Any]:
    """Be a server, or a worker that exchanges data only with servers; the steps are combined at the end."""
    from choreo.train.experiments.parameter_server import serve

    reports: list[dict[str, float]] = []
    staleness: list[int] = []
    take_traffic(mesh)  # what was sent before does not count, nor do the initial values
    if mesh.rank >= config.plan.gpus:
        serve(config)
    else:
        trainer = Trainer(config, mesh, clock)
        staleness = trainer.optimizer.staleness
        take_traffic(mesh)
        for step in range(config.steps):
            reports.append(trainer.step(step))
            _refuse_nan(step, reports[-1:], mesh.rank)
    traffic = take_traffic(mesh)
    everybody: list[Any] = _gathered({"reports": reports})
    if mesh.rank == 0:
        for step in range(config.steps):
            of_step = [answer["reports"][step] for answer in everybody[: config.plan.gpus]]
            report({"step": _summed_up(trainer.task, step, of_step, peak, together=False)})
    return {"traffic": traffic, "staleness": staleness}


def _load_libraries(config: TrainConfig) -> None:
    """Load what torch loads with the first optimizer (75 MB) and for fully_shard: it is not the model's memory."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.AdamW([parameter], fused=True).step()
    if config.plan.zero >= 2:
        importlib.import_module("torch.distributed.fsdp")


def _checkpoints(config: TrainConfig, trainer: Trainer) -> Checkpoints | None:
    if not config.checkpoint:
        return None
    from choreo.train.checkpoint.checkpoint import Checkpoints

    return Checkpoints(config, trainer)


class Trainer:
    """The part of a model that a rank trains, its optimizer and its data."""

    def __init__(self, config: TrainConfig, mesh: Mesh, clock: Clock) -> None:
        self.config, self.mesh, self.clock, plan = config, mesh, clock, config.plan
        self.micro_batches = plan.micro_batches(config.global_batch)
        # DDP supports neither a backward pass in two halves nor several stages with interleaved passes.
        self.by_hand = plan.zero < 2 and plan.pp > 1 and (plan.schedule == "zero-bubble" or plan.interleave > 1)
        self.task = make_task(config, mesh)
        if config.compile:
            for stage in self.task.stages.values():
                stage.compile()
        self.stages: dict[int, nn.Module] = {
            number: replicate(stage, mesh, by_hand=self.by_hand, on_bucket=clock.bucket_ready)
            for number, stage in self.task.stages.items()
        }
        self.parameters = [parameter for stage in self.stages.values() for parameter in stage.parameters()]
        self.optimizer = _optimizer(self.parameters, config, mesh, clock)
        # With tensor ranks the loss communicates, which would break the compiled graph.
        self._summed_loss = torch.compile(self.task.loss) if config.compile and plan.tp == 1 else self.task.loss
        self.pipeline = self._pipeline() if plan.pp > 1 else None

    def _pipeline(self) -> Pipeline:
        from choreo.train.parallel.pipeline import Pipeline

        return Pipeline(self.mesh, self.stages, self.micro_batches, self._loss, self.clock)

    def step(self, number: int) -> dict[str, float]:
        """Train one step; this rank's share of the loss, and its seconds by part."""
        inputs, targets = self.task.batch(number)
        waited_s = core_wait_s()
        self.clock.begin()
        self.optimizer.zero_grad()
        with self._autocast():
            loss = self.pipeline.step(inputs, targets) if self.pipeline else self._accumulated(inputs, targets)
        with torch.no_grad():
            finish_gradients(self.parameters, self.mesh, by_hand=self.by_hand)
        with self.clock.part("optimizer"):
            self.optimizer.step()
        spent = self.clock.end() | {CORE_WAIT: core_wait_s() - waited_s}
        # The mean over tokens is the sum of the ranks' shares; tensor ranks have the same share.
        share = float(loss) / self.mesh.size("replicas") / self.mesh.size("tp")
        return {"loss": share, **spent}

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """This micro-batch's share of the mean over a step, times the replicas that torch divides by."""
        return self._summed_loss(outputs, targets) * (self.mesh.size("replicas") / self.task.units)

    def _accumulated(self, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """All micro-batches without a pipeline; gradients are sent with the last."""
        module = self.stages[0]
        total = torch.zeros((), device=self.mesh.device)
        chunks = zip(*(tensor.chunk(self.micro_batches) for tensor in (*inputs, targets)), strict=True)
        for number, (*given, wanted) in enumerate(chunks):
            with _without_sending(module, number < self.micro_batches - 1):
                with self.clock.passing("F", number):
                    loss = self._loss(module(*given), wanted)
                with self.clock.passing("B", number):
                    loss.backward()
            self.clock.backward_done()
            total += loss.detach()
        return total

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.config.plan.precision)
        return torch.autocast(self.mesh.device.type, dtype) if dtype else contextlib.nullcontext()


def _optimizer(parameters: list[Tensor], config: TrainConfig, mesh: Mesh, clock: Clock) -> Any:
    if not config.servers:
        return Optimizers(parameters, mesh, config.lr)
    from choreo.train.experiments.parameter_server import ServerOptimizer

    return ServerOptimizer(parameters, config, clock)


@contextlib.contextmanager
def _without_sending(module: nn.Module, yes: bool) -> Iterator[None]:
    """Keep gradients at this rank for now."""
    if yes and hasattr(module, "no_sync"):
        with module.no_sync():
            yield
    elif hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(not yes)
        yield
    else:
        yield


def _gathered(reports: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, reports)
    return found


def _summed_up(
    task: Task, step: int, reports: list[dict[str, float]], peak: float, *, together: bool = True
) -> dict[str, Any]:
    """A step of all ranks: the loss, the slowest rank's time, and the mean of the parts.

    For ranks that do not wait for each other (not `together`), the time is the mean.
    """
    times = [report["time"] for report in reports]
    time_s = max(times) if together else sum(times) / len(times)
    names = dict.fromkeys(name for report in reports for name in report if name not in ("time", "loss", CORE_WAIT))
    parts = {name: sum(report.get(name, 0.0) for report in reports) / len(reports) for name in names}
    parts[STRAGGLERS] = parts.get(STRAGGLERS, 0.0) + time_s - sum(times) / len(times)
    return {
        "step": step,
        "loss": sum(report["loss"] for report in reports),
        "tokens_per_s": task.units / time_s,
        "time_s": time_s,
        "mfu": task.flops / time_s / peak,
        "parts": parts,
        CORE_WAIT: sum(report[CORE_WAIT] for report in reports) / len(reports),
    }


def _refuse_nan(step: int, reports: list[dict[str, float]], first: int = 0) -> None:
    """Stop if a loss is NaN; `first` is the rank of the first report."""
    bad = [rank for rank, report in enumerate(reports, first) if not math.isfinite(report["loss"])]
    if bad:
        raise TrainingError(
            f"the loss is not a number at step {step} on {'rank' if len(bad) == 1 else 'ranks'} "
            f"{', '.join(map(str, bad))}; try a smaller --lr, and look "
            "at the data of that step and at the precision"
        )
