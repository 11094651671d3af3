"""SCCL's algorithms (`msccl solve -o FILE`): JSON with steps of sends; each is an address, and who sends it to whom.

    {"msccl_type": "algorithm", "name": "...", "instance": {"steps": 2, "chunks": 1, ...},
     "collective": {"msccl_type": "collective", "name": "Allgather(n=4)", "nodes": 4, ...},
     "steps": [{"msccl_type": "step", "rounds": 1, "sends": [[0, 0, 1], [1, 1, 2]]}, ...], ...}

An address stands for `chunks` pieces of a block; in an alltoall addresses are ordered by target, then source. SCCL does
not say whether a send is added to the destination or overwrites it. It overwrites if it contains all that is there and
more; otherwise it is added.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from choreo.checks import MAX_RANKS
from choreo.collectives import get_collective
from choreo.errors import FormatError, shown
from choreo.files import check_work
from choreo.malformed import explained
from choreo.schedule.document import from_parts
from choreo.schedule.schedule import MAX_NAME, Schedule
from choreo.schedule.transfers import Transfers

__all__ = ["read_sccl"]

COLLECTIVES = {
    "Allgather": "all_gather",
    "Alltoall": "all_to_all",
    "Allreduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "Scatter": "scatter",
    "Gather": "gather",
}
PLACE_BYTES = 64
Index = Annotated[int, Meta(ge=0, le=1 << 28)]


class _Instance(msgspec.Struct):
    chunks: Annotated[int, Meta(ge=1, le=1 << 20)] = 1


class _Collective(msgspec.Struct):
    name: str
    nodes: Annotated[int, Meta(ge=1, le=MAX_RANKS)]


class _Step(msgspec.Struct):
    sends: list[tuple[Index, Index, Index]]


class _Algorithm(msgspec.Struct):
    name: str
    collective: _Collective
    steps: list[_Step]
    instance: _Instance = msgspec.field(default_factory=_Instance)


def read_sccl(content: bytes) -> Schedule:
    """The schedule of an algorithm that SCCL found."""
    try:
        found = msgspec.json.decode(content, type=_Algorithm)
    except msgspec.ValidationError as error:
        field, reason = explained(error, _Algorithm, "the algorithm")
        raise FormatError(reason, field=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the algorithm is not JSON: {shown(error)}", field="the algorithm") from None
    named = re.match(r"(\w+)\(n=(\d{1,9})(?:,root=(\d{1,9}))?\)", found.collective.name)
    if named is None or named[1] not in COLLECTIVES or int(named[2]) != found.collective.nodes:
        raise FormatError(
            f"collective.name: {shown(found.collective.name)} over {found.collective.nodes} nodes is none that could "
            f"be proved; there are {', '.join(COLLECTIVES)}",
            field="collective.name",
        )
    contract, ranks = get_collective(COLLECTIVES[named[1]]), found.collective.nodes
    chunks = contract.blocks(ranks) * found.instance.chunks
    check_work(f"{contract.name} over {ranks} ranks in {chunks} chunks", ranks * chunks * PLACE_BYTES, len(content))
    sends = [[send for send in step.sends if send[1] != send[2]] for step in found.steps]
    rows = _Rows(ranks, chunks, found.instance.chunks, contract.name)
    for step in filter(None, sends):
        rows.add(step)
    return from_parts(
        len(content),
        contract.name,
        ranks,
        rows.steps,
        rows.columns(),
        root=int(named[3]) if named[3] is not None and contract.rooted else None,
        num_chunks=chunks,
        weights=None,
        algorithm=found.name[:MAX_NAME],
        relays=0,
        switches=0,
        axes=None,
        receive_in_order=False,
    )


class _Rows:
    """The transfers of an algorithm, and who has which contributions to each chunk."""

    def __init__(self, ranks: int, chunks: int, pieces: int, collective: str) -> None:
        self.ranks, self.chunks, self.pieces = ranks, chunks, pieces
        self.turned = collective == "all_to_all"
        self.sums = get_collective(collective).reduces
        self.got: dict[tuple[int, int], int] = {}  # the contributors to a rank's chunk, once something arrived
        self.rows: list[tuple[int, int, int, int, bool]] = []
        self.steps = 0

    def add(self, sends: list[tuple[int, int, int]]) -> None:
        """Add the sends of one step: all read what was there before it."""
        now: dict[tuple[int, int], int] = {}
        stored = set[tuple[int, int]]()
        for address, src, dst in sorted(set(sends)):
            if address >= self.chunks or max(src, dst) >= self.ranks:
                field = f"steps[{self.steps}].sends"
                raise FormatError(f"{field}: {[address, src, dst]} is beyond the addresses or nodes", field=field)
            chunk = self._chunk(address)
            here, sent = (dst, chunk), self._has(src, chunk)
            there = now[here] if here in now else self._has(dst, chunk)
            over = not self.sums or (here not in stored and sent & there == there)
            if not self.sums and here in stored:
                continue  # a duplicate
            if over:
                stored.add(here)
            now[here] = sent if over else there | sent
            self.rows.append((self.steps, src, dst, chunk, self.sums and not over))
        self.got.update(now)
        self.steps += 1

    def _has(self, rank: int, chunk: int) -> int:
        """Its own contribution to begin with, where data is summed."""
        return self.got.get((rank, chunk), 1 << rank if self.sums else 0)

    def _chunk(self, address: int) -> int:
        block, piece = divmod(address, self.pieces)
        if not self.turned:
            return address
        target, source = divmod(block, self.ranks)
        return (source * self.ranks + target) * self.pieces + piece

    def columns(self) -> Transfers:
        """The transfers as columns."""
        if not self.rows:
            return Transfers.none()
        step, src, dst, chunk, reduce = np.asarray(self.rows, np.int64).T
        count = np.ones(len(step), np.int64)
        return Transfers(step, src, dst, chunk, count, reduce.astype(np.bool_), np.zeros(len(step), np.bool_))
