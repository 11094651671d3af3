"""Asynchronous data parallelism with parameter servers, under a bound on staleness.

Every server holds a share of the parameters with its optimizer. A worker sends each server the gradients of its share,
and gets the parameters back. A worker that has finished c steps may go on while the slowest has finished c - S at least
(stale synchronous parallel, SSP). With S = 0 a server waits for all gradients of a step and makes one step of the
optimizer, as an all_reduce would. Otherwise it makes one for each gradient as it comes: P workers make P of them, so
each has 1/P of the learning rate, and the moments decay by the P-th root.

Sources: M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; Q. Ho et al., "More
effective distributed ML via a stale synchronous parallel parameter server", NeurIPS 2013.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from choreo.train.config import TrainConfig
from choreo.train.models.parameters import share
from choreo.train.parallel.adam import adamw_options
from choreo.train.rank.parts import Clock

__all__ = ["Server", "ServerOptimizer", "serve"]

SIZE, VALUES, GRADIENTS, PARAMETERS, STALENESS = range(5)  # tags
WAIT = "dp server"


class ServerOptimizer:
    """A worker's optimizer: it sends the gradients to the servers, and waits for the parameters of the next step."""

    def __init__(self, parameters: list[Tensor], config: TrainConfig, clock: Clock) -> None:
        self.parameters, self.clock = parameters, clock
        self.staleness: list[int] = []  # of the parameters after each step
        first = _flatten_dense_tensors([parameter.detach() for parameter in parameters])
        # By server: its rank, and where its share begins and ends.
        self.shares = [
            (config.plan.gpus + index, start, start + size)
            for index in range(config.servers)
            for start, size in [share(first.numel(), config.servers, index)]
        ]
        if dist.get_rank() == 0:
            for server, start, end in self.shares:
                dist.send(torch.tensor([end - start]), server, tag=SIZE)
                dist.send(first[start:end], server, tag=VALUES)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Send the gradients, and get the parameters."""
        grads = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in self.parameters
        ]
        flat, values = _flatten_dense_tensors(grads), _flatten_dense_tensors(self.parameters)
        counts = torch.zeros(len(self.shares), dtype=torch.int64)
        with self.clock.part(WAIT):
            works = []
            for index, (server, start, end) in enumerate(self.shares):
                works.append(dist.irecv(counts[index : index + 1], server, tag=STALENESS))
                works.append(dist.irecv(values[start:end], server, tag=PARAMETERS))
                works.append(dist.isend(flat[start:end], server, tag=GRADIENTS))
            for work in works:
                work.wait()
        for parameter, value in zip(self.parameters, _unflatten_dense_tensors(values, self.parameters), strict=True):
            parameter.copy_(value)
        self.staleness.append(int(counts.max()))


class Server:
    """A share of the parameters. `counts` are the steps whose gradients each worker has sent.

    >>> server = Server(torch.zeros(2), workers=2, staleness=1, lr=0.1)
    >>> server.take(0, torch.ones(2))
    >>> server.ready()
    [(0, 1)]
    >>> server.take(0, torch.ones(2))
    >>> server.ready()
    []
    >>> server.take(1, torch.ones(2))
    >>> server.ready()
    [(0, 1), (1, 0)]
    """

    def __init__(self, values: Tensor, *, workers: int, staleness: int, lr: float) -> None:
        self.share, self.bound = nn.Parameter(values), staleness
        self.counts = [0] * workers
        self._waiting: list[int] = []  # for parameters
        self._sum = torch.zeros_like(values)
        options = adamw_options(lr)
        if staleness:
            options |= {"lr": lr / workers, "betas": tuple(beta ** (1 / workers) for beta in options["betas"])}
        self._adam = torch.optim.AdamW([self.share], **options)

    def take(self, worker: int, gradient: Tensor) -> None:
        """Take a worker's gradient of its next step."""
        self.counts[worker] += 1
        self._waiting.append(worker)
        if self.bound:
            self._update(gradient)
            return
        self._sum += gradient
        if len(self._waiting) == len(self.counts):
            self._update(self._sum / len(self.counts))
            self._sum.zero_()

    def ready(self) -> list[tuple[int, int]]:
        """The workers that may have parameters now, each with how many steps it is ahead of the slowest."""
        slowest = min(self.counts)
        found = [
            (worker, self.counts[worker] - slowest)
            for worker in self._waiting
            if self.counts[worker] - slowest <= self.bound
        ]
        self._waiting = [worker for worker in self._waiting if self.counts[worker] - slowest > self.bound]
        return found

    def _update(self, gradient: Tensor) -> None:
        self.share.grad = gradient
        self._adam.step()


def serve(config: TrainConfig) -> None:
    """Serve until all workers have finished their steps."""
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, 0, tag=SIZE)
    values = torch.empty(int(size))
    dist.recv(values, 0, tag=VALUES)
    workers = config.plan.dp
    server = Server(values, workers=workers, staleness=config.staleness, lr=config.lr)
    gradient = torch.empty_like(values)
    for _ in range(workers * config.steps):
        server.take(dist.recv(gradient, None, tag=GRADIENTS), gradient)
        works: list[Any] = []
        for worker, ahead in server.ready():
            works.append(dist.isend(torch.tensor([ahead]), worker, tag=STALENESS))
            works.append(dist.isend(server.share.detach(), worker, tag=PARAMETERS))
        for work in works:
            work.wait()
