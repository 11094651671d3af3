"""A host's processor as a device: each rank is a process of one thread, and ranks may outnumber the cores.

Constants are measured for several numbers of ranks that compute at once, because ranks share cores, caches and memory.
A matrix product loses time at the edges of each dimension, and a memory-bound kernel is as fast as the memory that its
bytes fit in:

    product    t = operator + count · 2 m n k / peak · (1 + m0 / m) (1 + n0 / n) (1 + k0 / k)
    attention  t = operator + batch · heads · queries · (visible keys + diagonal) · (f d / (peak · η) + t_exp)
    memory     t = operator + bytes / (bandwidth · share(bytes))

`operator` is the overhead of one operator besides its arithmetic. On a CPU nothing else can hide it.
f is 4 FLOP per score and head dimension forward and 10 backward, as on an accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from choreo.errors import UnknownNameError
from choreo.hardware.device import Device
from choreo.hardware.matmul import Array

__all__ = ["Cpu", "CpuAttention", "CpuProducts", "MemoryTiers", "SharedCpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProducts:
    """Matrix products of one precision: FLOP/s of large ones, and the loss of each dimension, as a length."""

    peak_flops: float
    rows: float  # m0
    columns: float  # n0
    inner: float  # k0

    def time(self, count: Array, m: Array, n: Array, k: Array, peak_flops: float) -> Array:
        """Seconds without the operator's overhead."""
        # An empty product takes no time; avoid the division by zero.
        m, n, k = (np.maximum(size, 1e-9) for size in (m, n, k))
        lost = (1 + self.rows / m) * (1 + self.columns / n) * (1 + self.inner / k)
        return np.asarray(2 * count * m * n * k / peak_flops * lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAttention:
    """Fused attention in one direction."""

    issue: float  # η: of the peak of matrix products
    score_s: float  # t_exp
    diagonal: float  # what a causal mask wastes in the blocks that it crosses, in keys


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTiers:
    """Memory-bound kernels of one kind: the share of the memory's bandwidth at some numbers of bytes moved."""

    at_bytes: tuple[float, ...]
    share: tuple[float, ...]

    def share_at(self, moved: Array) -> Array:
        """The share at any number of bytes: between those measured, on a line in the logarithms."""
        logs = np.log(np.maximum(moved, 1.0))
        return np.exp(np.interp(logs, np.log(self.at_bytes), np.log(self.share)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCpu:
    """The share of a processor that one rank gets when `ranks` of them compute at once."""

    ranks: int
    operator_s: float
    memory_bandwidth_bytes_per_s: float  # measured with a large sum of two tensors
    products: Mapping[str, CpuProducts]  # by precision
    attention: Mapping[str, Mapping[str, CpuAttention]]  # by precision, then "forward" or "backward"
    memory: Mapping[str, MemoryTiers]  # by kind


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cpu(Device):
    """The share of a processor that one of `ranks` ranks has. `choreo calibrate --device cpu` measures it."""

    host: str  # the name of the machine
    cores: int
    shared: tuple[SharedCpu, ...]  # by number of ranks, fewest first
    ranks: int = 1
    collective_s: float = 0.0  # torch's overhead for a collective in a layer, besides the communicator's own time
    # A processor has constants of its own, and no clock or power limit that the planner could know.
    curves: None = field(default=None)  # type: ignore[assignment]

    def __hash__(self) -> int:
        return hash((self.name, self.ranks, self.memory_bytes, self.memory_bandwidth_bytes_per_s, self.launch_s))

    @property
    def sharing(self) -> float:
        """The number of ranks that share a core; at least 1."""
        return max(1.0, self.ranks / self.cores)

    @property
    def at_work(self) -> SharedCpu:
        """The constants that were measured with the number of ranks nearest to this one."""
        return min(self.shared, key=lambda shared: (abs(math.log(shared.ranks / self.ranks)), -shared.ranks))

    @property
    def busy_sending(self) -> bool:
        """False: a processor's clock does not depend on communication."""
        return False

    def for_ranks(self, ranks: int) -> Cpu:
        """The share of each of that many ranks in the processor and in the host's memory."""
        if ranks == self.ranks and self.launch_s > 0:
            return self
        whole = self.memory_bytes * self.ranks
        share = replace(self, ranks=ranks, memory_bytes=whole // ranks)
        found = share.at_work
        # If ranks outnumber the cores they share them evenly.
        slower = share.sharing / max(1.0, found.ranks / self.cores)
        return replace(
            share,
            launch_s=found.operator_s * slower,
            memory_bandwidth_bytes_per_s=found.memory_bandwidth_bytes_per_s / slower,
            peak_flops={name: curve.peak_flops / slower for name, curve in found.products.items()},
        )

    def clock(self, use: npt.ArrayLike = 1.0) -> Array:
        """A processor was measured at the clock it holds."""
        return np.ones_like(np.asarray(use, dtype=np.float64))

    def at_duty(self, products: float, waiting: float = 0.0) -> Cpu:
        """The same device: waiting frees no power for a higher clock that could be relied on."""
        return self

    def batched_matmul_time(
        self,
        batch: npt.ArrayLike,
        m: npt.ArrayLike,
        n: npt.ArrayLike,
        k: npt.ArrayLike,
        precision: str = "bf16",
        *,
        split: bool = False,
    ) -> Array:
        """Seconds of `batch` products of one shape; a processor always sums in fp32."""
        used = self.precision(precision)
        count, rows, columns, inner = (np.asarray(size, dtype=np.float64) for size in (batch, m, n, k))
        curve = self.at_work.products[used]
        return self.launch_s + curve.time(count, rows, columns, inner, self.peak_flops[used])

    def attention_time(  # noqa: PLR0917 - as Device has it
        self,
        batch: npt.ArrayLike,
        heads: npt.ArrayLike,
        seq_q: npt.ArrayLike,
        seq_k: npt.ArrayLike,
        head_dim: npt.ArrayLike,
        causal: bool = True,
        precision: str = "bf16",
        backward: bool = False,
        *,
        flash: int | None = None,
    ) -> Array:
        """Seconds of fused attention forward or, with `backward`, of its backward pass alone."""
        used = self.precision(precision)
        curve = self.at_work.attention[used]["backward" if backward else "forward"]
        rows, keys = np.asarray(seq_q, dtype=np.float64), np.asarray(seq_k, dtype=np.float64)
        seen = np.maximum(keys - rows / 2, 1) + curve.diagonal if causal else keys
        rate = self.peak_flops[used] * curve.issue
        slower = self.at_work.products[used].peak_flops / self.peak_flops[used]
        score_s = (10.0 if backward else 4.0) * np.asarray(head_dim) / rate + curve.score_s * slower
        return np.asarray(self.launch_s + np.asarray(batch) * heads * rows * seen * score_s)

    def memory_time(self, bytes_moved: npt.ArrayLike, kind: str = "elementwise") -> Array:
        """Seconds of a kernel that is bound by the bytes it reads and writes."""
        tiers = self.at_work.memory
        if kind not in tiers:
            raise UnknownNameError("kind of memory-bound kernel", kind, tiers)
        moved = np.asarray(bytes_moved, dtype=np.float64)
        return np.asarray(self.launch_s + moved / (self.memory_bandwidth_bytes_per_s * tiers[kind].share_at(moved)))
