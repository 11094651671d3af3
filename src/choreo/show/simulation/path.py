"""The critical path for pictures: its messages, and where the time went."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np

from choreo.show.simulation.words import WAITED, link_names
from choreo.simulate import Leg, Simulation
from choreo.topology.graph import Floats, Ints

__all__ = ["MOST_LEGS", "PathData", "on_path", "path_of", "rounded"]

# Longer lists on a page are cut.
MOST_LEGS = 2000
_TOLD = {what: f"waited for {words}" for what, words in WAITED.items()} | {"nothing": "started at once"}


class LegData(TypedDict):
    """One message of the critical path. `way` are the points of the path in the diagram: a time and a row each."""

    step: int
    src: int
    dst: int
    bytes: float
    start_us: float
    until_us: float
    waited: str
    shared_us: float
    link: str
    way: list[tuple[float, int]]


class PartData(TypedDict):
    """A part of the time of the critical path."""

    name: str
    time_us: float


class PathData(TypedDict):
    """The critical path: its legs, the first `MOST_LEGS` of `all`, and where the time went."""

    all: int
    legs: list[LegData]
    parts: list[PartData]


def rounded(values: Floats, most: float) -> list[float]:
    """Numbers rounded to seven digits of the largest: a hundred-thousandth of a page's width is enough."""
    digits = 7 - math.ceil(math.log10(most)) if most > 0 else 0
    found: list[float] = np.round(values, digits).tolist()
    return found


def on_path(legs: list[Leg]) -> list[tuple[bool, bool]]:
    """For each leg, whether the path includes its sending, and its writing.

    It excludes the sending of a message that was delayed only at its destination, or that only kept the sender of the
    next one busy; and the writing of one whose data the next did not wait for.
    """
    parts = []
    for at, leg in enumerate(legs):
        following = legs[at + 1].waited_for if at + 1 < len(legs) else "data"
        sent = leg.waited_for not in ("reader", "writer") and following != "sender"
        parts.append((sent, following not in ("port", "reader", "sender")))
    return parts


def path_of(simulation: Simulation, first_row: Ints) -> PathData:
    """The critical path; `first_row` is the row of each job's first rank."""
    legs = simulation.critical_path
    goes = on_path(legs)
    sharing = [
        sent and leg.shared_s > 1e-9 * (leg.out_s - leg.start_s) for leg, (sent, _) in zip(legs, goes, strict=True)
    ]
    to_blame = sorted({leg.link for leg, shared in zip(legs, sharing, strict=True) if shared})
    names = dict(zip(to_blame, link_names(simulation, np.array(to_blame, np.int64)), strict=True))
    drawn: list[LegData] = []
    first, listed = first_row.tolist(), legs[: MOST_LEGS + 1]  # one more, as a way may end where the next begins

    def us(times_s: list[float]) -> list[float]:
        return rounded(np.array(times_s) * 1e6, simulation.time_s * 1e6)

    asked = us([leg.start_s - leg.send_s for leg in listed])
    start, out = us([leg.start_s for leg in listed]), us([leg.out_s for leg in listed])
    arrived, done = us([leg.arrived_s for leg in listed]), us([leg.written_s for leg in listed])
    for at, (leg, (sent, written), shared) in enumerate(zip(legs[:MOST_LEGS], goes, sharing, strict=False)):
        src, dst = first[leg.job] + leg.src, first[leg.job] + leg.dst
        begin = (start if leg.waited_for == "port" else asked)[at]
        if sent and written:
            way = [(begin, src), (arrived[at], dst), (done[at], dst)]
        elif written:
            way = [((out if leg.waited_for == "reader" else done)[at - 1], dst), (done[at], dst)]
        elif sent:
            way = [(begin, src), (out[at], src)]
        else:  # it kept the sender of the next busy
            since = drawn[-1]["way"][-1][0] if drawn else simulation.jobs[leg.job].start_s * 1e6
            way = [(since, src), (asked[at + 1], src)]
        drawn.append(
            {
                "step": leg.step,
                "src": src,
                "dst": dst,
                "bytes": leg.size_bytes,
                "start_us": way[0][0],
                "until_us": way[-1][0],
                "waited": _TOLD[leg.waited_for],
                "shared_us": leg.shared_s * 1e6 if shared else 0.0,
                "link": names[leg.link] if shared else "",
                "way": way,
            }
        )
    return {"all": len(legs), "legs": drawn, "parts": _parts(simulation, legs, goes)}


def _let_go(leg: Leg, before: Leg) -> float:
    """When the previous message allowed this one, which had arrived, to be written."""
    return before.out_s if leg.waited_for == "reader" else before.written_s


def _parts(simulation: Simulation, legs: list[Leg], goes: list[tuple[bool, bool]]) -> list[PartData]:
    """Where the time of the critical path went: every moment of it is in one of the parts."""
    overhead = sending = sharing = latency = writing = 0.0
    for at, (leg, (sent, written)) in enumerate(zip(legs, goes, strict=True)):
        if leg.waited_for not in ("port", "reader", "writer"):
            overhead += leg.send_s
        if sent:
            sending += leg.out_s - leg.start_s - leg.shared_s
            sharing += leg.shared_s
        if written:
            overhead += leg.receive_s
            writing -= leg.receive_s
        if sent and written:
            latency += leg.arrived_s - leg.out_s
            writing += leg.written_s - leg.arrived_s
        elif written:
            writing += leg.written_s - _let_go(leg, legs[at - 1])
    waiting = (legs[-1].written_s if legs else 0.0) - overhead - sending - sharing - latency - writing
    names = {
        "overhead": overhead,
        "sending": sending,
        "sharing links": sharing,
        "further hops" if simulation.store_and_forward else "latency": latency,
        "reducing, writing": writing,
        "waiting": waiting,
    }
    least = 1e-9 * simulation.time_s
    return [{"name": name, "time_us": time_s * 1e6} for name, time_s in names.items() if time_s > least]
