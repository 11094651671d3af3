"""One schedule on one network: every message of the run, the cost, and the result of the proof."""

from __future__ import annotations

from functools import lru_cache
from typing import TypedDict

import numpy as np

from choreo.errors import ChoreoError
from choreo.explore.fields import (
    Case,
    Fields,
    case_of,
    network_text,
    packet_options,
    reading,
    transfers_of,
)
from choreo.price import CostModel, Price
from choreo.price.price import price_of, slowest
from choreo.price.profile import profile
from choreo.run.execute.constants import load_constants
from choreo.schedule import Schedule
from choreo.show.schedule.outcome import outcome_of
from choreo.show.simulation.data import SimulationData, drawn
from choreo.simulate import Packets, Simulation, simulate
from choreo.topology import Topology
from choreo.topology.graph import Ints

__all__ = ["MOST_DRAWN", "Moment", "moment", "run_of"]

# The most messages that can be followed one by one within about a second.
MOST_DRAWN = 1 << 21
# The most messages that may be simulated at all.
MOST_SIMULATED = 1 << 26
# A proof of more transfers takes longer than a page should.
MOST_PROVED = 1 << 20


class CostData(TypedDict):
    """The price term by term, the coefficients of alpha, n beta and n gamma, and the constants."""

    alpha_us: float
    beta_us: float
    gamma_us: float
    total_us: float
    messages: float
    sent: float
    reduced: float
    alpha_s: float
    bandwidth_bytes_per_s: float
    gamma_s_per_byte: float
    steps: int
    max_fan_in: int
    max_bytes_sent: float


class ProofData(TypedDict):
    """Whether the schedule is correct, and the explanation if not; `known` is false if it was not proved."""

    known: bool
    holds: bool
    story: str
    step: int | None
    rank: int | None
    chunk: int | None


class Moment(TypedDict):
    """What the page shows of a schedule on a network.

    `run` is the simulation in the form of its own page. If its messages are drawn one by one, `ways` are the wires that
    each route crosses and `way` is the route of each message. `ends` are the names of the nodes that each wire joins.
    If there are too many messages, `run` is missing and `undrawn` says why. `calibrated` is the price with the
    constants measured on this machine, at `calibrated_on`, for that many bytes and ranks. It is missing if there are
    none; `uncalibrated` says why if they cannot be read.
    """

    network: str
    label: str
    ranks: int
    devices: int
    chunks: int
    time_us: float
    cost: CostData
    calibrated: CostData | None
    calibrated_on: str
    uncalibrated: str
    proof: ProofData
    undrawn: str
    run: SimulationData | None
    ways: list[list[int]]
    way: list[int]
    ends: list[tuple[str, str]]
    command: str


def moment(fields: Fields) -> Moment:
    """The run of a case, its price and its proof.

    >>> found = moment(Fields(ranks=4, topology="ring", size="1MB"))
    >>> found["network"], f"{found['time_us']:.1f} us", found["proof"]["holds"]
    ('ring(4, 50GB/s, 1us)', '36.0 us', True)
    """
    case = case_of(fields)
    few = transfers_of(case.schedule, MOST_DRAWN) <= MOST_DRAWN
    run = run_of(case, keep=few)
    found: Moment = {
        "network": network_text(fields),
        "label": case.schedule.label,
        "ranks": case.schedule.ranks,
        "devices": case.topology.num_devices,
        "chunks": case.schedule.num_chunks,
        "time_us": run.time_s * 1e6,
        "cost": _cost(case, case.cost_model),
        **_calibrated(case),
        "proof": _proved(case.schedule),
        "undrawn": "" if few else f"There are more than {MOST_DRAWN:,} messages: too many to follow one by one.",
        "run": None,
        "ways": [],
        "way": [],
        "ends": [],
        "command": _command(fields),
    }
    if few:
        picture = drawn(run)
        found["run"] = picture.data
        if picture.data["activity"] is None:  # otherwise messages are not drawn one by one
            found["ways"], found["way"] = _ways(run, picture.messages, picture.wires)
        found["ends"] = _ends(run, picture.wires)
    return found


def run_of(case: Case, *, keep: bool) -> Simulation:
    """The simulation of a case, cached because the page requests its chunks right after it."""
    gamma = case.cost_model.gamma_s_per_byte
    return reading(
        "topology" if case.packets is None else "packets",
        lambda: _run(case.schedule, case.topology, case.size_bytes, gamma, packets=case.packets, keep=keep),
    )


@lru_cache(maxsize=1)
def _run(
    schedule: Schedule, topology: Topology, size_bytes: int, gamma: float, *, packets: Packets | None, keep: bool
) -> Simulation:
    return simulate(schedule, topology, size_bytes, gamma_s_per_byte=gamma, packets=packets, keep_messages=keep)


# Cached per schedule: changing the size changes neither the counts nor the proof.
_profile = lru_cache(maxsize=16)(profile)


class _Calibrated(TypedDict):
    calibrated: CostData | None
    calibrated_on: str
    uncalibrated: str


def _calibrated(case: Case) -> _Calibrated:
    """The price with this machine's own constants, if it was calibrated."""
    try:
        constants = load_constants()
    except ChoreoError as error:
        return {"calibrated": None, "calibrated_on": "", "uncalibrated": str(error)}
    if not constants.date:
        return {"calibrated": None, "calibrated_on": "", "uncalibrated": ""}
    cost = _cost(case, constants.cost_model_for(case.size_bytes, case.schedule.ranks))
    return {"calibrated": cost, "calibrated_on": constants.date[:10], "uncalibrated": ""}


def _cost(case: Case, model: CostModel) -> CostData:
    counted = _profile(case.schedule)
    cost: Price = price_of(counted, case.size_bytes, model)
    terms = slowest(counted, float(case.size_bytes), model)
    return {
        "alpha_us": cost.alpha_s * 1e6,
        "beta_us": cost.beta_s * 1e6,
        "gamma_us": cost.gamma_s * 1e6,
        "total_us": cost.total_s * 1e6,
        "messages": terms.messages,
        "sent": terms.sent / counted.units,
        "reduced": terms.reduced / counted.units,
        "alpha_s": model.alpha_s,
        "bandwidth_bytes_per_s": model.bandwidth_bytes_per_s,
        "gamma_s_per_byte": model.gamma_s_per_byte,
        "steps": cost.steps,
        "max_fan_in": cost.max_fan_in,
        "max_bytes_sent": cost.max_bytes_sent,
    }


@lru_cache(maxsize=16)
def _proved(schedule: Schedule) -> ProofData:
    if transfers_of(schedule, MOST_PROVED) > MOST_PROVED:
        return {"known": False, "holds": False, "story": "", "step": None, "rank": None, "chunk": None}
    try:
        outcome = outcome_of(schedule)
    except ChoreoError as error:
        return {"known": False, "holds": False, "story": str(error), "step": None, "rank": None, "chunk": None}
    return {
        "known": True,
        "holds": outcome.holds,
        "story": outcome.story,
        "step": outcome.step,
        "rank": outcome.rank,
        "chunk": outcome.chunk,
    }


def _ways(run: Simulation, chosen: Ints, wires: list[Ints]) -> tuple[list[list[int]], list[int]]:
    """The wires that each route crosses, and the route of each message that is drawn."""
    messages = run.messages
    wire_of = np.full(len(run.topology.links), -1, np.int64)
    for number, links in enumerate(wires):
        wire_of[links] = number
    routes, way = np.unique(messages.route[chosen], return_inverse=True)
    crossed_wires = []
    for route in routes.tolist():
        crossed = wire_of[messages.links[messages.offsets[route] : messages.offsets[route + 1]]]
        crossed_wires.append(sorted(set(crossed[crossed >= 0].tolist())))
    return crossed_wires, way.tolist()


def _ends(run: Simulation, wires: list[Ints]) -> list[tuple[str, str]]:
    """The nodes at the two ends of the busiest link of each wire."""
    table, name = run.topology.links, run.topology.node_name
    busiest = [int(links[np.argmax(run.utilisation[links])] if len(links) > 1 else links[0]) for links in wires]
    ends = table.src[busiest].tolist(), table.dst[busiest].tolist()
    return [(name(src), name(dst)) for src, dst in zip(*ends, strict=True)]


def _command(fields: Fields) -> str:
    """The command that gives the same run."""
    words = ["choreo simulate", fields.collective]
    if fields.algorithm and not fields.document:
        name, _, axes = fields.algorithm.partition(" ")
        words += ["--algorithm", name, *(["--axes", f'"{axes}"'] if axes.strip() else [])]
    words += ["--ranks", str(fields.ranks), "--topology", f'"{network_text(fields)}"', "--size", fields.size.strip()]
    if fields.gamma.strip("0. "):
        words += ["--gamma", fields.gamma.strip()]
    words += [f'--slow-link "{cut.here}-{cut.there}={cut.factor:g}"' for cut in fields.cuts]
    words += [f"--slow-rank {slow.rank}={slow.times:g}x" for slow in fields.slow]
    return " ".join(words + packet_options(fields.packets))
