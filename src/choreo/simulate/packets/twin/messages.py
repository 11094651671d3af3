"""Messages: when one may start, what it waits for, and what a member does one after another."""

from __future__ import annotations

from choreo.simulate.packets.twin.records import NONE, Engine, Message
from choreo.simulate.packets.twin.state import PREPARE, READY, START, TAKE_IN
from choreo.simulate.packets.twin.transport import Transport

__all__ = ["Messages"]

BY_WRITE, BY_OUT, BY_SENDER = range(3)


class Messages(Transport):
    """The messages and their dependencies."""

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

    def _has_read(self, message: Message, time: int) -> None:
        message.is_read = True
        for number in message.lets_overwrite:
            self._may_write(number, time, _cause(message.number, BY_OUT))

    def _is_out(self, message: Message, time: int) -> None:
        message.out = time
        self._is_done(message.member - message.dst + message.src, time)
        if not self.acks:
            self._has_read(message, time)
        for group in message.groups:
            group.out = max(group.out, (time, message.number))
            group.pending -= 1
            if group.pending or group.after is None:
                continue
            for number in reversed(group.after.members):
                self._may_start(number, group.out[0], _cause(group.out[1], BY_OUT))

    def _has_arrived(self, message: Message) -> None:
        message.arrived = self.now
        self._may_write(message.number, self.now, NONE)

    def _ready(self, number: int) -> None:
        message = self.messages[number]
        if message.reduce_ps <= 0 and self.conns[message.conn].receive_busy_ps <= 0:
            self._is_written(message)
            return
        self._wait_for(self.receivers[message.member], number, TAKE_IN, message.member)

    def _is_written(self, message: Message) -> None:
        message.written = self.now
        message.is_written = True
        self.messages_done += 1
        self._is_done(message.member, self.now)
        for to in message.lets_send:
            self._may_send(to, _cause(message.number, BY_WRITE))
        for to in message.lets_write:
            self._may_write(to, self.now, _cause(message.number, BY_WRITE))

    def _is_done(self, member: int, time: int) -> None:
        self.finish[member] = max(self.finish[member], time)

    # What a member does one after another.

    def _wait_for(self, engine: Engine, number: int, what: int, member: int) -> None:
        engine.waiting.append(number)
        if not engine.scheduled:
            engine.scheduled = True
            self._happen(self.now, what, member)

    def _turn_to(self, engine: Engine, what: int, member: int) -> Message | None:
        """If the member is free: of what it sends the first step, of what it takes in the one that got ready first."""
        engine.scheduled = bool(engine.waiting)
        if not engine.waiting:
            return None
        if self.now < engine.free_at:
            self._happen(engine.free_at, what, member)
            return None
        waiting = (self.messages[number] for number in engine.waiting)
        first = min(
            waiting,
            key=lambda message: (
                0 if what == PREPARE else message.written,
                message.step,
                message.src,
                message.dst < message.src,
                message.dst,
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


def _cause(message: int, kind: int) -> int:
    return 3 * message + kind
