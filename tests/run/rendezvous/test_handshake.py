"""The handshake: who holds the secret gets in, and nobody else, whatever they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.run.transport.frames import Kind
from choreo.run.transport.handshake import (
    MAGIC,
    NONCE_BYTES,
    VERDICT_BYTES,
    Doorkeeper,
    StrangerError,
    Visitor,
    WrongSecretError,
)
from tests.helpers.rendezvous import OTHER, SECRET

ANSWER_BYTES = 72


def answered(door: Doorkeeper, visitor: Visitor) -> bytes:
    visitor.recognise(door.greeting[: len(MAGIC)])
    return visitor.answer(door.greeting[len(MAGIC) :])


@given(st.lists(st.integers(1, ANSWER_BYTES), max_size=10))
def test_two_who_hold_the_secret(cuts: list[int]) -> None:
    door, visitor = Doorkeeper(SECRET), Visitor(SECRET)
    answer = answered(door, visitor)
    assert len(answer) == door.needs_bytes == ANSWER_BYTES
    accepted = None
    for low, high in zip([0, *sorted(cuts)], [*sorted(cuts), ANSWER_BYTES], strict=True):
        accepted = door.feed(answer[low:high]) or accepted
    assert accepted is not None
    verdict, server_reader, server_writer = accepted
    reader, writer = visitor.accept(verdict)
    assert server_reader.feed(writer.seal(Kind.JOIN, b"hello")) == [(Kind.JOIN, b"hello")]
    assert reader.feed(server_writer.seal(Kind.WELCOME, b"you")) == [(Kind.WELCOME, b"you")]


def test_a_visitor_with_another_secret_is_refused_and_learns_nothing() -> None:
    door = Doorkeeper(SECRET)
    with pytest.raises(WrongSecretError) as raised:
        door.feed(answered(door, Visitor(OTHER)))
    assert SECRET.decode() not in str(raised.value)
    assert door.refusal == bytes(VERDICT_BYTES)  # the same for everybody
    with pytest.raises(WrongSecretError, match="another secret"):
        Visitor(OTHER).accept(door.refusal)


def test_a_server_with_another_secret_is_refused() -> None:
    """One that accepts everybody, to hear what they say."""
    impostor, visitor = Doorkeeper(OTHER), Visitor(SECRET)
    answered(impostor, visitor)
    with pytest.raises(WrongSecretError, match="does not hold this job's secret"):
        visitor.accept(b"\x01" + bytes(32))


def test_a_proof_cannot_be_sent_back_or_used_again() -> None:
    door, visitor = Doorkeeper(SECRET), Visitor(SECRET)
    answer = answered(door, visitor)
    with pytest.raises(WrongSecretError):  # the client's own proof as the server's
        visitor.accept(b"\x01" + answer[-32:])
    with pytest.raises(WrongSecretError):  # an answer that was overheard, at another time
        Doorkeeper(SECRET).feed(answer)


@given(st.binary(max_size=200))
def test_random_bytes_never_get_in(data: bytes) -> None:
    door = Doorkeeper(SECRET)
    try:
        for byte in data:
            if door.needs_bytes == 0:
                break
            assert door.feed(bytes([byte])) is None
    except (StrangerError, WrongSecretError):
        pass
    assert 0 <= door.needs_bytes <= ANSWER_BYTES


@given(st.binary(min_size=64, max_size=64))
def test_random_proofs_never_get_in(data: bytes) -> None:
    with pytest.raises(WrongSecretError):
        Doorkeeper(SECRET).feed(MAGIC + data)


@given(st.binary(min_size=VERDICT_BYTES, max_size=VERDICT_BYTES), st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_random_verdicts_are_never_believed(verdict: bytes, nonce: bytes) -> None:
    visitor = Visitor(SECRET)
    visitor.answer(nonce)
    with pytest.raises(WrongSecretError):
        visitor.accept(verdict)


@given(st.binary(min_size=len(MAGIC), max_size=len(MAGIC)).filter(lambda magic: magic != MAGIC))
def test_what_is_not_rank_0_is_not_told_anything(magic: bytes) -> None:
    with pytest.raises(StrangerError):
        Visitor(SECRET).recognise(magic)


def test_another_version_is_named() -> None:
    with pytest.raises(StrangerError, match=r"version 9 .* version 1; install the same"):
        Visitor(SECRET).recognise(MAGIC[:-1] + b"\x09")
