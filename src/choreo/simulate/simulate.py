"""Simulate a schedule on a topology, with contention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from choreo.errors import UsageError, short
from choreo.files import check_work
from choreo.schedule import Schedule
from choreo.simulate.flows.backend import core_type
from choreo.simulate.flows.engine import Progress, run_alone, run_shared
from choreo.simulate.jobs import Job, Placed, are_few, placed
from choreo.simulate.packets import Packets
from choreo.simulate.packets import backend as packets_backend
from choreo.simulate.packets.engine import run_packets
from choreo.simulate.result import Simulation
from choreo.topology import Topology, get_topology
from choreo.units import BEYOND_MEASURE, gamma_of

__all__ = ["simulate", "simulate_together"]

LINK_BYTES = 256  # what the simulator holds for a link


def simulate(
    schedule: Schedule,
    topology: Topology | str | Path,
    size_bytes: float | str,
    *,
    placement: Sequence[int | str] | None = None,
    gamma_s_per_byte: float | str = 0.0,
    store_and_forward: bool = False,
    packets: Packets | None = None,
    progress: Progress | None = None,
    compiled: bool | None = None,
    keep_messages: bool = False,
) -> Simulation:
    """Simulate a schedule on a topology: its time when messages share links, and the link that limits it.

    `placement` gives the device of each rank, `gamma_s_per_byte` the seconds that a rank takes to reduce a byte.
    Messages cut through switches, or with `store_and_forward` are stored at each. With `packets`, messages are cut into
    packets, which wait in switches of finite memory; without, links are shared max-min fairly. `progress` is called now
    and then with the work done and the total work. `compiled=False` uses the simulator's Python twin. `keep_messages`
    says that the times of single messages will be needed: they are then kept in the first pass.

    >>> from choreo import build
    >>> found = simulate(build("all_reduce", "ring", 8), "ring(8, 50GB/s, 1us)", "1MiB")
    >>> f"{found.time_s * 1e6:.1f} us"
    '50.7 us'
    >>> found = simulate(build("all_reduce", "ring", 8), "switch(8, 50GB/s, 1us)", "1MiB", packets=Packets())
    >>> found.packets.peak_queue_bytes  # one packet
    4096
    """
    job = Job(schedule, size_bytes, placement)
    return simulate_together(
        [job],
        topology,
        gamma_s_per_byte=gamma_s_per_byte,
        store_and_forward=store_and_forward,
        packets=packets,
        progress=progress,
        compiled=compiled,
        keep_messages=keep_messages,
    )


def simulate_together(
    jobs: Sequence[Job],
    topology: Topology | str | Path,
    *,
    gamma_s_per_byte: float | str = 0.0,
    store_and_forward: bool = False,
    packets: Packets | None = None,
    progress: Progress | None = None,
    compiled: bool | None = None,
    keep_messages: bool = False,
) -> Simulation:
    """Simulate several collectives at once, which share links and may share devices.

    >>> from choreo import build
    >>> ring = build("all_reduce", "ring", 4)
    >>> jobs = [Job(ring, "1MiB"), Job(ring, "1MiB", placement=[3, 2, 1, 0], start_s="10us")]
    >>> len(simulate_together(jobs, "ring(4, 50GB/s, 1us)").jobs)
    2
    """
    network = get_topology(topology)
    links = len(network.links)
    check_work(f"a simulation on {short(network.name)}, a network of {links} links,", links * LINK_BYTES)
    gamma = float(gamma_of(gamma_s_per_byte))
    if not isinstance(jobs, Sequence) or not jobs:
        raise UsageError("there is nothing to simulate; give a list of at least one Job")
    ready = tuple(placed(job, network, gamma) for job in jobs)
    if store_and_forward and packets is not None:
        raise UsageError("packets are always stored and forwarded, one by one; leave out store_and_forward")
    if store_and_forward:
        network = network.with_routing("hashed")  # a message that is stored as a whole goes one way
    try:
        if packets is not None:
            found = _run_packets(ready, network, packets, progress, compiled, keep=keep_messages)
        else:
            found = _run(ready, network, store_and_forward, progress, compiled, keep=keep_messages)
    except MemoryError:
        first = ready[0].schedule
        raise UsageError(
            f"{first.collective} by {first.algorithm} over {first.ranks} ranks takes more memory than there is; use "
            "fewer ranks or chunks"
        ) from None
    if not found.time_s <= BEYOND_MEASURE:
        raise UsageError(
            f"{found.algorithm} takes longer than can be counted on {network.name}; use numbers of this world"
        )
    return found


def _run(
    ready: tuple[Placed, ...],
    network: Topology,
    store_and_forward: bool,
    progress: Progress | None,
    compiled: bool | None,
    *,
    keep: bool,
) -> Simulation:
    make = core_type(compiled)
    if len(ready) == 1 and not store_and_forward and ready[0].start_s == 0:
        alone = run_alone(ready[0], network, make, progress, keep=keep)
        if alone is not None:
            return Simulation(network, ready, alone[0], shared=False, compiled=compiled, kept=alone[1])
    loads, messages = run_shared(ready, network, make, store_and_forward=store_and_forward, progress=progress)
    return Simulation(
        network,
        ready,
        loads,
        shared=True,
        store_and_forward=store_and_forward,
        compiled=compiled,
        kept=messages,
    )


def _run_packets(
    ready: tuple[Placed, ...],
    network: Topology,
    settings: Packets,
    progress: Progress | None,
    compiled: bool | None,
    *,
    keep: bool,
) -> Simulation:
    loads, messages, report = run_packets(
        ready,
        network,
        settings,
        flows_core=core_type(compiled),
        make_core=packets_backend.core_type(compiled),
        progress=progress,
        keep=keep or are_few(ready),
    )
    return Simulation(network, ready, loads, shared=True, compiled=compiled, kept=messages, packets=report)
