"""The time of a memory-bound kernel.

    t = floor + bytes / min(bandwidth · share, SMs · clock · bytes_per_clock)

The limit is either the memory or, for kernels that compute or reduce much per byte, how many bytes an SM processes per
clock: on a chip with more bandwidth per SM, the same kernel reaches a smaller share of it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MEMORY_KINDS", "MemoryCurve"]

# Every architecture has constants for these. Elementwise kernels add and multiply, activations take exponentials. A
# cast narrows (quantisation to fp8), an upcast widens. Gather is an embedding lookup. Cross entropy counts every pass
# over the logits, as rows of a vocabulary do not fit on an SM: 54 bytes per logit for PyTorch's in fp32.
MEMORY_KINDS = (
    *("elementwise", "copy", "activation", "norm", "softmax", "cross_entropy", "dropout", "gather", "reduction"),
    *("cast", "upcast", "optimizer"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Constants of one kind of memory-bound kernel."""

    share: float
    bytes_per_clock: float

    def rate(self, bandwidth_bytes_per_s: float, sm_clocks_per_s: float) -> float:
        """Bytes per second."""
        return min(bandwidth_bytes_per_s * self.share, sm_clocks_per_s * self.bytes_per_clock)
