"""Connections: packets in a window, acknowledgements, and what is lost and sent again."""

from __future__ import annotations

from choreo.simulate.packets.twin.links import Links
from choreo.simulate.packets.twin.records import ACK, BACK, NONE, NOTIFY, Connection, Link, Packet, Source
from choreo.simulate.packets.twin.state import TIMEOUT, WAKE

__all__ = ["Transport"]

MOST_BACKOFF = 10


class Transport(Links):
    """The transport: senders and receivers of packets."""

    # The sender.

    def _awake(self, conn: Connection) -> None:
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
        self.last_started = max(self.last_started, message.step)
        message.first = conn.end
        conn.end += max(1, -(-message.bytes // self.mtu))
        message.end = conn.end
        conn.messages.append(message)
        self._awake(conn)

    def _emit(self, source: Source, psn: int) -> Packet:
        conn = self.conns[source.conn]
        first_time = psn == conn.fresh
        place = conn.sending if psn == conn.next else conn.unacked_message
        while conn.messages[place].end <= psn:
            place += 1
        message = conn.messages[place]
        last = psn + 1 == message.end
        size = message.bytes - self.mtu * (psn - message.first) if last else self.mtu
        packet = self._new_packet(Packet(source.conn, source.at, psn, size))
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

    def _watch(self, conn: Connection, psn: int, first_time: bool) -> None:
        """Set the timer, and measure the time until a packet is acknowledged."""
        if conn.unacked == psn and first_time:
            conn.deadline = self.now + conn.time_out_ps()
        if not conn.timer_set:
            conn.timer_set = True
            conn.deadline = self.now + conn.time_out_ps()
            self._happen(conn.deadline, TIMEOUT, conn.number)
        if first_time and not conn.timed:
            conn.timed, conn.timed_psn, conn.timed_at = True, psn, self.now

    def _next_source(self, link: Link) -> Packet | None:
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

    def _is_acknowledged(self, conn: Connection, all_before: int) -> None:
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

    def _send_again(self, conn: Connection) -> None:
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

    def _hear(self, answer: Packet) -> None:
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

    def _answer(self, conn: Connection, kind: int, seen: int) -> None:
        packet = self._new_packet(Packet(conn.number, 0, conn.expected, self.answer_bytes, kind, seen))
        packet.at = self._choose_hop(packet, conn.back_at, conn.back_ways)
        link = self.hop_link[packet.at]
        link.control.append(packet)
        self._wants_to_send(link)

    def _receive(self, packet: Packet) -> None:
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


def _quotient(value: int, by: int) -> int:
    """A quotient rounded towards zero, as in C."""
    return value // by if value >= 0 else -(-value // by)
