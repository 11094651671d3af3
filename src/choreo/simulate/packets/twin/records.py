"""Packets, links, connections and messages of a simulation. Times are whole picoseconds.

A link is the port that sends into it, the wire, and the port at its end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["Connection", "Engine", "Group", "Link", "Message", "Packet", "Source"]

NONE = -1
DATA, ACK, BACK, NOTIFY = range(4)  # what a packet is
PARTS = 256


@dataclass(slots=True, eq=False)
class Packet:
    """A packet in progress."""

    conn: int
    at: int
    psn: int
    size: int
    kind: int = DATA
    seen: int = 0
    due: int = 0
    ingress: int = NONE
    marked: bool = False
    headroom: bool = False


@dataclass(slots=True, eq=False)
class Link:
    """A port, what is queued there, and the wire that leaves it."""

    number: int
    src: int
    latency: int
    ps_per_byte: float
    mark_from: float
    mark_all: float
    free_at: int = 0
    control: deque[Packet] = field(default_factory=deque)
    data: deque[Packet] = field(default_factory=deque)
    wire: deque[Packet] = field(default_factory=deque)
    ring: deque[Source] = field(default_factory=deque)
    pauses_held: int = 0
    scheduled: bool = False
    own_turn: bool = False
    pause_sent: bool = False
    queued: int = 0
    held: int = 0
    in_headroom: int = 0
    bytes: int = 0
    busy: int = 0
    peak: int = 0
    headroom: int = 0
    paused_since: int = 0
    paused: int = 0
    packets: int = 0
    marks: int = 0
    drops: int = 0
    pauses: int = 0
    history: list[int] | None = None
    part: int = 0
    shift: int = 16

    def sending_ps(self, size: int) -> int:
        """The time that this port takes to send this many bytes."""
        return int(size * self.ps_per_byte + 0.5)

    def note_queue(self, now: int) -> None:
        """Keep the most bytes in each part of the time; parts get twice as long when they are used up."""
        if self.history is None:
            self.history = [0] * PARTS
        while now >> self.shift >= PARTS:
            pairs = zip(self.history[::2], self.history[1::2], strict=True)
            self.history = [max(pair) for pair in pairs] + [0] * (PARTS // 2)
            self.part >>= 1
            self.shift += 1
        part = now >> self.shift
        for at in range(self.part, part + 1):
            self.history[at] = max(self.history[at], self.queued)
        self.part = part


@dataclass(slots=True, eq=False)
class Source:
    """The first port of a connection, where its packets begin."""

    conn: int
    at: int
    link: Link
    waiting: bool = False


@dataclass(slots=True, eq=False)
class Connection:
    """The state of a connection between two members, at its sender and at its receiver."""

    number: int
    sources: list[Source]
    back_at: int
    back_ways: int
    window: int
    base_rtt: int
    send_ps: int
    send_busy_ps: int
    receive_busy_ps: int
    messages: list[Message] = field(default_factory=list)
    sending: int = 0  # places in `messages`
    unacked_message: int = 0
    receiving: int = 0
    next: int = 0
    fresh: int = 0
    unacked: int = 0
    end: int = 0
    expected: int = 0
    highest: int = 0
    repeat: int = 0
    lost: int = 0
    asked_back: bool = False
    timer_set: bool = False
    asleep: bool = False
    timed: bool = False
    backoff: int = 0
    timed_psn: int = 0
    timed_at: int = 0
    smooth_rtt: int = 0
    rtt_spread: int = 0
    deadline: int = 0
    arrived: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)

    def next_to_send(self) -> int:
        """The sequence number of what is lost, or next within the window; NONE if there is neither."""
        if self.lost:
            self.repeat = max(self.repeat, self.unacked)
            while self.repeat < self.lost and self.repeat in self.answered:
                self.repeat += 1
            if self.repeat < self.lost:
                return self.repeat
        return self.next if self.next < self.end and self.next - self.unacked < self.window else NONE

    def time_out_ps(self) -> int:
        """The longest time that an acknowledgement may take."""
        least = 4 * self.base_rtt
        guess = self.smooth_rtt + 4 * self.rtt_spread if self.smooth_rtt else 2 * least
        return max(guess, least) << self.backoff


@dataclass(slots=True, eq=False)
class Message:
    """A message, what it waits for, and when it got how far."""

    number: int
    bytes: int
    reduce_ps: int
    start: int
    conn: int
    member: int
    step: int
    src: int
    dst: int
    need_ready: int = 0
    need_start: int = 1  # to be readable, and prepared
    need_write: int = 1  # its own arrival
    ready: int = 0
    out: int = 0
    arrived: int = 0
    written: int = 0
    ready_cause: int = NONE
    start_cause: int = NONE
    write_cause: int = NONE
    first: int = 0
    end: int = 0
    groups: list[Group] = field(default_factory=list)
    lets_send: list[int] = field(default_factory=list)  # once it is written
    lets_write: list[int] = field(default_factory=list)  # likewise
    lets_overwrite: list[int] = field(default_factory=list)  # once it will not be sent again
    is_written: bool = False
    is_read: bool = False


@dataclass(slots=True, eq=False)
class Group:
    """Messages of one step that leave by one port: those of the next step follow when all are out."""

    step: int
    waits: bool
    members: list[int] = field(default_factory=list)
    pending: int = 0
    out: tuple[int, int] = (0, NONE)
    opens: int = 0  # where the group before is out already: when that was
    after: Group | None = None


@dataclass(slots=True, eq=False)
class Engine:
    """The serial work of a member: it prepares messages, or takes them in and reduces them, one after another."""

    free_at: int = 0
    busy: int = NONE
    last: int = NONE
    waiting: list[int] = field(default_factory=list)
    scheduled: bool = False
