"""The result of a simulation."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from choreo.collectives import Bandwidths
from choreo.errors import shown
from choreo.results import Result, result
from choreo.simulate.critical_path import Leg, critical_path
from choreo.simulate.details import details_of
from choreo.simulate.flows.backend import core_type
from choreo.simulate.flows.engine import Loads, Messages, run_alone
from choreo.simulate.jobs import Placed
from choreo.simulate.packets import PacketReport
from choreo.simulate.packets import backend as packets_backend
from choreo.simulate.packets.engine import run_packets
from choreo.topology import Topology
from choreo.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from choreo.bound import Bound

__all__ = ["BusiestLink", "Simulation"]

Floats = npt.NDArray[np.float64]


@result
class BusiestLink(Result):
    """The link with the highest utilisation: its number, its ends, and what it carried."""

    columns: ClassVar[tuple[str, ...]] = ("from", "to", "utilisation", "bytes")

    link: int
    src: str
    dst: str
    utilisation: float
    bytes: float

    def to_dict(self) -> dict[str, Any]:
        """As in a topology file, a link goes `from` one node `to` another."""
        return {"from": self.src, "to": self.dst, "utilisation": self.utilisation, "bytes": self.bytes}

    def summary(self) -> str:
        """The link and how busy it was."""
        return f"{shown(self.src)} to {shown(self.dst)}: {100 * self.utilisation:.1f} % busy"


@result(eq=False)
class Simulation(Bandwidths, Result):
    """The result of simulating one or several collectives on a topology.

    `shared` says whether messages were followed one by one, because some shared a link or might have. Times by message
    (`messages`) and the critical path are computed on demand. `packets` has the packet statistics, if packets were
    simulated.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "collective",
        "topology",
        "ranks",
        "size_bytes",
        "algorithm",
        "axes",
        "time_s",
        "bound_s",
        "efficiency",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
        "algbw_GBps",
        "busbw_GBps",
        "busiest_link",
    )

    topology: Topology
    jobs: tuple[Placed, ...]
    loads: Loads
    shared: bool
    store_and_forward: bool = False
    compiled: bool | None = None
    kept: Messages | None = None
    packets: PacketReport | None = None

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """The most important figures; for several collectives, those of the first, with its own time.

        With `details`, also by rank, by link, along the critical path, and for the other collectives. This is what
        `choreo simulate --json` prints for one run. Long lists are cut; `left_out` says how many entries are missing.
        """
        values = {"topology": self.topology.name, "time_s": self.collective_time_s}
        found = {name: values[name] if name in values else self._plain(name) for name in self.columns}
        if self.packets is not None:
            found["packets"] = self.packets.to_dict(details=details)
        return found | details_of(self) if details else found

    def summary(self) -> str:
        """The run in one line: schedule, topology and time."""
        also = f" and {counted(len(self.jobs) - 1, 'other')}" if len(self.jobs) > 1 else ""
        return (
            f"{self.collective} of {format_bytes(self.size_bytes)} by {shown(self.label)} over "
            f"{counted(self.ranks, 'rank')}{also} on {shown(self.topology.name)}: {format_time(self.time_s)}"
        )

    @property
    def collective(self) -> str:
        """The collective that ran; of several, the first."""
        return self.jobs[0].schedule.collective

    @property
    def algorithm(self) -> str:
        """Its algorithm."""
        return self.jobs[0].schedule.algorithm

    @property
    def axes(self) -> str | None:
        """The axes it was built along, if it is hierarchical."""
        return self.jobs[0].schedule.axes

    @property
    def label(self) -> str:
        """Its algorithm, with the axes it was built along where there are any."""
        return self.jobs[0].schedule.label

    @property
    def ranks(self) -> int:
        """Its number of ranks."""
        return self.jobs[0].schedule.ranks

    @property
    def size_bytes(self) -> float:
        """Its size."""
        return self.jobs[0].size_bytes

    @cached_property
    def time_s(self) -> float:
        """The time at which everything was done."""
        return max(float(finish.max(initial=0.0)) for finish in self.loads.rank_finish_s)

    @property
    def rank_finish_s(self) -> Floats:
        """The time at which each rank of the first collective was done; its switches are not ranks."""
        return self.loads.rank_finish_s[0][: self.ranks]

    def job_time_s(self, job: int) -> float:
        """The duration of one of several collectives, from its own start."""
        return float(self.loads.rank_finish_s[job].max(initial=0.0)) - self.jobs[job].start_s

    @property
    def collective_time_s(self) -> float:
        """The duration of the first collective."""
        return self.job_time_s(0)

    @cached_property
    def utilisation(self) -> Floats:
        """The part of each link's capacity that was used, from the first moment to the last."""
        with np.errstate(over="ignore"):  # a link of infinite bandwidth is never used up
            most = self.topology.links.bandwidth_bytes_per_s * self.time_s
        return np.divide(self.loads.link_bytes, most, out=np.zeros_like(most), where=most > 0)

    @property
    def busiest_link(self) -> BusiestLink | None:
        """The first link with the highest utilisation; None if nothing was sent."""
        if not len(self.utilisation) or not self.loads.link_bytes.any():
            return None
        link = int(np.argmax(self.utilisation * (1 + 1e-12) >= self.utilisation.max()))
        ends = self.topology.links.src[link], self.topology.links.dst[link]
        here, there = (self.topology.node_name(int(end)) for end in ends)
        return BusiestLink(link, here, there, float(self.utilisation[link]), float(self.loads.link_bytes[link]))

    @cached_property
    def bound(self) -> Bound:
        """The least time that any schedule of the first collective could take on these devices."""
        from choreo.bound import bound  # the search for cuts needs a library that nothing else here needs

        job, schedule = self.jobs[0], self.jobs[0].schedule
        devices = job.node[: schedule.ranks].tolist()
        weights = (
            None if schedule.weights is None else schedule.weights.reshape(-1, schedule.chunks_a_block).sum(axis=1)
        )
        return bound(
            self.collective, self.topology, job.size_bytes, root=schedule.root, devices=devices, weights=weights
        )

    @property
    def bound_s(self) -> float:
        """That time."""
        return self.bound.bound_s

    @property
    def efficiency(self) -> float:
        """The share of the bound that was reached."""
        time_s = self.job_time_s(0)
        return self.bound.bound_s / time_s if time_s > 0 else 1.0

    @cached_property
    def messages(self) -> Messages:
        """The history of every message."""
        return self.kept if self.kept is not None else self._again()

    @property
    def contended(self) -> bool:
        """Whether any message was slowed down by sharing a link."""
        if not self.shared:
            return False
        took = self.messages.out_s - self.messages.start_s
        return bool((took > self.messages.alone_s() * (1 + 1e-9)).any())

    @cached_property
    def critical_path(self) -> list[Leg]:
        """The chain of messages that determined the finish time, in order of time."""
        return critical_path(self.messages)

    def _again(self) -> Messages:
        """Run the pass again; flows that share links have kept their messages."""
        if self.packets is not None:
            kept = run_packets(
                self.jobs,
                self.topology,
                self.packets.settings,
                flows_core=core_type(self.compiled),
                make_core=packets_backend.core_type(self.compiled),
                progress=None,
            )[1]
            assert kept is not None
            return kept
        alone = run_alone(self.jobs[0], self.topology, core_type(self.compiled), keep=True)
        assert alone is not None and alone[1] is not None
        return alone[1]
