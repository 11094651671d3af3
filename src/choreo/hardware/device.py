"""The device: peak rates, memory and links, and the time of a kernel of a given shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.errors import DeviceError, UnknownNameError, shown
from choreo.hardware.attention import AttentionCurve
from choreo.hardware.matmul import Array, MatmulCurve
from choreo.hardware.memory import MemoryCurve
from choreo.hardware.power import STEADY, Duty, PowerCurve

__all__ = ["PRECISIONS", "Curves", "Device", "Source"]

# Bytes of an element that is read; 8-bit and 4-bit products write 16 bits.
PRECISIONS = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}
# Products of eight bits whose sums go to fp32 registers every few steps, where tensor cores sum in less (Hopper, Ada).
SPLIT = "fp8-split"
# Substitutes for a precision that a device does not have, in order of preference.
INSTEAD = {
    "fp4": ("fp8", "bf16", "fp16"),
    "fp8": ("bf16", "fp16"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32", "bf16"),
    "fp32": ("tf32", "bf16", "fp16"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a figure."""

    figure: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The constants of an architecture's kernels; see `matmul`, `attention`, `power`."""

    matmul: MatmulCurve
    power: PowerCurve
    attention: Mapping[str, AttentionCurve]  # "flash-2 forward", "flash-2 backward", "flash-3 forward", ...
    memory: Mapping[str, MemoryCurve]  # by kind
    precision: Mapping[str, float]  # η of a precision relative to bf16's, where it differs; SPLIT relative to fp8's
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Device:
    """One accelerator. Times are seconds at the clock it sustains; all arguments broadcast as NumPy arrays do."""

    name: str
    chip: str
    family: str
    architecture: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flops: Mapping[str, float]
    sms: int
    clock_hz: float
    max_clock_hz: float
    power_w: float
    l2_bytes: int
    launch_s: float
    cluster: str
    form: str
    memory_kind: str
    curves: Curves
    sources: tuple[Source, ...] = ()
    duty: Duty = STEADY
    host_pace: float = 1.0  # the time per operator of its usual server's host, relative to a host of 2023

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, self.power_w, self.duty))

    def __repr__(self) -> str:
        precision = self.precision("bf16")
        memory, peak = self.memory_bytes / 1e9, self.peak_flops[precision] / 1e12
        return f"<Device {shown(self.name)}: {memory:.3g} GB, {peak:.3g} TFLOPS {precision}>"

    @property
    def sharing(self) -> float:
        """The number of ranks that share a core. An accelerator has only one rank."""
        return 1.0

    @property
    def busy_sending(self) -> bool:
        """Whether communication draws power as memory-bound kernels do."""
        return self.curves.power.busy_sending

    def for_ranks(self, ranks: int) -> Device:
        """The device of each of that many ranks of a host: a whole accelerator, or a share of the processor."""
        return self

    def clock(self, use: npt.ArrayLike = 1.0) -> Array:
        """The sustained clock under kernels with this use of the tensor cores, as a fraction of the datasheet's."""
        held_hz = self.curves.power.clock_hz(
            np.asarray(use, dtype=np.float64),
            power_w=self.power_w,
            sms=self.sms,
            highest_hz=self.max_clock_hz,
            duty=self.duty,
        )
        return held_hz / self.clock_hz

    def at_duty(self, products: float, waiting: float = 0.0) -> Device:
        """This device when it spends a share `duty` of the time in products and attention, and a share `waiting`.

        The rest is memory-bound. Both draw less than matrix products, which leaves power for a higher clock.
        """
        if not (0 < products <= 1 and 0 <= waiting <= 1 - products):
            raise DeviceError(
                f"shares of time are at most 1 together, and that of products above 0: not {products} and {waiting}"
            )
        return replace(self, duty=Duty(float(products), float(waiting)))

    def precision(self, precision: str) -> str:
        """The precision that this device uses for a requested one."""
        if precision not in PRECISIONS:
            raise UnknownNameError("precision", precision, PRECISIONS)
        if precision in self.peak_flops:
            return precision
        return next(other for other in INSTEAD[precision] if other in self.peak_flops)

    def peak(self, precision: str = "bf16") -> float:
        """Dense FLOP/s of the datasheet, in the nearest precision that the device has."""
        return self.peak_flops[self.precision(precision)]

    def matmul_time(
        self, m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, precision: str = "bf16", *, split: bool = False
    ) -> Array:
        """Seconds of one product of an m x k by a k x n matrix."""
        return self.batched_matmul_time(1, m, n, k, precision, split=split)

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
        """Seconds of `batch` products of one shape in one kernel, as in attention that is not fused.

        `split` sums products of eight bits in fp32, step by step. Tensor cores wait for that, and draw less meanwhile.
        """
        used, curve = self.precision(precision), self.curves.matmul
        shape = _floats(batch, m, n, k)
        rate = self._rate(used)
        slower = self.curves.precision.get(SPLIT, 1.0) if split and used == "fp8" else 1.0
        math_s = curve.math_time(
            *shape,
            sms=self.sms,
            rate=rate * slower,
            bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s,
            floor_s=self.launch_s,
        )
        memory_s = curve.memory_time(
            *shape,
            bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s,
            element_bytes=(PRECISIONS[used], max(PRECISIONS[used], 2.0)),
        )
        ideal_s = 2 * shape[0] * shape[1] * shape[2] * shape[3] / (rate * curve.issue)
        clock = self.clock(ideal_s / curve.together(math_s, memory_s))
        return self.launch_s + curve.together(math_s / clock, memory_s)

    def attention_time(  # noqa: PLR0917 - the shape is five numbers, in the order that every attention has them
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
        """Seconds of fused attention forward or, with `backward`, of its backward pass alone.

        `flash` is the generation of the kernel, 2 or 3 (which also covers cuDNN's); None is the best available.
        """
        curve = self.curves.attention[self._flash(flash, "backward" if backward else "forward")]
        # Attention is computed in 16 bits if the products around it have fewer.
        used = self.precision(precision if PRECISIONS.get(precision, 2.0) >= 2 else "bf16")
        time_s = curve.time(
            *_floats(batch, heads, seq_q, seq_k, head_dim),
            causal=causal,
            products=10.0 if backward else 4.0,
            sms=self.sms,
            rate=self._rate(used),
        )
        return self.launch_s + time_s / self.clock(curve.load)

    def memory_time(self, bytes_moved: npt.ArrayLike, kind: str = "elementwise") -> Array:
        """Seconds of a kernel that is bound by the bytes it reads and writes."""
        if kind not in self.curves.memory:
            raise UnknownNameError("kind of memory-bound kernel", kind, self.curves.memory)
        rate = self.curves.memory[kind].rate(self.memory_bandwidth_bytes_per_s, self.sms * self.max_clock_hz)
        return self.launch_s + np.asarray(bytes_moved, dtype=np.float64) / rate

    def _flash(self, wanted: int | None, direction: str) -> str:
        """The newest generation of the kernel that the architecture has, or the nearest to the one wanted."""
        names = sorted(name for name in self.curves.attention if name.endswith(direction))
        older = [name for name in names if wanted is None or name <= f"flash-{wanted} {direction}"]
        return older[-1] if older else names[0]

    def _rate(self, precision: str) -> float:
        """FLOP/s at the datasheet's clock, before the losses of the main loop."""
        return self.peak_flops[precision] * self.curves.precision.get(precision, 1.0)


def _floats(*values: npt.ArrayLike) -> tuple[Array, ...]:
    return tuple(np.asarray(value, dtype=np.float64) for value in values)
