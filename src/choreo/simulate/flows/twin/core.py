"""The event loop, and its results."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import numpy as np

from choreo.simulate.flows.fair_shares import NONE, Flow
from choreo.simulate.flows.twin.dependencies import MessageGraph
from choreo.simulate.flows.twin.records import Engine, Message

__all__ = ["Core"]

SAME_MOMENT = 1e-12
BY_WRITE, BY_OUT, BY_SENDER = 0, 1, 2
# `progress` is called after this much work. An action is one unit of work, a moment a few.
LONG_WORK, WORK_OF_MOMENT = 4096, 16


class Core(MessageGraph):
    """One simulation."""

    def run(self) -> None:
        """Run all that was gathered."""
        self._begin_gathered()
        while self.events or self.flows:
            self._one_moment()
        assert self.written == len(self.all_messages)

    def advance(self, until: float) -> tuple[float, bytes, bytes]:
        """Advance until some ranks are done, or to this time.

        Returns when something happens next, and the finished ranks, numbered over all jobs, with their times.
        """
        self._begin_gathered()
        limit = until + abs(until) * SAME_MOMENT
        while not self.finished and self._next_time() <= limit and (self.events or self.flows):
            self._one_moment()
        ranks, self.finished = self.finished, []
        times = np.array([self.engines[number].done for number in ranks])
        return self._next_time(), np.array(ranks, np.int64).tobytes(), times.tobytes()

    def stop(self, now: float) -> tuple[bytes, bytes]:
        """Stop all flows: the receiving rank of each, numbered over all jobs, and the bytes left."""
        ranks = np.array([message.engine for message, _ in self.flows.values()], np.int64)
        left = [max(0.0, flow.remaining - flow.rate * (now - flow.since)) for flow in self.flows]
        for flow in self.flows:
            flow.finish = now
            self.shared.remove(flow)
        return ranks.tobytes(), np.array(left).tobytes()

    def _begin_gathered(self) -> None:
        """Begin what was gathered since the last time."""
        idle = range(self.begun_engines, len(self.engines))
        self.finished += [number for number in idle if not self.engines[number].left]
        for message in self.all_messages[self.begun_messages :]:
            if not message.need_ready:
                self._later(message.start, message.number, lambda time, one=message: self._send(one, time))  # type: ignore[misc]
        self.begun_engines, self.begun_messages = len(self.engines), len(self.all_messages)

    def _next_time(self) -> float:
        return min([flow.finish for flow in self.flows] + [event[0] for event in self.events[:1]], default=math.inf)

    def _one_less(self, number: int, time: float) -> None:
        """A rank has one thing less to do."""
        engine = self.engines[number]
        engine.done = max(engine.done, time)
        engine.left -= 1
        if not engine.left:
            self.finished.append(number)

    def _worked(self, work: int) -> None:
        self.work += work
        if self.work >= LONG_WORK:
            self.work = 0
            if self.progress is not None:
                self.progress(self.written, len(self.all_messages))

    def _one_moment(self) -> None:
        now = self._next_time()
        limit = now + abs(now) * SAME_MOMENT
        while True:
            ended = sorted(
                (flow for flow in self.flows if flow.finish <= limit),
                key=lambda flow: (flow.finish, self.flows[flow][0].number),
            )
            for flow in ended:
                now = max(now, flow.finish)
                self._flow_ended(flow)
            more = bool(ended)
            while self.events and self.events[0][0] <= limit:
                time, _, happens = heapq.heappop(self.events)
                now, more = max(now, time), True
                self.actions.append((happens, time))
            while self.actions:
                happens, time = self.actions.popleft()
                happens(time)
                self._worked(1)
            if more:
                continue
            for number in self.touched_engines:
                self._begin_reduction(self.engines[number])
            self.touched_engines.clear()
            if self.events and self.events[0][0] <= limit:
                continue
            for number in self.touched_senders:
                self._begin_send(self.senders[number])
            self.touched_senders.clear()
            if not (self.events and self.events[0][0] <= limit):
                break
        self.shared.share(now)
        self.moment += 1
        self._worked(WORK_OF_MOMENT)

    def _later(self, time: float, number: int, happens: Callable[[float], None]) -> None:
        heapq.heappush(self.events, _Event((time, number, happens)))

    def _send(self, message: Message, time: float) -> None:
        if message.route.send_busy <= 0:
            self._may_start(message, time, message.ready_cause)
            return
        message.moment = self.moment
        number = self._sender_of(message)
        self.senders[number].waiting.append(message)
        self.touched_senders[number] = None

    def _sender_of(self, message: Message) -> int:
        return message.engine - message.dst + message.src

    def _begin_send(self, sender: Engine) -> None:
        message = _first_waiting(sender, _in_order)
        if message is None:
            return
        if sender.free_at > message.ready and sender.last is not None:
            message.ready_cause = _cause(sender.last.number, BY_SENDER)
        begin = max(message.ready, sender.free_at)
        sender.busy, sender.last = True, message
        sender.free_at = begin + max(message.route.send, message.route.send_busy)
        self._later(begin + message.route.send, message.number, lambda at: self._sent(message, at))

    def _sent(self, message: Message, time: float) -> None:
        number = self._sender_of(message)
        free_at = self.senders[number].free_at
        if free_at > time:  # a message may be sent before the next one may be prepared
            self._later(free_at, message.number, lambda _: self._free(number))
        else:
            self._free(number)
        self._may_start(message, time, message.ready_cause)

    def _free(self, number: int) -> None:
        self.senders[number].busy = False
        self.touched_senders[number] = None

    def _started(self, message: Message, time: float) -> None:
        if message.bytes > 0 and message.route.links:
            self._start_flow(message, 0, time)
            return
        self.actions.append((lambda at: self._out(message, at), time))
        self._later(time + message.route.latency, message.number, lambda at: self._arrived(message, at))

    def _out(self, message: Message, time: float) -> None:
        message.out = time
        self._one_less(self._sender_of(message), time)
        for other in message.lets_overwrite.values():
            self._may_write(other, time, _cause(message.number, BY_OUT))
        for group in message.groups:
            group.pending -= 1
            group.last_out = max(group.last_out, (time, message.number))
            if not group.pending and group.after is not None:
                for other in group.after.members:
                    self._may_start(other, group.last_out[0], _cause(group.last_out[1], BY_OUT))

    def _arrived(self, message: Message, time: float) -> None:
        message.arrived = time
        self._may_write(message, time, NONE)

    def _may_send(self, message: Message, time: float, cause: int) -> None:
        message.ready, message.ready_cause = max((message.ready, message.ready_cause), (time, cause))
        message.need_ready -= 1
        if not message.need_ready:
            if message.route.send_busy > 0:
                self.actions.append((lambda at: self._send(message, at), message.ready))
            else:
                self._may_start(message, message.ready, message.ready_cause)

    def _may_start(self, message: Message, time: float, cause: int) -> None:
        """Of several causes at one time the highest is kept, so the result does not depend on their order."""
        message.start, message.start_cause = max((message.start, message.start_cause), (time, cause))
        message.need_start -= 1
        if not message.need_start:
            self.actions.append((lambda at: self._started(message, at), message.start))

    def _may_write(self, message: Message, time: float, cause: int) -> None:
        """Likewise, but a message that arrives at that moment did not wait."""
        known = message.write_cause
        if time > message.written or (time == message.written and known != NONE and (cause == NONE or cause > known)):
            message.written, message.write_cause = time, cause
        message.need_write -= 1
        if not message.need_write:
            self.actions.append((lambda at: self._ready(message, at), message.written))

    def _ready(self, message: Message, time: float) -> None:
        if message.reduce_s <= 0 and message.route.receive_busy <= 0:
            self._written(message, time)
            return
        message.moment = self.moment
        self.engines[message.engine].waiting.append(message)
        self.touched_engines[message.engine] = None

    def _begin_reduction(self, engine: Engine) -> None:
        message = _first_waiting(engine, lambda message: (message.moment, *_in_order(message)))
        if message is None:
            return
        if engine.free_at > message.written and engine.last is not None:
            message.write_cause = _cause(engine.last.number, BY_WRITE)
        begin = max(message.written, engine.free_at)
        engine.busy, engine.last = True, message
        engine.free_at = begin + max(message.reduce_s, message.route.receive_busy)
        self._later(begin + message.reduce_s, message.number, lambda at: self._reduced(message, at))

    def _reduced(self, message: Message, time: float) -> None:
        self.engines[message.engine].busy = False
        self.touched_engines[message.engine] = None
        self._written(message, time)

    def _written(self, message: Message, time: float) -> None:
        message.written = time
        self.written += 1
        self._one_less(message.engine, time)
        for other in message.lets_send.values():
            self._may_send(other, time, _cause(message.number, BY_WRITE))
        for other in message.lets_write.values():
            self._may_write(other, time, _cause(message.number, BY_WRITE))

    # Flows over links.

    def _start_flow(self, message: Message, hop: int, time: float) -> None:
        route = message.route
        part = slice(hop, hop + 1) if self.store_and_forward else slice(None)
        flow = Flow(route.links[part], route.share[part], message.bytes, time)
        self.flows[flow] = message, hop
        self.shared.add(flow)

    def _flow_ended(self, flow: Flow) -> None:
        (message, hop), time = self.flows.pop(flow), flow.finish
        self.shared.remove(flow)
        message.bottleneck = flow.bottleneck
        if hop == 0:
            self.actions.append((lambda at: self._out(message, at), time))
        if not self.store_and_forward:
            self._later(time + message.route.latency, message.number, lambda at: self._arrived(message, at))
            return
        time += self.latency[message.route.links[hop]]
        if hop + 1 == len(message.route.links):
            self._later(time, message.number, lambda at: self._arrived(message, at))
        else:
            self._later(time, message.number, lambda at: self._start_flow(message, hop + 1, at))

    # Results.

    def links(self) -> tuple[bytes, bytes]:
        """Bytes and busy seconds of each link."""
        return np.array(self.shared.bytes).tobytes(), np.array(self.shared.busy_s).tobytes()

    def finish(self) -> bytes:
        """The time at which each rank was done, after an alone pass; here that is one without messages."""
        return np.full(len(self.place), self.job_start).tobytes()

    def messages(self) -> dict[str, bytes]:
        """The history of each message."""
        causes = ("ready_cause", "start_cause", "write_cause")
        numbers = ("step", "src", "dst", "engine", "bottleneck", "reduces", *causes)
        found = {
            name: np.array([getattr(message, name) for message in self.all_messages], np.int32) for name in numbers
        }
        found["route"] = np.array([message.route.number for message in self.all_messages], np.int32)
        times = ("bytes", "start", "out", "arrived", "written")
        found |= {
            name: np.array([getattr(message, name) for message in self.all_messages], np.float64) for name in times
        }
        return {name: column.tobytes() for name, column in found.items()}

    def routes(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """The routes: offsets, links, shares, lone bandwidths, costs."""
        routes = self.route_of.values()
        offsets = np.cumsum([0, *(len(route.links) for route in routes)])
        links = np.array([link for route in routes for link in route.links], np.int32)
        return (
            offsets.astype(np.int64).tobytes(),
            links.tobytes(),
            np.array([share for route in routes for share in route.share], np.float64).tobytes(),
            np.array([route.alone for route in routes]).tobytes(),
            np.array([(route.send, route.send_busy, route.receive, route.receive_busy) for route in routes]).tobytes(),
        )


def _cause(message: int, kind: int) -> int:
    return 3 * message + kind


def _in_order(message: Message) -> tuple[int, int, bool, int]:
    """By step, then by src; of what one rank sends, that to the next rank after it, around the end, is first."""
    return message.step, message.src, message.dst < message.src, message.dst


def _first_waiting(engine: Engine, key: Callable[[Message], tuple[int, ...]]) -> Message | None:
    """The message that an idle rank takes next."""
    if engine.busy or not engine.waiting:
        return None
    message = min(engine.waiting, key=key)
    engine.waiting.remove(message)
    return message


class _Event(tuple[float, int, Callable[[float], None]]):
    """Something that happens at a time; of two at the same time the one with the lower message number is first."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, tuple)
        return bool(self[:2] < other[:2])
