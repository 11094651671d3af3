"""Matching of messages with receives, by source and tag.

A message that no receive waits for is kept, so senders do not depend on the order of the receives.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from choreo.errors import CollectiveMismatch
from choreo.run.execute.dtypes import dtype_name
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.work import Work

__all__ = ["Matcher", "Message", "Receive", "Send"]


@dataclass(slots=True, eq=False)
class Send:
    """A send under way: the bytes that are not written yet."""

    peer: int
    rest: deque[memoryview]
    deadline_s: float
    work: Work[None]


@dataclass(slots=True, eq=False)
class Receive:
    """A receive under way; `finish` is called when its buffer is full."""

    peer: int
    tag: int
    dtype: int
    into: memoryview
    deadline_s: float
    work: Work[None]
    finish: Callable[[], None]

    def complete(self) -> None:
        """The message is in the buffer."""
        try:
            self.finish()
        except Exception as error:  # `wait` raises it
            self.work.end(error=error)
        else:
            self.work.end()


@dataclass(slots=True, eq=False)
class Message:
    """A message that comes in: into the buffer of a receive, or in pieces to keep."""

    tag: int
    dtype: int
    length: int
    got: int = 0
    receive: Receive | None = None
    pieces: list[bytes] = field(default_factory=list)


class Matcher:
    """The receives that wait, and the messages that are kept, by source and tag."""

    def __init__(self, rank: int, peers: tuple[PeerInfo, ...]) -> None:
        self._rank, self._peers = rank, peers
        self._waiting: defaultdict[tuple[int, int], deque[Receive]] = defaultdict(deque)
        self._kept: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)

    def match_kept(self, receive: Receive) -> bool:
        """Give a receive the oldest message that is kept for it, if there is one."""
        kept = self._kept.get((receive.peer, receive.tag))
        if not kept:
            return False
        self._match(kept.popleft(), receive)
        return True

    def wait(self, receive: Receive) -> None:
        """Let a receive wait for its message."""
        self._waiting[receive.peer, receive.tag].append(receive)

    def begin(self, peer: int, message: Message) -> None:
        """A message begins to come in: let it go straight into the buffer of a receive that it fits."""
        waiting = self._waiting.get((peer, message.tag))
        if waiting and len(waiting[0].into) == message.length and waiting[0].dtype == message.dtype:
            message.receive = waiting.popleft()

    def complete(self, peer: int, message: Message) -> None:
        """All of a message is there."""
        if message.receive is not None:
            message.receive.complete()
        elif waiting := self._waiting.get((peer, message.tag)):
            self._match(message, waiting.popleft())
        else:
            self._kept[peer, message.tag].append(message)

    def waiting(self) -> Iterator[Receive]:
        """All receives that wait."""
        for receives in self._waiting.values():
            yield from receives

    def remove_waiting(self, condition: Callable[[Receive], bool]) -> list[Receive]:
        """Remove and return the receives for which this holds."""
        removed = [receive for receive in self.waiting() if condition(receive)]
        for receive in removed:
            self._waiting[receive.peer, receive.tag].remove(receive)
        return removed

    def _match(self, message: Message, receive: Receive) -> None:
        """Copy a message that was kept into the buffer of a receive."""
        if (message.length, message.dtype) != (len(receive.into), receive.dtype):
            sent = f"{message.length} bytes of {dtype_name(message.dtype)}"
            asked = f"{len(receive.into)} bytes of {dtype_name(receive.dtype)}"
            who = f"{self._peers[receive.peer]} sent {sent} with tag {message.tag}"
            receive.work.end(error=CollectiveMismatch(f"{who}, but rank {self._rank} asked for {asked}"))
            return
        at = 0
        for piece in message.pieces:
            receive.into[at : at + len(piece)] = piece
            at += len(piece)
        receive.complete()
