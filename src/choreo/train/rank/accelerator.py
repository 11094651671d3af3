"""The processor or GPU that a rank trains on: claiming it, waiting for it, its memory and its peak."""

from __future__ import annotations

import gc
import os
import time

import torch

from choreo.errors import DeviceError
from choreo.hardware import get_device
from choreo.train.rank.memory import peak_bytes, reset_peak

__all__ = ["Accelerator"]


class Accelerator:
    """The device that a rank trains on: "cpu", or "cuda". With more ranks than GPUs, ranks share them."""

    def __init__(self, kind: str) -> None:
        self.on_gpu = kind == "cuda"
        if self.on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.on_gpu else torch.device(kind)

    def synchronize(self) -> None:
        """Wait until everything that was started is done."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def reset_peak(self) -> None:
        """Reset the peak of the memory in use."""
        if self.on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        else:
            reset_peak()

    def peak_bytes(self) -> int:
        """The most memory that was held: what torch's allocator has reserved on a GPU, the resident set elsewhere."""
        return torch.cuda.max_memory_reserved() if self.on_gpu else peak_bytes()

    def peak_flops_per_s(self, precision: str, ranks: int) -> float:
        """The peak of all ranks: a GPU's peak from the catalogue, or one core's best matmul times the cores."""
        if self.on_gpu:
            used = min(ranks, torch.cuda.device_count())
            try:
                return float(used * get_device(torch.cuda.get_device_name()).peak(precision))
            except DeviceError:
                return float(used * self._best_product(precision, 8192))
        return self._best_product(precision, 512) * min(len(os.sched_getaffinity(0)), ranks)

    def _best_product(self, precision: str, size: int) -> float:
        dtype = torch.bfloat16 if precision == "bf16" and self.on_gpu else torch.float32
        a, b = (torch.randn(size, size, device=self.device, dtype=dtype) for _ in range(2))
        best = 0.0
        for _ in range(5):
            self.synchronize()
            start_s = time.perf_counter()
            torch.mm(a, b)
            self.synchronize()
            best = max(best, 2 * size**3 / (time.perf_counter() - start_s))
        return best
