"""Sends and receives the messages of one rank, with tags.

Ranks of one host exchange messages through shared memory, without a thread: a rank that waits for a message makes
progress on all messages, and then sleeps until a peer rings its doorbell. Only if `isend` finds no room does a thread
help, until there is nothing left to send. Ranks of other hosts are reached through sockets, which a thread reads and
writes.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from choreo.errors import ChoreoError, CommunicatorClosed
from choreo.run.execute.heap import Heap
from choreo.run.messages.channel import CHANNEL_BYTES, CHANNEL_WORDS, Channel, LocalPeer, SenderMemory
from choreo.run.messages.endings import MessageEndings, no_words
from choreo.run.messages.matching import ANY_SOURCE, Matcher, Message, MessageWork, Receive, Send
from choreo.run.messages.send_buffers import SendBuffers
from choreo.run.messages.sockets import SocketMessages
from choreo.run.messages.words import message_core
from choreo.run.stats import TrafficCounter
from choreo.run.transport.shortage import start_thread

if TYPE_CHECKING:
    from choreo.run.connection import Connection

__all__ = ["PointToPoint"]

SLEEP_S = 0.01  # the longest sleep at once
# A send that waits longer is copied into a buffer. A large one waits longer, because its copy costs more; and far
# longer if its receiver has not even looked: on a busy machine it may just not have had a core.
PATIENCE_S, PATIENCE_S_PER_BYTE, UNSEEN_PATIENCE_S = 0.002, 1e-9, 0.05
AGAIN = "make another communicator"
ROUNDS = 64  # how often one message is taken from each peer before a waiting rank checks its own work


class PointToPoint(MessageEndings):
    """All messages of one rank."""

    def __init__(self, connection: Connection, heap: Heap, traffic: TrafficCounter) -> None:
        self._connection, self._rank, self._peers = connection, connection.rank, connection.peers
        self._names = [str(peer) for peer in self._peers]
        self._matcher = Matcher(self._rank, self._peers)
        self.lock = threading.RLock()  # of everything here, and of the counts of messages
        self._core = message_core()
        self.memory_at = self._core.memory_at
        self._segment, self._heap, self._traffic = connection.segment, heap, traffic
        self._local = [int(rank) for rank in np.flatnonzero(~connection.remote)]  # the ranks of this host
        self.at = self._segment.take(CHANNEL_BYTES * len(self._local))  # where the channels begin
        self._channels: dict[int, Channel] = {}
        self._order: list[Channel] = []  # whose turn it is to be read first
        self._pidfds: dict[int, int] = {}
        self._gone: dict[int, str] = {}  # ranks from which nothing more comes, and why
        self._looked_s = 0.0
        self._refusal: ChoreoError | None = None
        self._waiters = 0
        self._helper: threading.Thread | None = None
        self._attended: list[MessageWork] = []  # that the helper waits for
        self._ended: deque[MessageWork] = deque()  # whose callbacks are to be called
        self._words = no_words()
        self._sockets: SocketMessages | None = None
        try:
            for peer in self._local:
                if peer != self._rank:
                    self._pidfds[peer] = os.dup(connection.pidfds[peer])
            if connection.remote.any():
                self._sockets = SocketMessages(
                    self._rank,
                    self._peers,
                    self._matcher,
                    lock=self.lock,
                    wake=self._wake,
                    lose=self._lose,
                    fail=self._fail,
                )
        except BaseException:
            self._release()
            raise

    @property
    def port(self) -> int:
        """The port that ranks on other hosts connect to; 0 if there are none."""
        return 0 if self._sockets is None else self._sockets.port

    def connect(
        self, channels_at: list[int], ports: list[int], key: bytes | None, *, readable: bool, cipher: str
    ) -> None:
        """Connect to the other ranks' channels or addresses; `readable` if peers may read this process's memory."""
        connection, own = self._connection, self._segment.map
        memory = SenderMemory(own, self._heap.address, readable, SendBuffers(self._heap))
        me = self._local.index(self._rank)
        maps = [None if peer == self._rank else (connection.maps[peer], channels_at[peer]) for peer in self._local]
        alone = len(maps) <= (os.cpu_count() or 1)
        self._words = self._core.Words(me, own, self.at, list(maps), CHANNEL_BYTES, CHANNEL_WORDS, alone)
        for index, (peer, found) in enumerate(zip(self._local, maps, strict=True)):
            if found is None:
                continue
            at, their_at = self.at + index * CHANNEL_BYTES, found[1] + me * CHANNEL_BYTES
            theirs = LocalPeer(peer, index, self._peers[peer].pid, self._pidfds[peer], found[0], their_at)
            self._channels[peer] = Channel(self._core, self._words, self._matcher, memory=memory, peer=theirs, at=at)
        self._order = list(self._channels.values())
        if self._sockets is not None:
            assert key is not None
            addresses = [(peer.address, ports[peer.rank]) for peer in self._peers]
            remote = [int(peer) for peer in np.flatnonzero(connection.remote)]
            self._sockets.start(addresses, key, remote, cipher=cipher)

    def send(
        self, data: memoryview, dtype: int, peer: int, tag: int, timeout_s: float, *, blocking: bool = False
    ) -> Send:
        """Send these bytes; done when they may be changed again. `blocking` if the caller waits for that at once."""
        what = f"send of {len(data)} bytes with tag {tag} to {self._names[peer]}"
        send = Send(self, what, peer, time.monotonic() + timeout_s, data=data, dtype=dtype, tag=tag)
        with self.lock:
            self._check()
            self._look_for_dead()
            if peer in self._gone:
                send.fail(self._gone[peer])
            elif peer == self._rank:
                self._matcher.arrive(peer, Message(tag, dtype, len(data), [bytes(data)]))
                send.end(peer)
            elif (channel := self._channels.get(peer)) is not None:
                channel.send(send)
                if channel.queue and not blocking:
                    with contextlib.suppress(ChoreoError):  # without the thread, the next call continues it
                        self._start_helper()
            else:
                self._over_sockets.send(send)
        self._call_back()
        return send

    def receive(
        self, into: memoryview, dtype: int, peer: int, tag: int, timeout_s: float, *, finish: Callable[[], None]
    ) -> Receive:
        """Receive into these bytes; `finish` is called when they are there. The peer may be ANY_SOURCE."""
        source = "any rank" if peer == ANY_SOURCE else self._names[peer]
        what = f"recv of {len(into)} bytes with tag {tag} from {source}"
        deadline_s = time.monotonic() + timeout_s
        receive = Receive(self, what, peer, deadline_s, into=into, dtype=dtype, tag=tag, finish=finish)
        with self.lock:
            self._check()
            self._matcher.post(receive)
            if not receive.over:
                if self._sockets is not None:
                    self._sockets.watch(receive)
                self._fail_if_gone(receive)
        self._call_back()
        return receive

    def send_now(self, data: memoryview, dtype: int, peer: int, tag: int) -> bool:
        """Send a small message to a rank of this host if that is possible at once; otherwise do nothing."""
        with self.lock:
            self._look_for_dead()
            channel = self._channels.get(peer)
            if channel is None or channel.gone or self._refusal is not None:
                return False
            if not channel.send_now(data, dtype, tag):
                return False
            self._traffic.add("send", peer, sent_bytes=len(data))
        return True

    def receive_now(self, into: memoryview, dtype: int, peer: int, tag: int) -> bool | None:
        """Receive a small message from a rank of this host if it is the next one; otherwise do nothing.

        None if nothing has arrived from the rank, so that it may yet be the next.
        """
        with self.lock:
            channel = self._channels.get(peer)
            if channel is None or channel.gone or not self._matcher.is_next(peer, tag):
                return False
            try:
                taken = channel.take_now(into, dtype, tag)
            except ValueError:  # `_advance` reports it
                return False
            if taken:
                self._traffic.add("recv", peer, received_bytes=len(into))
        return taken

    def receive_soon(self, into: memoryview, dtype: int, peer: int, tag: int, wait_s: float) -> bool:
        """The same, but if nothing has arrived, wait for it once, for at most this many seconds."""
        words = self._words
        bells = words.bells()
        taken = self.receive_now(into, dtype, peer, tag)
        if taken is None:
            self.sleep(bells, wait_s)
            taken = self.receive_now(into, dtype, peer, tag)
        return bool(taken)

    def bells(self) -> int:
        """A count of what has happened, for `sleep`."""
        return self._words.bells()

    def sleep(self, bells: int, wait_s: float) -> None:
        """Wait until something happens after this count, or for this many seconds, but not for long."""
        with self.lock:
            self._waiters += 1  # the thread that moves a message wakes us
            words = self._words
        try:
            words.wait(bells, min(wait_s, SLEEP_S))
        finally:
            with self.lock:
                self._waiters -= 1

    def wait(self, work: MessageWork, timeout: float | None) -> None:
        """Move messages until this work is done, or for this many seconds."""
        began_s = time.monotonic()
        end_s = math.inf if timeout is None else began_s + timeout
        with self.lock:
            self._waiters += 1
        try:
            while True:
                words = self._words
                bells = words.bells()
                self.poll(work)
                now_s = time.monotonic()
                if work.over or now_s > end_s:
                    return
                sleep_s = min(SLEEP_S, work.deadline_s - now_s, end_s - now_s)
                if type(work) is Send and work.number:
                    sleep_s = min(sleep_s, PATIENCE_S)
                    self._buffer(work, now_s - began_s)
                    if work.over:
                        return
                words.wait(bells, max(1e-5, sleep_s))
        finally:
            with self.lock:
                self._waiters -= 1
            self._call_back()

    def poll(self, work: MessageWork) -> None:
        """Move messages as far as they go now, and end this work if its time is up."""
        with self.lock:
            try:
                if self._refusal is not None and not work.over:
                    work.end(error=self._refusal)
                if not work.over and not (type(work) is Receive and self._take_posted(work)):
                    self._advance()
                if not work.over:
                    self._look_for_dead()
                if not work.over and time.monotonic() > work.deadline_s:
                    self._expire(work)
            except BaseException as error:
                # It may have been interrupted between two steps that belong together, so nothing may follow.
                self._fail(CommunicatorClosed(f"messages were interrupted by {type(error).__name__}; {AGAIN}"))
                raise
        self._call_back()

    def attend(self, work: MessageWork) -> None:
        """Have a thread move messages until this work is over."""
        with self.lock:
            self._start_helper(work)

    def ended(self, work: MessageWork) -> None:
        """This work is over. Those who asked for it are called when the lock is free: they may send messages."""
        work.count(self._traffic)
        if work.has_callbacks:
            self._ended.append(work)

    def close(self) -> None:
        """Close everything; what is in progress fails. Closing twice does nothing."""
        with self.lock:
            self._fail(CommunicatorClosed("the communicator was closed while this was in progress"))
            sockets, self._sockets = self._sockets, None  # they refer to this
        self._call_back()
        if sockets is not None:
            sockets.close()

    def drop(self) -> None:
        """Release what a fork inherited; the parent's messages stay as they are."""
        self.lock = threading.RLock()  # a thread of the parent may have held it
        self._refusal = CommunicatorClosed("this communicator belongs to the process that this one is a fork of")
        self._release()
        if self._sockets is not None:
            self._sockets.drop()
            self._sockets = None

    def _call_back(self) -> None:
        while self._ended:
            with contextlib.suppress(IndexError):  # another thread has taken it
                self._ended.popleft().call_back()

    # What follows runs with the lock.

    @property
    def _over_sockets(self) -> SocketMessages:
        assert self._sockets is not None
        return self._sockets

    def _check(self) -> None:
        if self._refusal is not None:
            raise copy.copy(self._refusal)

    def _take_posted(self, receive: Receive) -> bool:
        """Take the next message of a rank if this receive is the one that gets it; all others stay where they are."""
        channel = self._channels.get(receive.peer)
        if channel is None or channel.gone or not self._matcher.is_first(receive):
            return False
        try:
            if not channel.take_now(receive.into, receive.dtype, receive.tag):
                return False
        except ValueError:  # `_advance` says so
            return False
        self._matcher.remove(receive)
        receive.complete(receive.peer)
        return True

    def _wake(self) -> None:
        """Something is over that another thread may wait for, or that has callbacks."""
        self._words.wake_threads()

    def _advance(self) -> None:
        """Make progress on all messages. One message of each peer in turn, so that none starves the others."""
        order, changed = self._order, False
        for _ in range(ROUNDS):
            moved = False
            for channel in order:
                if not channel.gone:
                    try:
                        moved = channel.read_one() or moved
                    except ValueError as error:
                        self._lose(channel.peer, str(error))
            if not moved:
                break
            changed = True
            order.append(order.pop(0))
        for channel in order:
            if channel.exposed or channel.queue:
                changed = channel.collect() or changed
                channel.flush()
        if changed and self._waiters + (self._helper is not None) > 1:
            self._wake()

    def _start_helper(self, *works: MessageWork) -> None:
        """Have a thread move messages while nobody waits for them, until these works are over."""
        if self._helper is None:
            self._helper = start_thread(self._help, "choreo-messages", "messages that nobody waits for")
        self._attended += works

    def _help(self) -> None:
        while True:
            words = self._words
            bells = words.bells()
            with self.lock:
                self._attended = [work for work in self._attended if not work.over]
                queued = [channel.queue[0] for channel in self._order if channel.queue]
                if not queued and not self._attended:
                    self._helper = None
                    break
            for work in (*queued, *self._attended):
                self.poll(work)
            words.wait(bells, SLEEP_S)
        self._call_back()

    def _buffer(self, send: Send, waited_s: float) -> None:
        """Copy a message that has waited for too long."""
        if waited_s < PATIENCE_S + len(send.data) * PATIENCE_S_PER_BYTE:
            return
        with self.lock:
            channel = self._channels.get(send.peer)
            if channel is not None and not send.over and (waited_s > UNSEEN_PATIENCE_S or channel.has_seen(send)):
                channel.buffer(send)
