"""TE-CCL's results: JSON with the flows of an all_gather, or the paths of an all_to_all, by the epochs they start in.

    {"1-Epoch_Duration": 3.5e-09, ..., "6-Demand_Met": {...},
     "7-Flows": ["Chunk 0 from 1 traveled over 1->3 in epoch 0",
                 "Chunk 0 from 1 traveled over 3->8 in epoch 4 via switches 0", ...], ...}
    {"1-Epoch_Duration": 3.5e-09, ..., "7-Flows": [...], "8-Chunk paths":
     {"Demand at 8 for chunk 0 from 1 met by epoch 5":
      [[[0, "1->3 with volume 0.5 in epoch 0"], [4, "3->8 with volume 0.5 in epoch 4"]], ...], ...}, ...}

Ranks are the GPUs in the order of their numbers, which may have gaps where switches are. An all_gather says whose
demand was met; a chunk is a piece of its source's block. In an all_to_all every path of a block is a chunk of its own
size. Epochs become steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np

from choreo.checks import MAX_RANKS
from choreo.errors import FormatError, shown
from choreo.files import check_work
from choreo.malformed import explained
from choreo.schedule.document import from_parts
from choreo.schedule.schedule import Schedule
from choreo.schedule.transfers import IntColumn, Transfers
from choreo.schedule.weights import BLOCK_WEIGHT, whole_weights

__all__ = ["read_teccl"]

FLOW = re.compile(r"Chunk (\d{1,9}) from (\d{1,9}) traveled over (\d{1,9})->(\d{1,9}) in epoch (\d{1,9})(?: via .*)?")
DEMAND = re.compile(r"Demand at (\d{1,9}) for chunk \d{1,9} from (\d{1,9}) met by epoch \d{1,9}")
HOP = re.compile(r"(\d{1,9})->(\d{1,9}) with volume ([\d.]{1,25}(?:e-?\d{1,3})?) in epoch (\d{1,9})(?: via .*)?")
OFF = 1e-2  # so much of a block may its paths lack, or bring too much
PLACE_BYTES = 64
Hops = list[tuple[object, str]]
Row = tuple[int, int, int, int]  # epoch, source, target, chunk
Decoded = TypeVar("Decoded")


class _Results(msgspec.Struct):
    flows: list[str] = msgspec.field(name="7-Flows", default=[])
    demand: dict[str, object] | None = msgspec.field(name="6-Demand_Met", default=None)


class _Paths(msgspec.Struct):
    paths: dict[str, list[Hops]] = msgspec.field(name="8-Chunk paths", default={})
    of_the_other_solver: dict[str, list[Hops]] = msgspec.field(name="7-chunk paths", default={})


@dataclass(frozen=True, slots=True)
class _Path:
    """The hops of a part of what GPU `source` has for GPU `target`: epoch, from and to."""

    source: int
    target: int
    volume: float
    hops: tuple[tuple[int, int, int], ...]


def read_teccl(content: bytes) -> Schedule:
    """The schedule of a result."""
    results = _decoded(content, _Results)
    if results.demand is not None:
        return _all_gather(results.flows, len(content))
    found = _decoded(content, _Paths)
    return _all_to_all(found.paths or found.of_the_other_solver, len(content))


def _decoded(content: bytes, form: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(content, type=form)
    except msgspec.ValidationError as error:
        field, reason = explained(error, form, "the result")
        raise FormatError(reason, field=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the result is not JSON: {shown(error)}", field="the result") from None


def _all_gather(flows: list[str], file_bytes: int) -> Schedule:
    found: list[list[int]] = []
    for number, text in enumerate(flows):
        match = FLOW.fullmatch(text)
        if match is None:
            raise _wrong(f"7-Flows[{number}]", f"{shown(text[:80])} is no flow of a chunk in an epoch")
        found.append([int(group) for group in match.groups()])
    rank = _ranks("7-Flows", (gpu for flow in found for gpu in flow[1:4]))
    chunks = 1 + max(flow[0] for flow in found)
    if chunks > len(found):
        raise _wrong("7-Flows", f"chunk {chunks - 1} cannot be there with {len(found)} flows")
    rows: dict[tuple[int, int, int], Row] = {}  # of several that bring a chunk in one epoch, the first
    for chunk, source, src, dst, epoch in found:
        if src != dst:
            row = (epoch, rank[src], rank[dst], rank[source] * chunks + chunk)
            rows.setdefault((epoch, rank[dst], row[3]), row)
    return _schedule("all_gather", len(rank), len(rank) * chunks, list(rows.values()), file_bytes, weights=None)


def _all_to_all(demands: dict[str, list[Hops]], file_bytes: int) -> Schedule:
    paths: dict[tuple[int, int], list[_Path]] = {}
    for demand, alternatives in demands.items():
        match = DEMAND.fullmatch(demand)
        if match is None:
            raise _wrong("Chunk paths", f"{shown(demand[:80])} is no demand for a chunk")
        target, source = int(match[1]), int(match[2])
        found = [_path(demand, source, target, hops) for hops in alternatives]
        paths.setdefault((source, target), []).extend(found)
        volume = sum(path.volume for path in paths[source, target])
        if abs(volume - 1) > OFF:
            raise _wrong(demand, f"its paths bring {volume:g} of the chunk")
    rank = _ranks("Chunk paths", (gpu for both in paths for gpu in both))
    several = max(len(found) for found in paths.values())
    blocks = len(rank) ** 2
    check_work(f"a result with {blocks * several} chunks", blocks * several * PLACE_BYTES, file_bytes)
    sizes = np.zeros((blocks, several), np.int64)
    sizes[:, 0] = BLOCK_WEIGHT
    rows: list[Row] = []
    for (source, target), found in paths.items():
        block = rank[source] * len(rank) + rank[target]
        sizes[block, : len(found)] = whole_weights(np.array([path.volume for path in found]))
        for number, path in enumerate(found):
            for epoch, src, dst in path.hops:
                if src not in rank or dst not in rank:
                    raise _wrong("Chunk paths", f"{src}->{dst} leads through a GPU for which nothing is meant")
                rows.append((epoch, rank[src], rank[dst], block * several + number))
    weights = None if several == 1 else sizes.reshape(-1)
    return _schedule("all_to_all", len(rank), blocks * several, rows, file_bytes, weights=weights)


def _path(where: str, source: int, target: int, hops: Hops) -> _Path:
    """A path whose hops follow one another, in place and in time."""
    found: list[tuple[int, int, int]] = []
    volumes: set[float] = set()
    for _, text in hops:
        match = HOP.fullmatch(text)
        if match is None:
            raise _wrong(where, f"{shown(text[:80])} is no hop in an epoch")
        try:
            volumes.add(float(match[3]))
        except ValueError:
            raise _wrong(where, f"{shown(match[3])} is no volume") from None
        found.append((int(match[4]), int(match[1]), int(match[2])))
    ends = [source, *(dst for _, _, dst in found)]
    follow = ends[:-1] == [src for _, src, _ in found] and ends[-1] == target
    if not found or not follow or any(first[0] >= second[0] for first, second in pairwise(found)):
        raise _wrong(where, f"its hops do not lead from {source} to {target}, one after another")
    if len(volumes) > 1:
        raise _wrong(where, "the hops of a path differ in volume")
    return _Path(source, target, volumes.pop(), tuple(found))


def _ranks(where: str, gpus: Iterable[int]) -> dict[int, int]:
    """The rank of each GPU."""
    ranks = {gpu: rank for rank, gpu in enumerate(sorted(set(gpus)))}
    if not 0 < len(ranks) <= MAX_RANKS:
        raise _wrong(where, "there are none")
    return ranks


def _schedule(
    collective: str, ranks: int, chunks: int, rows: Sequence[Row], file_bytes: int, *, weights: IntColumn | None
) -> Schedule:
    check_work(f"a result with {chunks} chunks", ranks * chunks * PLACE_BYTES, file_bytes)
    steps, step = np.unique([row[0] for row in rows], return_inverse=True)
    order = np.argsort(step, kind="stable")
    table: Any = np.asarray(rows, np.int64).reshape(-1, 4)[order]
    none = np.zeros(len(rows), np.bool_)
    columns = Transfers(step[order], table[:, 1], table[:, 2], table[:, 3], np.ones(len(rows), np.int64), none, none)
    return from_parts(
        file_bytes,
        collective,
        ranks,
        len(steps),
        columns,
        root=None,
        num_chunks=chunks,
        weights=weights,
        algorithm="te-ccl",
        relays=0,
        switches=0,
        axes=None,
        receive_in_order=False,
    )


def _wrong(where: str, problem: str) -> FormatError:
    return FormatError(f"{where[:80]}: {problem}", field=where[:80])
