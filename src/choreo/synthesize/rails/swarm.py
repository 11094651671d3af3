"""A broadcast of pieces among a few servers, each with one port in and one out: who sends what to whom, and when.

Moment by moment the server that lacks most receives, of what free ports can send it the piece that fewest have. Of
servers that lack as much the one with the least choice is first. The root sends a piece again only once all are on
their way: its port limits the rest. In a chain the last server would receive nothing until the first piece has come
all the way, and nobody could make up for that.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Sending", "swarm"]

ROOT = 0
# Events that are no further apart than this part of a piece are simultaneous.
TOGETHER = 1e-6


class Sending(NamedTuple):
    """A piece on its way from server to server."""

    start_s: float
    piece: int
    src: int
    dst: int


def swarm(servers: int, takes_s: Sequence[float], lag_s: float, ready_s: Sequence[float]) -> list[Sending]:
    """The messages in order of their starts; no server sends a piece before it has it.

    A piece occupies both ports for its time in `takes_s`, and the receiver can send it on after another `lag_s`. The
    root has each piece at its time in `ready_s`.

    >>> [(one.piece, one.src, one.dst) for one in swarm(3, [1.0, 1.0], 0.0, [0.0, 0.0])]
    [(0, 0, 1), (1, 0, 2), (0, 0, 2), (1, 2, 1)]
    """
    return _Swarm(servers, takes_s, lag_s, ready_s).run()


class _Swarm:
    """The state: sets of pieces are bit masks, by server: what it has and what it still lacks."""

    def __init__(self, servers: int, takes_s: Sequence[float], lag_s: float, ready_s: Sequence[float]) -> None:
        pieces = len(takes_s)
        self.takes_s, self.lag_s, self.together_s = takes_s, lag_s, TOGETHER * min(takes_s)
        self.has = [0] * servers
        self.lacks = [0] + [(1 << pieces) - 1] * (servers - 1)
        self.copies = [0] * servers  # by number of others that have a piece, or will: the pieces
        self.copies[0] = (1 << pieces) - 1
        self.sends, self.receives = [False] * servers, [False] * servers
        # Time, then a server and a piece that it has from now on, or a sender and a receiver (-1 - dst) that are free.
        self.events = [(ready_s[piece], ROOT, piece) for piece in range(pieces)]
        heapq.heapify(self.events)
        self.found: list[Sending] = []

    def run(self) -> list[Sending]:
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] <= now + self.together_s:
                _, server, what = heapq.heappop(self.events)
                if what >= 0:
                    self.has[server] |= 1 << what
                else:
                    self.sends[server] = self.receives[-1 - what] = False
            while self._send(now):
                pass
        return self.found

    def _send(self, now: float) -> bool:
        """Start one message, if any can."""
        best: tuple[int, ...] | None = None
        for dst, lacks in enumerate(self.lacks):
            if self.receives[dst] or not lacks:
                continue
            offers = {src: lacks & self._has_for_others(src) for src in range(len(self.has)) if not self.sends[src]}
            choices = sum(offer.bit_count() for offer in offers.values())
            for src, offer in offers.items():
                for copies, those in enumerate(self.copies):
                    choice = offer & those
                    if choice:
                        piece = (choice & -choice).bit_length() - 1
                        key = -lacks.bit_count(), choices, copies, src != ROOT, piece, src, dst
                        best = key if best is None else min(best, key)
                        break
        if best is None:
            return False
        _, _, copies, _, piece, src, dst = best
        bit = 1 << piece
        self.lacks[dst] ^= bit
        self.copies[copies] ^= bit
        self.copies[copies + 1] |= bit
        self.sends[src] = self.receives[dst] = True
        out = now + self.takes_s[piece]
        heapq.heappush(self.events, (out, src, -1 - dst))
        heapq.heappush(self.events, (out + self.lag_s, dst, piece))
        self.found.append(Sending(now, piece, src, dst))
        return True

    def _has_for_others(self, src: int) -> int:
        """What a server may send: the root only what nobody else has, as long as there is any."""
        return self.has[src] & self.copies[0] if src == ROOT and self.copies[0] else self.has[src]
