"""A processor that nobody measured, for tests of what is done with one."""

from __future__ import annotations

import socket
from pathlib import Path

from choreo.hardware.cpu import Cpu, CpuAttention, CpuProducts, MemoryTiers, SharedCpu
from choreo.hardware.cpu_file import cpu_from
from choreo.hardware.files import write_device
from choreo.hardware.memory import MEMORY_KINDS
from choreo.run.execute.constants import Constants, default_constants

__all__ = ["keep_calibration", "processor"]

TIERS = MemoryTiers(at_bytes=(1e5, 1e6, 1e7, 1e8), share=(6.0, 4.0, 2.0, 1.0))


def _shared(ranks: int, speed: float) -> SharedCpu:
    products = {
        name: CpuProducts(peak_flops=peak * speed, rows=20.0, columns=20.0, inner=40.0)
        for name, peak in (("fp32", 1e11), ("bf16", 2e11))
    }
    attention = {
        name: {
            "forward": CpuAttention(issue=0.6 * of_peak, score_s=1e-9, diagonal=60.0),
            "backward": CpuAttention(issue=0.5 * of_peak, score_s=1e-9, diagonal=50.0),
        }
        for name, of_peak in (("fp32", 1.0), ("bf16", 0.2))  # in 16 bits slower than in fp32, as one was measured
    }
    return SharedCpu(
        ranks=ranks,
        operator_s=5e-6 / speed,
        memory_bandwidth_bytes_per_s=1.5e10 * speed,
        products=products,
        attention=attention,
        memory=dict.fromkeys(MEMORY_KINDS, TIERS),
    )


def processor(cores: int = 2) -> Cpu:
    """Two cores that ranks share evenly."""
    return cpu_from(
        name=f"a processor, {cores} cores",
        host=socket.gethostname(),
        cores=cores,
        memory_bytes=16 << 30,
        collective_s=2e-5,
        shared=[_shared(1, 1.0), _shared(cores, 1.0), _shared(2 * cores, 0.5)],
    )


def keep_calibration(constants: Path, cpu: Cpu) -> None:
    """Write both files that a measured machine has; CHOREO_CONSTANTS is to name the first."""
    kept = Constants(default_constants().bands, host=socket.gethostname(), date="2026-01-01T00:00:00", cores=cpu.cores)
    constants.write_bytes(kept.encoded())
    write_device(constants.with_suffix(".cpu.toml"), cpu)
