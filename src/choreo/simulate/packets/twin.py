"""The packet simulator's inner loops in Python: what the compiled core does, slowly and in the open, bit for bit.

It runs where there is no compiler, and the tests hold the compiled loops to it. `core/module.c` has the model in short,
with the same names. Times are whole picoseconds. A link is the port that sends into it, the wire, and the port at its
end.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from choreo.simulate.packets.rates import Control, Rates
from choreo.simulate.packets.settings import NUMBERS

__all__ = ["Core"]

Columns = dict[str, npt.NDArray[np.generic]]

NONE = -1
PARTS = 256
# What happens, in the order in which it happens at one time.
ARRIVE, PAUSE, RESUME, WAKE, TIMEOUT, READABLE, START, READY, PREPARE, TAKE_IN, SEND = range(11)
# What a packet is.
DATA, ACK, BACK, NOTIFY = range(4)
BY_WRITE, BY_OUT, BY_SENDER = range(3)
MOST_BACKOFF = 10
LONG_WORK = 1 << 16
WORD = 1 << 64


@dataclass(slots=True, eq=False)
class _Packet:
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
class _Link:
    number: int
    src: int
    latency: int
    ps_per_byte: float
    mark_from: float
    mark_all: float
    free_at: int = 0
    control: deque[_Packet] = field(default_factory=deque)
    data: deque[_Packet] = field(default_factory=deque)
    wire: deque[_Packet] = field(default_factory=deque)
    ring: deque[_Source] = field(default_factory=deque)
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
class _Source:
    conn: int
    at: int
    link: _Link
    waiting: bool = False


@dataclass(slots=True, eq=False)
class _Conn:
    number: int
    sources: list[_Source]
    back_at: int
    back_ways: int
    window: int
    base_rtt: int
    send_ps: int
    send_busy_ps: int
    receive_busy_ps: int
    messages: list[_Message] = field(default_factory=list)
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
        least = 4 * self.base_rtt
        guess = self.smooth_rtt + 4 * self.rtt_spread if self.smooth_rtt else 2 * least
        return max(guess, least) << self.backoff


@dataclass(slots=True, eq=False)
class _Message:
    number: int
    bytes: int
    reduce_ps: int
    start: int
    conn: int
    member: int
    step: int
    src: int
    dst: int
    need_ready: int
    need_write: int
    need_start: int = 1  # to be readable, and prepared
    ready: int = 0
    out: int = 0
    arrived: int = 0
    written: int = 0
    ready_cause: int = NONE
    start_cause: int = NONE
    write_cause: int = NONE
    first: int = 0
    end: int = 0
    groups: list[_Group] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Group:
    step: int
    waits: bool
    members: list[int] = field(default_factory=list)
    pending: int = 0
    out: tuple[int, int] = (0, NONE)
    after: _Group | None = None


@dataclass(slots=True, eq=False)
class _Engine:
    """What a member does one after another: prepare messages, or take them in and reduce them."""

    free_at: int = 0
    busy: int = NONE
    last: int = NONE
    waiting: list[int] = field(default_factory=list)
    scheduled: bool = False


class Core:
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
        self.links = [_Link(i, *row) for i, row in enumerate(zip(*(given[name] for name in figures), strict=True))]
        self.hop_link = [self.links[link] for link in given["hop_link"]]
        self.hop_next, self.hop_ways, self.hop_until = given["hop_next"], given["hop_ways"], given["hop_until"]
        self.node_used, self.node_peak = [0] * self.nodes, [0] * self.nodes
        self.rates = Rates(given["numbers"], given["figures"])
        self.controls = [Control(line) for line in given["conn_line"]] if self.dcqcn else []
        self._make_connections(given)
        self._make_messages(given)

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

    def _make_connections(self, given: dict[str, list[int]]) -> None:
        names = "source sources back back_ways window rtt send send_busy receive_busy"
        figures = [f"conn_{name}" for name in names.split()]
        self.conns = []
        for number, row in enumerate(zip(*(given[name] for name in figures), strict=True)):
            first, count, *rest = row
            sources = [_Source(number, at, self.hop_link[at]) for at in given["source_at"][first : first + count]]
            self.conns.append(_Conn(number, sources, *rest))

    def _make_messages(self, given: dict[str, list[int]]) -> None:
        figures = ("bytes", "reduce_ps", "start", "conn", "member", "step", "src", "dst", "need_ready", "need_write")
        rows = zip(*(given[name] for name in figures), strict=True)
        self.messages = [_Message(number, *row) for number, row in enumerate(rows)]
        self.edge_from, self.edges = given["edge_from"], given["edges"]
        self.read_from, self.reads = given["read_from"], given["reads"]
        self.senders, self.receivers = ([_Engine() for _ in given["engines"]] for _ in range(2))
        latest: dict[tuple[int, int], _Group] = {}
        for message, layer in zip(self.messages, given["layer"], strict=True):
            for source in self.conns[message.conn].sources:
                port = layer, source.link.number
                group = latest.get(port)
                if group is None or group.step != message.step:
                    fresh = _Group(message.step, group is not None)
                    if group is not None:
                        group.after = fresh
                    latest[port] = group = fresh
                message.need_start += group.waits
                message.groups.append(group)
                group.pending += 1
                group.members.append(message.number)

    # Events.

    def _happen(self, time: int, kind: int, number: int) -> None:
        heapq.heappush(self.heap, (time, kind, number))

    def run(self) -> bool:
        """Run until nothing happens any more; whether all messages were written."""
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
        for message in self.messages:
            if not message.need_ready:
                message.ready = message.start
                self._happen(message.start, READABLE, message.number)
        while self.heap and self.messages_done < len(self.messages):
            self.now, kind, number = heapq.heappop(self.heap)
            does[kind](number)
            self.events_done += 1
            if self.progress is not None and self.events_done % LONG_WORK == 0:
                self.progress(self.messages_done, len(self.messages))
        return self.messages_done == len(self.messages)

    # Links.

    def _wants_to_send(self, link: _Link) -> None:
        """The port sends as soon as it can, if it has something to send."""
        if link.scheduled or not (link.control or (not link.pauses_held and (link.data or link.ring))):
            return
        link.scheduled = True
        self._happen(max(link.free_at, self.now), SEND, link.number)

    def _draw(self, packet: _Packet, where: int) -> int:
        """32 bits that depend on the seed, on the packet, and on when and where it is asked."""
        key = _mixed((self.seed * 0x9E3779B97F4A7C15 + self.now) % WORD)
        key = _mixed((key + (packet.conn << 32 | packet.psn)) % WORD)
        return _mixed((key + where % (1 << 32)) % WORD) >> 32

    def _choose_hop(self, packet: _Packet, first: int, ways: int) -> int:
        if ways == 1:
            return first
        drawn, last = self._draw(packet, first), first + ways - 1
        while first < last and drawn >= self.hop_until[first]:
            first += 1
        return first

    def _fits(self, node: int, taken: int, size: int) -> bool:
        """Whether bytes fit under a threshold that falls as memory fills up; a port always has room for one packet."""
        left = self.buffer - self.node_used[node]
        return taken == 0 or (size <= left and float(taken + size) <= self.threshold * float(left))

    def _tell_sender(self, link: _Link, what: int) -> None:
        frame = int(self.answer_bytes * link.ps_per_byte + 0.5)
        self._happen(self.now + frame + link.latency, what, link.number)

    def _mark(self, link: _Link, packet: _Packet) -> None:
        queued = float(link.queued)
        if queued <= link.mark_from:
            return
        if queued < link.mark_all:
            part = self.mark_most * (queued - link.mark_from) / (link.mark_all - link.mark_from)
            if float(self._draw(packet, ~packet.at)) >= part * 4294967296.0:
                return
        packet.marked = True
        link.marks += 1

    def _join_queue(self, packet: _Packet, ingress: int) -> None:
        link = self.hop_link[packet.at]
        if packet.kind != DATA:
            link.control.append(packet)
            self._wants_to_send(link)
            return
        node, came_by = link.src, self.links[ingress]
        packet.headroom = False
        if self.lossless:
            if not self._fits(node, came_by.held, packet.size):
                packet.headroom = True
                came_by.in_headroom += packet.size
                came_by.headroom = max(came_by.headroom, came_by.in_headroom)
                if not came_by.pause_sent:
                    came_by.pause_sent = True
                    self._tell_sender(came_by, PAUSE)
            came_by.held += packet.size
        elif not self._fits(node, link.queued, packet.size):
            link.drops += 1
            self.dropped_bytes += packet.size
            self.in_flight -= 1
            return
        if not packet.headroom:
            self.node_used[node] += packet.size
        self.node_peak[node] = max(self.node_peak[node], self.node_used[node])
        if self.dcqcn:
            self._mark(link, packet)
        link.note_queue(self.now)
        packet.ingress = ingress
        link.data.append(packet)
        link.queued += packet.size
        link.peak = max(link.peak, link.queued)
        link.note_queue(self.now)
        self._wants_to_send(link)

    def _leave_queue(self, link: _Link) -> _Packet:
        link.note_queue(self.now)
        packet = link.data.popleft()
        link.queued -= packet.size
        if not packet.headroom:
            self.node_used[link.src] -= packet.size
        if self.lossless:
            came_by = self.links[packet.ingress]
            came_by.held -= packet.size
            if packet.headroom:
                came_by.in_headroom -= packet.size
            if came_by.pause_sent and (came_by.held == 0 or self._fits(link.src, came_by.held, self.resume_below)):
                came_by.pause_sent = False
                self._tell_sender(came_by, RESUME)
        return packet

    def _pause(self, number: int) -> None:
        link = self.links[number]
        link.pauses_held += 1
        if link.pauses_held == 1:
            link.pauses += 1
            link.paused_since = self.now

    def _resume(self, number: int) -> None:
        link = self.links[number]
        link.pauses_held -= 1
        if not link.pauses_held:
            link.paused += self.now - link.paused_since
            self._wants_to_send(link)

    def _send(self, number: int) -> None:
        link = self.links[number]
        packet: _Packet | None = None
        if link.control:
            packet = link.control.popleft()
        elif not link.pauses_held:
            # Where packets pass through and others begin, they take turns.
            if link.own_turn or not link.data:
                packet = self._next_source(link)
            if packet is not None:
                link.own_turn = False
            elif link.data:
                packet = self._leave_queue(link)
                link.own_turn = True
        link.scheduled = False
        if packet is not None:
            takes = link.sending_ps(packet.size)
            link.free_at = self.now + takes
            link.busy += takes
            link.bytes += packet.size
            link.packets += 1
            packet.due = link.free_at + link.latency
            if not link.wire:
                self._happen(packet.due, ARRIVE, number)
            link.wire.append(packet)
        self._wants_to_send(link)

    def _arrive(self, number: int) -> None:
        link = self.links[number]
        packet = link.wire.popleft()
        if link.wire:
            self._happen(link.wire[0].due, ARRIVE, number)
        after = self.hop_next[packet.at]
        if after != NONE:
            packet.at = self._choose_hop(packet, after, self.hop_ways[packet.at])
            self._join_queue(packet, number)
            return
        self.in_flight -= 1
        if packet.kind == DATA:
            self._receive(packet)
        else:
            self._hear(packet)

    def _new_packet(self, packet: _Packet) -> _Packet:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return packet

    # The sender.

    def _awake(self, conn: _Conn) -> None:
        if conn.next_to_send() == NONE:
            return
        for source in conn.sources:
            if not source.waiting:
                source.waiting = True
                source.link.ring.append(source)
            self._wants_to_send(source.link)

    def _wake(self, number: int) -> None:
        self.conns[number].asleep = False
        self._awake(self.conns[number])

    def _start(self, number: int) -> None:
        message = self.messages[number]
        conn = self.conns[message.conn]
        if not conn.sources:
            self._is_out(message, self.now)
            self._has_arrived(message)
            return
        message.first = conn.end
        conn.end += max(1, -(-message.bytes // self.mtu))
        message.end = conn.end
        conn.messages.append(message)
        self._awake(conn)

    def _emit(self, source: _Source, psn: int) -> _Packet:
        conn = self.conns[source.conn]
        first_time = psn == conn.fresh
        place = conn.sending if psn == conn.next else conn.unacked_message
        while conn.messages[place].end <= psn:
            place += 1
        message = conn.messages[place]
        last = psn + 1 == message.end
        size = message.bytes - self.mtu * (psn - message.first) if last else self.mtu
        packet = self._new_packet(_Packet(source.conn, source.at, psn, size))
        if psn == conn.next:
            conn.next += 1
            conn.sending = place
        else:
            conn.repeat = psn + 1
        self.sent += 1
        self.sent_bytes += size
        if not self.lossless:
            self._watch(conn, psn, first_time)
        if self.dcqcn:
            self.rates.was_sent(self.controls[source.conn], size, self.now)
        source.link.free_at = self.now + source.link.sending_ps(size)
        if not first_time:
            self.repeated += 1
            return packet
        conn.fresh += 1
        if last:
            self._is_out(message, source.link.free_at)
        return packet

    def _watch(self, conn: _Conn, psn: int, first_time: bool) -> None:
        """Set the timer, and measure the time until a packet is acknowledged."""
        if conn.unacked == psn and first_time:
            conn.deadline = self.now + conn.time_out_ps()
        if not conn.timer_set:
            conn.timer_set = True
            conn.deadline = self.now + conn.time_out_ps()
            self._happen(conn.deadline, TIMEOUT, conn.number)
        if first_time and not conn.timed:
            conn.timed, conn.timed_psn, conn.timed_at = True, psn, self.now

    def _next_source(self, link: _Link) -> _Packet | None:
        while link.ring:
            source = link.ring.popleft()
            conn = self.conns[source.conn]
            source.waiting = False
            psn = conn.next_to_send()
            if psn == NONE:
                continue
            if self.dcqcn and self.controls[source.conn].next_send > self.now:
                if not conn.asleep:
                    conn.asleep = True
                    self._happen(self.controls[source.conn].next_send, WAKE, source.conn)
                continue
            packet = self._emit(source, psn)
            self._awake(conn)
            return packet
        return None

    def _is_acknowledged(self, conn: _Conn, all_before: int) -> None:
        if all_before <= conn.unacked:
            return
        if conn.timed and conn.timed_psn < all_before:
            took = self.now - conn.timed_at
            off = took - conn.smooth_rtt
            if not conn.smooth_rtt:
                conn.smooth_rtt, conn.rtt_spread = took, took // 2
            else:
                conn.smooth_rtt += _quotient(off, 8)
                conn.rtt_spread += _quotient(abs(off) - conn.rtt_spread, 4)
            conn.timed = False
        if conn.answered:
            conn.answered.difference_update(range(conn.unacked, all_before))
        conn.unacked = all_before
        conn.backoff = 0
        conn.deadline = self.now + conn.time_out_ps()
        conn.next = max(conn.next, all_before)
        while conn.unacked_message < len(conn.messages) and conn.messages[conn.unacked_message].end <= all_before:
            self._has_read(conn.messages[conn.unacked_message], self.now)
            if conn.sending == conn.unacked_message:
                conn.sending += 1
            conn.unacked_message += 1

    def _send_again(self, conn: _Conn) -> None:
        conn.timed = False
        if self.selective:
            conn.repeat, conn.lost = conn.unacked, conn.fresh
        else:
            conn.next, conn.sending = conn.unacked, conn.unacked_message

    def _time_out(self, number: int) -> None:
        conn = self.conns[number]
        conn.timer_set = False
        if conn.unacked == conn.fresh:
            return
        conn.timer_set = True
        if self.now >= conn.deadline:
            self.timeouts += 1
            conn.backoff = min(conn.backoff + 1, MOST_BACKOFF)
            self._send_again(conn)
            conn.deadline = self.now + conn.time_out_ps()
        self._happen(conn.deadline, TIMEOUT, number)
        self._awake(conn)

    def _hear(self, answer: _Packet) -> None:
        conn = self.conns[answer.conn]
        if answer.kind == NOTIFY:
            self.rates.slow_down(self.controls[answer.conn], self.now)
            return
        self._is_acknowledged(conn, answer.psn)
        if answer.kind == BACK:
            if answer.psn < conn.unacked or conn.next <= answer.psn:
                return
            self.backs += 1
            self._send_again(conn)
        elif self.selective and answer.seen >= conn.unacked:
            conn.answered.add(answer.seen)
            conn.highest = max(conn.highest, answer.seen + 1)
            conn.lost = max(conn.lost, conn.highest - 1 - self.reorder)
        self._awake(conn)

    # The receiver.

    def _answer(self, conn: _Conn, kind: int, seen: int) -> None:
        packet = self._new_packet(_Packet(conn.number, 0, conn.expected, self.answer_bytes, kind, seen))
        packet.at = self._choose_hop(packet, conn.back_at, conn.back_ways)
        link = self.hop_link[packet.at]
        link.control.append(packet)
        self._wants_to_send(link)

    def _receive(self, packet: _Packet) -> None:
        conn = self.conns[packet.conn]
        if packet.marked and self.now >= self.controls[packet.conn].notify_at:
            self.controls[packet.conn].notify_at = self.now + self.notify_ps
            self.notified += 1
            self._answer(conn, NOTIFY, 0)
        if packet.psn > conn.expected and not (self.lossless or self.selective):
            self.discarded_bytes += packet.size
            if not conn.asked_back:
                conn.asked_back = True
                self._answer(conn, BACK, packet.psn)
            return
        if packet.psn < conn.expected or packet.psn in conn.arrived:
            self.discarded_bytes += packet.size
        else:
            self.delivered_bytes += packet.size
        if packet.psn > conn.expected:
            conn.arrived.add(packet.psn)
        in_order = packet.psn == conn.expected
        if in_order:
            conn.asked_back = False
            conn.expected += 1
            while conn.expected in conn.arrived:
                conn.arrived.remove(conn.expected)
                conn.expected += 1
        if self.acks:
            self._answer(conn, ACK, packet.psn)
        while in_order and conn.receiving < len(conn.messages):
            message = conn.messages[conn.receiving]
            if message.end > conn.expected:
                break
            conn.receiving += 1
            self._has_arrived(message)

    # Messages.

    def _may_send(self, number: int, cause: int) -> None:
        message = self.messages[number]
        message.ready, message.ready_cause = max((message.ready, message.ready_cause), (self.now, cause))
        message.need_ready -= 1
        if not message.need_ready:
            self._readable(number)

    def _may_start(self, number: int, time: int, cause: int) -> None:
        message = self.messages[number]
        message.start, message.start_cause = max((message.start, message.start_cause), (time, cause))
        message.need_start -= 1
        if message.need_start:
            return
        if message.start > self.now:
            sources = self.conns[message.conn].sources
            # Where its only port is busy until then, it can take its place already.
            if len(sources) != 1 or sources[0].link.free_at < message.start:
                self._happen(message.start, START, number)
                return
        self._start(number)

    def _may_write(self, number: int, time: int, cause: int) -> None:
        message = self.messages[number]
        known = message.write_cause
        if time > message.written or (time == message.written and known != NONE and (cause == NONE or cause > known)):
            message.written, message.write_cause = time, cause
        message.need_write -= 1
        if message.need_write:
            return
        if message.written > self.now:
            self._happen(message.written, READY, number)
        else:
            self._ready(number)

    def _has_read(self, message: _Message, time: int) -> None:
        for number in self.reads[self.read_from[message.number] : self.read_from[message.number + 1]]:
            self._may_write(number, time, _cause(message.number, BY_OUT))

    def _is_out(self, message: _Message, time: int) -> None:
        message.out = time
        if not self.acks:
            self._has_read(message, time)
        for group in message.groups:
            group.out = max(group.out, (time, message.number))
            group.pending -= 1
            if group.pending or group.after is None:
                continue
            for number in reversed(group.after.members):
                self._may_start(number, group.out[0], _cause(group.out[1], BY_OUT))

    def _has_arrived(self, message: _Message) -> None:
        message.arrived = self.now
        self._may_write(message.number, self.now, NONE)

    def _ready(self, number: int) -> None:
        message = self.messages[number]
        if message.reduce_ps <= 0 and self.conns[message.conn].receive_busy_ps <= 0:
            self._is_written(message)
            return
        self._wait_for(self.receivers[message.member], number, TAKE_IN, message.member)

    def _is_written(self, message: _Message) -> None:
        message.written = self.now
        self.messages_done += 1
        for to in self.edges[self.edge_from[message.number] : self.edge_from[message.number + 1]]:
            if to >= 0:
                self._may_send(to, _cause(message.number, BY_WRITE))
            else:
                self._may_write(~to, self.now, _cause(message.number, BY_WRITE))

    # What a member does one after another.

    def _wait_for(self, engine: _Engine, number: int, what: int, member: int) -> None:
        engine.waiting.append(number)
        if not engine.scheduled:
            engine.scheduled = True
            self._happen(self.now, what, member)

    def _turn_to(self, engine: _Engine, what: int, member: int) -> _Message | None:
        """The message that got ready first, if there is one and the member is free."""
        engine.scheduled = bool(engine.waiting)
        if not engine.waiting:
            return None
        if self.now < engine.free_at:
            self._happen(engine.free_at, what, member)
            return None
        waiting = (self.messages[number] for number in engine.waiting)
        first = min(
            waiting,
            key=lambda one: (
                one.ready if what == PREPARE else one.written,
                one.step,
                one.src,
                one.dst < one.src,
                one.dst,
            ),
        )
        engine.waiting.remove(first.number)
        engine.busy = first.number
        return first

    def _take_in(self, member: int) -> None:
        engine = self.receivers[member]
        if engine.busy != NONE:
            engine.last, engine.busy = engine.busy, NONE
            self._is_written(self.messages[engine.last])
        message = self._turn_to(engine, TAKE_IN, member)
        if message is None:
            return
        if self.now > message.written and engine.last != NONE:
            message.write_cause = _cause(engine.last, BY_WRITE)
        engine.free_at = self.now + max(message.reduce_ps, self.conns[message.conn].receive_busy_ps)
        self._happen(self.now + message.reduce_ps, TAKE_IN, member)

    def _readable(self, number: int) -> None:
        message = self.messages[number]
        if self.conns[message.conn].send_busy_ps <= 0:
            self._may_start(number, message.ready, message.ready_cause)
            return
        member = message.member - message.dst + message.src
        self._wait_for(self.senders[member], number, PREPARE, member)

    def _prepare(self, member: int) -> None:
        engine = self.senders[member]
        if engine.busy != NONE:
            engine.last, engine.busy = engine.busy, NONE
            self._may_start(engine.last, self.now, self.messages[engine.last].ready_cause)
        message = self._turn_to(engine, PREPARE, member)
        if message is None:
            return
        conn = self.conns[message.conn]
        if self.now > message.ready and engine.last != NONE:
            message.ready_cause = _cause(engine.last, BY_SENDER)
        engine.free_at = self.now + max(conn.send_ps, conn.send_busy_ps)
        self._happen(self.now + conn.send_ps, PREPARE, member)

    # What is left behind.

    def found(self) -> dict[str, bytes]:
        """What happened to messages and links, as columns."""
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
        """Which queues hold packets that came by which links."""
        return [(packet.ingress, link.number) for link in self.links for packet in link.data]


def _cause(message: int, kind: int) -> int:
    return 3 * message + kind


def _mixed(key: int) -> int:
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB % WORD
    return key ^ (key >> 31)


def _quotient(value: int, by: int) -> int:
    """A quotient rounded towards zero, as in C."""
    return value // by if value >= 0 else -(-value // by)
