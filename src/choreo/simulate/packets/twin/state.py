"""The state of a simulation, made from its columns, and what the layers of the model ask of each other."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from choreo.simulate.packets.rates import Control, Rates
from choreo.simulate.packets.settings import NUMBERS
from choreo.simulate.packets.twin.records import Connection, Engine, Group, Link, Message, Packet, Source

__all__ = ["Columns", "State"]

Columns = dict[str, npt.NDArray[np.generic]]

# What happens, in the order in which it happens at one time.
ARRIVE, PAUSE, RESUME, WAKE, TIMEOUT, READABLE, START, READY, PREPARE, TAKE_IN, SEND = range(11)


class State(ABC):
    """The state of one simulation."""

    def __init__(self, columns: Columns, progress: Callable[[int, int], None] | None) -> None:
        given = {name: column.tolist() for name, column in columns.items()}
        for name, value in zip(NUMBERS, given["numbers"], strict=True):
            setattr(self, name, value)
        self.threshold, self.mark_most = given["figures"][:2]
        self.progress = progress
        self.now = self.events_done = self.messages_done = 0
        self.sent = self.repeated = self.timeouts = self.backs = self.notified = 0
        self.in_flight = self.most_in_flight = 0
        self.sent_bytes = self.delivered_bytes = self.dropped_bytes = self.discarded_bytes = 0
        self.heap: list[tuple[int, int, int]] = []
        figures = ("link_src", "link_latency", "link_ps_per_byte", "link_mark_from", "link_mark_all")
        self.links = [Link(i, *row) for i, row in enumerate(zip(*(given[name] for name in figures), strict=True))]
        self.hop_link = [self.links[link] for link in given["hop_link"]]
        self.hop_next, self.hop_ways, self.hop_until = given["hop_next"], given["hop_ways"], given["hop_until"]
        self.node_used, self.node_peak = [0] * self.nodes, [0] * self.nodes
        self.rates = Rates(given["numbers"], given["figures"])
        self.controls = [Control(line) for line in given["conn_line"]] if self.dcqcn else []
        self._make_connections(given)
        self.messages: list[Message] = []
        self.layer = given["layer"]
        self.latest: dict[tuple[int, int], Group] = {}
        self.last_started = -1
        self.finish = [0] * len(self.layer)
        self.senders, self.receivers = ([Engine() for _ in self.layer] for _ in range(2))

    nodes: int
    mtu: int
    buffer: int
    lossless: int
    selective: int
    acks: int
    dcqcn: int
    seed: int
    resume_below: int
    reorder: int
    answer_bytes: int
    notify_ps: int
    num_messages: int

    def _make_connections(self, given: dict[str, list[int]]) -> None:
        names = "source sources back back_ways window rtt send send_busy receive_busy"
        figures = [f"conn_{name}" for name in names.split()]
        self.conns = []
        for number, row in enumerate(zip(*(given[name] for name in figures), strict=True)):
            first, count, *rest = row
            sources = [Source(number, at, self.hop_link[at]) for at in given["source_at"][first : first + count]]
            self.conns.append(Connection(number, sources, *rest))

    def add(self, columns: Columns) -> None:
        """Add messages; here all of them stay."""
        given = {name: column.tolist() for name, column in columns.items()}
        figures = ("bytes", "reduce_ps", "start", "conn", "member", "step", "src", "dst")
        first = len(self.messages)
        rows = zip(*(given[name] for name in figures), strict=True)
        self.messages += [Message(first + at, *row) for at, row in enumerate(rows)]
        for message in self.messages[first:]:
            self._join_ports(message)
        for at, message in enumerate(self.messages[first:]):
            for name in ("send", "write", "overwrite"):
                begins = given[f"{name}_from"]
                for number in given[f"{name}_after"][begins[at] : begins[at + 1]]:
                    self._add_wait(name, message, self.messages[number])
        for message in self.messages[first:]:
            if not message.need_ready:
                self._is_readable_at_once(message)

    def _join_ports(self, message: Message) -> None:
        layer = self.layer[message.member - message.dst + message.src]
        for source in self.conns[message.conn].sources:
            port = layer, source.link.number
            group = self.latest.get(port)
            if group is None or group.step != message.step:
                fresh = Group(message.step, group is not None and group.pending > 0)
                if group is not None:
                    group.after = fresh
                    fresh.opens = 0 if group.pending else max(group.out[0], group.opens)
                self.latest[port] = group = fresh
            message.need_start += group.waits
            message.start = max(message.start, group.opens)
            message.groups.append(group)
            group.pending += 1
            group.members.append(message.number)

    def _add_wait(self, name: str, message: Message, other: Message) -> None:
        """What a message waits for lets it go on, unless that has happened already."""
        if other.is_read if name == "overwrite" else other.is_written:
            return
        if name == "send":
            other.lets_send.append(message.number)
            message.need_ready += 1
            return
        (other.lets_write if name == "write" else other.lets_overwrite).append(message.number)
        message.need_write += 1

    def _is_readable_at_once(self, message: Message) -> None:
        if not self.events_done:
            self._happen(message.start, READABLE, message.number)
            return
        self.events_done += 1  # it has been readable for some time
        self._readable(message.number)

    def _happen(self, time: int, kind: int, number: int) -> None:
        heapq.heappush(self.heap, (time, kind, number))

    # What links ask of the transport.

    @abstractmethod
    def _next_source(self, link: Link) -> Packet | None:
        """The next packet that begins at a port."""

    @abstractmethod
    def _receive(self, packet: Packet) -> None:
        """A packet with data is at its end."""

    @abstractmethod
    def _hear(self, answer: Packet) -> None:
        """An answer is back at the sender."""

    # What the transport asks of messages.

    @abstractmethod
    def _readable(self, number: int) -> None:
        """All that a message reads has been written."""

    @abstractmethod
    def _is_out(self, message: Message, time: int) -> None:
        """The last packet of a message was sent for the first time."""

    @abstractmethod
    def _has_read(self, message: Message, time: int) -> None:
        """A message will not be read at its sender again."""

    @abstractmethod
    def _has_arrived(self, message: Message) -> None:
        """All of a message is at its receiver."""
