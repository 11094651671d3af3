"""The critical path of a run: the chain of messages that determined its finish time, and what each waited for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from choreo.simulate.flows.engine import Messages

__all__ = ["Leg", "critical_path"]

# What a message can wait for.
NOTHING, DATA, PORT, SENDER, READER, WRITER = "nothing", "data", "port", "sender", "reader", "writer"


class Leg(NamedTuple):
    """One message of the critical path.

    `waited_for` says what delayed it. Before it started: "nothing", "data" (the previous message had to be written),
    "port" (the previous message had to leave the port), or "sender" (its sender was busy with the previous message).
    Between its arrival and its write: "reader" (the previous message still had to read the old data) or "writer" (the
    previous message had to be written or reduced first, or kept the receiver busy). `send_s` and `receive_s` are its
    cost to the sender, before its start, and to the receiver, before it was written. `shared_s` is the time lost by
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
    chain, waits = [], []
    at, kind = int(np.argmax(messages.written_s)), 0
    # Reading plain numbers one by one is faster from a memoryview than from an array.
    to_write, to_start, to_send = (
        column.data for column in (messages.write_cause, messages.start_cause, messages.ready_cause)
    )
    while True:
        held_up = kind == 0 and to_write[at] >= 0
        cause = (to_write if held_up else to_send if kind == 2 else to_start)[at]
        chain.append(at)
        if cause < 0:
            waits.append(NOTHING)
            return _legs(messages, chain[::-1], waits[::-1])
        at, kind = divmod(cause, 3)
        waits.append((WRITER, READER)[kind] if held_up else (DATA, PORT, SENDER)[kind])


def _legs(messages: Messages, chain: list[int], waits: list[str]) -> list[Leg]:
    """The legs of a chain, column by column, as there may be thousands."""

    rows = np.array(chain)

    def column(values: npt.NDArray[np.generic]) -> list[Any]:
        found: list[Any] = values[rows].tolist()
        return found

    start, out, alone = messages.start_s[rows], messages.out_s[rows], messages.alone_s(rows)
    # Time lost by sharing links; rounding errors count as none.
    shared = np.where(out - start > alone * (1 + 1e-9), out - start - alone, 0.0)
    ends = [column(values) for values in (messages.job, messages.step, messages.src, messages.dst, messages.bytes)]
    times = [start.tolist(), out.tolist(), column(messages.arrived_s), column(messages.written_s)]
    costs = [messages.send_s(rows).tolist(), messages.receive_s(rows).tolist(), shared.tolist()]
    return list(map(Leg, chain, *ends, *times, *costs, waits, column(messages.bottleneck)))
