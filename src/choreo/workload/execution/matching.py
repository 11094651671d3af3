"""Which nodes of different ranks are one call: the n-th collective of a group at each of its ranks, the n-th message
between two ranks with one tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.errors import TraceError
from choreo.workload.execution.graph import COLLECTIVES, NodeKind

__all__ = ["match_calls"]

Ints = npt.NDArray[np.int64]


def match_calls(groups: Sequence[tuple[int, ...]], names: Sequence[str], columns: Mapping[str, Any]) -> Ints:
    """The call of each node, -1 for other nodes; TraceError if ranks disagree."""
    call = np.full(len(columns["rank"]), -1, np.int64)
    found = _match_collectives(groups, columns, call)
    _match_messages(columns, call, found)
    return call


def _ordinals(key: Ints) -> Ints:
    """For each entry, how many equal ones came before it."""
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    first = np.flatnonzero(np.concatenate((np.ones(min(1, len(key)), bool), ranked[1:] != ranked[:-1])))
    start = np.repeat(first, np.diff(np.append(first, len(key))))
    found = np.empty(len(key), np.int64)
    found[order] = np.arange(len(key)) - start
    return found


def _match_collectives(groups: Sequence[tuple[int, ...]], columns: Mapping[str, Any], call: Ints) -> int:
    nodes = np.flatnonzero(columns["kind"] == NodeKind.COLLECTIVE)
    if not len(nodes):
        return 0
    rank, group = columns["rank"][nodes], columns["group"][nodes]
    ranks = int(rank.max()) + 1
    sizes = np.array([len(group) for group in groups], np.int64)
    members = np.fromiter(chain.from_iterable(groups), np.int64, int(sizes.sum()))
    stride = max(ranks, int(members.max(initial=0)) + 1)
    calls = group * stride + rank
    strangers = calls[~np.isin(calls, np.repeat(np.arange(len(sizes)), sizes) * stride + members)]
    if len(strangers):
        number, stranger = divmod(int(strangers.min()), stride)
        where = _listed(groups[number])
        raise TraceError(f"rank {stranger} calls a collective of the group {where}, which it is not in")
    nth = _ordinals(group * ranks + rank)
    _, mine = np.unique(group * (int(nth.max()) + 1) + nth, return_inverse=True)
    call[nodes] = mine
    total = int(mine.max()) + 1
    first = np.full(total, len(call), np.int64)
    np.minimum.at(first, mine, nodes)
    counts = np.bincount(mine, minlength=total)
    wanted = sizes[columns["group"][first]]
    short = np.flatnonzero(counts != wanted)
    if len(short):
        node = int(first[short[0]])
        there = set(rank[mine == short[0]].tolist())
        missing = [group for group in groups[columns["group"][node]] if group not in there]
        raise TraceError(
            f"{_call(columns, node)} number {int(nth[np.flatnonzero(nodes == node)[0]]) + 1} of the group "
            f"{_listed(groups[columns['group'][node]])} is never called by rank {missing[0]}"
        )
    for name in ("collective", "size_bytes", "peer"):
        values = columns[name]
        differ = np.flatnonzero(values[nodes] != values[first[mine]])
        if len(differ):
            one, other = int(first[mine[differ[0]]]), int(nodes[differ[0]])
            where = _listed(groups[columns["group"][one]])
            raise TraceError(
                f"ranks disagree on a collective of the group {where}: rank {columns['rank'][one]} calls "
                f"{_call(columns, one)}, and rank {columns['rank'][other]} {_call(columns, other)}"
            )
    return total


def _match_messages(columns: Mapping[str, Any], call: Ints, found: int) -> None:
    kind, rank, peer, tag = (columns[name] for name in ("kind", "rank", "peer", "tag"))
    ends = []
    for end in (NodeKind.SEND, NodeKind.RECV):
        nodes = np.flatnonzero(kind == end)
        src, dst = (rank[nodes], peer[nodes]) if end is NodeKind.SEND else (peer[nodes], rank[nodes])
        _, channel = (
            np.unique(np.stack((src, dst, tag[nodes])), axis=1, return_inverse=True) if len(nodes) else (0, nodes)
        )
        nth = _ordinals(np.ravel(channel))
        order = np.lexsort((nth, tag[nodes], dst, src))
        ends.append((nodes[order], np.stack((src, dst, tag[nodes], nth))[:, order]))
    (sends, to), (receives, of) = ends
    if to.shape != of.shape or not (to == of).all():
        raise TraceError(_unmatched(to, of))
    differ = np.flatnonzero(columns["size_bytes"][sends] != columns["size_bytes"][receives])
    if len(differ):
        src, dst, tags, nth = to[:, differ[0]].tolist()
        sent, got = columns["size_bytes"][sends[differ[0]]], columns["size_bytes"][receives[differ[0]]]
        raise TraceError(
            f"rank {src} sends {sent:g} bytes to rank {dst} (message {nth + 1} with tag {tags}), which receives {got:g}"
        )
    call[sends] = call[receives] = found + np.arange(len(sends))


def _unmatched(to: Ints, of: Ints) -> str:
    sent, received = (set(map(tuple, pairs.T.tolist())) for pairs in (to, of))
    alone = sorted(sent - received)
    if alone:
        src, dst, tag, nth = alone[0]
        return f"rank {src} sends message {nth + 1} with tag {tag} to rank {dst}, which never receives it"
    src, dst, tag, nth = min(received - sent)
    return f"rank {dst} waits for message {nth + 1} with tag {tag} from rank {src}, which never sends it"


def _call(columns: Mapping[str, Any], node: int) -> str:
    root = f" with root {columns['peer'][node]}" if columns["peer"][node] >= 0 else ""
    return f"{COLLECTIVES[columns['collective'][node]]} of {columns['size_bytes'][node]:g} bytes{root}"


def _listed(group: Sequence[int]) -> str:
    shown = ", ".join(map(str, group[:8]))
    return f"[{shown}{', ...' if len(group) > 8 else ''}]"
