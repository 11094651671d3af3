"""Calibrate this machine's processor, and store the result where `choreo plan --cluster this-machine` finds it."""

from __future__ import annotations

import datetime
import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from choreo.calibrate.device.fit import FitErrors
from choreo.calibrate.device.fit_cpu import collective_s, cpu_errors, fit_shared
from choreo.calibrate.device.measure_cpu import PROBES, CpuRanks, measure_cpu
from choreo.checks import whole_number
from choreo.errors import CalibrationError, DeviceError, shown
from choreo.hardware.cpu import Cpu
from choreo.hardware.cpu_file import cpu_from
from choreo.hardware.device import Source
from choreo.hardware.files import write_device
from choreo.plan.network.this_machine import cpu_path
from choreo.pytorch import check_torch
from choreo.results import Result, result
from choreo.units import counted

__all__ = ["MAX_ERROR", "CpuCalibration", "calibrate_cpu"]

# A fit that is off by more than this in the median kernel says nothing about the machine.
MAX_ERROR = 0.25
MOST_RANKS = 8  # processes that measure at once


@result
class CpuCalibration(Result):
    """This machine's processor, the seconds of every probe by number of ranks at once, and how far the fit is off."""

    columns: ClassVar[tuple[str, ...]] = (
        "device",
        "cores",
        "ranks",
        "kernels",
        "median_error",
        "ninetieth_error",
        "peak_flops",
        "memory_bandwidth_bytes_per_s",
        "operator_s",
        "collective_s",
        "load_average",
    )

    cpu: Cpu
    times_s: dict[int, list[float]]
    errors: FitErrors
    load_average: float

    @property
    def device(self) -> str:
        """The processor's name."""
        return self.cpu.name

    @property
    def cores(self) -> int:
        """The number of cores."""
        return self.cpu.cores

    @property
    def ranks(self) -> list[int]:
        """The numbers of ranks that computed at once."""
        return list(self.times_s)

    @property
    def kernels(self) -> int:
        """The number of kernels that were timed."""
        return len(self.times_s) * len(PROBES)

    @property
    def median_error(self) -> float:
        """The relative error of the median product or attention."""
        return self.errors.median

    @property
    def ninetieth_error(self) -> float:
        """The relative error that nine in ten stay below."""
        return self.errors.ninetieth

    @property
    def peak_flops(self) -> dict[str, list[float]]:
        """FLOP/s of large products at one rank, by precision, for each number of ranks."""
        shared = self.cpu.shared
        return {name: [entry.products[name].peak_flops for entry in shared] for name in shared[0].products}

    @property
    def memory_bandwidth_bytes_per_s(self) -> list[float]:
        """Bytes a second that a rank reads and writes in memory, for each number of ranks."""
        return [entry.memory_bandwidth_bytes_per_s for entry in self.cpu.shared]

    @property
    def operator_s(self) -> float:
        """The time that one rank alone spends on an operator of a layer beside its arithmetic."""
        return self.cpu.shared[0].operator_s

    @property
    def collective_s(self) -> float:
        """The cost of a torch.distributed call in a layer beside its bytes."""
        return self.cpu.collective_s

    def summary(self) -> str:
        """The processor, and how far its curves are off."""
        return (
            f"{shown(self.device)}: {self.kernels} kernels, products and attention predicted within "
            f"{self.median_error:.1%} in the median and {self.ninetieth_error:.1%} for nine in ten"
        )

    def check(self) -> None:
        """Raise `CalibrationError` if the error of the fit is above `MAX_ERROR`."""
        if self.median_error > MAX_ERROR:
            raise CalibrationError(
                f"not kept: the error of the fit is {100 * self.median_error:.0f} % in the median kernel, where at "
                f"most {100 * MAX_ERROR:.0f} % is kept; the load average is {self.load_average:.1f} on "
                f"{counted(self.cores, 'core')}: measure again on an idle machine, or keep it anyway (--force, "
                "force=True)"
            )

    def save(self, path: str | Path | None = None, *, force: bool = False) -> Path:
        """Keep the processor for every later plan of this user, or in a file; with `force` whatever the error."""
        if not force:
            self.check()
        path = cpu_path() if path is None else Path(path).with_suffix(".toml")
        if path == cpu_path():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DeviceError(f"{shown(path)} cannot be written: {error.strerror}; set CHOREO_CONSTANTS") from None
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        write_device(beside, self.cpu)
        beside.replace(path)
        return path


def calibrate_cpu(*, rounds: int = 3, progress: Callable[[str], None] | None = None) -> CpuCalibration:
    """Measure the processor with one rank, with one per core, and with two per core: about a minute on an idle machine.

    Nothing is kept until `save()` is called on the result, which refuses a bad fit.
    """
    rounds = whole_number("rounds", rounds)
    check_torch("measuring a processor", DeviceError)
    cores = len(os.sched_getaffinity(0))
    counts = sorted({1, min(cores, MOST_RANKS), min(2 * cores, MOST_RANKS)})
    load_average = os.getloadavg()[0]
    with CpuRanks(max(counts)) as processes:
        times = measure_cpu(processes, counts, cores, rounds=rounds, progress=progress)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    cpu = cpu_from(
        name=f"{_model_name()}, {counted(cores, 'core')}",
        host=socket.gethostname(),
        cores=cores,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        collective_s=collective_s(times[counts[0]]),
        shared=tuple(fit_shared(found, ranks) for ranks, found in times.items()),
        sources=(Source("everything", f"measured by choreo calibrate --device cpu, {now}"),),
    )
    return CpuCalibration(cpu, times, cpu_errors(cpu, times), load_average)


def _model_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
