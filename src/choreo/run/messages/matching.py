"""Matching of messages with receives, by source and tag.

Messages from one source with one tag are received in the order in which they were sent. An unexpected message is kept,
so senders do not depend on the order of the receives. A receive from any source takes the sources in turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from choreo.errors import CollectiveMismatch, PeerFailure
from choreo.run.execute.dtypes import dtype_name
from choreo.run.stats import TrafficCounter
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.work import Work, seconds_to_wait

__all__ = [
    "ANY_SOURCE",
    "GONE",
    "NOT_TAKEN",
    "Matcher",
    "Message",
    "MessageDone",
    "MessageWork",
    "Progress",
    "Receive",
    "Send",
]

ANY_SOURCE = -1
GONE = "is gone: it died, or closed its communicator"
NOT_TAKEN = "did not take it before the deadline"


class Progress(Protocol):
    """Makes progress on messages while somebody waits for them."""

    def wait(self, work: MessageWork, timeout: float | None) -> None:
        """Move messages until this work is done, or for this many seconds."""

    def poll(self, work: MessageWork) -> None:
        """Move messages as far as they go now."""

    def attend(self, work: MessageWork) -> None:
        """A callback waits for this work, and perhaps no thread does."""

    def ended(self, work: MessageWork) -> None:
        """This work is done: count it, and run its callbacks once the state of the messages is consistent."""


class MessageWork(Work[int]):
    """A send or a receive in progress; its result is the other rank. Waiting for it moves messages."""

    def __init__(self, progress: Progress, what: str, peer: int, deadline_s: float) -> None:
        # `Work.__init__` is not called: it makes an event, which is not used here.
        self.what, self.peer, self.deadline_s = what, peer, deadline_s
        self.over = False
        self._progress: Progress | None = progress  # until it is over
        self._value: int | None = None
        self._error: BaseException | None = None
        self._raised = False
        self._callbacks: deque[Callable[[Work[int]], object]] = deque()

    def done(self) -> bool:
        """Whether it is over, with a result or an error."""
        progress = self._progress
        if progress is not None:
            progress.poll(self)
        return self.over

    def wait(self, timeout: float | str | None = None) -> None:
        """Wait until it is over. After `timeout` seconds TimeoutError is raised, and it goes on."""
        progress, seconds = self._progress, seconds_to_wait(timeout)
        if progress is not None:
            progress.wait(self, seconds)
        if not self.over:
            raise TimeoutError(f"{self.what} is not done after {seconds} s; it goes on, so wait again")
        if self._error is not None:
            self._raised = True
            raise self._error.with_traceback(None)

    def end(self, value: int | None = None, error: BaseException | None = None) -> None:
        """It is over, with a result or an error."""
        self._value, self._error = value, error
        progress, self.over, self._progress = self._progress, True, None
        if progress is not None:
            progress.ended(self)

    def add_done_callback(self, callback: Callable[[Work[int]], object]) -> None:
        """Call this with the work when it is over: on the thread that ends it, or at once if it is over already."""
        progress = self._progress
        if progress is not None and not self.over:
            progress.attend(self)  # before the callback is kept: there may be no thread for it
        super().add_done_callback(callback)

    def count(self, traffic: TrafficCounter) -> None:
        """Count the message, if it went to the other rank or came from it."""
        raise NotImplementedError

    @property
    def has_callbacks(self) -> bool:
        """Whether there are callbacks to run."""
        return bool(self._callbacks)

    def call_back(self) -> None:
        """Run the callbacks."""
        self._call_back()

    def fail(self, reason: str) -> None:
        """The other rank is at fault."""
        ranks = frozenset() if self.peer == ANY_SOURCE else frozenset({self.peer})
        who = "no rank" if self.peer == ANY_SOURCE else f"rank {self.peer}"
        name = "send" if isinstance(self, Send) else "recv"
        self.end(error=PeerFailure(f"{self.what}: {who} {reason}", ranks=ranks, collective=name))


class MessageDone(Work[int]):
    """A send or a receive that was over at once."""

    def __init__(self, what: str, peer: int) -> None:
        # `Work.__init__` is not called: there is nothing to wait for and no later callback.
        self.what, self._value, self._error = what, peer, None

    def done(self) -> bool:
        """It is over."""
        return True

    def wait(self, timeout: float | str | None = None) -> None:
        """Nothing is left to wait for."""
        seconds_to_wait(timeout)

    def add_done_callback(self, callback: Callable[[Work[int]], object]) -> None:
        """Call this at once."""
        callback(self)


class Send(MessageWork):
    """A send in progress."""

    def __init__(
        self, progress: Progress, what: str, peer: int, deadline_s: float, *, data: memoryview, dtype: int, tag: int
    ) -> None:
        super().__init__(progress, what, peer, deadline_s)
        self.data, self.dtype, self.tag = data, dtype, tag
        self.rest: deque[memoryview] = deque()  # what a socket has not taken yet
        self.begun = False  # a socket has taken something
        self.number = 0  # among those that its receiver reads where they are
        self.ends_at = 0  # where in the ring the next one begins

    def count(self, traffic: TrafficCounter) -> None:
        """Count the message, if it was sent."""
        if self._value is not None:
            traffic.add("send", self._value, sent_bytes=len(self.data))


class Receive(MessageWork):
    """A receive in progress; `finish` is called when its buffer is full."""

    def __init__(
        self,
        progress: Progress,
        what: str,
        peer: int,
        deadline_s: float,
        *,
        into: memoryview,
        dtype: int,
        tag: int,
        finish: Callable[[], None],
    ) -> None:
        super().__init__(progress, what, peer, deadline_s)
        self.into, self.dtype, self.tag, self.finish = into, dtype, tag, finish
        self.order = 0  # in which receives were posted

    def count(self, traffic: TrafficCounter) -> None:
        """Count the message, if it has come."""
        if self._value is not None:
            traffic.add("recv", self._value, received_bytes=len(self.into))

    def complete(self, source: int) -> None:
        """The message is in the buffer."""
        try:
            self.finish()
        except Exception as error:  # `wait` raises it
            self.end(error=error)
        else:
            self.end(source)


class Message:
    """A message that has arrived, or begins to arrive: its data is here in pieces, or goes to a receive."""

    def __init__(self, tag: int, dtype: int, length: int, pieces: list[bytes] | None = None) -> None:
        self.tag, self.dtype, self.length = tag, dtype, length
        self.pieces = [] if pieces is None else pieces
        self.got = 0
        self.receive: Receive | None = None
        self.unwanted = False  # a receive asked for something else, and has failed

    @property
    def kept_bytes(self) -> int:
        """The memory that it takes while it is kept."""
        return self.length

    def fetch(self, into: memoryview) -> bool:
        """Copy it to where it was asked for; False if it was withdrawn. ConnectionError if its sender is gone."""
        at = 0
        for piece in self.pieces:
            into[at : at + len(piece)] = piece
            at += len(piece)
        return True

    def discard(self) -> None:
        """Drop it: no receive will take it."""


class Matcher:
    """The posted receives, and the unexpected messages, by source and tag."""

    def __init__(self, rank: int, peers: tuple[PeerInfo, ...]) -> None:
        self._rank, self._peers = rank, peers
        self._waiting: dict[tuple[int, int], deque[Receive]] = {}
        self._kept: dict[int, dict[int, deque[Message]]] = {}  # by tag and source
        self.kept_bytes = [0] * len(peers)
        self._posted = 0
        self._turn = 0  # the source that a receive from any looks at first

    def post(self, receive: Receive) -> None:
        """Give a receive the oldest message that is kept for it; otherwise post it."""
        while not receive.over and (found := self._take_kept(receive)) is not None:
            self._deliver(found[0], found[1], receive)
        if not receive.over:
            self._posted += 1
            receive.order = self._posted
            self._waiting.setdefault((receive.peer, receive.tag), deque()).append(receive)

    def find(self, source: int, tag: int) -> Receive | None:
        """The receive that a message from this source is for, which no longer waits; the one that was posted first."""
        found: Receive | None = None
        for key in ((source, tag), (ANY_SOURCE, tag)):
            waiting = self._waiting.get(key)
            while waiting and waiting[0].deadline_s < time.monotonic():
                waiting.popleft().fail("sent nothing before the deadline")
            if waiting and (found is None or waiting[0].order < found.order):
                found = waiting[0]
            elif waiting is not None and not waiting:
                del self._waiting[key]
        if found is not None:
            self.remove(found)
            if found.peer == ANY_SOURCE:
                self._turn = source + 1
        return found

    def is_next(self, source: int, tag: int) -> bool:
        """Whether a receive posted now gets the next message with this source and tag: none is kept or awaited."""
        waiting, kept = self._waiting, self._kept
        if waiting and ((source, tag) in waiting or (ANY_SOURCE, tag) in waiting):
            return False
        return not kept or source not in kept.get(tag, ())

    def is_first(self, receive: Receive) -> bool:
        """Whether the next message from its source with its tag is for this posted receive."""
        waiting = self._waiting.get((receive.peer, receive.tag))
        return waiting is not None and waiting[0] is receive and (ANY_SOURCE, receive.tag) not in self._waiting

    def arrive(self, source: int, message: Message) -> None:
        """A message has arrived completely."""
        receive = self.find(source, message.tag)
        if receive is not None:
            if not self._deliver(source, message, receive):
                self._waiting.setdefault((receive.peer, receive.tag), deque()).appendleft(receive)
            return
        self._kept.setdefault(message.tag, {}).setdefault(source, deque()).append(message)
        self.kept_bytes[source] += message.kept_bytes

    def remove(self, receive: Receive) -> None:
        """Let a receive no longer wait."""
        key = (receive.peer, receive.tag)
        waiting = self._waiting.get(key)
        if waiting and receive in waiting:
            waiting.remove(receive)
            if not waiting:
                del self._waiting[key]

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._kept.clear()

    def waiting(self) -> Iterator[Receive]:
        """All receives that wait."""
        for receives in list(self._waiting.values()):
            yield from list(receives)

    def _take_kept(self, receive: Receive) -> tuple[int, Message] | None:
        by_source = self._kept.get(receive.tag)
        if not by_source:
            return None
        source = receive.peer
        if source == ANY_SOURCE:
            source = min(by_source, key=lambda source: (source - self._turn) % len(self._peers))
            self._turn = source + 1
        kept = by_source.get(source)
        if not kept:
            return None
        message = kept.popleft()
        self.kept_bytes[source] -= message.kept_bytes
        if not kept:
            del by_source[source]
            if not by_source:
                del self._kept[receive.tag]
        return source, message

    def _deliver(self, source: int, message: Message, receive: Receive) -> bool:
        """Copy a message into the buffer of a receive; False if it was withdrawn, and the receive must keep waiting."""
        if (message.length, message.dtype) != (len(receive.into), receive.dtype):
            receive.end(error=self.mismatch(source, message, receive))
            message.discard()
            return True
        try:
            fetched = message.fetch(receive.into)
        except ConnectionError as error:
            receive.peer = source
            receive.fail(str(error))
            return True
        if fetched:
            receive.complete(source)
        return fetched

    def mismatch(self, source: int, message: Message, receive: Receive) -> CollectiveMismatch:
        """The message is not what was asked for."""
        sent = f"{message.length} bytes of {dtype_name(message.dtype)}"
        asked = f"{len(receive.into)} bytes of {dtype_name(receive.dtype)}"
        who = f"{self._peers[source]} sent {sent} with tag {message.tag}"
        return CollectiveMismatch(f"{who}, but rank {self._rank} asked for {asked}")
