"""The critical path of a run: the chain of messages that determined its finish time, and what each waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choreo.simulate.flows.engine import Messages

__all__ = ["Leg", "critical_path"]

# What a message can wait for.
NOTHING, DATA, PORT, SENDER, READER, WRITER = "nothing", "data", "port", "sender", "reader", "writer"


@dataclass(frozen=True, slots=True)
class Leg:
    """One message of the critical path.

    `waited_for` says what held it up. Before it started: "nothing", "data" (the previous message had to be written),
    "port" (the previous message had to be out), or "sender" (its sender was busy with the previous message). Between
    its arrival and its write: "reader" (the previous message still had to be read from the place) or "writer" (the
    previous message had to be written or reduced first, or kept its receiver busy). `send_s` and `receive_s` are what
    it cost its sender, before its start, and its receiver, before it was written. `shared_s` is the time lost by
    sharing links. `link` is the link that limited it, -1 if none did. `message` is its number among the run's messages.
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
    send_s: float
    receive_s: float
    shared_s: float
    waited_for: str
    link: int


def critical_path(messages: Messages) -> list[Leg]:
    """The chain that ends with the message written last, in order of time."""
    if not len(messages):
        return []
    legs: list[Leg] = []
    at, kind = int(np.argmax(messages.written_s)), 0
    while True:
        held_up = kind == 0 and messages.write_cause[at] >= 0
        causes = messages.write_cause if held_up else messages.ready_cause if kind == 2 else messages.start_cause
        cause = int(causes[at])
        before, kind = divmod(cause, 3)
        waited = (WRITER, READER)[kind] if held_up else (DATA, PORT, SENDER)[kind]
        legs.append(_leg(messages, at, waited if cause >= 0 else NOTHING))
        if cause < 0:
            return legs[::-1]
        at = before


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
        send_s=float(messages.send_s[at]),
        receive_s=float(messages.receive_s[at]),
        shared_s=_lost(float(messages.out_s[at] - messages.start_s[at]), float(messages.alone_s[at])),
        waited_for=waited_for,
        link=int(messages.bottleneck[at]),
    )


def _lost(took_s: float, alone_s: float) -> float:
    """Seconds lost by sharing links; zero if it is within rounding."""
    return took_s - alone_s if took_s > alone_s * (1 + 1e-9) else 0.0
