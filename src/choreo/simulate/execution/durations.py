"""Compute times of a workload's nodes: as recorded, or on a device, by its roofline or its kernels' curves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.hardware import Device
from choreo.units import counted
from choreo.workload.execution import ExecutionGraph, NodeKind

__all__ = ["KERNELS", "durations_of", "product_shape"]

Floats = npt.NDArray[np.float64]
KERNELS = ("roofline", "curve")


def durations_of(
    graph: ExecutionGraph, device: Device | None, kernels: str = "roofline", *, known: bool = True
) -> Floats:
    """The compute time of each node; 0 for communication. A `device` gives the time of nodes whose work is known.

    The roofline is the larger of the work at peak speed and the bytes at memory bandwidth. The curve is what kernels of
    that size reach on the device, including launch and clock. With `known`, a node without a time is refused.
    """
    if kernels not in KERNELS:
        raise UsageError(f"kernels take the time of a roofline or a curve, not of {kernels!r:.40}")
    found = graph.duration_s.copy()
    works = graph.kind <= NodeKind.MEMORY
    if device is not None:
        has_work = works & ((graph.flops > 0) | (graph.memory_bytes > 0))
        timed = _curve if kernels == "curve" else _roofline
        found[has_work] = timed(device, graph.flops[has_work], graph.memory_bytes[has_work])
    unknown = np.flatnonzero(works & ~np.isfinite(found))
    if len(unknown) and known:
        first = graph.described(int(unknown[0]))
        what = "name a device whose roofline gives it" if device is None else "its work is not known either"
        raise UsageError(f"it is not known how long {first} takes ({counted(len(unknown), 'node')} in all); {what}")
    return np.where(works, found, 0.0)


def _roofline(device: Device, flops: Floats, memory_bytes: Floats) -> Floats:
    return np.maximum(flops / device.peak(), memory_bytes / device.memory_bandwidth_bytes_per_s)


def _curve(device: Device, flops: Floats, memory_bytes: Floats) -> Floats:
    """A node with FLOPs is a 16-bit matmul with the shape that has its FLOPs and bytes; others move bytes."""
    found = device.memory_time(memory_bytes)
    products = flops > 0
    if products.any():
        small, large = product_shape(flops[products], memory_bytes[products])
        found[products] = device.matmul_time(small, large, large)
    return found


def product_shape(flops: Floats, memory_bytes: Floats) -> tuple[Floats, Floats]:
    """m and n = k of an m x k by k x n matmul with this many FLOPs and bytes, in 16 bits.

    A node with fewer bytes than a cube's, such as attention, is treated as a cube.

    >>> m, n = product_shape(np.array([2.0 * 128 * 4096**2]), np.array([2.0 * (4096**2 + 2 * 128 * 4096)]))
    >>> round(float(m[0])), round(float(n[0]))
    (128, 4096)
    """
    cube = np.cbrt(flops / 2)
    elements = memory_bytes / 2
    # n^2 + 2 m n = elements and 2 m n^2 = flops: the larger root of n^2 + flops / n = elements, by Newton from above.
    large = np.maximum(np.sqrt(elements), cube)
    for _ in range(60):
        slope = 2 * large - flops / large**2
        step = np.divide(large**2 + flops / large - elements, slope, out=np.zeros_like(large), where=slope > 0)
        large = np.maximum(large - np.maximum(step, 0.0), cube)
    large = np.where(elements > 3 * cube**2, large, cube)
    return flops / 2 / large**2, large
