"""The critical path of a run: the chain of messages that determined its finish time, and what each waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.simulate.flows.engine import Messages

__all__ = ["Leg", "critical_path"]

# What a message can wait for.
NOTHING, DATA, PORT, READER, WRITER = "nothing", "data", "port", "reader", "writer"


@dataclass(frozen=True, slots=True)
class Leg:
    """One message of the critical path.

    `waited_for` says what held it up. Before it started: "nothing", "data" (the previous message had to be written), or
    "port" (the previous message had to be sent). Between its arrival and its write: "reader" (the previous message
    still had to be read from the place) or "writer" (the previous message had to be written or reduced first).
    `shared_s` is the time lost by sharing links. `link` is the link that limited it, -1 if none did. `message` is its
    number among the run's messages.
    """

    message: int
    job: int
    step: int
    src: int
    dst: int
    size_bytes: float
    start_s: float
    out_s: float
    arrived_s: float
    written_s: float
    shared_s: float
    waited_for: str
    link: int


def critical_path(messages: Messages) -> list[Leg]:
    """The chain that ends with the message written last, in order of time."""
    if not len(messages):
        return []
    legs: list[Leg] = []
    at, until_written = int(np.argmax(messages.written_s)), True
    while True:
        held_up = until_written and messages.write_cause[at] >= 0
        cause = int(messages.write_cause[at] if held_up else messages.start_cause[at])
        before, by_out = divmod(cause, 2)
        if cause < 0:
            waited = NOTHING
        elif held_up:
            waited = READER if by_out else WRITER
        else:
            waited = PORT if by_out else DATA
        legs.append(_leg(messages, at, waited))
        if cause < 0:
            return legs[::-1]
        at, until_written = before, not by_out


def _leg(messages: Messages, at: int, waited_for: str) -> Leg:
    return Leg(
        message=at,
        job=int(messages.job[at]),
        step=int(messages.step[at]),
        src=int(messages.src[at]),
        dst=int(messages.dst[at]),
        size_bytes=float(messages.bytes[at]),
        start_s=float(messages.start_s[at]),
        out_s=float(messages.out_s[at]),
        arrived_s=float(messages.arrived_s[at]),
        written_s=float(messages.written_s[at]),
        shared_s=_lost(float(messages.out_s[at] - messages.start_s[at]), float(messages.alone_s[at])),
        waited_for=waited_for,
        link=int(messages.bottleneck[at]),
    )


def _lost(took_s: float, alone_s: float) -> float:
    """Seconds lost by sharing links; zero if it is within rounding."""
    return took_s - alone_s if took_s > alone_s * (1 + 1e-9) else 0.0
