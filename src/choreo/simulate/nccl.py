"""A collective as NCCL would run it on a topology: its choice, and the time it would take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from choreo.bound import bound
from choreo.collectives import Bandwidths, get_collective
from choreo.errors import RefusedError, shown
from choreo.nccl import nccl_choice
from choreo.nccl.system.gpus import without_nccl
from choreo.nccl.system.placed import system_of
from choreo.results import Result, result
from choreo.simulate.nccl_floor import least_time
from choreo.topology import Topology, devices_of, get_topology
from choreo.units import counted, format_bytes, format_time, size_of

__all__ = ["NcclSimulation", "simulate_nccl"]

# Links that only such an accelerator has.
OF_MEDIUM = {"ici": "TPU"}


@result
class NcclSimulation(Bandwidths, Result):
    """NCCL's choice for a collective on a topology, its time, and the bound beside it."""

    columns: ClassVar[tuple[str, ...]] = (
        "collective",
        "topology",
        "ranks",
        "size_bytes",
        "library",
        "algorithm",
        "protocol",
        "channels",
        "time_s",
        "bound_s",
        "efficiency",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
        "algbw_GBps",
        "busbw_GBps",
    )

    collective: str
    topology: str
    ranks: int
    size_bytes: float
    algorithm: str
    protocol: str
    channels: int
    time_s: float
    bound_s: float
    library: str = "nccl"

    @property
    def efficiency(self) -> float:
        """The share of the bound that is reached."""
        return self.bound_s / self.time_s if self.time_s > 0 else 1.0

    @property
    def collective_time_s(self) -> float:
        """The same as `time_s`."""
        return self.time_s

    def summary(self) -> str:
        """NCCL's choice and its time."""
        return (
            f"{self.collective} of {format_bytes(self.size_bytes)} over {counted(self.ranks, 'rank')} on "
            f"{shown(self.topology)}: {self.algorithm} {self.protocol}, {format_time(self.time_s)}"
        )


def simulate_nccl(
    collective: str,
    topology: Topology | str | Path,
    size_bytes: float | str,
    *,
    devices: Sequence[int | str] | None = None,
    root: int | None = None,
    forced: str | None = None,
) -> NcclSimulation:
    """Simulate NCCL: its choice for a collective of `size_bytes` on a topology's devices, and the time of the call.

    `forced` has the form of NCCL_ALGO and NCCL_PROTO: "Ring", "Tree,LL128".

    >>> import choreo
    >>> found = choreo.simulate_nccl("all_reduce", "hgx-h100:2", "1GiB")
    >>> found.ranks, found.protocol
    (16, 'Simple')
    """
    contract = get_collective(collective)
    network = get_topology(topology)
    size_bytes = size_of(size_bytes)
    _check_device(network)
    by_rank = list(range(network.num_devices)) if devices is None else devices_of(network, devices).tolist()
    system = system_of(network, by_rank)
    chosen = nccl_choice(collective, size_bytes, system, forced)
    root = contract.check_root(root, len(by_rank))
    least = bound(collective, network, size_bytes, root=root, devices=by_rank)
    return NcclSimulation(
        collective=collective,
        topology=network.name,
        ranks=len(by_rank),
        size_bytes=size_bytes,
        algorithm=chosen.algorithm,
        protocol=chosen.protocol,
        channels=chosen.channels,
        # The model knows nodes and what connects them, not every link.
        time_s=max(chosen.time_s, least.bound_s, least_time(network, by_rank, system, chosen, least)),
        bound_s=least.bound_s,
    )


def _check_device(network: Topology) -> None:
    """Refuse accelerators that NCCL does not run on."""
    device = network.device or (OF_MEDIUM.get(network.blocks[0].medium, ""))
    if uses := without_nccl(device):
        raise RefusedError(
            f"{shown(device)} has no NCCL: its collectives are {uses}, for which there is no model; leave "
            "`--library nccl` out to simulate an algorithm, or `--algorithm all` for the best of them"
        )
