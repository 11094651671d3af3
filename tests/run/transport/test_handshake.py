"""The handshake: who holds the secret gets in, and nobody else, whatever they say."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.errors import RendezvousError
from choreo.run.transport.errors import ProtocolError, WrongSecretError
from choreo.run.transport.frames import FrameKind
from choreo.run.transport.handshake import (
    HELLO_BYTES,
    MAGIC,
    REPLY_BYTES,
    ClientHandshake,
    ServerHandshake,
)
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.records import CIPHERS
from choreo.run.transport.tcp import dial_peer
from tests.helpers.ranks.rendezvous import OTHER, SECRET

ANSWER_BYTES = 73


def answered(server: ServerHandshake, client: ClientHandshake) -> bytes:
    client.check_magic(server.challenge[: len(MAGIC)])
    return client.answer(server.challenge[len(MAGIC) :])


@given(st.lists(st.integers(1, ANSWER_BYTES), max_size=10))
def test_two_who_hold_the_secret(cuts: list[int]) -> None:
    server, client = ServerHandshake(SECRET), ClientHandshake(SECRET)
    answer = answered(server, client)
    assert len(answer) == server.needs_bytes == ANSWER_BYTES
    accepted = None
    for low, high in zip([0, *sorted(cuts)], [*sorted(cuts), ANSWER_BYTES], strict=True):
        accepted = server.feed(answer[low:high]) or accepted
    assert accepted is not None
    reply, server_reader, server_writer = accepted
    reader, writer = client.accept(reply)
    assert server_reader.feed(writer.seal(FrameKind.JOIN, b"hello")) == [(FrameKind.JOIN, b"hello")]
    assert reader.feed(server_writer.seal(FrameKind.WELCOME, b"you")) == [(FrameKind.WELCOME, b"you")]


@pytest.mark.parametrize(("server_has", "client_has"), [((), ()), (CIPHERS, ()), ((), CIPHERS), (CIPHERS, CIPHERS[1:])])
def test_frames_are_encrypted_where_both_have_a_cipher(
    server_has: tuple[str, ...], client_has: tuple[str, ...]
) -> None:
    server, client = ServerHandshake(SECRET, server_has), ClientHandshake(SECRET, client_has)
    accepted = server.feed(answered(server, client))
    assert accepted is not None
    reply, server_reader, _ = accepted
    _, writer = client.accept(reply)
    said = writer.seal(FrameKind.JOIN, b"hello")
    assert server_reader.feed(said) == [(FrameKind.JOIN, b"hello")]
    assert (b"hello" in said) == (not server_has or not client_has)


def test_nobody_on_the_path_changes_which_ciphers_there_are() -> None:
    server, client = ServerHandshake(SECRET, CIPHERS), ClientHandshake(SECRET, CIPHERS)
    without = client.answer(bytes(1) + server.challenge[len(MAGIC) + 1 :])
    with pytest.raises(WrongSecretError):
        server.feed(without)


def test_a_client_with_another_secret_is_refused_and_learns_nothing() -> None:
    server = ServerHandshake(SECRET)
    with pytest.raises(WrongSecretError) as raised:
        server.feed(answered(server, ClientHandshake(OTHER)))
    assert SECRET.decode() not in str(raised.value)
    assert server.refusal == bytes(REPLY_BYTES)  # the same for everybody
    with pytest.raises(WrongSecretError, match="another secret"):
        ClientHandshake(OTHER).accept(server.refusal)


def test_a_server_with_another_secret_is_refused() -> None:
    """One that accepts everybody, to hear what they say."""
    impostor, client = ServerHandshake(OTHER), ClientHandshake(SECRET)
    answered(impostor, client)
    with pytest.raises(WrongSecretError, match="does not hold this job's secret"):
        client.accept(b"\x01" + bytes(32))


def test_a_proof_cannot_be_sent_back_or_used_again() -> None:
    server, client = ServerHandshake(SECRET), ClientHandshake(SECRET)
    answer = answered(server, client)
    with pytest.raises(WrongSecretError):  # the client's own proof as the server's
        client.accept(b"\x01" + answer[-32:])
    with pytest.raises(WrongSecretError):  # an answer that was overheard, at another time
        ServerHandshake(SECRET).feed(answer)


@given(st.binary(max_size=200))
def test_random_bytes_never_get_in(data: bytes) -> None:
    server = ServerHandshake(SECRET)
    try:
        for byte in data:
            if server.needs_bytes == 0:
                break
            assert server.feed(bytes([byte])) is None
    except (ProtocolError, WrongSecretError):
        pass
    assert 0 <= server.needs_bytes <= ANSWER_BYTES


@given(st.binary(min_size=65, max_size=65))
def test_random_proofs_never_get_in(data: bytes) -> None:
    with pytest.raises(WrongSecretError):
        ServerHandshake(SECRET).feed(MAGIC + data)


@given(st.binary(min_size=REPLY_BYTES, max_size=REPLY_BYTES), st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES))
def test_random_replies_are_never_believed(reply: bytes, hello: bytes) -> None:
    client = ClientHandshake(SECRET)
    client.answer(hello)
    with pytest.raises(WrongSecretError):
        client.accept(reply)


@given(st.binary(min_size=len(MAGIC), max_size=len(MAGIC)).filter(lambda magic: magic != MAGIC))
def test_what_is_not_rank_0_is_not_told_anything(magic: bytes) -> None:
    with pytest.raises(ProtocolError):
        ClientHandshake(SECRET).check_magic(magic)


def test_another_version_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"version 9 .* version 3; install the same"):
        ClientHandshake(SECRET).check_magic(MAGIC[:-1] + b"\x09")


@pytest.mark.parametrize(("says", "told"), [(b"SSH-2.0-OpenSSH", "the protocol of a"), (MAGIC + bytes(99), "secret")])
def test_a_rank_whose_port_answers_something_else_is_named(says: bytes, told: str) -> None:
    """As where somebody between the hosts changes bytes of the handshake."""
    peer = PeerInfo(3, "there", 100, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        dialled = pool.submit(dial_peer, peer, server.getsockname()[1], SECRET, time.monotonic() + 20.0)
        connection, _ = server.accept()
        with connection, pytest.raises(RendezvousError) as caught:
            connection.sendall(says)
            dialled.result()
    assert str(caught.value).startswith("this rank cannot connect to rank 3 (host there, pid 100): ")
    assert told in str(caught.value) and "changed bytes" in str(caught.value)
    assert caught.value.ranks == (3,)
