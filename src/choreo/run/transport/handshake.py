"""The handshake: both sides prove that they hold the job's secret before either trusts a byte of the other.

    server                                        client
    magic, hello s                   ->
                                     <-           magic, hello c, client's proof over s and c
    reply, server's proof            ->

A hello is a byte of ciphers and a nonce. The server says which ciphers it has, the client which one it takes; frames
are encrypted by that. Proofs and keys depend on both hellos, so nobody on the path can change them.

The server proves itself only to a client that already has, so an outsider learns nothing that depends on the secret.
All three messages have a fixed size; an outsider can make the server keep 73 bytes and no more. Neither class touches a
socket: each takes the bytes that came and returns the bytes to send.
"""

from __future__ import annotations

import hmac
import secrets
from functools import cache
from typing import NamedTuple

from choreo.errors import UsageError
from choreo.run.transport.errors import ProtocolError, WrongSecretError
from choreo.run.transport.frames import FrameReader, FrameWriter
from choreo.run.transport.limits import MAX_FRAME_BYTES
from choreo.run.transport.records import CIPHERS, available_ciphers
from choreo.run.transport.secret import DIGEST_BYTES, derive

__all__ = ["HANDSHAKE_S", "HELLO_BYTES", "MAGIC", "REPLY_BYTES", "ClientHandshake", "RecordKeys", "ServerHandshake"]

HANDSHAKE_S = 5.0  # for one attempt, on either side
MAGIC = b"choreo\x00\x03"  # the last byte is the protocol's version
NONCE_BYTES = 32
HELLO_BYTES = 1 + NONCE_BYTES
ANSWER_BYTES = len(MAGIC) + HELLO_BYTES + DIGEST_BYTES
REPLY_BYTES = 1 + DIGEST_BYTES
JOIN_LIMIT_BYTES = 4096
_REFUSED, _ACCEPTED = b"\x00", b"\x01"


class RecordKeys(NamedTuple):
    """The keys of a connection's sealed records: of those that this side sends, and of those that come."""

    sends: bytes
    receives: bytes


class ServerHandshake:
    """The side that listens."""

    refusal = _REFUSED + bytes(DIGEST_BYTES)

    def __init__(self, secret: bytes, ciphers: tuple[str, ...] | None = None) -> None:
        self._secret = secret
        self._hello = _ciphers_byte(_own_ciphers() if ciphers is None else ciphers) + secrets.token_bytes(NONCE_BYTES)
        self._answer = self._theirs = b""
        self.challenge = MAGIC + self._hello

    @property
    def needs_bytes(self) -> int:
        """The number of bytes still to come; no more may be read."""
        return ANSWER_BYTES - len(self._answer)

    def feed(self, data: bytes) -> tuple[bytes, FrameReader, FrameWriter] | None:
        """The reply to send and the two directions of the connection, once the client's answer is complete.

        Raises `ProtocolError` at once for a client that speaks something else. Raises `WrongSecretError` for a wrong
        proof; the caller then sends `refusal`.
        """
        assert len(data) <= self.needs_bytes
        self._answer += data
        if not MAGIC.startswith(self._answer[: len(MAGIC)]):
            raise ProtocolError("it does not speak Choreo's protocol")
        if self.needs_bytes:
            return None
        self._theirs = self._answer[len(MAGIC) : len(MAGIC) + HELLO_BYTES]
        proof = self._answer[len(MAGIC) + HELLO_BYTES :]
        if not hmac.compare_digest(proof, self._derive("proof of the client")):
            raise WrongSecretError("it does not hold this job's secret")
        cipher = _taken_cipher(self._hello, self._theirs)
        return (
            _ACCEPTED + self._derive("proof of the server"),
            FrameReader(self._derive("frames of the client"), JOIN_LIMIT_BYTES, cipher),
            FrameWriter(self._derive("frames of the server"), cipher),
        )

    @property
    def record_keys(self) -> RecordKeys:
        """The keys of this connection's records, once the client has answered."""
        return RecordKeys(self._derive("records of the server"), self._derive("records of the client"))

    def _derive(self, purpose: str) -> bytes:
        return derive(self._secret, purpose, self._hello, self._theirs)


class ClientHandshake:
    """The side that connects."""

    def __init__(self, secret: bytes, ciphers: tuple[str, ...] | None = None) -> None:
        self._secret = secret
        self._ciphers = _own_ciphers() if ciphers is None else ciphers
        self._hello = self._theirs = b""

    def check_magic(self, magic: bytes) -> None:
        """Check the first bytes of the server: is it Choreo, and of this version?"""
        if magic[:-1] != MAGIC[:-1]:
            raise ProtocolError("what listens there does not speak the protocol of a Choreo job")
        if magic != MAGIC:
            raise ProtocolError(
                f"it speaks version {magic[-1]} of the rendezvous protocol, this rank version {MAGIC[-1]}; "
                "install the same Choreo everywhere"
            )

    def answer(self, hello: bytes) -> bytes:
        """The answer to the server's challenge, whose hello this is."""
        assert len(hello) == HELLO_BYTES
        taken = [cipher for cipher in self._ciphers if hello[0] & _ciphers_byte((cipher,))[0]][:1]
        self._theirs, self._hello = hello, _ciphers_byte(tuple(taken)) + secrets.token_bytes(NONCE_BYTES)
        return MAGIC + self._hello + self._derive("proof of the client")

    @property
    def record_keys(self) -> RecordKeys:
        """The keys of this connection's records, once the server has said hello."""
        return RecordKeys(self._derive("records of the client"), self._derive("records of the server"))

    def accept(self, reply: bytes) -> tuple[FrameReader, FrameWriter]:
        """The two directions of the connection, if the server accepted and proved that it holds the secret."""
        assert len(reply) == REPLY_BYTES
        if reply[:1] != _ACCEPTED:
            raise WrongSecretError("it holds another secret than this rank")
        if not hmac.compare_digest(reply[1:], self._derive("proof of the server")):
            raise WrongSecretError("what listens there does not hold this job's secret")
        cipher = _taken_cipher(self._theirs, self._hello)
        return (
            FrameReader(self._derive("frames of the server"), MAX_FRAME_BYTES, cipher),
            FrameWriter(self._derive("frames of the client"), cipher),
        )

    def _derive(self, purpose: str) -> bytes:
        return derive(self._secret, purpose, self._theirs, self._hello)


@cache
def _own_ciphers() -> tuple[str, ...]:
    """The ciphers of this process; none without libcrypto."""
    try:
        return available_ciphers()
    except UsageError:
        return ()


def _ciphers_byte(ciphers: tuple[str, ...]) -> bytes:
    return bytes([sum(1 << CIPHERS.index(cipher) for cipher in ciphers)])


def _taken_cipher(server_hello: bytes, client_hello: bytes) -> str:
    """The cipher that the client takes of the server's; none if it takes none."""
    for number, cipher in enumerate(CIPHERS):
        if server_hello[0] & client_hello[0] & 1 << number:
            return cipher
    return ""
