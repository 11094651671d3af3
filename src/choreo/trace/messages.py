"""Schedules as messages: a send at one rank and a receive at the other, with their dependencies.

The order is the schedule's own. A send waits for the messages that brought its data, and for the sends of its rank's
earlier steps, as with one port. A receive waits for earlier receives into the same place, and for the sends that still
read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from choreo.algorithms import build
from choreo.errors import UsageError
from choreo.schedule import Schedule, message_of
from choreo.simulate.choice import FLAT
from choreo.simulate.execution.rules import parse_rules
from choreo.units import size_of
from choreo.workload.execution import COLLECTIVES, ExecutionGraph, GraphBuilder, NodeKind

__all__ = ["as_messages", "as_messages_by", "schedule_graph"]

Choose = Callable[[str, tuple[int, ...], float, int | None], Schedule]


def schedule_graph(schedule: Schedule, size_bytes: float | str, *, gamma_s_per_byte: float = 0.0) -> ExecutionGraph:
    """A schedule as an execution graph of sends, receives and reductions.

    >>> from choreo import build
    >>> schedule_graph(build("all_reduce", "ring", 4), "1MiB").to_dict()["send"]
    24
    """
    _refuse_helpers(schedule)
    builder = GraphBuilder(schedule.ranks)
    members = tuple(range(schedule.ranks))
    _expand(builder, schedule, float(size_of(size_bytes)), members, {}, gamma_s_per_byte=gamma_s_per_byte, tag=0)
    return builder.finish()


def as_messages_by(graph: ExecutionGraph, algorithm: str) -> ExecutionGraph:
    """The graph with every collective cut into messages by a rule: an algorithm's name, or all_reduce=ring,..."""
    by_collective, default = parse_rules(algorithm)

    def choose(collective: str, members: tuple[int, ...], size_bytes: float, root: int | None) -> Schedule:
        name = by_collective.get(collective, default)
        return build(collective, FLAT[collective] if name == "suggested" else name, len(members), root=root)

    return as_messages(graph, choose)


def as_messages(graph: ExecutionGraph, choose: Choose, *, gamma_s_per_byte: float = 0.0) -> ExecutionGraph:
    """The graph with every collective cut into messages, by the schedule that `choose` gives."""
    builder = GraphBuilder(graph.ranks)
    # Where each node of the old graph ends in the new one, and each rank's node of a call.
    ends: dict[int, list[int]] = {}
    calls: dict[int, dict[int, int]] = {}
    sizes = [len(group) for group in graph.groups]
    tags = int(graph.tag.max(initial=0)) + 1
    for node in _call_by_call(graph):
        after = [end for dep in graph.deps_of(node).tolist() for end in ends[dep]]
        rank, kind = int(graph.rank[node]), NodeKind(graph.kind[node])
        if kind is not NodeKind.COLLECTIVE:
            ends[node] = [_copy(builder, graph, node, after)]
            continue
        call, group = int(graph.call[node]), int(graph.group[node])
        members = graph.groups[group]
        there = calls.setdefault(call, {})
        ends[node] = [builder.host(rank, graph.name_of(node), 0.0, stream=-2, after=after)]
        there[rank] = node
        if len(there) < sizes[group] or sizes[group] == 1:
            continue
        root = int(graph.peer[node])
        collective, size = COLLECTIVES[graph.collective[node]], float(graph.size_bytes[node])
        schedule = choose(collective, members, size, members.index(root) if root >= 0 else None)
        _refuse_helpers(schedule)
        begun = {at: ends[there[member]] for at, member in enumerate(members)}
        last = _expand(builder, schedule, size, members, begun, gamma_s_per_byte=gamma_s_per_byte, tag=tags + call)
        for member, member_node in there.items():
            ends[member_node] = last[member] or ends[member_node]
    return builder.finish()


def _call_by_call(graph: ExecutionGraph) -> list[int]:
    """The nodes in an order in which all nodes of a call come before whatever waits for one of them."""
    call = graph.call
    size = np.bincount(call[call >= 0], minlength=graph.num_calls)
    left = np.diff(graph.offsets).tolist()
    offsets, after = graph.dependents()
    nodes_of: list[list[int]] = [[] for _ in range(graph.num_calls)]
    ready = np.flatnonzero(np.diff(graph.offsets) == 0).tolist()[::-1]
    order: list[int] = []
    while ready:
        node = ready.pop()
        together = [node]
        if graph.kind[node] == NodeKind.COLLECTIVE:
            waiting = nodes_of[call[node]]
            waiting.append(node)
            if len(waiting) < size[call[node]]:
                continue
            together = waiting
        order += together
        for done in together:
            for other in after[offsets[done] : offsets[done + 1]].tolist():
                left[other] -= 1
                if not left[other]:
                    ready.append(other)
    if len(order) < len(graph):
        raise UsageError("ranks call their collectives in orders that contradict each other; this would hang")
    return order


def _copy(builder: GraphBuilder, graph: ExecutionGraph, node: int, after: list[int]) -> int:
    rank, name, kind = int(graph.rank[node]), graph.name_of(node), NodeKind(graph.kind[node])
    duration_s, stream = float(graph.duration_s[node]), int(graph.stream[node])
    memory_bytes = float(graph.memory_bytes[node])
    if kind is NodeKind.HOST:
        return builder.host(rank, name, duration_s, stream=stream, after=after)
    if kind is NodeKind.MEMORY:
        return builder.memory(rank, name, duration_s, memory_bytes=memory_bytes, stream=stream, after=after)
    if kind is NodeKind.COMPUTE:
        flops = float(graph.flops[node])
        return builder.compute(
            rank, name, duration_s, flops=flops, memory_bytes=memory_bytes, stream=stream, after=after
        )
    add = builder.send if kind is NodeKind.SEND else builder.recv
    return add(rank, int(graph.peer[node]), float(graph.size_bytes[node]), tag=int(graph.tag[node]), after=after)


def _expand(
    builder: GraphBuilder,
    schedule: Schedule,
    size_bytes: float,
    members: tuple[int, ...],
    begun: Mapping[int, list[int]],
    *,
    gamma_s_per_byte: float,
    tag: int,
) -> dict[int, list[int]]:
    """Add the messages of a schedule; returns the last nodes of each rank's part."""
    unit = schedule.contract.total_bytes(size_bytes, schedule.ranks) / schedule.total_weight
    writer = np.full((schedule.ranks, schedule.num_chunks), -1, np.int64)
    readers: list[dict[int, list[int]]] = [{} for _ in range(schedule.ranks)]
    last: dict[int, list[int]] = {rank: [] for rank in members}
    earlier: dict[int, list[int]] = {rank: [] for rank in range(schedule.ranks)}  # sends of the last step it sent in
    for rows in schedule.blocks():
        weights = schedule.weights_of(rows)
        for step in np.unique(rows.step):
            here = np.flatnonzero(rows.step == step)
            numbers = message_of(rows)[here]
            messages = [here[numbers == number] for number in np.unique(numbers)]
            sent = []
            now: dict[int, list[int]] = {}
            for message in messages:
                src, dst = int(rows.src[message[0]]), int(rows.dst[message[0]])
                reads = {
                    int(node)
                    for row in message
                    if not rows.from_input[row]
                    for node in writer[src, rows.chunk[row] : rows.chunk[row] + rows.count[row]]
                    if node >= 0
                }
                bytes_ = float(weights[message].sum()) * unit
                after = sorted({*reads, *earlier[src]}) or begun.get(src, [])
                sent.append(builder.send(members[src], members[dst], bytes_, tag=tag, after=after))
                for row in message:
                    for chunk in range(rows.chunk[row], rows.chunk[row] + rows.count[row]):
                        readers[src].setdefault(int(chunk), []).append(sent[-1])
                last[members[src]].append(sent[-1])
                now.setdefault(src, []).append(sent[-1])
            earlier |= now
            order = sorted(range(len(messages)), key=lambda at: int(rows.src[messages[at][0]]))
            for at in order:
                message = messages[at]
                src, dst = int(rows.src[message[0]]), int(rows.dst[message[0]])
                chunks = [
                    chunk for row in message for chunk in range(rows.chunk[row], rows.chunk[row] + rows.count[row])
                ]
                before = {int(writer[dst, chunk]) for chunk in chunks if writer[dst, chunk] >= 0}
                before |= {node for chunk in chunks for node in readers[dst].pop(int(chunk), ())}
                bytes_ = float(weights[message].sum()) * unit
                node = builder.recv(
                    members[dst], members[src], bytes_, tag=tag, after=sorted(before) or begun.get(dst, [])
                )
                reduced = float(weights[message][rows.reduce[message]].sum()) * unit
                if reduced and gamma_s_per_byte:
                    node = builder.compute(members[dst], "reduce", reduced * gamma_s_per_byte, after=[node])
                writer[dst, chunks] = node
                last[members[dst]].append(node)
    return last


def _refuse_helpers(schedule: Schedule) -> None:
    if schedule.relays:
        raise UsageError(f"{schedule.algorithm} has relays, and a trace has only ranks; use another algorithm")
    if schedule.switches:
        raise UsageError(
            f"{schedule.algorithm} lets switches reduce, and a trace has only ranks; use another algorithm"
        )
