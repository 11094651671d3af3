"""Time kernels on a CUDA device with PyTorch, at the clock that it sustains.

Each kernel is repeated back to back, from a CUDA graph so that the host's pace does not matter, over as many sets of
operands as it takes to leave the L2 cache; first until the power limit has settled the clock, then for the time taken.
Some products are measured again in bursts, after a rest and too briefly for the power limit to bite. Operands are
random: zeros flip fewer bits, draw less power and run faster than any training does. What is measured is in
`shapes.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from choreo.errors import DeviceError
from choreo.pytorch import import_torch

__all__ = ["KernelTimer", "cuda_device"]

SETTLE_S, MEASURE_S = 0.06, 0.08
REST_S, BURST_S = 0.5, 0.010
GRAPH_S = 0.004  # so long that launching a graph costs nothing beside it
Call = Callable[[], object]


def cuda_device() -> tuple[Any, Any]:
    """PyTorch and the properties of the device, or an error that says what is missing."""
    torch = import_torch("measuring a CUDA device", DeviceError)
    if not torch.cuda.is_available():
        raise DeviceError(f"PyTorch {torch.__version__} sees no CUDA device here; run this where the device is")
    return torch, torch.cuda.get_device_properties(0)


class KernelTimer:
    """Times calls on a device that does nothing else meanwhile."""

    def __init__(self, torch: Any, l2_bytes: int) -> None:
        self.torch, self.l2_bytes = torch, l2_bytes

    def sets(self, bytes_of_one: float) -> range:
        """Enough sets of operands to push each other out of the L2 cache."""
        return range(min(16, max(1, math.ceil(3 * self.l2_bytes / bytes_of_one))))

    def random(self, *shape: int, dtype: object = None) -> Any:
        """Normally distributed operands, bf16 unless another type is asked for."""
        values = self.torch.randn(*shape, device="cuda", dtype=self.torch.bfloat16)
        return values if dtype is None else values.to(dtype)

    def graphed(self, calls: Sequence[Call], *, burst: bool = False) -> float:
        """Seconds of one of the calls, from a graph of all of them."""
        for call in calls:
            call()
        self.torch.cuda.synchronize()
        rounds = math.ceil(GRAPH_S / (self._elapsed(calls[0], 3) * len(calls)))
        rounds = max(1, min(200, rounds))
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        timed = self._burst if burst else self._settled
        return timed(graph.replay) / (rounds * len(calls))

    def eager(self, call: Call) -> float:
        """Seconds of one call, launched by the host."""
        call()
        self.torch.cuda.synchronize()
        return self._settled(call)

    def _settled(self, call: Call) -> float:
        once_s = max(self._elapsed(call, 1), 1e-6)
        self._elapsed(call, math.ceil(SETTLE_S / once_s))
        return self._elapsed(call, max(2, math.ceil(MEASURE_S / once_s)))

    def _burst(self, call: Call) -> float:
        """Seconds of a call after a rest: half a burst for the clock to rise, half to be timed."""
        repeats = max(1, math.ceil(BURST_S / max(self._elapsed(call, 1), 1e-6) / 2))
        time.sleep(REST_S)
        self._elapsed(call, repeats)
        return self._elapsed(call, repeats)

    def _elapsed(self, call: Call, repeats: int) -> float:
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / repeats
