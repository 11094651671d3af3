"""What comes over a network before it is believed: clients, control connections, streams; noise and outsiders."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.errors import RendezvousError
from choreo.run.consensus.control_channel import Accept, ControlChannel, ControlConnection, Decision, StatusUpdate
from choreo.run.execute import backend
from choreo.run.execute.failures import ALTERED, BROKEN, MISMATCHED, PEER_DIED, PEER_GAVE_UP, TIMED_OUT
from choreo.run.execute.layout import (
    CHAIN_FACTOR,
    FRAME,
    GUARD,
    LAST,
    OP,
    RECEIVE,
    REDUCE,
    Frame,
)
from choreo.run.execute.twin.sockets import stripes
from choreo.run.transport.frames import FrameKind
from choreo.run.transport.handshake import MAGIC
from choreo.run.transport.nonblocking_handshake import NonblockingClient, NonblockingServer
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.tcp import STREAMS, NetworkConfig, PeerListener, TcpConnections, dial_peer
from tests.helpers.ranks.executors import COMPILED, STAGE_BYTES, TWIN, control_over, segment_of

KEY = bytes(range(32))
FLOAT32 = 8


# Clients.


def connect_all(
    listeners: list[PeerListener], peers: list[PeerInfo], key_of: Any = lambda _: KEY
) -> list[TcpConnections | Exception]:
    """All ranks connect, each in a thread; what they got."""

    def one(rank: int) -> TcpConnections | Exception:
        others = [peer for peer in peers if peer.rank != rank]
        ports = [listeners[peer.rank].port for peer in others]
        try:
            lower = listeners[rank].connect(peers[rank], others, ports, key_of(rank), time.monotonic() + 5.0)
            return listeners[rank].finish(lower, others, time.monotonic() + 2.0)
        except Exception as error:  # the test looks at it
            return error

    with ThreadPoolExecutor(len(peers)) as pool:
        return list(pool.map(one, range(len(peers))))


@pytest.fixture
def three() -> Any:
    peers = [PeerInfo(rank, "here", 100 + rank, "127.0.0.1") for rank in range(3)]
    listeners = [PeerListener("127.0.0.1") for _ in peers]
    yield listeners, peers
    for one in listeners:
        one.close()


def test_ranks_connect_though_strangers_come_first(three: Any) -> None:
    listeners, peers = three
    with ExitStack() as outsiders:
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(200), MAGIC + bytes(64)):
            for one in listeners:
                outsider = outsiders.enter_context(socket.create_connection(("127.0.0.1", one.port), 5.0))
                outsider.sendall(noise)
        found = connect_all(listeners, peers)
    for rank, links in enumerate(found):
        assert isinstance(links, TcpConnections)
        assert sorted(links.control) == [other for other in range(3) if other != rank]
        assert all(len(several) == STREAMS for several in links.streams.values())
        links.close()


def test_connections_may_come_in_any_order(three: Any) -> None:
    """A packet of the first may be lost, and sent again after those of the others."""
    listeners, peers = three
    end_s = time.monotonic() + 10.0
    nobody = listeners[0].connect(peers[0], peers[1:2], [0], KEY, end_s)
    made = [dial_peer(peers[0], listeners[0].port, KEY, end_s) for _ in range(STREAMS + 1)]
    for which in reversed(range(STREAMS + 1)):
        made[which].socket.sendall(made[which].writer.seal(FrameKind.JOIN, struct.pack(">II", 1, which)))
        time.sleep(0.02)
    found = listeners[0].finish(nobody, peers[1:2], end_s)
    here = [one.socket.getpeername() for one in (found.control[1], *found.streams[1])]
    assert here == [one.socket.getsockname() for one in made]
    found.close()
    for one in made:
        one.socket.close()


def test_a_rank_with_another_key_is_not_let_in(three: Any) -> None:
    listeners, peers = three
    found = connect_all(listeners, peers, lambda rank: KEY if rank else bytes(32))
    assert all(isinstance(one, RendezvousError) for one in found[:2])
    for one in found:
        if isinstance(one, TcpConnections):
            one.close()


def test_a_rank_that_is_gone_is_named(three: Any) -> None:
    listeners, peers = three
    listeners[0].close()
    with pytest.raises(RendezvousError, match="was lost while the ranks connected") as caught:
        listeners[1].connect(peers[1], peers[:1], [listeners[0].port], KEY, time.monotonic() + 2.0)
    assert caught.value.ranks == (0,)


def test_the_key_is_never_sent() -> None:
    caller, host, said = NonblockingClient(KEY, 7), NonblockingServer(KEY), b""
    answer = host.challenge
    while not host.done:
        said += answer
        back = b"".join(caller.feed(answer[at : at + 1]) for at in range(len(answer)))
        said += back
        answer = b"".join(host.feed(back[at : at + 1]) for at in range(len(back)))
    assert host.rank == 7
    assert not any(KEY[at : at + 8] in said for at in range(len(KEY) - 8))
    network = NetworkConfig("10.0.0.1", KEY)
    assert "secret" not in repr(network)
    assert network.derive_key("a", [b"1"]) not in (network.derive_key("a", [b"2"]), network.derive_key("b", [b"1"]))


@given(st.binary(max_size=400))
def test_who_does_not_hold_the_key_does_not_get_in(noise: bytes) -> None:
    host = NonblockingServer(KEY)
    try:
        while noise and not host.done:
            part, noise = noise[: host.needs_bytes], noise[host.needs_bytes :]
            host.feed(part)
    except RendezvousError:
        return
    assert not host.done


# Control connections.


def pair() -> tuple[ControlConnection, ControlConnection]:
    mine, theirs = socket.socketpair()
    return control_over(mine, higher=False), control_over(theirs, higher=True)


@given(st.binary(max_size=300), st.sampled_from((None, *FrameKind)), st.integers(0, 2**32 - 1))
@settings(max_examples=200)
def test_noise_on_a_control_connection(noise: bytes, kind: FrameKind | None, length: int) -> None:
    """Nothing comes of it but the end of the connection; a length alone takes no memory."""
    mine, theirs = pair()
    head = b"" if kind is None else length.to_bytes(4, "big") + bytes([kind])
    theirs.socket.sendall(head + noise)
    theirs.close()
    assert mine.receive() == []
    assert mine.lost
    assert (mine.gave_up, mine.progress) == ((0, 0, 0), [0, 0])
    assert len(mine._reader._buffer) <= len(head) + len(noise)
    mine.close()


def test_what_is_said_on_a_control_connection() -> None:
    mine, theirs = pair()
    theirs.send_progress(1, 5)
    theirs.send(Accept("it", 2, b"value"))
    theirs.say_goodbye(7, 1, 9)
    assert mine.receive() == [Accept("it", 2, b"value")]
    assert mine.progress == [0, 5]
    assert mine.gave_up == (7, 1, 9)
    assert not mine.lost
    sealed = bytearray(theirs._writer.seal(FrameKind.BLOB, b"forged"))
    sealed[7] ^= 1
    theirs.socket.sendall(sealed)
    assert mine.receive() == []
    assert mine.lost and mine.altered
    for one in (mine, theirs):
        one.close()


# Streams.


@given(st.integers(0, 1 << 40), st.integers(1, 8))
def test_parts_cover_a_range_without_cutting_an_element(length: int, streams: int) -> None:
    found = stripes(length, streams)
    assert 1 <= len(found) <= streams
    assert sum(part for _, part in found) == length
    assert [at for at, _ in found] == [sum(part for _, part in found[:number]) for number in range(len(found))]
    assert all(at % 4096 == 0 for at, _ in found)


CHAIN = 7 * CHAIN_FACTOR % 2**64  # of one call, whose signature is 7


def endpoint(kind: bool, control: ControlConnection, streams: tuple[Any, ...]) -> Any:
    own = segment_of(2)
    backend.executor(kind).prepare_segment(own, 0, 2, STAGE_BYTES)
    backend.prepare_sealing(kind)
    peers = [(None, 0, -1, ()), (None, 1, os.dup(control.socket.fileno()), streams, control)]
    return backend.executor(kind).Endpoint(0, 2, own, STAGE_BYTES, peers, 5)


def receive(kind: bool, length: int, flags: int = LAST) -> Any:
    row = (RECEIVE, flags, 1, 1, 0, 0, 0, 0, 0, 0, 0, length)
    columns = np.array([row], OP), np.array([], GUARD), np.array([0, 0], "<u4"), np.array([0, 1], "<u4")
    ops, waits, sent, received = (column.tobytes() for column in columns)
    return backend.executor(kind).Program(ops, waits, sent, received, 0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 255)), max_size=3),
    st.sampled_from((64, 20_000, 3 << 20)),
    st.sampled_from((COMPILED, TWIN)),
    st.booleans(),
)
@settings(max_examples=60)
def test_frames_that_are_not_due(changes: list[tuple[int, int]], length: int, kind: bool, adds: bool) -> None:
    """A frame that differs in any byte ends the call; what is due arrives, in whatever pieces."""
    sockets = [socket.socketpair() for _ in range(4)]
    (control, theirs), *streams = sockets
    payload = np.random.default_rng(length).random(length // 4, np.float32)
    frames = []
    for number, (at, part) in enumerate(stripes(length, len(streams))):
        frame = bytearray(Frame(FRAME, 1, 1, CHAIN, part).pack())
        for field, change in changes if number == 0 else ():
            frame[(0, 4, 8, 16, 24)[field]] ^= change
        frames.append(bytes(frame) + payload.tobytes()[at : at + part])
    wrong = bytearray(frames[0][:32]) != bytearray(Frame(FRAME, 1, 1, CHAIN, stripes(length, 3)[0][1]).pack())

    def send(number: int) -> None:
        try:
            streams[number][1].sendall(frames[number])
        except OSError:
            return

    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(frames))]
    made = endpoint(kind, control_over(control, higher=False), tuple(near.fileno() for near, _ in streams))
    for one in threads:
        one.start()
    x = np.ones(length // 4, np.float32)
    failed = made.run(1, 7, receive(kind, length, LAST | REDUCE * adds), None, x, FLOAT32, 0, 20.0, False)
    for near, far in sockets:
        near.shutdown(socket.SHUT_RDWR)
        far.shutdown(socket.SHUT_RDWR)
    for one in threads:
        one.join()
    if wrong:
        assert failed is not None
        assert failed[0] in (BROKEN, MISMATCHED)
    else:
        assert failed is None
        assert (x == (payload + np.float32(1) if adds else payload)).all()
    made.close()
    for one_socket in (one for both in sockets for one in both):
        one_socket.close()
    del theirs


@pytest.mark.parametrize("kind", [COMPILED, TWIN])
@pytest.mark.parametrize(
    ("says", "outcome"),
    [
        (lambda _: None, TIMED_OUT),
        (lambda them: them.socket.shutdown(socket.SHUT_WR), PEER_DIED),
        (lambda them: them.send_progress(1, 3), TIMED_OUT),
        (lambda them: (them.send_progress(1, 3), them.say_goodbye(1, 0, 1)), PEER_GAVE_UP),
        (lambda them: them.say_goodbye(7, 1, 1), TIMED_OUT),  # it left after this very call, so it has done its part
        (lambda them: (them.say_goodbye(7, 1, 1), them.close()), TIMED_OUT),
        (lambda them: them.say_goodbye(7, 1, 0), PEER_GAVE_UP),
        (lambda them: them.send(Decision("it", b"")), PEER_GAVE_UP),
        (lambda them: them.socket.sendall(b"what" * 20), ALTERED),
        (lambda them: them.socket.sendall(Frame(FRAME, 7, 0, 1, 0).pack() * 9), ALTERED),
    ],
)
def test_what_an_executor_makes_of_the_control_connection(kind: bool, says: Any, outcome: int) -> None:
    (near, far), (mine, theirs) = socket.socketpair(), pair()
    with near, far, mine.socket, theirs.socket:
        made = endpoint(kind, mine, (near.fileno(),))
        says(theirs)
        x = np.zeros(16, np.float32)
        failed = made.run(1, 7, receive(kind, 64), None, x, FLOAT32, 0, 0.2, False)
        assert failed is not None
        assert failed[:2] == (outcome, 1)
        assert mine.progress == ([0, 3] if mine.progress[1] else [0, 0])
        made.close()


def test_a_status_arrives_unchanged() -> None:
    from choreo.run.consensus.status import Status

    mine, theirs = pair()
    status = Status(1, 2, 3, 4, "all_reduce", 5, 6, 7, (b"blob",))
    theirs.send(StatusUpdate(status))
    remote = ControlChannel({1: mine})
    remote.poll()
    assert remote.status_of(1) == status
    theirs.close()
    remote.poll()
    assert set(remote.dead()) == {1}
    remote.close()
