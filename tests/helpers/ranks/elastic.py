"""A job of `choreo.Elastic` for tests: forked ranks train a small model, and a driver does bad things to them."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing as mp
import os
import random
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo.train import TrainConfig
from tests.helpers.network.hosts import PORT, Hosts, enter

__all__ = ["BATCH", "ElasticJob", "Trained", "losses_alone", "make"]

CONTEXT = mp.get_context("fork")
BATCH = 8
SECRET = "what only this test knows"
HANG_S = 90.0
FOREVER = 1_000_000
MORE = 10  # steps until all have heard that it ends


def make(optimizer: str = "adamw") -> tuple[Any, Any, Any]:
    """A small model with dropout, its optimizer and a scheduler."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 16), torch.nn.Tanh(),
        torch.nn.Linear(16, 1),
    )  # fmt: skip
    if optimizer == "adamw":
        made: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    else:
        made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return model, made, torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + 0.01 * step))


def loss_of(model: Any, step: int, sample: int) -> Any:
    """The loss of a sample, which depends on the step and the sample alone."""
    import torch

    noise = torch.Generator().manual_seed(1000 * step + sample)
    x = torch.randn(4, 6, generator=noise)
    return (model(x)[:, 0] - x.sum(1).sin()).square().mean()


@dataclass
class Trained:
    """What a rank tells: the steps that it completed, and what it held."""

    losses: dict[int, float] = field(default_factory=dict)
    at_s: dict[int, float] = field(default_factory=dict)
    changes: list[Any] = field(default_factory=list)
    held: list[tuple[int, ...]] = field(default_factory=list)
    parameters: Any = None


def train(last: Any, options: dict[str, Any], tell: Any, pause_s: float = 0.0) -> Trained:
    """One rank's loop, to the step that `last` holds."""
    options = dict(options)
    if "config" in options:
        return train_config(options["config"], tell, pause_s)
    model, optimizer, scheduler = make(options.pop("optimizer", "adamw"))
    clip, found = options.pop("clip", None), Trained()
    with choreo.Elastic(model, optimizer, also=[scheduler], **options) as job:
        for step in job.steps(FOREVER):
            time.sleep(pause_s)
            loss = job.backward(partial(loss_of, model, step), samples=range(BATCH))
            job.step(clip=clip)
            scheduler.step()
            if not math.isnan(loss):
                tell(("step", step, loss, time.monotonic(), job.ranks))
            if step == 3:
                found.held.append(_held())
            if step >= last.value:
                break
        found.changes = job.changes
    found.held.append(_held())
    found.parameters = [one.detach().numpy().copy() for one in model.parameters()]
    return found


def train_config(config: TrainConfig, tell: Any, pause_s: float) -> Trained:
    """One rank of `choreo train --elastic`."""
    from choreo.train.elastic.loop import train_elastic

    def report(told: dict[str, Any]) -> None:
        if "step" in told:
            one = told["step"]
            assert sum(one["parts"].values()) == pytest.approx(one["time_s"])
            tell(("step", one["step"], one["loss"], time.monotonic(), ()))
            time.sleep(pause_s)

    train_elastic(config, report)
    return Trained(held=[_held()])


def _held() -> tuple[int, ...]:
    gc.collect()
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/choreo-" in line]
    return len(list(Path("/proc/self/fd").iterdir())), len(maps), threading.active_count()


def losses_alone(optimizer: str = "adamw", clip: float | None = None) -> Iterator[float]:
    """The losses of one process in plain torch, one after another."""
    import torch

    model, made, scheduler = make(optimizer)
    seeds = choreo.Elastic(model, made)
    for step in range(FOREVER):
        made.zero_grad()
        seeds._number, total = step, 0.0
        for sample in range(BATCH):
            torch.manual_seed(seeds._random_seed(sample))
            loss = loss_of(model, step, sample) / BATCH
            loss.backward()
            total += float(loss.detach())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        made.step()
        scheduler.step()
        yield total


@dataclass
class Process:
    """One process of the job."""

    process: Any
    pipe: Pipe
    host: int
    stopped: bool = False
    awaited: int = 0  # the step that it must complete to count as being there


class ElasticJob:
    """Ranks of one job; `look` hears them, `kill`, `stop` and `wake` do something to one of them.

    With `hosts` rank r is on host r.
    """

    def __init__(
        self, ranks: int, *, seed: int = 0, pause_s: float = 0.0, hosts: Hosts | None = None, **options: Any
    ) -> None:
        next(losses_alone())  # what torch imports with the first step is imported once
        self.inherited = _held()[1]  # maps that other tests have left to this process, which its forks get too
        self.ranks, self.options, self.pause_s, self.hosts = ranks, options, pause_s, hosts
        self.last = CONTEXT.Value("q", FOREVER, lock=False)
        self.random = random.Random(seed)
        self.losses: dict[int, float] = {}
        self.at_s: dict[int, float] = {}  # when the first rank completed a step
        self.live: dict[int, tuple[int, ...]] = {}
        self.differences: list[str] = []
        self.ended: list[Trained] = []
        self.errors: list[str] = []
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.processes: list[Process] = []
        for rank in range(ranks):
            self.start(rank, host=rank)

    def start(self, rank: int | None = None, *, host: int) -> None:
        """Start a rank, or a process that joins."""
        ours, theirs = CONTEXT.Pipe()
        variables = {
            "MASTER_ADDR": "127.0.0.1" if self.hosts is None else self.hosts.addresses[0],
            "MASTER_PORT": str(self._held.getsockname()[1] if self.hosts is None else PORT),
            "CHOREO_SECRET": SECRET,
            "WORLD_SIZE": str(self.ranks),
            "RANK": str(rank or 0),
            "CHOREO_JOIN": "1" if rank is None else "",
            "CHOREO_ADDRESSES": "" if self.hosts is None else ",".join(self.hosts.addresses),
        }
        name = None if self.hosts is None else self.hosts.names[host]
        process = CONTEXT.Process(target=_life, args=(self, theirs, variables, name), daemon=True)
        process.start()
        theirs.close()
        self.processes.append(Process(process, ours, host, awaited=max(1, self.step + 1)))

    @property
    def step(self) -> int:
        """The last step that was heard of."""
        return max(self.losses, default=-1)

    def look(self, seconds: float = 0.0, until_step: int | None = None) -> None:
        """Hear the ranks for a while, or until a step is done."""
        end_s = time.monotonic() + (HANG_S if until_step is not None else seconds)
        while self.processes and not self.errors:
            pipes = {one.pipe: one for one in self.processes}
            for pipe in wait(list(pipes), min(0.02, max(0.0, end_s - time.monotonic()))):
                self._hear(pipes[pipe])  # type: ignore[index]
            if until_step is not None and self.step >= until_step:
                return
            if time.monotonic() >= end_s:
                assert until_step is None, f"nothing happened for {HANG_S} s after step {self.step}"
                return

    def finish(self) -> None:
        """Wake everybody, and hear them to the end."""
        for one in self.processes:
            if one.stopped:
                self.wake(one)
        self.last.value = self.step + MORE
        end_s = time.monotonic() + HANG_S
        while self.processes and not self.errors and time.monotonic() < end_s:
            self.look(0.1)
        left = len(self.processes)
        self.close()
        assert not self.errors, self.errors[0]
        assert not left, f"{left} ranks did not end"

    def close(self) -> None:
        """End everything."""
        for one in self.processes:
            one.process.kill()
            one.process.join()
            one.pipe.close()
        self.processes = []
        self._held.close()

    def look_until_all_are_back(self) -> None:
        """Hear the ranks until there are as many as at first."""
        end_s = time.monotonic() + HANG_S
        while not self.errors and (
            len(self.processes) > self.ranks
            or len(self.live[self.step]) < self.ranks
            or any(one.awaited for one in self.processes)
        ):
            assert time.monotonic() < end_s, f"not all came back: {self.live[self.step]}"
            self.look(0.01)

    def look_until_ranks_are(self, ranks: tuple[int, ...]) -> None:
        """Hear the ranks until these have completed a step by themselves."""
        end_s = time.monotonic() + HANG_S
        while not self.errors and self.live[self.step] != ranks:
            assert time.monotonic() < end_s, f"the ranks are still {self.live[self.step]}"
            self.look(0.01)

    def kill(self, one: Process, *, replace: bool = True) -> None:
        """Kill a rank, and start another in its place."""
        one.process.kill()
        if replace:
            self.start(host=one.host)

    def cut(self, one: Process, seconds: float) -> None:
        """Pull the cables of a rank's host for a while."""
        assert self.hosts is not None
        self.hosts.cut(one.host)
        self.look(seconds)
        self.hosts.mend(one.host)
        one.awaited = self.step + 2

    def stop(self, one: Process) -> None:
        """Stop a rank."""
        one.stopped = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.process.pid, signal.SIGSTOP)

    def wake(self, one: Process) -> None:
        """Let a stopped rank go on."""
        one.stopped, one.awaited = False, self.step + 2
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.process.pid, signal.SIGCONT)

    def _hear(self, one: Process) -> None:
        try:
            kind, *told = one.pipe.recv()
        except (EOFError, OSError):
            one.process.join()
            one.pipe.close()
            self.processes.remove(one)
            return
        if kind == "step":
            step, loss, at_s, live = told
            if abs(self.losses.setdefault(step, loss) - loss) > 1e-9:
                self.differences.append(f"step {step}: {self.losses[step]} and {loss}")
            one.awaited = 0 if step >= one.awaited else one.awaited
            self.at_s.setdefault(step, at_s)
            self.live.setdefault(step, live)
        elif kind == "ended":
            self.ended.append(told[0])
        else:
            self.errors.append(told[0])


def _life(job: ElasticJob, pipe: Pipe, variables: dict[str, str], host: str | None) -> None:
    for other in job.processes:
        other.pipe.close()
    os.environ.update(variables)
    try:
        if host is not None:
            enter(host)
        pipe.send(("ended", train(job.last, job.options, pipe.send, job.pause_s)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
