"""End messages that are never received: at their deadline, when a rank is gone, or with the communicator."""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from typing import Any

from choreo.errors import ChoreoError
from choreo.run.messages.channel import CHANNEL_BYTES, CHANNEL_WORDS, Channel
from choreo.run.messages.matching import ANY_SOURCE, GONE, Matcher, MessageWork, Receive, Send
from choreo.run.messages.sockets import SocketMessages
from choreo.run.messages.words import Words
from choreo.run.transport.peer_info import PeerInfo

__all__ = ["MessageEndings", "no_words"]

LOOK_S = 0.01  # how often a waiting rank checks whether its peers are alive


class MessageEndings(ABC):
    """Ends the messages of one rank. All but `_fail` runs with the lock."""

    lock: Any
    _matcher: Matcher
    _peers: tuple[PeerInfo, ...]
    _names: list[str]
    _channels: dict[int, Channel]
    _order: list[Channel]
    _pidfds: dict[int, int]
    _gone: dict[int, str]
    _looked_s: float
    _refusal: ChoreoError | None
    _words: Words
    _sockets: SocketMessages | None

    @abstractmethod
    def _wake(self) -> None:
        """Something is over that another thread may wait for, or that has callbacks."""

    def _expire(self, work: MessageWork) -> None:
        """End a work whose deadline has passed. The thread of the sockets ends its own sends."""
        channel = self._channels.get(work.peer)
        if isinstance(work, Receive):
            if self._sockets is None or not self._sockets.take_back(work):
                self._matcher.remove(work)
                work.fail(self._nothing_came(work))
        elif channel is not None and isinstance(work, Send):
            channel.withdraw(work)

    def _nothing_came(self, receive: Receive) -> str:
        gone = sorted(self._gone)
        if receive.peer == ANY_SOURCE and gone:
            return f"sent anything before the deadline; {', '.join(self._names[rank] for rank in gone)} had gone"
        if receive.peer == ANY_SOURCE:
            return "sent anything before the deadline"
        channel = self._channels.get(receive.peer)
        if channel is not None and channel.is_full:
            return "sent nothing with this tag before the deadline, and so much with others that no more of it is kept"
        if self._sockets is not None and self._sockets.shortage:
            return (
                f"sent nothing before the deadline; this rank could not accept a connection: {self._sockets.shortage}"
            )
        return "sent nothing before the deadline"

    def _look_for_dead(self) -> None:
        """Check whether peers are alive, unless that was just done."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        for channel in list(self._order):
            if not channel.gone and channel.has_ended:
                self._lose(channel.peer, GONE)

    def _lose(self, peer: int, reason: str = GONE) -> None:
        """A rank is gone. What it sent before is read first."""
        if peer in self._gone:
            return
        channel = self._channels.get(peer)
        if channel is not None:
            with contextlib.suppress(ValueError):
                while channel.read_one(bounded=False):
                    pass
            channel.collect()
            channel.lose(reason)
        self._gone[peer] = reason
        for receive in self._matcher.waiting():
            self._fail_if_gone(receive)
        self._wake()

    def _all_gone(self, receive: Receive) -> bool:
        if receive.peer != ANY_SOURCE:
            return receive.peer in self._gone
        return len(self._gone) == len(self._peers) - 1 > 0

    def _fail_if_gone(self, receive: Receive) -> None:
        if not receive.over and self._all_gone(receive):
            self._matcher.remove(receive)
            everyone = "is left: all others died, or closed theirs"
            receive.fail(everyone if receive.peer == ANY_SOURCE else self._gone[receive.peer])

    def _fail(self, error: ChoreoError) -> None:
        """End everything that is in progress with this error, and allow nothing more."""
        with self.lock:
            if self._refusal is not None:
                return
            self._refusal = error
            in_progress: list[MessageWork] = list(self._matcher.waiting())
            for channel in self._channels.values():
                in_progress += [*channel.exposed.values(), *channel.queue]
                channel.say_closed()
            if self._sockets is not None:
                in_progress += self._sockets.in_progress()
            for work in in_progress:
                work.end(error=error)
            self._wake()
            self._release()

    def _release(self) -> None:
        self._matcher.clear()
        self._channels.clear()
        self._order.clear()
        self._words = no_words()  # a thread may still sleep in those that there were
        descriptors, self._pidfds = self._pidfds, {}
        for descriptor in descriptors.values():
            os.close(descriptor)


def no_words() -> Words:
    """The words of a rank that has no peers to share them with."""
    return Words(0, b"", 0, [None], CHANNEL_BYTES, CHANNEL_WORDS, False)
