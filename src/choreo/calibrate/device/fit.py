"""Fit a device's constants to measured kernels, by least squares of the logarithm of predicted over measured time.

What is fitted, and to what: η, k_ramp, q, κ, η_mem and the power of an SM to matrix products, steady ones and bursts
(bursts run at the highest clock, so they tell the tensor cores from the power limit); a factor for each other
precision, and for sums of eight-bit products in fp32; η, t_exp, ramp and diagonal of attention in each direction; the
share of the bandwidth of plain elementwise kernels, and the bytes a clock of every other kind. What is not: tiles, p,
the shortest split of k, γ, static power and the loads, which stay those of the architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from choreo.calibrate.device.kernels import MeasuredKernel
from choreo.hardware.device import SPLIT, Device
from choreo.hardware.matmul import Array
from choreo.hardware.power import Duty

__all__ = ["FitErrors", "cross_validate", "errors", "fit_device", "predict"]

# The kind that a measured memory-bound kernel stands for.
KINDS = {
    "copy": "copy",
    "add": "elementwise",
    "swiglu": "elementwise",
    "gelu": "activation",
    "layernorm": "norm",
    "rmsnorm": "norm",
    "dropout": "dropout",
    "embedding": "gather",
    "reduction": "reduction",
    "amax": "reduction",
    "cast_fp8": "cast",
    "cast_fp32": "upcast",
    "adam": "optimizer",
}
BY_MEMORY = ("copy", "elementwise", "gather")  # kinds that the memory limits, not the SMs
UNUSUAL = ("gemm_burst", "gemm_split")  # products that are not steady, or not summed by the tensor cores alone
BURST = Duty(1e-6, 1 - 1e-6)
SOFT = 0.05  # residuals beyond this count less than their square


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Relative errors of predicted against measured times."""

    kernels: int
    median: float
    ninetieth: float
    bias: float  # the median with its sign: above 0 predicts too slow


def predict(device: Device, kernels: Sequence[MeasuredKernel]) -> Array:
    """The seconds of each kernel by the device's curves.

    >>> from choreo.hardware import get_device
    >>> product = MeasuredKernel("gemm", 8192, 8192, 8192, "bf16", 1.7e-3, 650.0)
    >>> predict(get_device("H200-141G-SXM"), [product]).round(4)
    array([0.0016])
    """
    times = np.full(len(kernels), np.nan)
    for matches, evaluate in _groups(device):
        at = [number for number, kernel in enumerate(kernels) if matches(kernel)]
        if at:
            times[at] = evaluate([kernels[number] for number in at])
    return times


def errors(device: Device, kernels: Sequence[MeasuredKernel], predicted_s: Array | None = None) -> FitErrors:
    """The errors of the curves against the measured times; kernels without a curve are left out.

    >>> from choreo.hardware import get_device
    >>> product = MeasuredKernel("gemm", 8192, 8192, 8192, "bf16", 1.7e-3, 650.0)
    >>> errors(get_device("H200-141G-SXM"), [product]).median < 0.1
    True
    """
    predicted_s = predict(device, kernels) if predicted_s is None else predicted_s
    ratio = predicted_s / np.array([kernel.time_s for kernel in kernels]) - 1
    ratio = ratio[~np.isnan(ratio)]
    size = np.abs(ratio)
    return FitErrors(len(ratio), float(np.median(size)), float(np.percentile(size, 90)), float(np.median(ratio)))


def fit_device(device: Device, kernels: Sequence[MeasuredKernel]) -> Device:
    """The device with its constants fitted to the kernels. Constants that no kernel measures stay as they are.

    >>> from choreo.hardware import get_device
    >>> device = get_device("H200-141G-SXM")
    >>> fit_device(device, []) == device
    True
    """
    device = _fit_matmul(device, [kernel for kernel in kernels if kernel.is_matmul])
    device = _fit_attention(device, [kernel for kernel in kernels if kernel.is_attention])
    return _fit_memory(device, [kernel for kernel in kernels if kernel.kind in KINDS])


def cross_validate(device: Device, kernels: Sequence[MeasuredKernel], folds: int = 5) -> Array:
    """The seconds of each kernel, predicted by constants that were fitted without it and its like.

    A fold leaves out all products of one (n, k), all attention of one (heads, head size), all others of one size.

    >>> from choreo.hardware import get_device
    >>> copies = [MeasuredKernel("copy", 4096, n, 0, "bf16", 1e-7 * n, 2.0) for n in (1024, 2048, 4096)]
    >>> cross_validate(get_device("H200-141G-SXM"), copies, folds=3).shape
    (3,)
    """
    names = sorted({_family(kernel) for kernel in kernels})
    fold = {name: number % folds for number, name in enumerate(names)}
    times = np.full(len(kernels), np.nan)
    for left_out in range(folds):
        at = [number for number, kernel in enumerate(kernels) if fold[_family(kernel)] == left_out]
        rest = [kernel for kernel in kernels if fold[_family(kernel)] != left_out]
        times[at] = predict(fit_device(device, rest), [kernels[number] for number in at])
    return times


def _family(kernel: MeasuredKernel) -> str:
    if kernel.is_matmul:
        return f"matmul {kernel.n} {kernel.k}"
    return f"attention {kernel.n} {kernel.dtype}" if kernel.is_attention else f"memory {kernel.m} {kernel.n}"


def _columns(kernels: Sequence[MeasuredKernel]) -> tuple[Array, Array, Array]:
    m, n, k = (np.array([getattr(kernel, name) for kernel in kernels], dtype=np.float64) for name in ("m", "n", "k"))
    return m, n, k


def _groups(device: Device) -> list[tuple[Callable[[MeasuredKernel], bool], Callable[[list[MeasuredKernel]], Array]]]:
    """Groups of kernels that go through one curve together, and how."""

    def products(
        precision: str, how: str
    ) -> tuple[Callable[[MeasuredKernel], bool], Callable[[list[MeasuredKernel]], Array]]:
        held = replace(device, duty=BURST) if how == "gemm_burst" else device

        def matches(kernel: MeasuredKernel) -> bool:
            same = kernel.dtype.partition("x")[0] == precision
            return kernel.is_matmul and same and (kernel.kind if kernel.kind in UNUSUAL else "") == how

        def evaluate(some: list[MeasuredKernel]) -> Array:
            batch = np.array([kernel.batch for kernel in some])
            return held.batched_matmul_time(batch, *_columns(some), precision, split=how == "gemm_split")

        return matches, evaluate

    def attention(
        name: str, mask: str
    ) -> tuple[Callable[[MeasuredKernel], bool], Callable[[list[MeasuredKernel]], Array]]:
        generation, causal = (2 if name.startswith("flash2") else None), mask == "causal"

        def evaluate(some: list[MeasuredKernel]) -> Array:
            batch, heads, sequence = _columns(some)
            shape = (batch, heads, sequence, sequence, np.array([float(kernel.dtype[1:]) for kernel in some]), causal)
            forward = device.attention_time(*shape, flash=generation)
            if not name.endswith("fwdbwd"):
                return forward
            return forward + device.attention_time(*shape, backward=True, flash=generation)

        return (lambda kernel: kernel.kind == f"{name}_{mask}"), evaluate

    def memory(kind: str) -> tuple[Callable[[MeasuredKernel], bool], Callable[[list[MeasuredKernel]], Array]]:
        def evaluate(some: list[MeasuredKernel]) -> Array:
            return device.memory_time(np.array([kernel.bytes_moved for kernel in some]), kind)

        return (lambda kernel: KINDS.get(kernel.kind) == kind), evaluate

    return [
        *(products(precision, how) for precision in device.peak_flops for how in ("", *UNUSUAL)),
        *(
            attention(f"{library}_{direction}", mask)
            for library in ("attn", "flash2")
            for direction in ("fwd", "fwdbwd")
            for mask in ("causal", "full")
        ),
        *(memory(kind) for kind in sorted(set(KINDS.values()))),
    ]


def _solve(
    make: Callable[[Array], Device],
    kernels: Sequence[MeasuredKernel],
    start: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
) -> Device:
    """The device that `make` gives from the numbers that fit the kernels best."""
    from scipy.optimize import least_squares

    measured = np.log([kernel.time_s for kernel in kernels])

    def residuals(values: Array) -> Array:
        return np.log(predict(make(values), kernels)) - measured

    found = least_squares(
        residuals,
        np.clip(start, low, high),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=SOFT,
        x_scale=np.maximum(np.abs(start), 1e-3 * np.asarray(high)),
        diff_step=[1e-3],
    )
    return make(found.x)


def _fit_matmul(device: Device, kernels: list[MeasuredKernel]) -> Device:
    sixteen = [kernel for kernel in kernels if kernel.dtype.startswith(("bf16", "fp16"))]
    if len(sixteen) > 12:
        curve, power = device.curves.matmul, device.curves.power
        bursts = any(kernel.kind == "gemm_burst" for kernel in sixteen)

        def make(values: Array) -> Device:
            issue, ramp, quantum, loss, memory, sm_w = (float(value) for value in values)
            matmul = replace(curve, issue=issue, k_ramp=ramp, quantum=quantum, tile_loss=loss, memory=memory)
            return _with(device, matmul=matmul, power=replace(power, sm_w=sm_w))

        start = (curve.issue, curve.k_ramp, curve.quantum, curve.tile_loss, curve.memory, power.sm_w)
        # Without bursts steady products cannot tell η from power: then η stays as it is.
        issue = (0.4, 1.0) if bursts else (0.999 * curve.issue, 1.001 * curve.issue)
        low = (issue[0], 0, 0, 0, 0.3, 0.1 * power.sm_w)
        device = _solve(make, sixteen, start, low, (issue[1], 1000, 1, 100, 1, 10 * power.sm_w))
    for precision in (*device.peak_flops, SPLIT):
        dtype, _, split = precision.partition("-")
        own = [kernel for kernel in kernels if kernel.dtype == dtype and (kernel.kind == "gemm_split") == bool(split)]
        if precision not in ("bf16", "fp16") and own:

            def make_precise(values: Array, precision: str = precision, device: Device = device) -> Device:
                return _with(device, precision={**device.curves.precision, precision: float(values[0])})

            device = _solve(make_precise, own, [device.curves.precision.get(precision, 1.0)], [0.2], [1.5])
    return device


def _fit_attention(device: Device, kernels: list[MeasuredKernel]) -> Device:
    for library, flash in (("flash2", 2), ("attn", None)):
        names = [device._flash(flash, direction) for direction in ("forward", "backward")]
        for name, direction in zip(names, ("fwd", "fwdbwd"), strict=True):
            own = [kernel for kernel in kernels if kernel.kind.startswith(f"{library}_{direction}_")]
            if len(own) < 6:
                continue
            curve = device.curves.attention[name]

            def make(values: Array, name: str = name, device: Device = device) -> Device:
                issue, score_ns, ramp, diagonal = (float(value) for value in values)
                old = device.curves.attention[name]
                fitted = replace(old, issue=issue, score_s=score_ns * 1e-9, ramp=ramp, diagonal=diagonal)
                return _with(device, attention={**device.curves.attention, name: fitted})

            start = (curve.issue, curve.score_s * 1e9, curve.ramp, curve.diagonal)
            device = _solve(make, own, start, (0.1, 0, 0, 0), (1.2, 100, 1000, 1000))
    return device


def _fit_memory(device: Device, kernels: list[MeasuredKernel]) -> Device:
    memory = dict(device.curves.memory)
    sm_clocks = device.sms * device.max_clock_hz
    ordered = sorted({KINDS[kernel.kind] for kernel in kernels}, key=lambda kind: kind not in BY_MEMORY)
    for kind in ordered:
        own = [kernel for kernel in kernels if KINDS[kernel.kind] == kind and kernel.time_s > 5 * device.launch_s]
        if not own:
            continue
        rate = float(np.median([kernel.bytes_moved / (kernel.time_s - device.launch_s) for kernel in own]))
        if kind in BY_MEMORY:
            memory[kind] = replace(memory[kind], share=min(1.0, rate / device.memory_bandwidth_bytes_per_s))
        else:
            share = memory["elementwise"].share
            memory[kind] = replace(memory[kind], share=share, bytes_per_clock=rate / sm_clocks)
    return _with(device, memory=memory)


def _with(device: Device, **curves: object) -> Device:
    return replace(device, curves=replace(device.curves, **curves))  # type: ignore[arg-type]
