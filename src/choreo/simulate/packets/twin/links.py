"""Ports: queues with shared memory, pauses, marks and drops, and the wires between them."""

from __future__ import annotations

from choreo.simulate.packets.twin.records import DATA, NONE, Link, Packet
from choreo.simulate.packets.twin.state import ARRIVE, PAUSE, RESUME, SEND, State

__all__ = ["Links"]

WORD = 1 << 64


class Links(State):
    """The ports: queues, transmission, pauses, marks and drops."""

    def _wants_to_send(self, link: Link) -> None:
        """The port sends as soon as it can, if it has something to send."""
        if link.scheduled or not (link.control or (not link.pauses_held and (link.data or link.ring))):
            return
        link.scheduled = True
        self._happen(max(link.free_at, self.now), SEND, link.number)

    def _draw(self, packet: Packet, where: int) -> int:
        """32 bits that depend on the seed, on the packet, and on when and where it is asked."""
        key = _mixed((self.seed * 0x9E3779B97F4A7C15 + self.now) % WORD)
        key = _mixed((key + (packet.conn << 32 | packet.psn)) % WORD)
        return _mixed((key + where % (1 << 32)) % WORD) >> 32

    def _choose_hop(self, packet: Packet, first: int, ways: int) -> int:
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

    def _tell_sender(self, link: Link, what: int) -> None:
        frame = int(self.answer_bytes * link.ps_per_byte + 0.5)
        self._happen(self.now + frame + link.latency, what, link.number)

    def _mark(self, link: Link, packet: Packet) -> None:
        queued = float(link.queued)
        if queued <= link.mark_from:
            return
        if queued < link.mark_all:
            part = self.mark_most * (queued - link.mark_from) / (link.mark_all - link.mark_from)
            if float(self._draw(packet, ~packet.at)) >= part * 4294967296.0:
                return
        packet.marked = True
        link.marks += 1

    def _join_queue(self, packet: Packet, ingress: int) -> None:
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

    def _leave_queue(self, link: Link) -> Packet:
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
        packet: Packet | None = None
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

    def _new_packet(self, packet: Packet) -> Packet:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return packet


def _mixed(key: int) -> int:
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB % WORD
    return key ^ (key >> 31)
