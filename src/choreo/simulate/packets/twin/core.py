"""The event loop, and its results."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from choreo.simulate.packets.twin.messages import Messages

__all__ = ["Core"]

LONG_WORK = 1 << 16
NEVER = 1 << 62


class Core(Messages):
    """One simulation."""

    def run(self, step: int, until: int) -> tuple[int, bool]:
        """Run until a message of a step has started, until a time, or until nothing happens any more.

        Returns when the next event is due, and whether all messages were written.
        """
        does: list[Callable[[int], None]] = [
            self._arrive,
            self._pause,
            self._resume,
            self._wake,
            self._time_out,
            self._readable,
            self._start,
            self._ready,
            self._prepare,
            self._take_in,
            self._send,
        ]
        heap = self.heap
        while heap and heap[0][0] <= until and self.messages_done < self.num_messages and self.last_started < step:
            self.now, kind, number = heapq.heappop(heap)
            does[kind](number)
            self.events_done += 1
            if self.progress is not None and self.events_done % LONG_WORK == 0:
                self.progress(self.messages_done, self.num_messages)
        return heap[0][0] if heap else NEVER, self.messages_done == self.num_messages

    def found(self) -> dict[str, bytes]:
        """The history of messages and links, as columns."""
        columns: dict[str, list[int]] = {}
        for name in ("start", "out", "arrived", "written", "ready_cause", "start_cause", "write_cause"):
            columns[name] = [getattr(message, name) for message in self.messages]
        for name in ("bytes", "busy", "packets", "peak", "headroom", "marks", "drops", "pauses"):
            columns[name] = [getattr(link, name) for link in self.links]
        columns["paused"] = [
            link.paused + (self.now - link.paused_since if link.pauses_held else 0) for link in self.links
        ]
        columns["held_up"] = [int(link.pauses_held > 0) for link in self.links]
        columns["memory"] = self.node_peak
        columns["finish"] = self.finish
        columns["totals"] = [
            self.now,
            self.events_done,
            self.sent,
            self.repeated,
            self.timeouts,
            self.backs,
            self.notified,
            self.most_in_flight,
            self.sent_bytes,
            self.delivered_bytes,
            self.dropped_bytes,
            self.discarded_bytes,
            self.num_messages - self.messages_done,
        ]
        return {name: np.array(values, np.int64).tobytes() for name, values in columns.items()}

    def history(self, number: int) -> tuple[int, bytes] | None:
        """A link's queue over time."""
        link = self.links[number]
        if link.history is None:
            return None
        link.note_queue(self.now)
        return link.shift, np.array(link.history, np.int64).tobytes()

    def waiting(self) -> list[tuple[int, int]]:
        """The queues that hold packets, by the link on which these arrived."""
        return [(packet.ingress, link.number) for link in self.links for packet in link.data]
