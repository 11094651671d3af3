"""Measured kernels in a table, as calibration writes it: kind, m, n, k, dtype, time_s, and a rate.

| kind | m, n, k | dtype | rate |
| --- | --- | --- | --- |
| `gemm`, `gemm_nn`, `gemm_nt` | rows, columns, inner length; forward, and the orders of backward | `bf16` | TFLOPS |
| `gemm_burst` | the same, too briefly for the power limit to bite | `bf16` | TFLOPS |
| `gemm_split` | the same with sums in fp32, step by step | `fp8` | TFLOPS |
| `bmm` | the same of each product | `bf16x64`: 64 products | TFLOPS |
| `attn_fwd_causal`, `attn_fwdbwd_full`, `flash2_...` | batch, heads, sequence | `d128`: head size | TFLOPS |
| anything else, memory-bound | rows, columns | of the input | TB/s of bytes read and written |
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from choreo.errors import DeviceError, shown
from choreo.files import read_text

__all__ = ["MeasuredKernel", "read_kernels", "write_kernels"]

MAX_FILE_BYTES = 1 << 28
COLUMNS = ("kind", "m", "n", "k", "dtype", "time_s", "tflops")


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One measured kernel."""

    kind: str
    m: int
    n: int
    k: int
    dtype: str
    time_s: float
    rate: float  # TFLOPS, or TB/s

    @property
    def is_matmul(self) -> bool:
        """A matrix product, one or a batch of them."""
        return self.kind.startswith(("gemm", "bmm"))

    @property
    def is_attention(self) -> bool:
        """Fused attention."""
        return self.kind.startswith(("attn_", "flash2_"))

    @property
    def batch(self) -> int:
        """The number of products in a batched one."""
        count = self.dtype.partition("x")[2]
        return int(count) if count.isdecimal() else 1

    @property
    def bytes_moved(self) -> float:
        """Of a memory-bound kernel: bytes read and written."""
        return self.rate * self.time_s * 1e12


def read_kernels(path: str | Path) -> tuple[MeasuredKernel, ...]:
    """Read a table of kernels; lines that begin with # are remarks.

    >>> from importlib.resources import files
    >>> kernels = read_kernels(files("choreo.calibrate.device") / "data" / "h200_calibrated.csv")
    >>> kernels[0].is_matmul
    True
    """
    path = Path(path)
    text = read_text(path, MAX_FILE_BYTES, "a table of kernels", DeviceError)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    try:
        rows = list(csv.reader(lines))
    except csv.Error as error:
        raise DeviceError(f"{shown(path)} is no table of kernels: {error}") from error
    if not rows or tuple(rows[0]) != COLUMNS:
        raise DeviceError(f"{shown(path)} is no table of kernels: its first line must be {','.join(COLUMNS)}")
    return tuple(_kernel(path, number, row) for number, row in enumerate(rows[1:], start=1))


def write_kernels(path: str | Path, kernels: Iterable[MeasuredKernel], remarks: Sequence[str] = ()) -> None:
    """Write a table of kernels, with remarks on where it comes from.

    >>> import tempfile
    >>> one = MeasuredKernel("gemm", 8, 8, 8, "bf16", 1e-6, 1.0)
    >>> with tempfile.NamedTemporaryFile(suffix=".csv") as file:
    ...     write_kernels(file.name, [one])
    ...     read_kernels(file.name) == (one,)
    True
    """
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        for remark in remarks:
            file.write(f"# {remark}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for kernel in kernels:
            writer.writerow(
                [kernel.kind, kernel.m, kernel.n, kernel.k, kernel.dtype, f"{kernel.time_s:.6g}", f"{kernel.rate:.6g}"]
            )


def _kernel(path: Path, number: int, row: list[str]) -> MeasuredKernel:
    try:
        kind, m, n, k, dtype, time_s, rate = row
        kernel = MeasuredKernel(kind, int(m), int(n), int(k), dtype, float(time_s), float(rate))
        _ = kernel.batch  # a number too
    except ValueError:
        raise DeviceError(
            f"{shown(path)}: kernel {number} is not {','.join(COLUMNS)}: {','.join(row)[:80]!r}"
        ) from None
    if not (0 < kernel.time_s < math.inf and 0 < kernel.rate < math.inf):
        raise DeviceError(f"{shown(path)}: kernel {number} takes {time_s} s at {rate}; both must be above 0")
    return kernel
