"""Messages between hosts, where the system is short of something."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from choreo.errors import ChoreoError, PeerFailure
from choreo.run.messages.matching import Matcher, MessageWork, Receive, Send
from choreo.run.messages.sockets import SocketMessages
from choreo.run.transport.nonblocking_handshake import NonblockingClient
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.strangers import Strangers

PEERS = tuple(PeerInfo(rank, f"host-{rank}", 1, "127.0.0.1") for rank in range(2))


class Side:
    """One rank, without a communicator. It only waits; the threads of its sockets do the rest."""

    def __init__(self, rank: int) -> None:
        self.matcher = Matcher(rank, PEERS)
        self.lock = threading.RLock()
        self.lost: list[int] = []
        self.sockets = SocketMessages(
            rank,
            PEERS,
            self.matcher,
            lock=self.lock,
            wake=lambda: None,
            lose=self._lose,
            fail=print,
        )

    def _lose(self, peer: int, reason: str) -> None:
        self.lost.append(peer)
        for receive in self.matcher.waiting():
            self.matcher.remove(receive)
            receive.fail(reason)

    def wait(self, work: MessageWork, timeout: float | None) -> None:
        while not work.over:
            time.sleep(0.001)

    def poll(self, work: MessageWork) -> None:
        pass

    attend = ended = poll

    def send(self, x: Any, tag: int, timeout_s: float = 20.0) -> Send:
        send = Send(self, "send", 1, time.monotonic() + timeout_s, data=memoryview(x.tobytes()), dtype=9, tag=tag)
        with self.lock:
            self.sockets.send(send)
        return send

    def receive(self, x: Any, tag: int) -> Receive:
        end_s, into = time.monotonic() + 20.0, x.view(np.uint8).data
        receive = Receive(self, "recv", 0, end_s, into=into, dtype=9, tag=tag, finish=lambda: None)
        with self.lock:
            self.matcher.post(receive)
            self.sockets.watch(receive)
        return receive


@pytest.fixture
def sides() -> Iterator[list[Side]]:
    made = [Side(rank) for rank in range(2)]
    yield made
    for side in made:
        side.sockets.close()


def start(sides: list[Side]) -> None:
    addresses = [("127.0.0.1", side.sockets.port) for side in sides]
    for rank, side in enumerate(sides):
        side.sockets.start(addresses, b"k" * 32, [1 - rank])


def no_sockets(*_: object) -> socket.socket:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_without_a_descriptor_a_send_is_tried_again(sides: list[Side], monkeypatch: pytest.MonkeyPatch) -> None:
    start(sides)
    monkeypatch.setattr(socket, "socket", no_sockets)
    in_vain = sides[0].send(np.ones(3), 1, timeout_s=0.1)
    work = sides[0].send(np.full(3, 2.0), 1)
    with pytest.raises(PeerFailure, match="rank 1 could not be reached before the deadline: Too many open files"):
        in_vain.wait()
    assert not work.over
    monkeypatch.undo()
    work.wait()
    x = np.empty(3)
    sides[1].receive(x, 1).wait()
    assert (x == 2).all()
    assert not sides[0].lost


def test_a_thread_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - its length is enough
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", cannot)
        with pytest.raises(ChoreoError, match=r"cannot be started: can't start new thread; allow more \(ulimit -u"):
            Side(0)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_rank_that_does_not_accept_yet_is_not_dead(sides: list[Side]) -> None:
    """Its accept queue is full for a while."""
    port = sides[1].sockets.port
    sides[1].sockets._incoming.listener.listen(0)
    others = [socket.socket() for _ in range(4)]
    for other in others:
        other.setblocking(False)
        other.connect_ex(("127.0.0.1", port))
    addresses = [("127.0.0.1", side.sockets.port) for side in sides]
    sides[0].sockets.start(addresses, b"k" * 32, [1])
    work = sides[0].send(np.ones(3), 1)
    time.sleep(0.05)
    assert not work.over and not sides[0].lost
    sides[1].sockets.start(addresses, b"k" * 32, [0])
    work.wait()
    x = np.empty(3)
    sides[1].receive(x, 1).wait()
    assert (x == 1).all()
    for other in others:
        other.close()


def test_a_rank_that_was_dropped_among_strangers_is_not_dead(
    sides: list[Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one whose other side has forgotten the connection."""
    drops = iter(range(3))
    real = Strangers.add

    def add(self: Strangers[Any], one: Any, descriptor: int) -> None:
        real(self, one, descriptor)
        if next(drops, None) is not None:
            self.drop_oldest()

    monkeypatch.setattr(Strangers, "add", add)
    monkeypatch.setattr("choreo.run.messages.outgoing.HANDSHAKE_S", 0.05)
    addresses = [("127.0.0.1", side.sockets.port) for side in sides]
    sides[0].sockets.start(addresses, b"k" * 32, [1])
    work = sides[0].send(np.ones(3), 1)
    time.sleep(0.2)  # nobody answers, and it is tried again
    assert not work.over and not sides[0].lost
    monkeypatch.setattr("choreo.run.messages.outgoing.HANDSHAKE_S", 20.0)
    sides[1].sockets.start(addresses, b"k" * 32, [0])
    work.wait()
    x = np.empty(3)
    sides[1].receive(x, 1).wait()
    assert (x == 1).all() and next(drops, None) is None


def test_a_rank_that_is_slow_after_its_proof_is_not_dead(sides: list[Side], monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is that was stopped there: it thinks that it is connected, and what it sends next must arrive."""
    monkeypatch.setattr("choreo.run.messages.incoming.HANDSHAKE_S", 0.1, raising=False)
    monkeypatch.setattr("choreo.run.transport.strangers.HANDSHAKE_S", 0.1)
    slept, feed = threading.Event(), NonblockingClient.feed

    def slow(self: NonblockingClient, data: bytes) -> bytes:
        answer = feed(self, data)
        if self.done:
            time.sleep(0.5)
            slept.set()
        return answer

    monkeypatch.setattr(NonblockingClient, "feed", slow)
    start(sides)
    sides[0].send(np.ones(3), 1).wait()
    x = np.empty(3)
    work = sides[1].receive(x, 1)
    work.wait()
    assert (x == 1).all() and slept.is_set()
    assert not sides[0].lost and not sides[1].lost


def test_what_nobody_asked_for_is_kept_up_to_a_bound(sides: list[Side], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("choreo.run.messages.incoming.KEPT_BYTES", 3_000_000)
    start(sides)
    works = [sides[0].send(np.full(100_000, float(number)), 1) for number in range(30)]
    deadline_s = time.monotonic() + 20.0
    while not sides[1].matcher.kept_bytes[0] > 3_000_000 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    time.sleep(0.05)
    assert 3_000_000 < sides[1].matcher.kept_bytes[0] <= 3_800_000
    assert not works[-1].over
    x = np.empty(100_000)
    for number in range(30):
        sides[1].receive(x, 1).wait()
        assert (x == number).all()
    works[-1].wait()
