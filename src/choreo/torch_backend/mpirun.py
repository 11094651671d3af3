"""Set the environment variables that torch.distributed reads from those that mpirun sets."""

from __future__ import annotations

import os

from choreo.run.rendezvous.environment import read_environment

__all__ = ["set_torch_variables"]

_MPIRUN = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def set_torch_variables() -> None:
    """Set what torchrun would have set for this rank, if mpirun has started it; what is set already stays."""
    if "RANK" in os.environ or not any(name in os.environ for name in _MPIRUN):
        return
    # Between hosts ranks need a secret, but those of a process group get one from the store.
    found = read_environment({"CHOREO_SECRET": "from the store, once there is one", **os.environ})
    variables = {
        "RANK": found.rank,
        "WORLD_SIZE": found.world_size,
        "LOCAL_RANK": found.local_rank,
        "LOCAL_WORLD_SIZE": found.local_world_size or found.world_size,
        "MASTER_ADDR": found.address,
        "MASTER_PORT": found.port,
    }
    for name, value in variables.items():
        os.environ.setdefault(name, str(value))
