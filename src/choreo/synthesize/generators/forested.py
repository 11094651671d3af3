"""Forested: short messages over servers that look the same from every GPU, by annealed forests of few messages.

A share goes to its twins, the GPUs of the same local rank in other servers, and from each of them to the rest of the
server, straight or through a switch that multicasts. Sums come the same way. In an all_reduce twins exchange theirs.
That is where the annealing starts. Which way each chunk really goes, in which order, in how large pieces, and which of
them share a message, is found by trying. What is planned for one GPU every other does as well, shifted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from choreo.schedule import Schedule, Steps, Transfers
from choreo.schedule.weights import BLOCK_WEIGHT, whole_weights
from choreo.simulate.flows.engine import costs_of
from choreo.synthesize.annealing.exchanges import roots_of
from choreo.synthesize.annealing.forests import Forest, Forests, Ground
from choreo.synthesize.annealing.ways import Ways, lanes_of
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.symmetry import Symmetry, symmetry_of
from choreo.topology import Topology
from choreo.topology.graph import Floats, Ints

__all__ = ["forested"]

KINDS = ("all_gather", "reduce_scatter", "all_reduce")
# Above this size links decide, and other generators are near the bound.
MOST_BYTES = 4 << 20
# The most chunks of a share, and the most devices.
CHUNKS, MOST_DEVICES = (1, 2, 3, 4, 6, 8), 160
# So many tasks are put in time in all plans, as many from all starts as then from so many of the best, and so on.
TASKS, KEPT = 35_000_000, (100, 16, 4, 2)
LOW_EFFORT = 0.1
NO_ROUNDS = np.zeros((0, 1), np.int64)
# The most roots that exchange their sums.
MOST_ROOTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Field:
    """The ground, and for each member and origin (columns) the devices or the switch that it stands for (rows).

    Device 0 is the first member. `above` is the parent of each member in the trees that the search begins with, and
    `server` the number of devices in the innermost dimension. There are so many `blocks`. With a `twin` the members are
    those of one of two servers that do the same, and what device 0 sends itself goes to the devices that these are.
    """

    ground: Ground
    stands_for: tuple[Ints, ...]
    above: Ints
    server: int
    blocks: int
    twin: Ints | None = None

    def folded(self, kept: Ints, twin: int) -> _Field:
        """One of two servers, of these members."""
        ground = self.ground
        way_of = ground.way_of[np.ix_(kept, kept)].copy()
        way_of[0, 0] = ground.way_of[twin, 0]
        at = np.full(ground.members + 1, -1)
        at[kept] = np.arange(len(kept))
        devices = int((kept < ground.devices).sum())
        return _Field(
            replace(ground, members=len(kept), devices=devices, way_of=way_of),
            tuple(self.stands_for[member] for member in kept.tolist()),
            at[self.above[kept]],
            self.server,
            self.blocks // 2,
            self.stands_for[twin],
        )


def forested(problem: Problem) -> Iterator[Candidate]:
    """Short messages on a symmetric network of switches and fully connected blocks."""
    if problem.collective not in KINDS or problem.weights is not None or not problem.in_order:
        return
    if not 0 < problem.size_bytes <= MOST_BYTES or not 2 < problem.ranks <= MOST_DEVICES:
        return
    blocks = [block for block in problem.topology.blocks if block.size > 1]
    if not all(block.kind in ("switch", "fully_connected") for block in blocks):
        return
    symmetry = symmetry_of(problem.topology)
    if symmetry is None:
        return
    plantings = [_Planting(problem, symmetry, field) for field in _fields(problem, symmetry)]
    found = [(planting, *start) for planting in plantings for start in planting.starts()]
    tasks = TASKS * (LOW_EFFORT if problem.effort == "low" else 1.0) / len(KEPT)
    for kept in KEPT:
        found = sorted(found, key=lambda one: one[2].end_s)[:kept]
        found = [
            (planting, forests, forests.run(plan, int(tasks / len(found) / len(plan.parent))))
            for planting, forests, plan in found
        ]
    for planting, forests, plan in found:
        schedule = planting.schedule(forests, plan)
        if schedule is not None:
            yield Candidate("forested", schedule)


def _fields(problem: Problem, symmetry: Symmetry) -> Iterator[_Field]:
    """From device to device, and through the switches of servers that add; of two servers also one for both."""
    topology, half = problem.topology, problem.ranks // 2
    blocks = [block for block in topology.blocks if block.size > 1]
    two = problem.collective == "all_reduce" and len(blocks) > 1 and blocks[-1].size == 2
    plain = _plain(topology, symmetry)
    yield plain
    if two:
        yield plain.folded(np.arange(half), half)
    if len(blocks) > 1 and blocks[0].reduces.any() and not any(block.reduces.any() for block in blocks[1:]):
        through = _through_switches(topology, symmetry)
        yield through
        if two and len(blocks) == 2:
            yield through.folded(np.array([0, 2, 4]), 1)


def _plain(topology: Topology, symmetry: Symmetry) -> _Field:
    """From device to device; the trees go along one dimension after another, the outermost first."""
    ways, devices = Ways.of(topology, symmetry), np.arange(topology.num_devices)
    ground = Ground(
        len(devices),
        len(devices),
        ways.offset_of,
        ways.bandwidth_bytes_per_s,
        ways.latency_s,
        ways.costs_s,
        np.zeros((2, len(ways.latency_s)), np.int64),
        ways.offsets,
        ways.lanes,
        ways.num_lanes,
    )
    above = np.full(len(devices), -1)
    for dimension in reversed(range(len(symmetry.sizes))):
        here = symmetry.coordinates(dimension)
        above = np.where(here > 0, devices - here * symmetry.stride(dimension), above)
    image = symmetry.shifted(devices[:, None], devices)
    return _Field(ground, tuple(image[:, None]), above, symmetry.sizes[0], len(devices))


def _through_switches(topology: Topology, symmetry: Symmetry) -> _Field:
    """By way of the switch of each server, which adds and multicasts.

    The members are the twins of device 0, for each of them the rest of its server, which sends or gets as one, and the
    switches.
    """
    gpus = symmetry.sizes[0]
    servers = symmetry.devices // gpus
    ways, twins = Ways.of(topology, symmetry), np.arange(servers) * gpus
    lane_of, width = lanes_of(topology, symmetry)
    links = topology.links
    up = int(np.flatnonzero((links.src == 0) & topology.reduces[links.dst])[0])
    down = int(np.flatnonzero((links.dst == 0) & topology.reduces[links.src])[0])
    first, rest, switch = (np.arange(servers) + turn * servers for turn in range(3))
    across = twins[1:] - 1  # ways
    way_of = np.zeros((3 * servers, 3 * servers), np.int64)
    way_of[:servers, :servers] = np.searchsorted(across, ways.offset_of[np.ix_(twins, twins)] - 1) + 1
    way_of[first, first] = 0
    way_of[switch, first], way_of[first, switch] = servers, servers + 1
    way_of[switch, rest], way_of[rest, switch] = servers + 2, servers + 3
    ends = np.array([links.src[[up, down]], links.dst[[up, down]]])
    costs_s = np.stack(costs_of(topology, *ends))
    costs_s[1::2] = np.maximum(costs_s[1::2], costs_s[::2])
    inside = lane_of[[up, down]]
    crossed = [ways.lanes[ways.offsets[way] : ways.offsets[way + 1]] for way in across.tolist()]
    crossed += [inside[[turn]] for turn in (0, 1, 0, 1)]
    ground = Ground(
        3 * servers,
        2 * servers,
        way_of,
        np.concatenate((ways.bandwidth_bytes_per_s[across], width[inside], width[inside] / (gpus - 1))),
        np.concatenate((ways.latency_s[across], np.tile(links.latency_s[[up, down]], 2))),
        np.concatenate((ways.costs_s[:, across], costs_s, costs_s), axis=1),
        np.zeros((2, servers + 3), np.int64),
        np.cumsum([0, *(len(lanes) for lanes in crossed)]),
        np.concatenate(crossed),
        len(width),
    )
    origin = np.arange(symmetry.devices)
    image = symmetry.shifted(twins[:, None], origin)
    others = (image[:, None] + np.arange(1, gpus)[:, None]) % gpus + image[:, None] // gpus * gpus
    number = np.flatnonzero(topology.reduces)
    order = {int(one): symmetry.devices + turn for turn, one in enumerate(number)}
    mine = np.full(symmetry.devices, -1)
    for src, dst in zip(links.src.tolist(), links.dst.tolist(), strict=True):
        if dst in order:
            mine[src] = order[dst]
    above = np.concatenate((np.where(first > 0, 0, -1), switch, first))
    return _Field(ground, (*image[:, None], *others, *mine[image][:, None]), above, gpus, symmetry.devices)


class _Planting:
    """The forests that the search begins with on one ground, and the schedules of those that it ends with."""

    def __init__(self, problem: Problem, symmetry: Symmetry, field: _Field) -> None:
        self.problem, self.symmetry, self.field = problem, symmetry, field
        self.block_bytes = problem.size_bytes / field.blocks
        self.whole_s = problem.bound().bandwidth_bound_s

    def starts(self) -> Iterator[tuple[Forests, Forest]]:
        """Trees of several numbers of chunks, with one root or several."""
        inward, outward = self.problem.collective != "all_gather", self.problem.collective != "reduce_scatter"
        for roots, partner in self._roots() if inward and outward else [(np.zeros(1, np.int64), NO_ROUNDS)]:
            above = self.field.above.copy()
            above[roots] = -1
            for chunks in CHUNKS:
                chunk_bytes = self.block_bytes / chunks
                if chunks > 1 and chunk_bytes < LEAST_CHUNK_BYTES:
                    break
                forests = Forests(
                    self.field.ground,
                    np.tile(roots, (chunks, 1)),
                    partner,
                    np.zeros(chunks, np.int64),
                    inward=inward,
                    outward=outward,
                )
                together_s = (
                    1.01 * self.field.server * chunk_bytes / float(self.field.ground.bandwidth_bytes_per_s.max())
                )
                depth_s, sizes = self._depth_s(above, chunk_bytes), np.full(chunks, chunk_bytes)
                for longest_s in (0.0, together_s):
                    yield forests, forests.planted(above, depth_s, sizes, self.whole_s, longest_s)

    def _roots(self) -> Iterator[tuple[Ints, Ints]]:
        """Roots as members, and their partners in each round: one root, two or more that are neighbours."""
        if self.field.twin is not None:
            yield np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
            return
        yield np.zeros(1, np.int64), NO_ROUNDS
        twins = {
            int(devices[0, 0]): member for member, devices in enumerate(self.field.stands_for) if len(devices) == 1
        }
        for one in roots_of(self.symmetry, MOST_ROOTS):
            if all(device in twins for device in one.devices):
                number = {device: turn for turn, device in enumerate(one.devices)}
                partner = [[number[other] for other in others] for others in one.rounds]
                yield np.array([twins[device] for device in one.devices]), np.array(partner, np.int64)

    def _depth_s(self, above: Ints, chunk_bytes: float) -> Floats:
        """About when each member gets a chunk."""
        ground = self.field.ground
        takes_s = chunk_bytes / ground.bandwidth_bytes_per_s + ground.latency_s + ground.costs_s[0] + ground.costs_s[2]
        found = np.zeros(len(above))
        for member in range(len(above)):
            below = member
            while above[below] >= 0:
                found[member] += takes_s[ground.way_of[below, above[below]] - 1]
                below = int(above[below])
        return found

    def schedule(self, forests: Forests, plan: Forest) -> Schedule | None:
        """What device 0 does with its share, for every device; None if its messages have no order."""
        tasks, devices = forests.tasks(plan), self.symmetry.devices
        when = forests.steps(plan, tasks)
        if when is None:
            return None
        moments, step = np.unique(when, return_inverse=True)
        parts, block = [], np.arange(devices) % self.field.blocks
        for turn, (src, dst) in enumerate(zip(tasks.src.tolist(), tasks.dst.tolist(), strict=True)):
            there = self.field.stands_for[dst]
            if src == dst:
                assert self.field.twin is not None
                there = self.field.twin
            ends = np.broadcast_arrays(self.field.stands_for[src], there)
            count = ends[0].size
            parts.append(
                Transfers(
                    np.full(count, step[turn]),
                    ends[0].reshape(-1),
                    ends[1].reshape(-1),
                    np.tile(block * forests.chunks + tasks.chunk[turn], count // devices),
                    np.ones(count, np.int64),
                    np.full(count, tasks.adds[turn]),
                    np.zeros(count, np.bool_),
                )
            )
        rows = Transfers.join(parts).by_step()
        switches = int(self.problem.topology.reduces.sum()) if len(self.field.above) > forests.ground.devices else 0
        return Schedule(
            self.problem.collective,
            Steps.from_transfers(devices + switches, self.field.blocks * forests.chunks, len(moments), rows),
            None,
            "forested",
            np.tile(whole_weights(plan.chunk_bytes, BLOCK_WEIGHT), self.field.blocks),
            switches=switches,
            receive_in_order=True,
        )
