"""ResNets (He et al. 2016) as a graph: a convolution is a product of (images × pixels) by (in × kernel²).

Only data parallelism cuts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from choreo.workload.graph.build import Builder, Dims
from choreo.workload.graph.graph import Graph
from choreo.workload.graph.sharding import Sharding, cut_along
from choreo.workload.mesh import mesh_of
from choreo.workload.plan import Plan

__all__ = ["ConvNet", "Convolution", "convnet_graph"]

EXPANSION = 4  # channels that leave a bottleneck, to those inside


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution: channels, kernel, stride, and the side of its output in pixels."""

    name: str
    channels_in: int
    channels_out: int
    kernel: int
    stride: int
    side: int

    @property
    def parameters(self) -> int:
        """Parameters of the kernel; the batch norm after it has two more per channel."""
        return self.channels_in * self.channels_out * self.kernel**2

    @property
    def flops(self) -> int:
        """Forward FLOPs of one image."""
        return 2 * self.parameters * self.side**2


@dataclass(frozen=True, slots=True)
class ConvNet:
    """A residual network: how many bottleneck blocks each of its groups has."""

    name: str
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    image: int = 224

    def table(self) -> tuple[Convolution, ...]:
        """Every convolution in order; a "shortcut" runs beside the three of its block."""
        side = self.image // 2
        rows = [Convolution("stem", 3, self.width, 7, 2, side)]
        side, channels = side // 2, self.width
        for group, count in enumerate(self.blocks):
            inner = self.width << group
            for block in range(count):
                stride = 2 if group and not block else 1
                name, wide, before = f"group{group + 1}.{block}", EXPANSION * inner, side
                side //= stride
                rows.append(Convolution(f"{name}.reduce", channels, inner, 1, 1, before))
                rows.append(Convolution(f"{name}.middle", inner, inner, 3, stride, side))
                rows.append(Convolution(f"{name}.expand", inner, wide, 1, 1, side))
                if not block:
                    rows.append(Convolution(f"{name}.shortcut", channels, wide, 1, stride, side))
                channels = wide
        return tuple(rows)

    @property
    def features(self) -> int:
        """Inputs of the classifier."""
        return EXPANSION * self.width << (len(self.blocks) - 1)

    @property
    def parameters(self) -> int:
        """All parameters."""
        rows = self.table()
        return sum(row.parameters + 2 * row.channels_out for row in rows) + (self.features + 1) * self.classes

    @property
    def flops_per_image(self) -> float:
        """Forward FLOPs of one image."""
        return float(sum(row.flops for row in self.table()) + 2 * self.features * self.classes)


def convnet_graph(net: ConvNet, plan: Plan) -> Graph:
    """The forward graph of the whole network, for `micro_batch` images, at one rank.

    >>> convnet_graph(ConvNet("resnet-50"), Plan(dp=8, micro_batch=32)).parameters
    25557032.0
    """
    return _graph(net, plan.data_parallel_only(net.name))


@lru_cache(maxsize=256)
def _graph(net: ConvNet, plan: Plan) -> Graph:
    mesh = mesh_of(plan)
    build = Builder(net.name, mesh, plan.activation_bytes)
    cut = cut_along(mesh, dp="batch")
    batch = ("batch", float(plan.micro_batch * plan.dp))
    image = build.input("image", (batch, ("row", net.image), ("column", net.image), ("channels", 3)), cut, role="data")
    at, shortcut = image, image
    for row in net.table():
        part = row.name.rsplit(".", 1)[-1]
        if part == "reduce":
            shortcut = at
        output = _convolved(build, row, shortcut if part == "shortcut" else at, batch, cut)
        if part == "shortcut":
            shortcut = output
        elif part == "expand":
            at = output
            if f"{row.name.removesuffix('expand')}shortcut" in {other.name for other in net.table()}:
                continue
        else:
            at = _pointwise(build, f"{row.name}.relu", [output], keeps=True)
            if row.name == "stem":
                at = _pooled(build, at, row, batch)
            continue
        joined = _pointwise(build, f"{row.name}.add", [at, shortcut], sums=True)
        at = _pointwise(build, f"{row.name}.relu", [joined], keeps=True)
    features: Dims = (batch, ("channels", net.features))
    (mean,) = build.operator("mean", "reduction", [at], [("mean", features)])
    weight = build.weight("classifier.weight", (("channels", net.features), ("classes", net.classes)))
    bias = build.weight("classifier.bias", (("classes", net.classes),))
    (logits,) = build.matmul(
        "classifier", mean, [weight], [("logits", (batch, ("classes", net.classes)))], want=cut, bias=[bias]
    )
    odds = ("probabilities", (batch, ("classes", net.classes)), 4.0)
    (loss,) = build.operator(
        "loss", "cross_entropy", [logits], [("loss", (batch,))], states=[odds], saves=["probabilities"], item_bytes=4
    )
    build.output(loss, cut)
    return build.graph()


def _convolved(build: Builder, row: Convolution, given: str, batch: tuple[str, float], cut: Sharding) -> str:
    """A convolution and the batch norm after it."""
    dims: Dims = (batch, ("row", row.side), ("column", row.side), ("channels", row.channels_out))
    kernel = (("taps", row.channels_in * row.kernel**2), ("channels", row.channels_out))
    weight = build.weight(f"{row.name}.weight", kernel)
    pixels = batch[1] / build.mesh["dp"] * row.side**2
    (output,) = build.operator(
        row.name,
        "matmul",
        [given],
        [(row.name, dims)],
        want=cut,
        weights=[weight],
        saves=[given],
        shape=(pixels, row.channels_out, row.channels_in * row.kernel**2, 1.0),
    )
    scale = [build.weight(f"{row.name}.norm.{part}", dims[-1:]) for part in ("weight", "bias")]
    (normed,) = build.operator(
        f"{row.name}.norm", "norm", [output], [(f"{row.name}.norm", dims)], want=cut, weights=scale, saves=[output]
    )
    return normed


def _pointwise(build: Builder, name: str, given: list[str], *, keeps: bool = False, sums: bool = False) -> str:
    dims = build.tensors[given[0]].dims
    (output,) = build.operator(name, "elementwise", given, [(name, dims)], saves=[name] if keeps else [], sums=sums)
    return output


def _pooled(build: Builder, given: str, row: Convolution, batch: tuple[str, float]) -> str:
    side = row.side // 2
    dims: Dims = (batch, ("row", side), ("column", side), ("channels", row.channels_out))
    (output,) = build.operator("pool", "reduction", [given], [("pool", dims)], saves=[given, "pool"])
    return output
