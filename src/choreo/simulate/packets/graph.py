"""The messages of schedules as the packet simulator takes them: some steps at a time, each with what it waits for.

A long schedule is never held whole. Its steps are read once to learn how far ahead any of them can be sent: a block of
steps is added when a step has started without which none of the block can. What is there is what is in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.errors import UsageError
from choreo.simulate.flows.engine import Core, begin_job, costs_of, figures_of, row_columns
from choreo.simulate.jobs import Placed
from choreo.topology import Topology

__all__ = ["PICO", "Feed", "feed_all", "feed_by_steps", "picoseconds"]

Ints = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[np.generic]]

PICO = 1e12
MOST_S = 1e5  # of one time; a sum of ninety still fits into 64 bits of picoseconds
LISTS = ("send", "write", "overwrite")
AT_ONCE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """The connections of some jobs, how many messages they carry, and the messages in blocks.

    By connection: the job, and the nodes at its ends. None carries more than `most_bytes`. A block comes with the step
    that must have started before any of its messages can; -1 is none.
    """

    job: Ints
    start: Ints
    end: Ints
    count: int
    most_bytes: int
    blocks: Iterator[tuple[int, Columns]]


def picoseconds(seconds: npt.ArrayLike) -> Ints:
    """Times as whole picoseconds; an error if one is longer than the packets' clock can add up."""
    times = np.asarray(seconds, np.float64)
    if not times.max(initial=0.0) <= MOST_S:
        raise UsageError(
            f"a packet, or the data from one rank to another, takes {times.max():.3g} s here, and the clock of packets "
            f"goes to {MOST_S:g} s; use a faster network, or simulate without packets"
        )
    return np.round(times * PICO).astype(np.int64)


def feed_all(jobs: Sequence[Placed], topology: Topology, make_core: Callable[..., Core]) -> Feed:
    """All messages of all jobs in one block. Connections are numbered by job and by the two nodes."""
    core = make_core(*figures_of(topology), False, None)
    blocks, job_of, keys = [], [], []
    for number, job in enumerate(jobs):
        for route_keys, block in _blocks(core, job, topology):
            blocks.append(block)
            keys.append(route_keys)
            job_of.append(np.full(len(block["bytes"]), number))
    all_of = _joined(blocks)
    owner, key = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (job_of, keys))
    pairs, conn = np.unique(owner * (len(key) + 1) + all_of["conn"].astype(np.int64), return_inverse=True)
    all_of["conn"] = conn.astype(np.int64)
    conn_job, conn_route = np.divmod(pairs, len(key) + 1)
    start, end = np.divmod(key[conn_route], topology.num_nodes)
    most = int(np.bincount(conn, all_of["bytes"].astype(np.float64), 1).max())
    return Feed(conn_job, start, end, len(conn), most, iter([(AT_ONCE, all_of)]))


def feed_by_steps(job: Placed, topology: Topology, make_core: Callable[..., Core]) -> Feed:
    """The messages of one job, a block when it is needed."""
    ports = np.bincount(topology.links.src, minlength=topology.num_nodes)[: topology.num_devices]
    one_port = bool((ports <= 1).all())
    first = make_core(*figures_of(topology), False, None)
    begin_job(first, job, topology, alone=False, keep=False)
    keys, reach, count, sent = [], [], 0, np.zeros(len(job.node))
    for rows in job.schedule.blocks():
        keys.append(_pairs(first, topology, columns := row_columns(job, rows)))
        messages, least = first.reach(columns, not _costs(topology), one_port)
        reach.append(least)
        count += messages
        sent += np.bincount(columns[1], columns[5], len(sent))
    del first
    # A block must come no later than those after it.
    opens = np.minimum.accumulate(np.array(reach, np.int64)[::-1])[::-1]
    start, end = np.divmod(np.concatenate([np.zeros(0, np.int64), *keys]), topology.num_nodes)
    most = int(sent.max() * job.unit_bytes)
    core = make_core(*figures_of(topology), False, None)
    blocks = (block for _, block in _blocks(core, job, topology))
    return Feed(np.zeros(len(start), np.int64), start, end, count, most, zip(opens.tolist(), blocks, strict=True))


def _costs(topology: Topology) -> bool:
    """Whether messages cost their sender time: it takes them in order, and must know all that it may send."""
    return bool(topology.links.overhead_s.any() or topology.links.gap_s.any())


def _blocks(core: Core, job: Placed, topology: Topology) -> Iterator[tuple[Ints, Columns]]:
    """The messages of a job in blocks of steps; with each, the pairs of nodes that had no route before."""
    begin_job(core, job, topology, alone=False, keep=False)
    for rows in job.schedule.blocks():
        missing = _pairs(core, topology, columns := row_columns(job, rows))
        raw, *lists = core.graph(*columns)
        ints = {name: np.frombuffer(raw[name], np.int32) for name in ("step", "src", "dst", "engine", "route")}
        floats = {name: np.frombuffer(raw[name], np.float64) for name in ("bytes", "reduce_s", "start")}
        block: Columns = {
            "bytes": np.ceil(floats["bytes"] - 1e-6).astype(np.int64),
            "reduce_ps": picoseconds(floats["reduce_s"]),
            "start": picoseconds(floats["start"]),
            "conn": ints["route"].astype(np.int64),
            "member": ints["engine"].astype(np.int64),
            "reduces": np.frombuffer(raw["reduces"], np.int32).astype(np.bool_),
        } | {name: ints[name].astype(np.int64) for name in ("step", "src", "dst")}
        for name, (begins, others) in zip(LISTS, lists, strict=True):
            block |= {f"{name}_from": np.frombuffer(begins, np.int64), f"{name}_after": np.frombuffer(others, np.int64)}
        yield missing, block


def _pairs(core: Core, topology: Topology, columns: tuple[Any, ...]) -> Ints:
    """The pairs of nodes in some rows that were not there before; from now on they have routes, of no links."""
    missing = np.frombuffer(core.missing(*columns[1:3]), np.int64)
    if len(missing):
        costs = costs_of(topology, *np.divmod(missing, topology.num_nodes))
        none, offsets = np.zeros(len(missing)), np.zeros(len(missing) + 1, np.int64)
        core.add_routes(missing, offsets, offsets[1:], np.zeros(0, np.int32), none[:0], none, none, *costs)
    return missing


def _joined(blocks: list[Columns]) -> Columns:
    """Several blocks as one."""
    none = np.zeros(0, np.int64)
    names = (
        "bytes",
        "reduce_ps",
        "start",
        "conn",
        "member",
        "step",
        "src",
        "dst",
        *(f"{name}_after" for name in LISTS),
    )
    found: Columns = {name: np.concatenate([none, *(block[name] for block in blocks)]) for name in names}
    found["reduces"] = np.concatenate([none.astype(np.bool_), *(block["reduces"] for block in blocks)])
    for name in LISTS:
        lengths = np.concatenate([none, *(np.diff(block[f"{name}_from"]) for block in blocks)])
        found[f"{name}_from"] = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    return found
