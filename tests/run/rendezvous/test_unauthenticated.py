"""Unauthenticated clients of rank 0: they get a few bytes and a few seconds, and disturb nobody."""

from __future__ import annotations

import random
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from choreo.run.rendezvous.coordinator_connection import CoordinatorConnection, connect_to_coordinator
from choreo.run.rendezvous.messages import Join, blob_payload, encode
from choreo.run.transport.addresses import Target
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.frames import FrameKind
from choreo.run.transport.handshake import MAGIC
from choreo.run.transport.limits import MAX_UNAUTHENTICATED
from tests.helpers.ranks.rendezvous import (
    SECRET,
    Process,
    join,
    join_and_exchange,
    outcomes,
    ranks_do,
    shares,
    wait_for_listener,
)


def host(world_size: int, port: int, **how: object) -> Process:
    process = Process(join_and_exchange, {"rank": 0, "world_size": world_size, "port": port} | how)
    wait_for_listener(port)
    return process


def connected(port: int, number: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), 3.0) for _ in range(number)]


def test_silent_and_slow_ones(port: int) -> None:
    """Three hundred that say nothing or a byte at a time, more than may wait at once: all ranks still join."""
    rank_0 = host(3, port)
    outsiders = connected(port, 300)
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            for outsider in outsiders[:150]:
                with suppress(OSError):
                    outsider.send(b"c")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        found = outcomes([rank_0, *ranks_do(join_and_exchange, 3, port, only=range(1, 3))])
    finally:
        stop.set()
        thread.join()
        for outsider in outsiders:
            outsider.close()
    assert [outcome.value for outcome in found] == [shares(3, 1)] * 3


def test_the_oldest_makes_room(port: int) -> None:
    """Long before its time is up."""
    rank_0 = host(2, port)
    outsiders = connected(port, MAX_UNAUTHENTICATED + 20)
    try:
        for outsider in outsiders[:20]:
            while outsider.recv(100):
                pass
        for outsider in outsiders[20:]:
            assert len(outsider.recv(100)) == 41
            outsider.settimeout(0.001)
            with pytest.raises(TimeoutError):
                outsider.recv(100)
    finally:
        for outsider in outsiders:
            outsider.close()
        rank_0.end()


def test_a_silent_one_is_hung_up_on(port: int) -> None:
    """With nothing else going on, after a handshake's time and not before."""
    rank_0 = Process(join_quickly, {"rank": 0, "world_size": 2, "port": port, "timeout_s": 80.0})
    try:
        wait_for_listener(port)
        with socket.create_connection(("127.0.0.1", port), 60.0) as outsider:
            began_s = time.monotonic()
            while outsider.recv(100):
                pass
            assert time.monotonic() - began_s > 0.2
    finally:
        rank_0.end()


def join_quickly(**how: object) -> object:
    import choreo.run.transport.strangers

    choreo.run.transport.strangers.HANDSHAKE_S = 0.5  # type: ignore[attr-defined]
    return join(**how)  # type: ignore[arg-type]


def test_random_bytes(port: int) -> None:
    """Random lengths of random bytes, some of which begin as an answer does."""
    rank_0 = host(2, port)
    chance = random.Random(20)
    for number in range(60):
        data = chance.randbytes(chance.choice([1, 8, 40, 71, 72, 73, 500, 70_000]))
        if number % 2:
            data = MAGIC + data
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2.0) as outsider:
            outsider.sendall(data)
            if number % 3:
                assert outsider.recv(40) != b""
    found = outcomes([rank_0, *ranks_do(join_and_exchange, 2, port, only=range(1, 2))])
    assert [outcome.value for outcome in found] == [shares(2, 1)] * 2


def test_a_flood_is_not_kept(port: int) -> None:
    """Outsiders who send as much as they can, to a rank 0 with little memory to spare."""
    rank_0 = host_with_little_memory(port)
    outsiders = connected(port, 100)
    try:
        for outsider in outsiders:
            outsider.settimeout(0.05)
            with suppress(OSError):
                outsider.sendall(bytes(4 * 2**20))
        found = outcomes([rank_0, *ranks_do(join_and_exchange, 2, port, only=range(1, 2))])
    finally:
        for outsider in outsiders:
            outsider.close()
    assert [outcome.value for outcome in found] == [shares(2, 1)] * 2


def host_with_little_memory(port: int) -> Process:
    process = Process(join_in_little_memory, {"rank": 0, "world_size": 2, "port": port})
    wait_for_listener(port)
    return process


def join_in_little_memory(**how: object) -> object:
    used_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = join_and_exchange(**how)  # type: ignore[arg-type]
    grown_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - used_bytes
    assert grown_bytes < 8 * 2**20, grown_bytes
    return found


# Those who hold the secret and misuse it


@contextmanager
def insider(port: int) -> Iterator[CoordinatorConnection]:
    """One who holds the secret, connected."""
    connection = connect_to_coordinator(Target(socket.AF_INET, ("127.0.0.1", port)), SECRET, Deadline.after(5.0))
    try:
        yield connection
    finally:
        connection.close()


def test_an_insider_who_talks_nonsense_is_refused(port: int) -> None:
    rank_0 = host(2, port)
    chance = random.Random(5)
    for kind in FrameKind:
        with insider(port) as connection, pytest.raises((EOFError, OSError)):
            connection.send(kind, chance.randbytes(50), Deadline.after(5.0))
            connection.receive(Deadline.after(5.0))
    with insider(port) as connection, pytest.raises((EOFError, OSError)):  # more than anybody may say at this point
        connection.send(FrameKind.JOIN, bytes(5000), Deadline.after(5.0))
        connection.receive(Deadline.after(5.0))
    found = outcomes([rank_0, *ranks_do(join_and_exchange, 2, port, only=range(1, 2))])
    assert [outcome.value for outcome in found] == [shares(2, 1)] * 2


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        (FrameKind.BLOB, b"short", "a blob frame of 5 bytes came"),
        (FrameKind.BLOB, blob_payload(9, 1.0, b""), "a blob of exchange 9 came, where exchange [01] is due"),
        (FrameKind.WELCOME, b"", "unexpected frame of kind WELCOME"),
        (FrameKind.LEAVE, b"[]", "a malformed Leave came"),
        (FrameKind.BLOB, bytes(9 * 2**20), "a frame of 9437184 bytes was announced"),
    ],
    ids=["short", "another exchange", "another kind", "not JSON", "too long"],
)
def test_a_rank_that_breaks_the_protocol(kind: FrameKind, payload: bytes, reason: str, port: int) -> None:
    """All ranks get the reason, that rank too."""
    rank_0 = Process(join_and_exchange, {"rank": 0, "world_size": 3, "port": port})
    rank_1 = Process(join_and_exchange, {"rank": 1, "world_size": 3, "port": port})
    wait_for_listener(port)
    with insider(port) as connection:
        join = Join(2, 3, 4711, "elsewhere", "elsewhere", 5.0)
        connection.send(FrameKind.JOIN, encode(join), Deadline.after(5.0))
        assert connection.receive(Deadline.after(5.0)).kind == FrameKind.WELCOME
        with suppress(OSError):
            connection.send(kind, payload, Deadline.after(5.0))
        with suppress(EOFError):  # the reply is lost if more came than was read
            assert connection.receive(Deadline.after(5.0)).kind == FrameKind.ABORT
    found = outcomes([rank_0, rank_1])
    assert found[0].told == found[1].told
    assert found[0].ranks == found[1].ranks == (2,)
    assert re.search(rf"rank 2 \(pid 4711 on elsewhere\) broke the protocol (in|after) .*: {reason}", found[0].told)
