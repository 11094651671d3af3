"""A fingerprint of this machine, which distinguishes the measurements of different machines."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

__all__ = ["Machine", "this_machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor, cores, memory, kernel and accelerator; equal machines have one fingerprint."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    accelerator: str

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits.

        >>> Machine("EPYC", 2, 1 << 33, "6.1", "").fingerprint
        '84a96196578c7a3b'
        """
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@cache
def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        os.cpu_count() or 1,
        int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) * 1024,
        f"{platform.system()} {platform.release()}",
        _accelerator(),
    )


def _first(file: str, name: str) -> str:
    """The value behind the first `name:` of a file of the kernel."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _accelerator() -> str:
    """What the kernel's drivers say, without starting any of them: `4x NVIDIA H100 80GB HBM3`."""
    found = [_first(str(file), "Model") for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    return ", ".join(f"{found.count(name)}x {name}" for name in dict.fromkeys(found))
