"""The data of a simulation's page: everything it shows, as plain JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from choreo.errors import ChoreoError
from choreo.show.schedule.words import printable
from choreo.show.simulation.activity import ActivityData, activity_of, one_by_one
from choreo.show.simulation.loads import BINS, Series, sent_over_time
from choreo.show.simulation.network import NetworkData, network_of
from choreo.show.simulation.path import MOST_LEGS, PathData, path_of, rounded
from choreo.show.simulation.queues import QueueData, queues_of
from choreo.show.simulation.words import link_names, rank_names, title
from choreo.simulate import Simulation
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["MOST_MESSAGES", "Drawn", "SimulationData", "drawn", "simulation_data"]

# More than this makes a browser slow. Where messages are not drawn one by one, fewer are told one by one, and of more a
# few tell of what kinds they are.
MOST_MESSAGES, MOST_UNDRAWN, MOST_TOLD, MOST_LINKS = 5000, 2500, 250, 8
SENT_BINS = 1000
# A moment is within a busy time if this many parts around it are busy.
WITHIN = 11
# How many of the busiest links are searched for those with the same load.
CANDIDATES = 8192


class FiguresData(TypedDict):
    """The figures of the run. Without a bound, `no_bound` says why."""

    time_us: float
    size_bytes: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    bound_us: float | None
    efficiency: float | None
    no_bound: str
    contended: bool


class RowData(TypedDict):
    """A row of the diagram: a rank, and when it was done."""

    name: str
    short: str
    job: int
    done_us: float


class MessagesData(TypedDict):
    """Messages as columns: all of them, or a sample of `all`. `src` and `dst` are rows of the diagram."""

    all: int
    src: list[int]
    dst: list[int]
    step: list[int]
    bytes: list[float]
    reduce: list[int]
    start_us: list[float]
    out_us: list[float]
    arrived_us: list[float]
    written_us: list[float]


class BusyData(TypedDict):
    """The busiest links; those with the same load at all times are one entry.

    `alike` is how many more there are, `or_more` if not all links were looked at; `wires` are those of the network.
    """

    name: str
    alike: int
    or_more: bool
    utilisation: float
    bytes: float
    bandwidth_bytes_per_s: float
    series: int
    wires: list[int]


class SimulationData(TypedDict):
    """A simulation as its page needs it.

    Loads are in percent of a link's bandwidth, in `bins` equal parts of the time; `series` holds each once. `sent` is
    what all messages together put onto the network, in bytes a second, in equal parts too, which may be smaller.
    `activity` is what ranks send, where there are too many to draw every message. `opens_us` is a moment with something
    to see.
    """

    title: str
    collective: str
    algorithm: str
    ranks: int
    topology: str
    figures: FiguresData
    bins: int
    series: list[list[int]]
    sent: list[float]
    opens_us: float
    rows: list[RowData]
    messages: MessagesData
    activity: ActivityData | None
    path: PathData
    busiest: list[BusyData]
    queues: list[QueueData]
    network: NetworkData


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A simulation's data, with the numbers of the messages in it and the links of each wire of its network."""

    data: SimulationData
    messages: Ints
    wires: list[Ints]


def simulation_data(simulation: Simulation) -> SimulationData:
    """The simulation as plain JSON values; see `SimulationData`."""
    return drawn(simulation).data


def drawn(simulation: Simulation) -> Drawn:
    """The same, with what its parts stand for."""
    series = Series(simulation)
    first_row = np.cumsum([0, *(len(job.node) for job in simulation.jobs)])
    row_of_node: dict[int, int] = {}
    for number, job in enumerate(simulation.jobs):
        for rank, node in enumerate(job.node.tolist()):
            row_of_node.setdefault(node, int(first_row[number]) + rank)
    network, wires = network_of(simulation, series, row_of_node)
    reduce, rows = simulation.messages.reduces, int(first_row[-1])
    if one_by_one(rows):
        activity, sent = None, sent_over_time(simulation, SENT_BINS)
    else:
        activity, sent = activity_of(simulation, first_row, reduce, BINS)
    chosen = _chosen(simulation, rows)
    data: SimulationData = {
        "title": title(simulation),
        "collective": simulation.collective,
        "algorithm": printable(simulation.algorithm),
        "ranks": simulation.ranks,
        "topology": simulation.topology.name,
        "figures": _figures(simulation),
        "bins": BINS,
        "series": series.rows,  # the busiest links below add to it
        "sent": [float(f"{rate:.6g}") for rate in sent.tolist()],
        "opens_us": _opens(simulation, sent),
        "rows": _rows(simulation),
        "messages": _messages(simulation, chosen, first_row, reduce),
        "activity": activity,
        "path": path_of(simulation, first_row),
        "busiest": _busiest(simulation, series, wires),
        "queues": queues_of(simulation, BINS),
        "network": network,
    }
    return Drawn(data, chosen, wires)


def _figures(simulation: Simulation) -> FiguresData:
    bound_us = efficiency = None
    no_bound = ""
    try:
        bound_us, efficiency = simulation.bound.bound_s * 1e6, simulation.efficiency
    except ChoreoError as error:
        no_bound = str(error)
    return {
        "time_us": simulation.time_s * 1e6,
        "size_bytes": simulation.size_bytes,
        "algbw_bytes_per_s": simulation.algbw_bytes_per_s,
        "busbw_bytes_per_s": simulation.busbw_bytes_per_s,
        "bound_us": bound_us,
        "efficiency": efficiency,
        "no_bound": no_bound,
        "contended": simulation.contended,
    }


def _opens(simulation: Simulation, sent: Floats) -> float:
    """A moment with at least the usual traffic, as near to the middle as possible."""
    if not sent.any():
        return simulation.time_s * 1e6 * 0.45
    enough = sent >= 0.999 * np.median(sent[sent > 0])
    within = np.convolve(enough, np.ones(WITHIN), "same") > WITHIN - 0.5
    busy = np.flatnonzero(within if within.any() else enough)
    nearest = int(busy[np.argmin(np.abs(busy - 0.45 * len(sent)))])
    return simulation.time_s * 1e6 * (nearest + 0.5) / len(sent)


def _rows(simulation: Simulation) -> list[RowData]:
    rows: list[RowData] = []
    for number, names in enumerate(rank_names(simulation)):
        ranks, finish = simulation.jobs[number].schedule.ranks, (simulation.loads.rank_finish_s[number] * 1e6).tolist()
        finish += [0.0] * (len(names) - len(finish))
        for rank, (name, done_us) in enumerate(zip(names, finish, strict=True)):
            short = str(rank) if rank < ranks else name
            rows.append({"name": name, "short": short, "job": number, "done_us": done_us})
    return rows


def _chosen(simulation: Simulation, rows: int) -> Ints:
    """All messages, or a sample from the whole run; where messages are drawn, with those of the critical path."""
    messages = simulation.messages
    if len(messages) <= (MOST_MESSAGES if one_by_one(rows) else MOST_UNDRAWN):
        return np.arange(len(messages))
    if not one_by_one(rows):
        return np.linspace(0, len(messages) - 1, MOST_TOLD).astype(np.int64)
    path = np.array([leg.message for leg in simulation.critical_path[:MOST_LEGS]], np.int64)
    spread = np.linspace(0, len(messages) - 1, MOST_MESSAGES - len(path)).astype(np.int64)
    return np.union1d(spread, path)


def _messages(simulation: Simulation, chosen: Ints, first_row: Ints, reduce: Bools) -> MessagesData:
    """The messages that are drawn, as columns."""
    messages = simulation.messages
    row = first_row[messages.job[chosen]]

    def times(column: Floats) -> list[float]:
        return rounded(column[chosen] * 1e6, simulation.time_s * 1e6)

    return {
        "all": len(messages),
        "src": (row + messages.src[chosen]).tolist(),
        "dst": (row + messages.dst[chosen]).tolist(),
        "step": messages.step[chosen].tolist(),
        "bytes": messages.bytes[chosen].tolist(),
        "reduce": reduce[chosen].astype(np.int8).tolist(),
        "start_us": times(messages.start_s),
        "out_us": times(messages.out_s),
        "arrived_us": times(messages.arrived_s),
        "written_us": times(messages.written_s),
    }


def _busiest(simulation: Simulation, series: Series, wires: list[Ints]) -> list[BusyData]:
    """The links with the highest utilisation, those with the same load at all times together."""
    order = np.argsort(-np.round(simulation.utilisation, 9), kind="stable")
    used = order[simulation.loads.link_bytes[order] > 0]
    bandwidths = simulation.topology.links.bandwidth_bytes_per_s
    found: dict[tuple[int, float], list[int]] = {}
    candidates = used[:CANDIDATES]
    for link, number, bandwidth in zip(
        candidates.tolist(), series.each(candidates), bandwidths[candidates].tolist(), strict=True
    ):
        found.setdefault((number, float(bandwidth)), []).append(link)
    wire_of = np.full(len(bandwidths), -1, np.int64)
    for at, wire in enumerate(wires):
        wire_of[wire] = at
    busiest: list[BusyData] = []
    for (number, bandwidth), links in list(found.items())[:MOST_LINKS]:
        first = links[0]
        busiest.append(
            {
                "name": link_names(simulation, np.array([first]))[0],
                "alike": len(links) - 1,
                "or_more": len(used) > CANDIDATES,
                "utilisation": float(simulation.utilisation[first]),
                "bytes": float(simulation.loads.link_bytes[first]),
                "bandwidth_bytes_per_s": bandwidth,
                "series": number,
                "wires": sorted({at for at in wire_of[links].tolist() if at >= 0}),
            }
        )
    return busiest
