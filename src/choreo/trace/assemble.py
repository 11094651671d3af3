"""Put the traces of ranks together into one execution graph, and check it.

A dependency on a missing node is dropped and counted. Ranks that disagree on a collective, a cycle of dependencies and
a group without a description are refused: a wrong graph is not simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from choreo.checks import MAX_RANKS
from choreo.errors import TraceError, short, shown
from choreo.files import check_work
from choreo.trace.raw import EVERYBODY, Findings, RankTrace, RawNode
from choreo.units import counted
from choreo.workload.execution import ExecutionGraph, GraphBuilder, NodeKind

__all__ = ["assemble", "translated"]

Ints = npt.NDArray[np.int64]

NODE_BYTES, MEMBER_BYTES = 320, 64  # memory of a node in the graph, and of a rank in a group
MOST_S, MOST_BYTES = 1e9, 1e18  # limits of one node: thirty years, an exabyte


def assemble(
    traces: Sequence[RankTrace],
    groups: Mapping[str, tuple[int, ...]],
    findings: Findings,
    *,
    ranks: int | None = None,
) -> ExecutionGraph:
    """One graph of all ranks. If only one rank of several was traced, the others do the same in their own groups."""
    named = {name: members for trace in traces for name, members in trace.groups.items()} | dict(groups)
    by_rank = _ranks(traces)
    _check_numbers(traces)
    world = _world_size(traces, named, ranks)
    if len(by_rank) == 1 < world:
        (first, trace), *_ = by_rank.items()
        if not trace.of_all:
            findings.note(f"rank of {world} was traced; the others are taken to do the same", f"rank {first}")
        nodes = max(1, len(trace.nodes))
        work_bytes = (NODE_BYTES * (nodes + 1) + MEMBER_BYTES * len(named)) * world
        check_work(f"a trace of {nodes} nodes on {world} ranks", work_bytes, refuse=TraceError)
        return _build(by_rank, world, named, findings)
    missing = sorted(set(range(world)) - set(by_rank))
    if missing:
        raise TraceError(
            f"the trace of rank {missing[0]} is missing: {len(by_rank)} of {world} ranks are there; give the files of "
            "all ranks, or of one alone"
        )
    return _build(by_rank, world, named, findings)


def _check_numbers(traces: Sequence[RankTrace]) -> None:
    for trace in traces:
        for node in trace.nodes:
            if node.duration_s > MOST_S or max(node.size_bytes, node.shard_bytes, node.memory_bytes) > MOST_BYTES:
                size = short(str(node.size_bytes), 24)
                raise TraceError(
                    f"{shown(node.name)} takes {node.duration_s:g} s for {size} bytes; the most is {MOST_S:g} s and "
                    f"{MOST_BYTES:g} bytes"
                )


def _ranks(traces: Sequence[RankTrace]) -> dict[int, RankTrace]:
    found: dict[int, RankTrace] = {}
    for number, trace in enumerate(traces):
        rank = number if trace.rank is None else trace.rank
        if not 0 <= rank < MAX_RANKS:
            raise TraceError(f"a file is the trace of rank {short(str(rank), 24)}; ranks are 0 to {MAX_RANKS - 1}")
        if rank in found:
            raise TraceError(f"two of the files are the trace of rank {rank}")
        found[rank] = trace
    return dict(sorted(found.items()))


def _world_size(traces: Sequence[RankTrace], groups: Mapping[str, tuple[int, ...]], given: int | None) -> int:
    world_sizes = {trace.world_size for trace in traces if trace.world_size}
    if given is None and len(world_sizes) > 1:
        raise TraceError(f"the files disagree on the number of ranks: {sorted(world_sizes)}")
    most = max((max(members) + 1 for members in groups.values() if members), default=1)
    most = max([most, len(traces), *((trace.rank or 0) + 1 for trace in traces), *world_sizes])
    for trace in traces:
        for node in trace.nodes:
            if node.kind in (NodeKind.SEND, NodeKind.RECV) and node.peer >= most:
                most = node.peer + 1
    if given is not None and given < most:
        raise TraceError(f"the trace speaks of {counted(most, 'rank')}, which is more than the {given} asked for")
    if most > MAX_RANKS:
        raise TraceError(f"the trace speaks of {most} ranks; at most {MAX_RANKS} can be read")
    return given or most


def _build(
    by_rank: Mapping[int, RankTrace], world: int, groups: Mapping[str, tuple[int, ...]], findings: Findings
) -> ExecutionGraph:
    try:
        return _connected(by_rank, world, groups, findings, control=True)
    except TraceError:
        if not any(node.control for trace in by_rank.values() for node in trace.nodes):
            raise
    graph = _connected(by_rank, world, groups, findings, control=False)
    findings.note("cycle of control dependencies: they say who called whom, and data dependencies alone are kept")
    return graph


def _connected(
    by_rank: Mapping[int, RankTrace],
    world: int,
    groups: Mapping[str, tuple[int, ...]],
    findings: Findings,
    *,
    control: bool,
) -> ExecutionGraph:
    builder = GraphBuilder(world)
    everybody = tuple(range(world))
    found = Findings()
    for rank, trace in by_rank.items():
        place = _places(trace.nodes, rank)
        first = len(builder)
        for node in trace.nodes:
            waits = node.deps + node.control if control else node.deps
            deps = [first + place[dep] for dep in waits if dep in place]
            gone = [dep for dep in (*node.deps, *node.control) if dep not in place]
            if gone:
                found.note(
                    "dependency on a node that is not in the trace, dropped",
                    f"{shown(node.name)} on {gone[0]}",
                    len(gone),
                )
            _add(builder, rank, node, deps, _members(node, rank, everybody, groups))
    if len(by_rank) < world:
        (origin, trace), *_ = by_rank.items()
        _check_no_messages(origin, trace)
        builder.repeat({group: translated(group, origin, world) for group in builder.groups})
    graph = builder.finish()
    graph.order  # noqa: B018 - a cycle is refused here
    findings.add(found)
    return graph


def _check_no_messages(rank: int, trace: RankTrace) -> None:
    for node in trace.nodes:
        if node.kind in (NodeKind.SEND, NodeKind.RECV):
            raise TraceError(
                f"only rank {rank} was traced, and it exchanges messages with rank {node.peer}; whom the others "
                "talk to does not follow: give the traces of all ranks"
            )


def _places(nodes: Sequence[RawNode], rank: int) -> dict[int, int]:
    place: dict[int, int] = {}
    for at, node in enumerate(nodes):
        if node.id in place:
            raise TraceError(f"rank {rank} has two nodes with the id {node.id}: {shown(node.name)} is one of them")
        place[node.id] = at
    return place


def _members(
    node: RawNode, rank: int, everybody: tuple[int, ...], groups: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    if node.kind is not NodeKind.COLLECTIVE or (node.group in (EVERYBODY, "0") and node.group not in groups):
        return everybody
    if node.group not in groups:
        known = ", ".join(sorted(groups)) or "none"
        raise TraceError(
            f"{shown(node.name)} at rank {rank} is a collective of group {shown(node.group)!r}, and no file says which "
            f'ranks that is (known: {known}); give a file of groups: {{"{shown(node.group)}": [0, 1]}}'
        )
    return groups[node.group]


def translated(members: tuple[int, ...], origin: int, world: int) -> tuple[list[tuple[int, ...]], Ints]:
    """The groups of all ranks that correspond to the group `members` of `origin`, and the group of each rank.

    Ranks in `members` are in that group. The others are in groups of the same shape: equal distances, in blocks.

    >>> groups, of_rank = translated((0, 2), 0, 8)
    >>> groups, of_rank.tolist()
    ([(0, 2), (1, 3), (4, 6), (5, 7)], [0, 1, 0, 1, 2, 3, 2, 3])
    """
    ranks = np.arange(world)
    inside = np.isin(ranks, members)
    if inside.all():
        return [members], np.zeros(world, np.int64)
    steps = np.diff(members)
    stride = int(steps[0]) if len(steps) else 1
    regular = stride >= 1 and bool((steps == stride).all()) and world % (stride * len(members)) == 0
    if len(members) > 1 and not (regular and origin in members):
        raise TraceError(
            f"only rank {origin} was traced, and which group rank {int(inside.argmin())} is in does not follow from "
            f"{list(members)!r:.60}; give the traces of all ranks"
        )
    first, of_rank = np.unique(ranks - ranks // stride % len(members) * stride, return_inverse=True)
    groups = [tuple(range(start, start + stride * len(members), stride)) for start in first.tolist()]
    if members not in groups:
        groups.append(members)
    of_rank = np.ravel(of_rank)
    of_rank[inside] = groups.index(members)
    return groups, of_rank


def _add(builder: GraphBuilder, rank: int, node: RawNode, deps: list[int], members: tuple[int, ...]) -> None:
    try:
        if node.kind is NodeKind.COMPUTE:
            builder.compute(
                rank,
                node.name,
                node.duration_s,
                flops=node.flops,
                memory_bytes=node.memory_bytes,
                stream=node.stream,
                after=deps,
            )
        elif node.kind is NodeKind.HOST:
            builder.host(rank, node.name, node.duration_s, stream=node.stream, after=deps)
        elif node.kind is NodeKind.MEMORY:
            builder.memory(
                rank, node.name, node.duration_s, memory_bytes=node.memory_bytes, stream=node.stream, after=deps
            )
        elif node.kind is NodeKind.SEND:
            builder.send(rank, node.peer, node.size_bytes, tag=node.tag, after=deps)
        elif node.kind is NodeKind.RECV:
            builder.recv(rank, node.peer, node.size_bytes, tag=node.tag, after=deps)
        else:
            size = node.size_bytes if np.isnan(node.shard_bytes) else node.shard_bytes * len(members)
            builder.collective(
                rank,
                node.collective,
                size,
                members,
                name=node.name,
                root=node.peer,
                priority=node.priority,
                duration_s=node.duration_s,
                after=deps,
            )
    except OverflowError:
        raise TraceError(f"node {node.id} of rank {rank}, {shown(node.name)}: a number has more than 64 bits") from None
    except (ValueError, TraceError) as error:
        raise TraceError(f"node {node.id} of rank {rank}, {shown(node.name)}: {error}") from None
