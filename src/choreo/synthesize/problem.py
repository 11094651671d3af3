"""What is to be synthesized, and what a generator answers with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from choreo.bound import Bound, bound
from choreo.collectives import Collective, get_collective
from choreo.errors import UsageError
from choreo.schedule import Schedule
from choreo.schedule.weights import whole_amounts
from choreo.simulate import Packets
from choreo.synthesize.shares import best_shares
from choreo.topology import Topology, devices_of, get_topology
from choreo.topology.graph import Floats, Ints
from choreo.units import counted, size_of

__all__ = ["EFFORTS", "LEAST_CHUNK_BYTES", "Candidate", "Generator", "Problem", "UnsolvedError", "read_problem"]

# The most transfers of a schedule that is tried, by effort.
EFFORTS = {"fast": 1 << 16, "low": 1 << 17, "medium": 1 << 20, "high": 1 << 23, "exact": 1 << 20}

# No message is cut smaller than this: a network's figures may leave out what a message costs besides latency.
LEAST_CHUNK_BYTES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A collective of a given size over ranks on devices of a topology.

    `weights` are the relative sizes of the contract's blocks, None if all are equal. With `relays`, devices without a
    rank may forward; without, the topology's switches only forward. With `packets` schedules are judged by a packet
    simulation, otherwise by flows.
    """

    collective: str
    topology: Topology
    size_bytes: float
    devices: Ints
    root: int | None
    effort: str
    weights: Ints | None = None
    relays: bool = True
    packets: Packets | None = None

    @property
    def contract(self) -> Collective:
        """What the schedule must do."""
        return get_collective(self.collective)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.devices)

    @property
    def in_order(self) -> bool:
        """Whether the ranks are all devices of the topology, in order."""
        return self.ranks == self.topology.num_devices and bool((self.devices == np.arange(self.ranks)).all())

    @property
    def block_bytes(self) -> Floats:
        """The bytes of each block of the contract."""
        blocks = self.contract.blocks(self.ranks)
        weights = np.ones(blocks) if self.weights is None else self.weights / self.weights.sum() * blocks
        return weights * (self.contract.total_bytes(self.size_bytes, self.ranks) / blocks)

    def bound(self) -> Bound:
        """The lower bound on its time."""
        return bound(
            self.collective,
            self.topology,
            self.size_bytes,
            root=self.root,
            devices=self.devices,
            weights=self.weights,
        )

    @property
    def most_transfers(self) -> int:
        """The longest schedule to try."""
        return EFFORTS[self.effort]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A schedule, and how it was made: the generator, and possibly the variant.

    `time_s` is its time on the network if the plan is exact, so that a long one need not be simulated. `proved` says in
    which respect nothing better exists, if an exact search found that.
    """

    generator: str
    schedule: Schedule
    time_s: float | None = None
    proved: str | None = None


class UnsolvedError(Exception):
    """A generator's linear program that the solver gives up, as where links differ in speed a billionfold."""


# Yields the schedules that it can make for a problem; none if it does not handle the problem.
Generator = Callable[[Problem], Iterator[Candidate]]


def read_problem(
    collective: str,
    topology: object,
    size_bytes: float | str,
    *,
    ranks: int | Sequence[int | str] | None,
    root: int | None,
    effort: str,
    traffic: Sequence[Sequence[float]] | Floats | None = None,
    shares: Sequence[float] | Floats | str | None = None,
    relays: bool = True,
    packets: Packets | None = None,
) -> Problem:
    """The problem that was asked for, or an error that says what is wrong with it."""
    network = get_topology(topology)  # type: ignore[arg-type]  # it says itself what it takes
    if not relays:
        network = network.with_plain_switches()
    devices = _devices(network, ranks)
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise UsageError(f"effort must be one of {', '.join(EFFORTS)}, not {effort!r:.40}")
    if not isinstance(relays, bool):
        raise UsageError(f"relays must be true or false, not {relays!r:.40}")
    if packets is not None and not isinstance(packets, Packets):
        raise UsageError(f"packets must be Packets or None, not {packets!r:.40}")
    contract = get_collective(collective)
    size = float(size_of(size_bytes))
    weights = None
    if traffic is not None:
        if collective != "all_to_all":
            raise UsageError(f"traffic is for all_to_all, not for {collective}; leave it out")
        weights = whole_amounts("traffic", traffic, (len(devices), len(devices)))
    if shares is not None:
        if contract.blocks(len(devices)) != len(devices):
            raise UsageError(f"{collective} has no blocks, one for each rank, so it takes no shares; leave them out")
        if isinstance(shares, str):
            if shares != "auto":
                raise UsageError(f"shares must be numbers, one for each rank, or 'auto', not {shares!r:.40}")
            shares = best_shares(collective, network, devices)
        weights = whole_amounts("shares", shares, (len(devices),))
        if (weights == weights[0]).all():
            weights = None
    root = contract.check_root(root, len(devices))
    return Problem(collective, network, size, devices, root, effort, weights, relays, packets)


def _devices(topology: Topology, ranks: int | Sequence[int | str] | None) -> Ints:
    """The devices of the ranks: all, the first few, or the given ones."""
    if ranks is None:
        return np.arange(topology.num_devices)
    if isinstance(ranks, bool):
        raise UsageError(f"ranks must be a number, or devices, one for each rank, not {ranks}")
    if isinstance(ranks, int | np.integer):
        if ranks < 1:
            raise UsageError(f"there must be at least 1 rank, not {ranks}")
        if ranks > topology.num_devices:
            raise UsageError(
                f"{counted(int(ranks), 'rank')} do not fit on {topology.name}, which has "
                f"{counted(topology.num_devices, 'device')}"
            )
        return np.arange(ranks)
    devices = devices_of(topology, ranks)
    several, counts = np.unique(devices, return_counts=True)
    if not len(devices):
        raise UsageError("ranks must be a number, or devices, one for each rank; none was given")
    if counts.max() > 1:
        name = topology.node_name(int(several[counts.argmax()]))
        raise UsageError(f"device {name} is given for {counts.max()} ranks; give every rank a device of its own")
    return devices
