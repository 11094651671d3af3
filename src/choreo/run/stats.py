"""Traffic statistics of a communicator, by collective and by peer, counted from the programs that ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from choreo.results import Result, result
from choreo.run.execute.layout import RECEIVE, SEND, TO_SCRATCH

if TYPE_CHECKING:
    from choreo.run.execute.calls import PreparedCall

__all__ = ["Traffic", "TrafficCounter"]


@result
class Traffic(Result):
    """The traffic of this rank with one peer, in the calls of one collective, or in its `send`s or `recv`s.

    `calls` counts those in which the two exchanged something, if only an empty message.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "collective",
        "peer",
        "calls",
        "sent_messages",
        "received_messages",
        "sent_bytes",
        "received_bytes",
    )

    collective: str
    peer: int
    calls: int
    sent_messages: int
    received_messages: int
    sent_bytes: int
    received_bytes: int


class TrafficCounter:
    """Sums of what was exchanged.

    An executor only counts how often each program has run. What one run moves is computed on demand. Messages, which
    have no program, are added one by one with `add`.

    >>> counter = TrafficCounter()
    >>> counter.add("send", 1, sent_bytes=8)
    >>> counter.traffic()
    [<Traffic collective='send', peer=1, calls=1, sent_messages=1, received_messages=0, sent_bytes=8, received_bytes=0>]
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], list[int]] = {}  # the columns from `calls` on
        self._programs: dict[PreparedCall, int] = {}  # and how many of their runs are in the sums

    def add(
        self, collective: str, peer: int, *, sent_bytes: int | None = None, received_bytes: int | None = None
    ) -> None:
        """Count one message to a peer, or one from it."""
        out, into = sent_bytes is not None, received_bytes is not None
        self._add(collective, peer, (1, out, into, sent_bytes or 0, received_bytes or 0))

    def watch(self, prepared: PreparedCall) -> None:
        """Count the runs of a program from now on."""
        self._programs[prepared] = prepared.ready.runs

    def traffic(self, *, reset: bool = False) -> list[Traffic]:
        """The sums, by collective and peer; with `reset` they begin again."""
        self._sum_up()
        found = [Traffic(*key, *row) for key, row in sorted(self._sums.items())]
        if reset:
            self._sums.clear()
        return found

    def forget_programs(self) -> None:
        """Keep the sums of the programs, and drop the programs."""
        self._sum_up()
        self._programs.clear()

    def _sum_up(self) -> None:
        for prepared, counted in list(self._programs.items()):
            runs = prepared.ready.runs
            if runs == counted:
                continue
            self._programs[prepared] = runs
            ops, peers = prepared.program.ops, len(prepared.program.sent)
            kind, peer, length = ops["kind"], ops["peer"], ops["length"].astype(np.int64)
            sends, receives = kind == SEND, (kind == RECEIVE) | (kind == TO_SCRATCH)
            moved = np.zeros((peers, 5), np.int64)
            moved[:, 1], moved[:, 2] = prepared.program.sent, prepared.program.received
            moved[:, 0] = (moved[:, 1] + moved[:, 2]) > 0
            np.add.at(moved[:, 3], peer[sends], length[sends])
            np.add.at(moved[:, 4], peer[receives], length[receives])
            for number in np.flatnonzero(moved[:, 0]).tolist():
                self._add(prepared.call.collective, number, (moved[number] * (runs - counted)).tolist())

    def _add(self, collective: str, peer: int, row: Sequence[int]) -> None:
        sums = self._sums.setdefault((collective, peer), [0] * len(row))
        for at, count in enumerate(row):
            sums[at] += count
