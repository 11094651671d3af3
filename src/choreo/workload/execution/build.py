"""Make an execution graph node by node."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.errors import TraceError, UnknownNameError
from choreo.workload.execution.graph import COLLECTIVES, ExecutionGraph, NodeKind
from choreo.workload.execution.matching import match_calls

__all__ = ["GraphBuilder"]

NUMBER = {name: number for number, name in enumerate(COLLECTIVES)}
NAN = float("nan")
# The default streams of a rank: kernels, copies, and the host's own work.
COMPUTE_STREAM, MEMORY_STREAM, HOST_STREAM = 0, 1, 2


class GraphBuilder:
    """Builds an execution graph node by node; `finish` returns it. Each method returns the number of its node.

    >>> graph = GraphBuilder(2)
    >>> for rank in range(2):
    ...     forward = graph.compute(rank, "forward", 1e-3)
    ...     _ = graph.collective(rank, "all_reduce", "1MiB", (0, 1), after=[forward])
    >>> graph.finish()
    <ExecutionGraph of 2 ranks: 4 nodes>
    """

    def __init__(self, ranks: int) -> None:
        if ranks < 1:
            raise TraceError(f"a job has at least one rank, not {ranks}")
        self.ranks = ranks
        self._groups: dict[tuple[int, ...], int] = {}
        self._names: dict[str, int] = {}
        self._ints = array("q")  # rank, kind, name, collective, group, peer, tag, stream, priority
        self._floats = array("d")  # duration, flops, memory bytes, size
        self._deps = array("q")
        self._offsets = array("q", (0,))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def compute(
        self,
        rank: int,
        name: str,
        duration_s: float = NAN,
        *,
        flops: float = 0.0,
        memory_bytes: float = 0.0,
        stream: int = COMPUTE_STREAM,
        after: Iterable[int] = (),
    ) -> int:
        """A kernel: its recorded duration, or the work from which a device's time follows."""
        return self._add(
            rank, NodeKind.COMPUTE, name, after, duration_s, flops=flops, memory_bytes=memory_bytes, stream=stream
        )

    def host(
        self, rank: int, name: str, duration_s: float, *, stream: int = HOST_STREAM, after: Iterable[int] = ()
    ) -> int:
        """Work of the CPU that launches kernels."""
        return self._add(rank, NodeKind.HOST, name, after, duration_s, stream=stream)

    def memory(
        self,
        rank: int,
        name: str,
        duration_s: float = NAN,
        *,
        memory_bytes: float = 0.0,
        stream: int = MEMORY_STREAM,
        after: Iterable[int] = (),
    ) -> int:
        """A copy."""
        return self._add(rank, NodeKind.MEMORY, name, after, duration_s, memory_bytes=memory_bytes, stream=stream)

    def send(self, rank: int, peer: int, size_bytes: float | str, *, tag: int = 0, after: Iterable[int] = ()) -> int:
        """A message to another rank."""
        return self._message(NodeKind.SEND, rank, peer, size_bytes, tag, after)

    def recv(self, rank: int, peer: int, size_bytes: float | str, *, tag: int = 0, after: Iterable[int] = ()) -> int:
        """A message from another rank."""
        return self._message(NodeKind.RECV, rank, peer, size_bytes, tag, after)

    def collective(
        self,
        rank: int,
        collective: str,
        size_bytes: float | str,
        group: Sequence[int],
        *,
        name: str = "",
        root: int = -1,
        priority: int = 0,
        duration_s: float = NAN,
        after: Iterable[int] = (),
    ) -> int:
        """One rank's call of a collective among the ranks of `group`; each of them must make this call."""
        from choreo.units import size_of

        if collective not in NUMBER:
            raise UnknownNameError("collective", collective, COLLECTIVES)
        return self._add(
            rank,
            NodeKind.COLLECTIVE,
            name or collective,
            after,
            duration_s,
            size_bytes=float(size_of(size_bytes)),
            collective=NUMBER[collective],
            group=self._groups.setdefault(tuple(group), len(self._groups)),
            peer=root,
            priority=priority,
        )

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of the collectives so far."""
        return tuple(self._groups)

    def repeat(self, groups: Mapping[tuple[int, ...], tuple[Sequence[tuple[int, ...]], npt.NDArray[np.int64]]]) -> None:
        """Copy the nodes so far, which are of one rank, to every rank.

        `groups` has for each group its replacements, and which of them each rank uses.

        >>> graph = GraphBuilder(4)
        >>> _ = graph.collective(0, "all_reduce", "1MiB", (0, 1))
        >>> graph.repeat({(0, 1): ([(0, 1), (2, 3)], np.array([0, 0, 1, 1]))})
        >>> graph.finish()
        <ExecutionGraph of 4 ranks: 4 nodes>
        """
        count, ranks = len(self), self.ranks
        before, self._groups = self.groups, {}
        number = np.full((ranks, len(before) + 1), -1, np.int64)  # of the group at a rank; the last is that of no group
        for at, group in enumerate(before):
            instead, of_rank = groups[group]
            numbers = [self._groups.setdefault(replacement, len(self._groups)) for replacement in instead]
            number[:, at] = np.array(numbers, np.int64)[of_rank]
        ints = np.tile(np.array(self._ints, np.int64).reshape(-1, len(_INTS)), (ranks, 1))
        rank, called = (ints[:, _INTS.index(name)] for name in ("rank", "group"))
        rank[:] = np.repeat(np.arange(ranks), count)
        called[:] = number[rank, called]
        deps, offsets = (np.array(column, np.int64) for column in (self._deps, self._offsets))
        further = np.arange(ranks)[:, None]
        columns = (ints, (deps + count * further).ravel(), (offsets[1:] + len(deps) * further).ravel())
        self._ints, self._deps, ends = (array("q", column.tobytes()) for column in columns)
        self._offsets = array("q", (0,)) + ends
        self._floats = self._floats * ranks

    def finish(self, match: bool = True) -> ExecutionGraph:
        """The finished graph. Calls are matched between ranks; a mismatch is an error.

        Without `match` the graph has no calls yet: a caller that builds only some of the ranks numbers them itself.
        """
        columns: dict[str, Any] = {}
        ints = (
            np.frombuffer(self._ints, np.int64).reshape(-1, len(_INTS))
            if self._ints
            else np.zeros((0, len(_INTS)), np.int64)
        )
        floats = np.frombuffer(self._floats, np.float64).reshape(-1, 4) if self._floats else np.zeros((0, 4))
        for at, column in enumerate(_INTS):
            columns[column] = np.ascontiguousarray(ints[:, at])
        for at, column in enumerate(("duration_s", "flops", "memory_bytes", "size_bytes")):
            columns[column] = np.ascontiguousarray(floats[:, at])
        columns["kind"] = columns["kind"].astype(np.int8)
        columns["collective"] = columns["collective"].astype(np.int8)
        groups = tuple(self._groups)
        self._check_ranks(columns["rank"], groups)
        deps = np.frombuffer(self._deps, np.int64).copy() if self._deps else np.zeros(0, np.int64)
        if len(deps) and not 0 <= deps.min() <= deps.max() < len(self):
            raise TraceError("a node waits for one that is not in the graph")
        unknown = np.full(len(self), -1, np.int64)
        call = match_calls(groups, tuple(self._names), columns) if match else unknown
        return ExecutionGraph(
            ranks=self.ranks,
            groups=groups,
            names=tuple(self._names),
            call=call,
            offsets=np.frombuffer(self._offsets, np.int64).copy(),
            deps=deps,
            **columns,
        )

    def _check_ranks(self, rank: Any, groups: Sequence[tuple[int, ...]]) -> None:
        if len(rank) and not 0 <= rank.min() <= rank.max() < self.ranks:
            raise TraceError(f"a node is at rank {int(rank.max())}, and the job has ranks 0 to {self.ranks - 1}")
        for group in groups:
            if not group or len(set(group)) != len(group) or not 0 <= min(group) <= max(group) < self.ranks:
                raise TraceError(
                    f"a group is some of the ranks 0 to {self.ranks - 1}, each once, not {list(group)!r:.80}"
                )

    def _message(  # noqa: PLR0917 - the four numbers of a message
        self, kind: NodeKind, rank: int, peer: int, size_bytes: float | str, tag: int, after: Iterable[int]
    ) -> int:
        from choreo.units import size_of

        if not 0 <= peer < self.ranks or peer == rank:
            raise TraceError(f"rank {rank} has no rank {peer} to exchange messages with among {self.ranks}")
        name = f"{kind.name.lower()} {'to' if kind is NodeKind.SEND else 'from'} {peer}"
        return self._add(rank, kind, name, after, size_bytes=float(size_of(size_bytes)), peer=peer, tag=tag)

    def _add(
        self,
        rank: int,
        kind: NodeKind,
        name: str,
        after: Iterable[int],
        duration_s: float = NAN,
        *,
        flops: float = 0.0,
        memory_bytes: float = 0.0,
        size_bytes: float = 0.0,
        collective: int = -1,
        group: int = -1,
        peer: int = -1,
        tag: int = 0,
        stream: int = -1,
        priority: int = 0,
    ) -> int:
        named = self._names.setdefault(name, len(self._names))
        self._ints.extend((rank, kind, named, collective, group, peer, tag, stream, priority))
        self._floats.extend((duration_s, flops, memory_bytes, size_bytes))
        self._deps.extend(after)
        self._offsets.append(len(self._deps))
        return len(self._offsets) - 2


_INTS = ("rank", "kind", "name", "collective", "group", "peer", "tag", "stream", "priority")
