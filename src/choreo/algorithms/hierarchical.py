"""Hierarchical: one axis of a mesh of ranks after another, each with the algorithm that suits its links.

All_reduce does a reduce_scatter along axes 1, 2, ... d, and then an all_gather along axes d, ... 2, 1. So the outer
axes carry only what the inner ones left.

- An axis whose algorithm has no reduce_scatter reduces to the first rank along it, and only those ranks go on. A
  parameter server inside each server with rings across servers is `8x4:parameter_server,ring`.
- An algorithm that only has an all_reduce can be used on the last axis: `8x4:direct,rabenseifner`.
- An algorithm that uses reducing switches (`8x4:in_network,ring`) has its own switches in every group along the axis.

Without `axes`, the mesh is as square as the number of ranks allows, with rings along both axes. If `axes` is a
topology, they are its dimensions, each with the algorithm that suits its kind of block, as in `choreo simulate`. With
`rotate`, the vector is cut into d parts that take the axes in different orders, so that all links work at once.

Source: M. Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", MLSys
2019; the rotation as in S. Rashidi et al., "Themis", ISCA 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.algorithms import Axes, AxesLike, Cost, algorithm, axes_for, build, list_algorithms, mst
from choreo.errors import UnknownNameError, UsageError
from choreo.schedule import Schedule, Steps, after, in_groups, mesh_groups, then, together

Ints: TypeAlias = npt.NDArray[np.int64]

# The flat reduce and broadcast that a parameter server is made of.
PARAMETER_SERVER = "linear"


@dataclass(frozen=True, slots=True)
class _Mesh:
    """The axes longer than 1, innermost first, the algorithm along each, and how many switches a group there has.

    Switches are numbered after the ranks, by axis and group.
    """

    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    switches_a_group: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """The number of ranks in the mesh."""
        return math.prod(self.sizes)

    @property
    def switches(self) -> int:
        """The number of switches in the groups along all axes."""
        return self.first_switch(len(self.sizes)) - self.ranks

    def with_switches(self, used: Sequence[tuple[int, Sequence[Schedule]]]) -> _Mesh:
        """The mesh with as many switches in each group as the schedules that are used along an axis have."""
        most = {axis: max(schedule.switches for schedule in schedules) for axis, schedules in used}
        return replace(self, switches_a_group=tuple(most[axis] for axis in range(len(self.sizes))))

    def stride(self, axis: int) -> int:
        """The distance in rank order between neighbours along an axis."""
        return math.prod(self.sizes[:axis])

    def coordinate(self, rank: Ints, axis: int) -> Ints:
        """The position of ranks along an axis."""
        return rank // self.stride(axis) % self.sizes[axis]

    def first_switch(self, axis: int) -> int:
        """The number of the first switch along an axis."""
        before = zip(self.sizes[:axis], self.switches_a_group, strict=False)
        return self.ranks + sum(self.ranks // size * switches for size, switches in before)

    def groups(self, axis: int, active: npt.NDArray[np.bool_]) -> Ints:
        """The groups along an axis whose ranks are all active, one per row, the group's switches after its ranks."""
        groups, each = mesh_groups(self.sizes, axis), self.switches_a_group[axis]
        switches = self.first_switch(axis) + np.arange(len(groups) * each).reshape(len(groups), each)
        return np.concatenate((groups, switches), axis=1)[active[groups].all(axis=1)]

    def orders(self, rotate: bool) -> list[list[int]]:
        """The orders in which parts of the vector take the axes."""
        axes = list(range(len(self.sizes)))
        return [axes[first:] + axes[:first] for first in axes] if rotate else [axes]


@algorithm(
    "all_reduce",
    cost=Cost(alpha="4 * (sqrt(p) - 1)", beta="2 * (p - 1) / p", gamma="(p - 1) / p", at="squares"),
)
def all_reduce(ranks: int, axes: AxesLike | None = None, rotate: bool = False) -> Schedule:
    """Reduce along the axes, innermost first, then back."""
    mesh = _mesh(ranks, axes)
    return _side_by_side(mesh, [_forward_and_back(mesh, order) for order in mesh.orders(rotate)])


@algorithm("all_gather", cost=Cost(alpha="2 * (sqrt(p) - 1)", beta="(p - 1) / p", at="squares"))
def all_gather(ranks: int, axes: AxesLike | None = None, rotate: bool = False) -> Schedule:
    """Gather along the axes, outermost first."""
    mesh = _mesh(ranks, axes)
    return _side_by_side(mesh, [_along_axes(mesh, "all_gather", order) for order in mesh.orders(rotate)])


@algorithm(
    "reduce_scatter",
    cost=Cost(alpha="2 * (sqrt(p) - 1)", beta="(p - 1) / p", gamma="(p - 1) / p", at="squares"),
)
def reduce_scatter(ranks: int, axes: AxesLike | None = None, rotate: bool = False) -> Schedule:
    """Scatter along the axes, innermost first."""
    mesh = _mesh(ranks, axes)
    return _side_by_side(mesh, [_along_axes(mesh, "reduce_scatter", order) for order in mesh.orders(rotate)])


@algorithm(
    "broadcast",
    cost=Cost(alpha="lg(p) + 2 * (sqrt(p) - 1)", beta="4 * (sqrt(p) - 1) / sqrt(p)", at="powers of four"),
)
def broadcast(ranks: int, root: int, axes: AxesLike | None = None, rotate: bool = False) -> Schedule:
    """Broadcast along the axes, outermost first, so that the outer links carry the vector once."""
    mesh = _mesh(ranks, axes)
    return _side_by_side(mesh, [_spread(mesh, order, root) for order in mesh.orders(rotate)])


def _side_by_side(mesh: _Mesh, parts: Sequence[Schedule]) -> Schedule:
    """The parts of the vector at the same time, in a schedule that says what its axes are."""
    return replace(together(*parts), axes=str(Axes(mesh.sizes, mesh.algorithms)))


def _forward_and_back(mesh: _Mesh, order: list[int]) -> Schedule:
    """Reduce_scatter, or reduce, along each axis in order, then all_gather, or broadcast, along them backwards.

    Chunks are numbered so that the part a rank still works on is always one range: `held` chunks from `start`.
    """
    phases = [_phase(mesh.sizes[axis], mesh.algorithms[axis], last=axis == order[-1]) for axis in order]
    _check_inputs([phase.forward for phase in phases[1:]], [phase.back for phase in phases])
    mesh = mesh.with_switches([(axis, phase.schedules) for axis, phase in zip(order, phases, strict=True)])
    num_chunks, parts = 1, 1
    for phase in phases:
        num_chunks = math.lcm(num_chunks, *(parts * schedule.num_chunks for schedule in phase.schedules))
        parts *= phase.parts
    rank = np.arange(mesh.ranks)
    start, held, active = np.zeros_like(rank), num_chunks, np.ones(len(rank), np.bool_)
    whole = {"ranks": len(rank) + mesh.switches, "num_chunks": num_chunks}
    forward: list[Steps] = []
    back: list[Steps] = []
    for axis, phase in zip(order, phases, strict=True):
        groups = mesh.groups(axis, active)
        forward.append(_on_range(phase.forward, groups, start[groups[:, 0]], held, **whole))
        if phase.back is not None:
            back.insert(0, _on_range(phase.back, groups, start[groups[:, 0]], held, **whole))
        if phase.parts > 1:
            held //= phase.parts
            start = start + mesh.coordinate(rank, axis) * held
        else:
            active = active & (mesh.coordinate(rank, axis) == 0)
    return Schedule("all_reduce", after(*forward, *back), switches=mesh.switches)


@dataclass(frozen=True, slots=True)
class _Phase:
    """The schedules along one axis, forward and back, and how many parts they cut the vector into."""

    forward: Schedule
    back: Schedule | None
    parts: int

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules that exist, forward and back."""
        return [self.forward] if self.back is None else [self.forward, self.back]


def _phase(size: int, name: str, *, last: bool) -> _Phase:
    """The schedules forward and back along an axis; on the last axis one all_reduce may replace both."""
    if _does("reduce_scatter", name) and _does("all_gather", name):
        return _Phase(build("reduce_scatter", name, size), build("all_gather", name, size), size)
    leader = PARAMETER_SERVER if name == "parameter_server" else name
    if _does("reduce", leader) and _does("broadcast", leader):
        return _Phase(build("reduce", leader, size), build("broadcast", leader, size), 1)
    if last and _does("all_reduce", name):
        return _Phase(build("all_reduce", name, size), None, 1)
    sharing, leading = _names("reduce_scatter", "all_gather"), _names("reduce", "broadcast")
    raise UsageError(
        f"{name} cannot reduce along an axis and spread the result again; use {sharing}, or {leading}, "
        "parameter_server; on the last axis any that does all_reduce"
    )


def _on_range(inner: Schedule, groups: Ints, start: Ints, held: int, *, ranks: int, num_chunks: int) -> Steps:
    """`inner` in every group, on the range of `held` chunks that the group works on."""
    piece = held // inner.num_chunks
    chunks = start[:, None] + np.arange(inner.num_chunks) * piece
    members = groups[:, : inner.members]
    return in_groups(inner.body, members, chunks[:, :, None], piece, ranks=ranks, num_chunks=num_chunks)


def _along_axes(mesh: _Mesh, collective: str, order: list[int]) -> Schedule:
    """Reduce_scatter along the axes of `order`, or all_gather along them backwards.

    At axis i of the order a rank works on the blocks of the ranks that have the same coordinates in all earlier axes.
    One block of the algorithm along that axis is all of those that also share a coordinate there.
    """
    for name in mesh.algorithms:
        if not _does(collective, name):
            raise UsageError(f"{name} does no {collective} along an axis; use {_names(collective)}")
    inners = [build(collective, mesh.algorithms[axis], mesh.sizes[axis]) for axis in order]
    _check_inputs(inners[:-1] if collective == "all_gather" else inners[1:])
    mesh = mesh.with_switches([(axis, [inner]) for axis, inner in zip(order, inners, strict=True)])
    ranks, members = mesh.ranks, mesh.ranks + mesh.switches
    a_block = math.lcm(*(inner.chunks_a_block for inner in inners))
    everyone = np.ones(ranks, np.bool_)
    parts: list[Steps] = []
    for place, (axis, inner) in enumerate(zip(order, inners, strict=True)):
        groups = mesh.groups(axis, everyone)
        base = sum(mesh.coordinate(groups[:, 0], a) * mesh.stride(a) for a in order[:place])
        free = np.zeros(1, np.int64)
        for other in order[place + 1 :]:
            free = (free[:, None] + np.arange(mesh.sizes[other]) * mesh.stride(other)).reshape(-1)
        block, piece = np.divmod(np.arange(inner.num_chunks), inner.chunks_a_block)
        blocks = np.reshape(base, (-1, 1, 1)) + (block * mesh.stride(axis))[None, :, None] + free
        count = a_block // inner.chunks_a_block
        chunks = np.broadcast_to(blocks, (len(groups), *blocks.shape[1:])) * a_block + piece[None, :, None] * count
        parts.append(in_groups(inner.body, groups, chunks, count, ranks=members, num_chunks=ranks * a_block))
    if collective == "all_gather":
        parts.reverse()
    return Schedule(collective, after(*parts), switches=mesh.switches)


def _spread(mesh: _Mesh, order: list[int], root: int) -> Schedule:
    """Broadcast along the axes, the last of `order` first, from the ranks that have the vector so far."""
    rank = np.arange(mesh.ranks)
    at_root = [mesh.coordinate(rank, axis) == mesh.coordinate(rank[root : root + 1], axis) for axis in order]
    inners = [
        _broadcast_along(mesh.sizes[axis], mesh.algorithms[axis], int(mesh.coordinate(rank[root : root + 1], axis)[0]))
        for axis in order
    ]
    _check_inputs(inners[:-1])
    mesh = mesh.with_switches([(axis, [inner]) for axis, inner in zip(order, inners, strict=True)])
    num_chunks = math.lcm(*(inner.num_chunks for inner in inners))
    whole = {"ranks": len(rank) + mesh.switches, "num_chunks": num_chunks}
    parts: list[Steps] = []
    for place, (axis, inner) in enumerate(zip(order, inners, strict=True)):
        holds = np.logical_and.reduce([np.ones(len(rank), np.bool_), *at_root[:place]])
        groups = mesh.groups(axis, holds)
        parts.insert(0, _on_range(inner, groups, np.zeros(len(groups), np.int64), num_chunks, **whole))
    return Schedule("broadcast", after(*parts), root, switches=mesh.switches)


def _broadcast_along(size: int, name: str, root: int) -> Schedule:
    """The algorithm's broadcast, or a tree scatter and its all_gather."""
    name = PARAMETER_SERVER if name == "parameter_server" else name
    if _does("broadcast", name):
        return build("broadcast", name, size, root=root)
    if _does("all_gather", name):
        return then(mst.scatter(size, root), build("all_gather", name, size))
    raise UsageError(f"{name} cannot broadcast along an axis; use {_names('broadcast')}, or {_names('all_gather')}")


def _mesh(ranks: int, axes: AxesLike | None) -> _Mesh:
    parsed = axes_for(ranks, axes)
    known = {a.name for a in list_algorithms()} - {"hierarchical"}
    for name in parsed.algorithms:
        if name not in known:
            raise UnknownNameError("algorithm to run along an axis:", name, known)
    long = [axis for axis, size in enumerate(parsed.sizes) if size > 1] or [0]
    return _Mesh(tuple(parsed.sizes[a] for a in long), tuple(parsed.algorithms[a] for a in long))


def _check_inputs(*later: Sequence[Schedule | None]) -> None:
    """Refuse an algorithm that sends from inputs unless it runs first: later a rank's data is no longer its input."""
    for schedule in (schedule for schedules in later for schedule in schedules if schedule is not None):
        if any(rows.from_input.any() for rows in schedule.blocks()):
            raise UsageError(
                f"{schedule.algorithm} sends from inputs, so nothing can be done along another axis before"
            )


def _does(collective: str, name: str) -> bool:
    return name != "hierarchical" and any(a.name == name for a in list_algorithms(collective))


def _names(*collectives: str) -> str:
    """The algorithms that do all of these collectives."""
    does_all = [a.name for a in list_algorithms(collectives[0]) if all(_does(c, a.name) for c in collectives)]
    return ", ".join(does_all)
