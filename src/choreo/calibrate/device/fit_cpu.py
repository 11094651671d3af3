"""Fit a processor's constants to the times of `measure_cpu.PROBES`, with their errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from choreo.calibrate.device.fit import FitErrors
from choreo.calibrate.device.measure_cpu import PROBES, CpuProbe
from choreo.hardware.cpu import Cpu, CpuAttention, CpuProducts, MemoryTiers, SharedCpu

__all__ = ["collective_s", "cpu_errors", "fit_shared"]

Floats = npt.NDArray[np.float64]
LONGEST = 400.0  # no dimension loses more than this
SOFT = 0.05  # residuals beyond this count less than their square


def fit_shared(times_s: Sequence[float], ranks: int) -> SharedCpu:
    """The constants of one rank where `ranks` compute at once."""
    measured = list(zip(PROBES, times_s, strict=True))
    # Kernels are timed one after the other of a kind, and have the caches to themselves.
    operator_s = _time_of("operator", times_s)
    products = {}
    for precision in ("fp32", "bf16"):
        own = [(kernel, s) for kernel, s in measured if kernel.kind.startswith("gemm") and kernel.dtype == precision]
        products[precision] = _products(own, operator_s)
    rates = {
        kind: _rates([(probe, time_s) for probe, time_s in measured if probe.kind == kind], operator_s)
        for kind in dict.fromkeys(probe.kind for probe in PROBES if probe.bytes_moved)
    }
    bandwidth = rates["elementwise"][-1][1]
    return SharedCpu(
        ranks=ranks,
        operator_s=_time_of("whole", times_s),
        memory_bandwidth_bytes_per_s=bandwidth,
        products=products,
        attention={
            precision: _attention(
                [(probe, time_s) for probe, time_s in measured if probe.dtype == precision],
                operator_s,
                curve.peak_flops,
            )
            for precision, curve in products.items()
        },
        memory={
            kind: MemoryTiers(
                at_bytes=tuple(size for size, _ in found), share=tuple(rate / bandwidth for _, rate in found)
            )
            for kind, found in rates.items()
        },
    )


def collective_s(times_s: Sequence[float]) -> float:
    """The cost of a collective call in a layer that has all else; at least the cost of an operator."""
    return max(_time_of("whole", times_s), _time_of("cut", times_s) - _time_of("hollow", times_s))


def _time_of(kind: str, times_s: Sequence[float]) -> float:
    """The time of the only probe of its kind."""
    return next(time_s for probe, time_s in zip(PROBES, times_s, strict=True) if probe.kind == kind)


def cpu_errors(cpu: Cpu, times_s: dict[int, list[float]]) -> FitErrors:
    """The errors of the curves against measured products and attention; memory-bound kernels are as measured."""
    ratios = []
    for ranks, found in times_s.items():
        share = cpu.for_ranks(ranks)
        among_others_s = share.launch_s - _time_of("operator", found)  # as no probe has it
        for probe, time_s in zip(PROBES, found, strict=True):
            if probe.kind.startswith("gemm"):
                alone_s = float(share.matmul_time(probe.m, probe.n, probe.k, probe.dtype)) - among_others_s
                ratios.append(alone_s / time_s - 1)
            elif probe.kind.startswith("attn_fwd_"):
                causal = probe.kind.endswith("causal")
                shape = (probe.m, probe.n, probe.k, probe.k, probe.head_dim, causal, probe.dtype)
                ratios.append((float(share.attention_time(*shape)) - among_others_s) / time_s - 1)
    size = np.abs(ratios)
    return FitErrors(len(size), float(np.median(size)), float(np.percentile(size, 90)), float(np.median(ratios)))


def _rates(measured: Sequence[tuple[CpuProbe, float]], operator_s: float) -> list[tuple[float, float]]:
    """Bytes moved and bytes a second of each size of one kind; a kernel takes at least a tenth of its time for them."""
    return [(kernel.bytes_moved, kernel.bytes_moved / max(s - operator_s, 0.1 * s)) for kernel, s in measured]


def _products(measured: Sequence[tuple[CpuProbe, float]], operator_s: float) -> CpuProducts:
    from scipy.optimize import least_squares

    m, n, k = (np.array([getattr(kernel, name) for kernel, _ in measured], np.float64) for name in ("m", "n", "k"))
    took = np.array([max(s - operator_s, 0.1 * s) for _, s in measured])
    start_rate = float(np.max(2 * m * n * k / took))

    def curve(values: Floats) -> CpuProducts:
        rate, rows, columns, inner = (float(value) for value in values)
        return CpuProducts(peak_flops=rate * start_rate, rows=rows, columns=columns, inner=inner)

    def residuals(values: Floats) -> Floats:
        candidate = curve(values)
        return np.asarray(np.log(candidate.time(np.ones_like(m), m, n, k, candidate.peak_flops) / took))

    bounds = ([0.2, 0.0, 0.0, 0.0], [5.0, LONGEST, LONGEST, LONGEST])
    found = least_squares(residuals, [1.0, 4.0, 4.0, 4.0], bounds=bounds, loss="soft_l1", f_scale=SOFT)
    return curve(found.x)


def _attention(
    measured: Sequence[tuple[CpuProbe, float]], operator_s: float, peak_flops: float
) -> dict[str, CpuAttention]:
    """Both directions of attention in one precision."""
    forward = [(probe, time_s) for probe, time_s in measured if probe.kind.startswith("attn_fwd_")]
    both = [(probe, time_s) for probe, time_s in measured if probe.kind.startswith("attn_fwdbwd_")]
    back = [(probe, max(total - alone, 0.1 * total)) for (probe, total), (_, alone) in zip(both, forward, strict=True)]
    return {
        "forward": _one_way(forward, operator_s, peak_flops, 4.0),
        "backward": _one_way(back, operator_s, peak_flops, 10.0),
    }


def _one_way(
    measured: Sequence[tuple[CpuProbe, float]], operator_s: float, peak_flops: float, products: float
) -> CpuAttention:
    from scipy.optimize import least_squares

    batch, heads, sequence, features = (
        np.array([getattr(kernel, name) for kernel, _ in measured], np.float64) for name in ("m", "n", "k", "head_dim")
    )
    causal = np.array([kernel.kind.endswith("causal") for kernel, _ in measured])
    took = np.array([max(s - operator_s, 0.1 * s) for _, s in measured])
    rows = batch * heads * sequence

    def residuals(values: Floats) -> Floats:
        issue, score_ns, diagonal = values
        keys = np.where(causal, sequence / 2 + diagonal, sequence)
        score_s = products * features / (peak_flops * issue) + 1e-9 * score_ns
        return np.asarray(np.log(rows * keys * score_s / took))

    bounds = ([0.01, 0.0, 0.0], [2.0, 100.0, LONGEST])
    found = least_squares(residuals, [0.5, 1.0, 20.0], bounds=bounds, loss="soft_l1", f_scale=SOFT)
    issue, score_ns, diagonal = (float(value) for value in found.x)
    return CpuAttention(issue=issue, score_s=1e-9 * score_ns, diagonal=diagonal)
