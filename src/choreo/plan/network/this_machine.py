"""This machine: ranks are processes that communicate through shared memory, with the constants from `choreo calibrate`.

The time of a collective is that of the communicator's own choice: the cheapest algorithm by price. Groups that work at
once share the cores. A call from torch costs extra host time, which `choreo calibrate --device cpu` measured.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from choreo.errors import UsageError, shown
from choreo.hardware import read_device
from choreo.hardware.cpu import Cpu
from choreo.plan.network.model import ALL, Floats
from choreo.run.execute.choice import Chooser
from choreo.run.execute.constants import Constants, constants_path, load_constants

__all__ = ["THIS_MACHINE", "ThisMachineModel", "cpu_path", "this_machine"]

THIS_MACHINE = "this-machine"
SIZES = 2.0 ** np.arange(3, 31)


@dataclass(frozen=True, slots=True)
class ThisMachineModel:
    """Shared memory between `ranks` ranks on this machine's cores."""

    constants: Constants
    call_s: float  # torch's cost per collective, at a rank that has a core to itself
    ranks: int = 1
    all_reduce: str = ""  # the algorithm of every all_reduce, if not the cheapest

    def __hash__(self) -> int:
        return hash((self.constants.host, self.constants.date, self.call_s, self.ranks, self.all_reduce))

    @property
    def name(self) -> str:
        """The name that plans show."""
        return THIS_MACHINE

    @property
    def node_gpus(self) -> int:
        """There is one node."""
        return ALL

    def time_s(self, collective: str, sizes: Floats, ranks: int, stride: int) -> Floats:
        """Seconds for each size."""
        # A message is a broadcast between two ranks.
        kind = "broadcast" if collective == "sendrecv" else collective
        # Times are linear between the sizes of the table, and proportional to the size below and above it.
        at = _prices(self, kind, ranks)
        times = np.interp(sizes, SIZES, at)
        times = np.where(sizes > SIZES[-1], times * sizes / SIZES[-1], times)
        call_s = self.call_s * max(1.0, self.ranks / max(1, self.constants.cores))
        return np.asarray(np.where(sizes > 0, call_s + times, 0.0))

    def link(self, ranks: int, stride: int) -> str:
        """There is one kind."""
        return "shared memory"

    def bandwidth_bytes_per_s(self, ranks: int, stride: int) -> float:
        """What a rank reads of another's large message."""
        return self.constants.cost_model_for(SIZES[-1], ranks).bandwidth_bytes_per_s


@lru_cache(maxsize=256)
def _prices(model: ThisMachineModel, collective: str, ranks: int) -> Floats:
    """Seconds at each of `SIZES`, while all ranks of the machine are in such groups."""
    chooser = Chooser(ranks, model.constants, {})
    groups = max(1, model.ranks // ranks)
    cores = max(1, model.constants.cores // groups)
    # Ranks of other groups take turns with these on the remaining cores.
    waited = max(1.0, groups * min(ranks, cores) / model.constants.cores)
    if collective == "all_reduce" and model.all_reduce:
        times = [chooser.time_s(collective, model.all_reduce, float(size), cores=cores) for size in SIZES]
    else:
        times = [chooser.ranked(collective, float(size), cores=cores)[0][0] for size in SIZES]
    return waited * np.array(times)


def cpu_path() -> Path:
    """The file of this machine's processor: beside the constants of its messages."""
    return constants_path().with_suffix(".cpu.toml")


def this_machine() -> tuple[Cpu, ThisMachineModel]:
    """The processor and the network of this machine, if both were measured here."""
    constants, path = load_constants(), cpu_path()
    cpu = read_device(path) if path.exists() else None
    if isinstance(cpu, Cpu) and cpu.host != socket.gethostname() and not os.environ.get("CHOREO_CONSTANTS"):
        cpu = None  # a home folder may be shared between machines
    missing = [] if constants.host else ["choreo calibrate"]
    if isinstance(cpu, Cpu) and not missing:
        return cpu, ThisMachineModel(constants, cpu.collective_s)
    missing += [] if isinstance(cpu, Cpu) else ["choreo calibrate --device cpu"]
    keep = "keeps its results" if len(missing) == 1 else "keep their results"
    raise UsageError(
        f"this machine has not been calibrated; run {' and '.join(missing)}, which {keep} in {shown(path.parent)}"
    )
