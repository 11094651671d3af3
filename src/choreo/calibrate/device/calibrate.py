"""Calibrate the device of this machine: measure, fit, and write a file that `get_device` and `read_device` read."""

from __future__ import annotations

import datetime
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from choreo.calibrate.device.fit import FitErrors, errors, fit_device
from choreo.calibrate.device.kernels import MeasuredKernel, write_kernels
from choreo.calibrate.device.measure_cuda import cuda_device
from choreo.calibrate.device.shapes import measure_cuda
from choreo.errors import DeviceError, UnknownNameError, shown
from choreo.hardware.device import Device, Source
from choreo.hardware.files import architecture_curves, write_device
from choreo.hardware.names import get_device
from choreo.results import Result, result

__all__ = ["DeviceCalibration", "calibrate_device"]

# By compute capability: architecture, and FLOP of sixteen bits a clock and SM.
ARCHITECTURES = {7: ("volta", 1024), 8: ("ampere", 2048), 9: ("hopper", 4096), 10: ("blackwell", 8192)}
# Peaks as multiples of that of sixteen bits; fp32 without the tensor cores.
PEAKS = {
    "volta": {"fp16": 1.0, "fp32": 1 / 8},
    "ampere": {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp32": 1 / 16},
    "hopper": {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp32": 1 / 16, "fp8": 2.0},
    "blackwell": {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp32": 1 / 32, "fp8": 2.0, "fp4": 4.0},
}


@result
class DeviceCalibration(Result):
    """A measured device: its fitted constants, the kernels that they were fitted to, and the errors that are left.

    In `to_dict()` the device is its name, and the kernels are their number.
    """

    columns: ClassVar[tuple[str, ...]] = ("device", "kernels", "median_error", "ninetieth_error", "bias")

    device: Device
    kernels: tuple[MeasuredKernel, ...]
    errors: FitErrors

    @property
    def median_error(self) -> float:
        """The relative error of the median kernel."""
        return self.errors.median

    @property
    def ninetieth_error(self) -> float:
        """The relative error that nine kernels in ten stay below."""
        return self.errors.ninetieth

    @property
    def bias(self) -> float:
        """The median error with its sign: above 0, predictions are too slow."""
        return self.errors.bias

    def _plain(self, name: str) -> Any:
        if name == "device":
            return self.device.name
        return self.errors.kernels if name == "kernels" else super()._plain(name)

    def summary(self) -> str:
        """The device, and how far its curves are off."""
        return (
            f"{shown(self.device.name)}: {self.errors.kernels} kernels, predicted within {self.median_error:.1%} in "
            f"the median and {self.ninetieth_error:.1%} for nine in ten"
        )


def calibrate_device(
    kind: str = "cuda", path: str | Path | None = None, *, progress: Callable[[str], None] | None = None
) -> DeviceCalibration:
    """Measure the accelerator of this machine. With a path, write PATH.toml and, beside it, its kernels in PATH.csv.

    It takes two to five minutes. A device of the catalogue keeps its figures and gets its own constants; any other
    device is described by what its driver reports.

    >>> calibrate_device("tpu")
    Traceback (most recent call last):
    choreo.errors.DeviceError: only devices of kind 'cuda' can be measured, not 'tpu'
    """
    if kind != "cuda":
        raise DeviceError(f"only devices of kind 'cuda' can be measured, not {kind!r}")
    path = None if path is None else Path(path).with_suffix(".toml")
    if path is not None and not path.parent.is_dir():
        raise DeviceError(f"{shown(path)} cannot be written: there is no folder {shown(path.parent)}")
    torch, properties = cuda_device()
    device = _described(torch, properties)
    kernels = tuple(measure_cuda(progress))
    remark = (
        f"measured by choreo calibrate --device cuda on one {properties.name}, PyTorch {torch.__version__}, "
        f"{datetime.datetime.now(tz=datetime.UTC).date()}"
    )
    fitted = fit_device(device, kernels)
    fitted = replace(fitted, curves=replace(fitted.curves, sources=(Source("curves", remark), *fitted.curves.sources)))
    if path is not None:
        write_kernels(path.with_suffix(".csv"), kernels, [remark])
        write_device(path, fitted)
    return DeviceCalibration(fitted, kernels, errors(fitted, kernels))


def _described(torch: Any, properties: Any) -> Device:
    """The catalogue's device of that name with what the driver reports, or one made from the driver's report alone."""
    power_w, clock_hz = _driver(properties)
    measured = Source("memory_bytes, sms, l2_bytes", "as the CUDA driver reports them")
    try:
        device = get_device(properties.name)
    except (DeviceError, UnknownNameError):
        device = _unlisted(torch, properties, power_w, clock_hz)
    return replace(
        device,
        memory_bytes=int(properties.total_memory),
        sms=int(properties.multi_processor_count),
        l2_bytes=int(properties.L2_cache_size),
        power_w=power_w or device.power_w,
        max_clock_hz=clock_hz or device.max_clock_hz,
        sources=(*device.sources, measured),
    )


def _unlisted(torch: Any, properties: Any, power_w: float | None, clock_hz: float | None) -> Device:
    if properties.major not in ARCHITECTURES:
        raise DeviceError(
            f"{properties.name} has compute capability {properties.major}.{properties.minor}, of which no architecture "
            f"is known; those of {', '.join(map(str, ARCHITECTURES))} can be measured"
        )
    architecture, flop_per_clock = ARCHITECTURES[properties.major]
    peaks = PEAKS[architecture]
    if architecture == "ampere" and properties.minor > 0:  # GA10x and Ada: smaller tensor cores, twice the fp32 units
        flop_per_clock //= 2
        peaks = peaks | {"fp32": 1 / 4} | ({"fp8": 2.0} if properties.minor == 9 else {})
    clock = clock_hz or float(getattr(properties, "clock_rate", 0)) * 1e3 or 1.5e9
    sixteen = flop_per_clock * properties.multi_processor_count * clock
    memory_clock = float(getattr(properties, "memory_clock_rate", 0)) * 1e3
    bandwidth = 2 * memory_clock * float(getattr(properties, "memory_bus_width", 0)) / 8
    return Device(
        name=properties.name,
        chip=properties.name,
        family="nvidia",
        architecture=architecture,
        memory_bytes=int(properties.total_memory),
        memory_bandwidth_bytes_per_s=bandwidth or _copy_rate(torch),
        peak_flops={precision: times * sixteen for precision, times in peaks.items()},
        sms=int(properties.multi_processor_count),
        clock_hz=clock,
        max_clock_hz=clock,
        power_w=power_w or 300.0,
        l2_bytes=int(properties.L2_cache_size),
        launch_s=3e-6,
        cluster="",
        form="",
        memory_kind="",
        curves=architecture_curves(architecture),
        sources=(
            Source("peak_flops", f"{flop_per_clock} FLOP a clock and SM, at the highest clock the driver reports"),
        ),
    )


def _copy_rate(torch: Any) -> float:
    """Bytes a second that a large copy reads and writes, over the share that copies reach."""
    values = torch.empty(1 << 28, device="cuda")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        values.clone()
    end.record()
    end.synchronize()
    return float(20 * values.numel() * 4 / (begin.elapsed_time(end) * 1e-3) / 0.9)


def _driver(properties: Any) -> tuple[float | None, float | None]:
    """The power limit and the highest clock of the device in use, where nvidia-smi can be asked."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None, None
    asked = [command, "--query-gpu=power.limit,clocks.max.sm", "--format=csv,noheader,nounits"]
    asked.append(f"--id=GPU-{properties.uuid}" if hasattr(properties, "uuid") else "--id=0")
    try:
        figures = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout.split(",")
        return float(figures[0]), float(figures[1]) * 1e6
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None, None
