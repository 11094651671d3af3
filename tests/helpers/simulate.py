"""Networks and jobs at random, and holding the simulator's two cores to the fluid oracle.

CHOREO_EXAMPLES=5000 in the environment searches longer than usual.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from choreo.errors import RefusedError, UsageError
from choreo.schedule import Move, Schedule, move
from choreo.simulate import Job
from choreo.simulate.flows.engine import Core, Loads, Messages, run_alone, run_shared
from choreo.simulate.flows.twin import core as twin
from choreo.simulate.jobs import Placed, placed
from choreo.topology import Block, Links, Topology, compose, fat_tree, fully_connected, graph, line, ring, switch
from tests.helpers.strategies import library_cases, schedule_of, wild_cases
from tests.oracles import fluid as oracle

try:
    from choreo.simulate.flows import _core
except ImportError:  # no compiler here: the twin is held to the oracle on its own
    _core = None  # type: ignore[assignment]

EXAMPLES = int(os.environ.get("CHOREO_EXAMPLES", "60"))
settings.register_profile(
    "simulate",
    derandomize="CHOREO_EXAMPLES" not in os.environ,
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
PROFILE = settings.get_profile("simulate")

MakeCore = Callable[..., Core]
CORES: dict[str, MakeCore] = {"twin": twin.Core}
if _core is not None:
    CORES["compiled"] = _core.Core
needs_compiler = pytest.mark.skipif(
    "compiled" not in CORES, reason="only the compiled loops have it, and they are not there"
)

CLOSE = 1e-9
NO_TIME_S = 1e-18  # far below any latency or transfer of the tests


# Networks. Figures are small multiples of a unit, so that the oracle can have the numbers that were meant.

BANDWIDTH = 1e9
TIME_S = 1e-9
bandwidths = st.sampled_from((1, 2, 3, 8)).map(lambda times: times * BANDWIDTH)
latencies = st.sampled_from((0, 250, 1000, 7000)).map(lambda times: times * TIME_S)
# What a message costs a device: nothing, its overhead, or more until the next one.
costs = st.sampled_from(((0, 0), (0, 0), (0, 0), (500, 0), (1000, 250), (250, 1000)))


@st.composite
def graph_blocks(draw: st.DrawFn, max_size: int) -> Block:
    """Devices and switches in a tree, with some more links, one way, between any two of them."""
    size, switches = draw(st.integers(2, max_size)), draw(st.integers(0, 3))
    nodes = size + switches
    parents = [draw(st.integers(0, node - 1)) for node in range(1, nodes)]
    ends = [pair for node, parent in enumerate(parents, 1) for pair in ((node, parent), (parent, node))]
    one = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda pair: pair[0] != pair[1])
    ends += draw(st.lists(one, max_size=6))
    figures = draw(st.lists(st.tuples(bandwidths, latencies), min_size=len(ends), max_size=len(ends)))
    src, dst = np.array(ends, np.int64).T
    bandwidth, latency = np.array(figures).T
    return graph(size, Links(src.copy(), dst.copy(), bandwidth.copy(), latency.copy()), switches)


@st.composite
def blocks(draw: st.DrawFn, max_size: int) -> Block:
    """A block of any kind, of up to so many devices."""
    kinds = ["ring", "line", "fully_connected", "switch", "graph"] + ["fat_tree"] * (max_size >= 4)
    kind, figures = draw(st.sampled_from(kinds)), (draw(bandwidths), draw(latencies))
    if kind == "graph":
        return draw(graph_blocks(max_size))
    oversubscribed = draw(st.sampled_from((1.0, 1.5, 4.0)))
    if kind == "fat_tree":
        sizes = draw(st.sampled_from([s for s in ((2, 2), (3, 2), (2, 2, 2)) if math.prod(s) <= max_size]))
        return fat_tree(sizes, *figures, oversubscribed=oversubscribed, spines=draw(st.integers(1, 3)))
    size = draw(st.integers(1, max_size))
    if kind == "switch":
        reduces = oversubscribed == 1 and draw(st.booleans())
        return switch(size, *figures, oversubscribed=oversubscribed, reduces=reduces)
    return {"ring": ring, "line": line, "fully_connected": fully_connected}[kind](size, *figures)


def charged(block: Block, overhead: int, gap: int) -> Block:
    """The block with an overhead of a message and the least time between two, in units of time."""
    count = len(block.links)
    columns = {"overhead_s": np.full(count, overhead * TIME_S), "gap_s": np.full(count, gap * TIME_S)}
    return replace(block, links=replace(block.links, **columns))


@st.composite
def topologies(draw: st.DrawFn, max_devices: int = 8) -> Topology:
    """Up to three blocks, paths spread or hashed, and perhaps overheads, a slow link, a dead one, or a slow device."""
    parts: list[Block] = []
    while not parts or (len(parts) < 3 and draw(st.booleans())):
        room = max_devices // math.prod(part.size for part in parts)
        if room < 2:
            break
        parts.append(charged(draw(blocks(room)), *draw(costs)))
    found = compose("network", parts, routing=draw(st.sampled_from(("spread", "hashed"))))
    if len(found.links) and draw(st.booleans()):
        link = draw(st.integers(0, len(found.links) - 1))
        factor = draw(st.sampled_from((0.5, 0.25, 3.0, 0.0)))
        found = found.with_slow_link(int(found.links.src[link]), int(found.links.dst[link]), factor)
    if draw(st.integers(0, 4)) == 4:
        found = found.with_slow_device(draw(st.integers(0, found.num_devices - 1)), draw(st.sampled_from((2.0, 3.0))))
    return found


@st.composite
def spreading_networks(draw: st.DrawFn) -> Topology:
    """Devices with some links to a few switches, all of them to the last, so that messages are spread."""
    size, switches = draw(st.integers(3, 5)), draw(st.integers(2, 3))
    to_others = st.lists(st.integers(0, switches - 2), max_size=3)
    ends = [(device, size + at) for device in range(size) for at in sorted([*draw(to_others), switches - 1])]
    bandwidth = [draw(bandwidths) for _ in ends]
    src, dst = np.array(ends, np.int64).T
    both = np.concatenate((src, dst)), np.concatenate((dst, src))
    links = Links(*both, np.array(2 * bandwidth), np.full(2 * len(ends), draw(latencies)))
    return compose("spread", [graph(size, links, switches)])


@st.composite
def reducing_networks(draw: st.DrawFn) -> Topology:
    """A switch that reduces, or two of them with links from device to device."""
    first = charged(switch(draw(st.integers(2, 5)), draw(bandwidths), draw(latencies), reduces=True), *draw(costs))
    second = [line(2, draw(bandwidths), draw(latencies))] if draw(st.booleans()) else []
    return compose("switches", [first, *second])


# Schedules and jobs.


@st.composite
def random_schedules(draw: st.DrawFn, max_ranks: int, max_switches: int = 0) -> Schedule:
    """Ranges of chunks from anywhere to anywhere, stored, added, from the input, of different sizes: any form."""
    ranks, switches = draw(st.integers(2, max_ranks)), draw(st.integers(0, max_switches))
    members, chunks = ranks + switches, draw(st.integers(1, 5))
    member, chunk = st.integers(0, members - 1), st.integers(0, chunks - 1)
    row = st.tuples(member, st.integers(1, members - 1), chunk, chunk, st.booleans(), st.booleans())
    steps: list[list[Move]] = []
    for drawn in draw(st.lists(st.lists(row, min_size=1, max_size=6), max_size=6)):
        stores: dict[tuple[int, int], bool] = {}
        moves: list[Move] = []
        for src, away, one, other, reduce, from_input in drawn:
            dst, low, high = (src + away) % members, min(one, other), max(one, other) + 1
            places = [(dst, at) for at in range(low, high)]
            # A place takes one store or any number of additions a step.
            if any(place in stores and (stores[place] or not reduce) for place in places):
                continue
            stores |= dict.fromkeys(places, not reduce)
            moves.append(move(src, dst, low, high - low, reduce=reduce, from_input=from_input and src < ranks))
        steps.append(moves)
    made = Schedule.from_list("all_reduce", ranks, steps, num_chunks=chunks, switches=switches)
    weights = draw(st.none() | st.lists(st.integers(0, 3), min_size=chunks, max_size=chunks).filter(any))
    return made if weights is None else replace(made, weights=np.array(weights))


def schedules(network: Topology) -> st.SearchStrategy[Schedule]:
    """A schedule of the library, or one that nobody would write."""
    most = network.num_devices
    return random_schedules(most, 2 * bool(network.reduces.any())) | library_cases(most).map(schedule_of)


sizes = st.sampled_from((0, 1, 1000, 1 << 14, 6_000_000))
gammas = st.sampled_from((0.0, 0.0, 0.125 * TIME_S, 2 * TIME_S))
starts = st.sampled_from((0.0, 0.0, 1000 * TIME_S, 300_000 * TIME_S))


@dataclass(frozen=True)
class Setup:
    """All that a run needs."""

    topology: Topology
    jobs: tuple[Placed, ...]
    store_and_forward: bool = False


def right_schedules(network: Topology) -> st.SearchStrategy[Schedule]:
    """A schedule that keeps its collective's promise."""
    most = network.num_devices
    return library_cases(most).map(schedule_of) | wild_cases(most, mended=True).map(schedule_of)


@st.composite
def setups(
    draw: st.DrawFn,
    networks: st.SearchStrategy[Topology] | None = None,
    *,
    kind: Callable[[Topology], st.SearchStrategy[Schedule]] = schedules,
    max_jobs: int = 2,
    store_and_forward: bool = False,
) -> Setup:
    """A network and one or two collectives on some of its devices."""
    found = topologies() if networks is None else networks
    network = draw(found.filter(lambda one: one.num_devices > 1))
    if store_and_forward:
        network = network.with_routing("hashed")
    gamma = draw(gammas)
    jobs = []
    for _ in range(draw(st.integers(1, max_jobs))):
        schedule = draw(kind(network))
        devices = draw(st.permutations(range(network.num_devices)))[: schedule.ranks]
        try:
            jobs.append(placed(Job(schedule, draw(sizes), devices, draw(starts)), network, gamma))
        except RefusedError:  # it needs a switch that reduces
            assume(False)
    assume(all(has_routes(network, job) for job in jobs))
    return Setup(network, tuple(jobs), store_and_forward)


def has_routes(topology: Topology, job: Placed) -> bool:
    """Whether everybody reaches whom he sends to."""
    rows = job.schedule.columns()
    try:
        topology.routes(job.node[rows.src], job.node[rows.dst])
    except UsageError:
        return False
    return True


def reductions(jobs: Sequence[Placed]) -> dict[tuple[int, int, int, int], float]:
    """What the reduction of each message takes, by (job, step, src, dst)."""
    found: dict[tuple[int, int, int, int], float] = {}
    for number, job in enumerate(jobs):
        rows = job.schedule.columns()
        taken = job.schedule.weights_of(rows) * rows.reduce * job.unit_bytes * job.gamma_s_per_byte[rows.dst]
        for *name, reduce_s in zip(rows.step.tolist(), rows.src.tolist(), rows.dst.tolist(), taken, strict=True):
            step, src, dst = name
            key = number, step, src, dst
            found[key] = found.get(key, 0.0) + float(reduce_s)
    return found


# The oracle's view of it.


def meant(value: float, unit: float = 1.0) -> Fraction:
    """The fraction that a rounded number stands for: a third, where it is a third of the unit up to rounding."""
    return Fraction(value / unit).limit_denominator(1_000_000) * Fraction(repr(unit))


def oracle_job(job: Placed) -> oracle.Job:
    """A job in fractions."""
    schedule = job.schedule
    rows = schedule.columns()
    columns = (rows.step, rows.src, rows.dst, rows.chunk, rows.count, rows.reduce, rows.from_input)
    weights = [1] * schedule.num_chunks if schedule.weights is None else schedule.weights.tolist()
    total = Fraction(schedule.contract.total_bytes(job.size_bytes, schedule.ranks))
    return oracle.Job(
        rows=tuple(oracle.Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True)),
        chunk_bytes=tuple(weight * total / sum(weights) for weight in weights),
        devices=tuple(job.node.tolist()),
        start_s=meant(job.start_s, TIME_S),
        gamma=tuple(meant(gamma, TIME_S) for gamma in job.gamma_s_per_byte.tolist()),
    )


def run_oracle(setup: Setup) -> oracle.Outcome:
    """The run in fractions."""

    def route(src: int, dst: int) -> oracle.Route:
        found = setup.topology.routes(np.array([src]), np.array([dst]))
        parts = zip(found.links.tolist(), found.share.tolist(), strict=True)
        crossed = tuple((link, meant(share)) for link, share in parts)
        first = sum(int(links.src[link]) == src for link, _ in crossed)
        return oracle.Route(crossed, meant(found.latency_s[0], TIME_S), first, *message_costs(src, dst, crossed))

    def message_costs(src: int, dst: int, crossed: oracle.Links) -> list[Fraction]:
        overhead, gap = (
            max((meant(float(column[link]), TIME_S) for link, _ in crossed), default=Fraction(0))
            for column in (links.overhead_s, links.gap_s)
        )
        direct = all((int(links.src[link]), int(links.dst[link])) == (src, dst) for link, _ in crossed)
        made = []
        for end in (src, dst):
            slower = meant(float(setup.topology.slowdown[end])) if end < setup.topology.num_devices else Fraction(1)
            times = Fraction(0) if direct and end >= setup.topology.num_devices else slower
            made += [overhead * times, max(overhead, gap) * times]
        return made

    links = setup.topology.links
    return oracle.fluid(
        [oracle_job(job) for job in setup.jobs],
        [meant(value, BANDWIDTH) for value in links.bandwidth_bytes_per_s.tolist()],
        [meant(value, TIME_S) for value in links.latency_s.tolist()],
        route,
        store_and_forward=setup.store_and_forward,
    )


# Comparing.

TIMES = ("start_s", "out_s", "arrived_s", "written_s")


def run(setup: Setup, make: MakeCore) -> tuple[Loads, Messages]:
    """The shared run by one of the cores."""
    return run_shared(setup.jobs, setup.topology, make, store_and_forward=setup.store_and_forward, progress=None)


def alone(setup: Setup) -> Loads | None:
    """The lone pass, where it is allowed to try and does answer."""
    passed = alone_and_kept(setup)
    return None if passed is None else passed[0]


def alone_and_kept(setup: Setup, *, keep: bool = False) -> tuple[Loads, Messages | None] | None:
    """The same with its messages, if they are to be kept."""
    if "compiled" not in CORES or len(setup.jobs) > 1 or setup.store_and_forward or setup.jobs[0].start_s > 0:
        return None
    return run_alone(setup.jobs[0], setup.topology, CORES["compiled"], keep=keep)


def close(value: float) -> Any:
    """A number that is the same up to rounding."""
    return pytest.approx(value, rel=CLOSE, abs=NO_TIME_S)


def assert_close(name: str, found: npt.ArrayLike, wanted: npt.ArrayLike) -> None:
    """Two columns are the same up to rounding."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=CLOSE, atol=NO_TIME_S, err_msg=name)


def assert_same_loads(found: Loads, wanted: Loads) -> None:
    """Links carried the same for as long, and ranks were done at the same time."""
    assert_close("bytes of links", found.link_bytes, wanted.link_bytes)
    assert_close("busy time of links", found.link_busy_s, wanted.link_busy_s)
    assert len(found.rank_finish_s) == len(wanted.rank_finish_s)
    for one, other in zip(found.rank_finish_s, wanted.rank_finish_s, strict=True):
        assert_close("when ranks were done", one, other)


def assert_same_messages(found: Messages, wanted: Messages) -> None:
    """Every message had the same life."""
    for name in ("job", "step", "src", "dst"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    for name in ("bytes", *TIMES, "share"):
        assert_close(name, getattr(found, name), getattr(wanted, name))
    assert_close("alone_s", found.alone_s(), wanted.alone_s())


def finish_of(setup: Setup, wanted: oracle.Outcome) -> list[list[float]]:
    """When each rank of each job is done: its last message out, its last one written."""
    done = [[meant(job.start_s, TIME_S)] * job.schedule.members for job in setup.jobs]
    for (job, _, src, dst), times in wanted.messages.items():
        done[job][src] = max(done[job][src], times.out_s)
        done[job][dst] = max(done[job][dst], times.written_s)
    return [list(map(float, ranks)) for ranks in done]


def assert_as_oracle(setup: Setup, loads: Loads, messages: Messages, wanted: oracle.Outcome) -> None:
    """The run is what the oracle says: every message's four times, every link's load, every rank's end."""
    names = list(zip(*(getattr(messages, key).tolist() for key in ("job", "step", "src", "dst")), strict=True))
    assert sorted(names) == sorted(wanted.messages), "not the same messages"
    for time in TIMES:
        exact = [float(getattr(wanted.messages[name], time)) for name in names]
        assert_close(time, getattr(messages, time), exact)
    assert_close("bytes of links", loads.link_bytes, list(map(float, wanted.link_bytes)))
    assert_close("busy time of links", loads.link_busy_s, list(map(float, wanted.link_busy_s)))
    for number, (found, exact) in enumerate(zip(loads.rank_finish_s, finish_of(setup, wanted), strict=True)):
        assert_close(f"when the ranks of job {number} were done", found, exact)
