"""ResNet with bottleneck blocks (He et al. 2016), from the table of convolutions that `ConvNet` gives."""

from __future__ import annotations

import math

import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from choreo.train.models.parameters import Builder
from choreo.workload import ConvNet, Convolution

__all__ = ["ResNet"]


class ResNet(nn.Module):
    """Images in, logits of their classes out."""

    def __init__(self, make: Builder, net: ConvNet) -> None:
        super().__init__()
        rows = {row.name: row for row in net.table()}
        self.stem = Convolved(make, rows["stem"])
        names = dict.fromkeys(name.rpartition(".")[0] for name in rows if "." in name)
        self.blocks = nn.ModuleDict({name.replace(".", "_"): Bottleneck(make, rows, name) for name in names})
        self.weight = make.make("classifier", (net.classes, net.features), std=0.01)
        self.bias = make.make("classifier.bias", (net.classes,))

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each image."""
        x = F.max_pool2d(F.relu(self.stem(images)), 3, stride=2, padding=1)
        for block in self.blocks.values():
            x = block(x)
        return F.linear(x.mean((2, 3)), self.weight, self.bias)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut, which is one too where the shape changes."""

    def __init__(self, make: Builder, rows: dict[str, Convolution], name: str) -> None:
        super().__init__()
        self.reduce = Convolved(make, rows[f"{name}.reduce"])
        self.middle = Convolved(make, rows[f"{name}.middle"])
        self.expand = Convolved(make, rows[f"{name}.expand"])
        shortcut = rows.get(f"{name}.shortcut")
        self.shortcut = Convolved(make, shortcut) if shortcut else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, with as many pixels as its middle convolution gives."""
        inner = F.relu(self.middle(F.relu(self.reduce(x))))
        return F.relu(self.expand(inner) + self.shortcut(x))


class Convolved(nn.Module):
    """A convolution and the batch norm after it, over the samples of one micro-batch."""

    def __init__(self, make: Builder, row: Convolution) -> None:
        super().__init__()
        self.row = row
        shape = (row.channels_out, row.channels_in, row.kernel, row.kernel)
        self.weight = make.make(row.name, shape, std=math.sqrt(2 / (row.channels_out * row.kernel**2)))
        self.scale = make.make(f"{row.name}.norm", (row.channels_out,), fill=1.0)
        self.shift = make.make(f"{row.name}.norm.bias", (row.channels_out,))

    def forward(self, x: Tensor) -> Tensor:
        """The normalised convolution."""
        x = F.conv2d(x, self.weight, stride=self.row.stride, padding=self.row.kernel // 2)
        return F.batch_norm(x, None, None, self.scale, self.shift, training=True)
