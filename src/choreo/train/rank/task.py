"""The task that a model is trained on: this rank's part, its batches, its loss, and the units of a step."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from choreo.train.config import TrainConfig
from choreo.train.data.samples import click, image
from choreo.train.data.text import open_text
from choreo.train.models.dlrm import Dlrm, tables_of
from choreo.train.models.further_token import further_tokens
from choreo.train.models.parameters import Builder
from choreo.train.models.resnet import ResNet
from choreo.train.models.transformer import Stage
from choreo.train.parallel.context import positions_of
from choreo.train.parallel.mesh import Mesh
from choreo.workload import ConvNet, Model, Recommender, model_flops

__all__ = ["Task", "make_task"]

Batch = tuple[tuple[Tensor, ...], Tensor]


class Task(Protocol):
    """A model in training. `units` are the tokens or samples in a step of all ranks, `flops` their FLOPs."""

    stages: dict[int, nn.Module]
    units: int
    flops: float

    def batch(self, step: int) -> Batch:
        """Inputs and targets of this rank, by sample."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The summed loss of some samples."""


def make_task(config: TrainConfig, mesh: Mesh) -> Task:
    """The task of a configuration, with this rank's part of its model."""
    make = Builder(config.seed, mesh, config.plan.sequence_parallel and config.plan.tp > 1)
    if isinstance(config.model, Model):
        return Language(config, config.model, mesh, make)
    if isinstance(config.model, ConvNet):
        return Images(config, config.model, mesh, make)
    return Clicks(config, config.model, mesh, make)


def _numbers(config: TrainConfig, mesh: Mesh, step: int) -> range:
    """The numbers of the samples that this rank takes in a step."""
    each = config.global_batch // config.plan.dp
    first = step * config.global_batch + mesh.index["dp"] * each
    return range(first, first + each)


class Language:
    """The next byte of a text."""

    def __init__(self, config: TrainConfig, model: Model, mesh: Mesh, make: Builder) -> None:
        self.config, self.mesh = config, mesh
        self.text = open_text(config.data, config.seq, config.seed)
        self.positions = positions_of(config.seq, mesh.index["cp"], mesh.size("cp"))
        self.stages: dict[int, nn.Module] = {
            number: Stage(make, model, config.seq, layers, config.plan.recompute)
            for number, layers in mesh.stages(model.layers)
        }
        self._last = next((stage for stage in self.stages.values() if stage.last), None)
        self.units = config.global_batch * config.seq
        self.flops = model_flops(model, config.seq, config.global_batch)
        self.further = model.mtp_layers

    def batch(self, step: int) -> Batch:
        """Tokens and targets: this rank's positions of each of its samples."""
        numbers = _numbers(self.config, self.mesh, step)
        rows = torch.from_numpy(self.text.batch(numbers[0], len(numbers))).to(self.mesh.device)
        tokens = rows[:, self.positions].contiguous()
        if not self.further:
            return (tokens,), rows[:, self.positions + 1].contiguous()
        read, wanted = further_tokens(rows, self.positions, self.further)
        return (tokens, read), wanted

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of the next byte, and of those after it where the model predicts them."""
        assert self._last is not None
        return self._last.loss(outputs, targets)


class Images:
    """The class of an image."""

    def __init__(self, config: TrainConfig, net: ConvNet, mesh: Mesh, make: Builder) -> None:
        self.config, self.mesh, self.net = config, mesh, net
        self.stages: dict[int, nn.Module] = {0: ResNet(make, net)}
        self.units = config.global_batch
        self.flops = 3 * net.flops_per_image * config.global_batch

    def batch(self, step: int) -> Batch:
        """Images and their classes."""
        found = [image(self.net, self.config.seed, number) for number in _numbers(self.config, self.mesh, step)]
        pixels = torch.from_numpy(np.stack([one for one, _ in found]))
        return (pixels.to(self.mesh.device),), torch.tensor([label for _, label in found], device=self.mesh.device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy."""
        return F.cross_entropy(outputs.float(), targets, reduction="sum")


class Clicks:
    """The task of DLRM: predict whether somebody clicks."""

    def __init__(self, config: TrainConfig, net: Recommender, mesh: Mesh, make: Builder) -> None:
        self.config, self.mesh, self.net = config, mesh, net
        self.stages: dict[int, nn.Module] = {0: Dlrm(make, net)}
        self.own = tables_of(net, mesh.size("replicas"))[mesh.index["replicas"]]
        self.units = config.global_batch
        self.flops = 3 * net.flops_per_sample * config.global_batch

    def batch(self, step: int) -> Batch:
        """This rank's dense features and clicks, and every rank's rows of this rank's tables."""
        batch, device = self.config.global_batch, self.mesh.device
        found = [click(self.net, self.config.seed, step * batch + number) for number in range(batch)]
        picks = torch.from_numpy(np.stack([rows[self.own] for _, rows, _ in found]))
        picks = picks.unflatten(0, (self.config.plan.dp, -1)).transpose(0, 1).contiguous()
        first = step * batch
        own = [found[number - first] for number in _numbers(self.config, self.mesh, step)]
        dense = torch.from_numpy(np.stack([numbers for numbers, _, _ in own]))
        clicked = torch.tensor([one for _, _, one in own], device=device)
        return (dense.to(device), picks.to(device)), clicked

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross entropy."""
        return F.binary_cross_entropy_with_logits(outputs.float(), targets, reduction="sum")
