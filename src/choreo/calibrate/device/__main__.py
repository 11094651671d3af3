"""`python -m choreo.calibrate.device`: list the devices, and the errors of their curves against measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from choreo.calibrate.device.fit import BURST, FitErrors, cross_validate, errors, predict
from choreo.calibrate.device.kernels import MeasuredKernel, read_kernels
from choreo.hardware.device import Device
from choreo.hardware.files import list_devices
from choreo.hardware.names import get_device

DATA = Path(__file__).parent / "data"
CALL_S = 20e-6  # what a call costs the host that timed h200_kernels.csv, beside the kernel
PARTS: dict[str, Callable[[MeasuredKernel], bool]] = {
    "matmuls, bf16": lambda kernel: (
        kernel.kind.startswith("gemm") and kernel.dtype == "bf16" and kernel.kind != "gemm_burst"
    ),
    "matmuls, bursts": lambda kernel: kernel.kind == "gemm_burst",
    "matmuls, fp8": lambda kernel: kernel.dtype == "fp8",
    "batched products": lambda kernel: kernel.kind == "bmm",
    "attention, cuDNN": lambda kernel: kernel.kind.startswith("attn_"),
    "attention, flash-2": lambda kernel: kernel.kind.startswith("flash2_"),
    "memory-bound": lambda kernel: not kernel.is_matmul and not kernel.is_attention,
}


def report() -> str:
    """Both tables as text."""
    return "\n".join([*_devices(), "", *_residuals()])


def _devices() -> list[str]:
    lines = ["device                memory    TB/s   peak  steady  burst  fp8    (bf16 TFLOPS of 8192 x 8192 x 8192)"]
    for device in list_devices():
        burst = replace(device, duty=BURST)
        eight = f"{_tflops(device, 'fp8'):6.0f}" if "fp8" in device.peak_flops else "     -"
        lines.append(
            f"{device.name:20} {device.memory_bytes / 1e9:4.0f} GB  {device.memory_bandwidth_bytes_per_s / 1e12:5.2f} "
            f"{device.peak() / 1e12:6.0f} {_tflops(device):7.0f} {_tflops(burst):6.0f} {eight}"
        )
    return lines


def _tflops(device: Device, precision: str = "bf16") -> float:
    return float(2e-12 * 8192**3 / device.matmul_time(8192, 8192, 8192, precision))


def _residuals() -> list[str]:
    device = get_device("H200-141G-SXM")
    kernels = read_kernels(DATA / "h200_calibrated.csv")
    left_out = cross_validate(device, kernels)
    lines = ["H200, calibrated      kernels  median  90th    bias   left out: median  90th"]
    for name, matches in PARTS.items():
        at = [number for number, kernel in enumerate(kernels) if matches(kernel)]
        some = [kernels[number] for number in at]
        burst = errors(device, some, left_out[at])
        lines.append(f"{name:22}{_format_errors(errors(device, some))}  {_format_errors(burst, short=True)}")
    lines += ["", "h200_experts.csv      kernels  median  90th    bias", *_experts(device)]
    lines += ["", "h200_kernels.csv      kernels  median  90th    bias   as a burst: median  90th"]
    lines += _published(device)
    return lines


def _experts(device: Device) -> list[str]:
    kernels = read_kernels(DATA / "h200_experts.csv")
    parts = {
        "matmuls, bf16": [kernel for kernel in kernels if kernel.kind == "gemm" and kernel.dtype == "bf16"],
        "weight gradients, bf16": [kernel for kernel in kernels if kernel.kind == "gemm_nt"],
        "matmuls, fp8": [kernel for kernel in kernels if kernel.kind == "gemm" and kernel.dtype == "fp8"],
        "the same, split sums": [kernel for kernel in kernels if kernel.kind == "gemm_split"],
    }
    return [f"{name:22}{_format_errors(errors(device, some))}" for name, some in parts.items()]


def _published(device: Device) -> list[str]:
    kernels = read_kernels(DATA / "h200_kernels.csv")
    # Below 60 us the host's pace was measured, not the device's.
    parts: dict[str, Sequence[MeasuredKernel]] = {
        "matmuls, early": [
            kernel for kernel in kernels if kernel.is_matmul and kernel.m <= 1024 and kernel.time_s > 60e-6
        ],
        "matmuls, later": [
            kernel for kernel in kernels if kernel.is_matmul and kernel.m > 1024 and kernel.time_s > 60e-6
        ],
        "attention, forward": [kernel for kernel in kernels if kernel.kind == "attn_fwd_causal"],
        "attention, both ways": [kernel for kernel in kernels if kernel.kind == "attn_fwdbwd_causal"],
        "memory-bound": [
            kernel for kernel in kernels if not kernel.is_matmul and not kernel.is_attention and kernel.time_s > 40e-6
        ],
    }
    lines = []
    for name, some in parts.items():
        steady, burst = (
            errors(variant, some, predict(variant, some) + CALL_S) for variant in (device, replace(device, duty=BURST))
        )
        lines.append(f"{name:22}{_format_errors(steady)}  {_format_errors(burst, short=True)}")
    return lines


def _format_errors(found: FitErrors, short: bool = False) -> str:
    values = f"{100 * found.median:5.1f} % {100 * found.ninetieth:4.0f} %"
    return f"{values:>24}" if short else f"{found.kernels:7d} {values} {100 * found.bias:+5.1f} %"


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    print(report())
