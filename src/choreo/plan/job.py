"""A training job: what is trained, on what, and by which program; everything but the plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

from choreo.hardware import Device
from choreo.plan.network import Cluster
from choreo.plan.software import Software
from choreo.workload import Model

__all__ = ["TrainingJob"]


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is planned, and on what: everything but the plan."""

    model: Model
    gpus: int
    global_batch: int
    seq: int
    cluster: Cluster
    device: Device
    software: Software
    precision: str = "bf16"
    headroom: float = 0.0  # the share of the memory that a search leaves free

    @property
    def room_bytes(self) -> float:
        """The memory that a plan may take."""
        return float(self.device.memory_bytes) * (1 - self.headroom)

    @property
    def straggling(self) -> float:
        """The share by which a step is longer because all nodes wait for the slowest one."""
        nodes = max(1.0, self.gpus / self.cluster.node_gpus)
        return self.software.jitter * math.sqrt(2 * math.log(nodes))
