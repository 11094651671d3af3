"""The handshake: both sides prove that they hold the job's secret before either trusts a byte of the other.

    server                                        client
    magic, nonce s                   ->
                                     <-           magic, nonce c, client's proof over s and c
    reply, server's proof            ->

The server proves itself only to a client that already has, so an outsider learns nothing that depends on the secret.
All three messages have a fixed size; an outsider can make the server keep 72 bytes and no more. Neither class touches a
socket: each takes the bytes that came and returns the bytes to send.
"""

from __future__ import annotations

import hmac
import secrets
from typing import NamedTuple

from choreo.run.transport.errors import ProtocolError, WrongSecretError
from choreo.run.transport.frames import FrameReader, FrameWriter
from choreo.run.transport.limits import MAX_FRAME_BYTES
from choreo.run.transport.secret import DIGEST_BYTES, derive

__all__ = ["HANDSHAKE_S", "MAGIC", "NONCE_BYTES", "REPLY_BYTES", "ClientHandshake", "RecordKeys", "ServerHandshake"]

HANDSHAKE_S = 5.0  # for one attempt, on either side
MAGIC = b"choreo\x00\x02"  # the last byte is the protocol's version
NONCE_BYTES = 32
ANSWER_BYTES = len(MAGIC) + NONCE_BYTES + DIGEST_BYTES
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

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._answer = self._theirs = b""
        self.challenge = MAGIC + self._nonce

    @property
    def needs_bytes(self) -> int:
        """How many bytes are still to come; no more may be read."""
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
        theirs = self._answer[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
        proof = self._answer[len(MAGIC) + NONCE_BYTES :]
        self._theirs = theirs
        if not hmac.compare_digest(proof, derive(self._secret, "proof of the client", self._nonce, theirs)):
            raise WrongSecretError("it does not hold this job's secret")
        return (
            _ACCEPTED + derive(self._secret, "proof of the server", self._nonce, theirs),
            FrameReader(derive(self._secret, "frames of the client", self._nonce, theirs), JOIN_LIMIT_BYTES),
            FrameWriter(derive(self._secret, "frames of the server", self._nonce, theirs)),
        )

    @property
    def record_keys(self) -> RecordKeys:
        """The keys of this connection's records, once the client has answered."""
        sends = derive(self._secret, "records of the server", self._nonce, self._theirs)
        return RecordKeys(sends, derive(self._secret, "records of the client", self._nonce, self._theirs))


class ClientHandshake:
    """The side that connects."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._theirs = b""

    def check_magic(self, magic: bytes) -> None:
        """Check the first bytes of the server: is it Choreo, and of this version?"""
        if magic[:-1] != MAGIC[:-1]:
            raise ProtocolError("what listens there is not rank 0 of a job")
        if magic != MAGIC:
            raise ProtocolError(
                f"rank 0 speaks version {magic[-1]} of the rendezvous protocol, this rank version {MAGIC[-1]}; "
                "install the same Choreo everywhere"
            )

    def answer(self, nonce: bytes) -> bytes:
        """The answer to the server's challenge, whose nonce this is."""
        assert len(nonce) == NONCE_BYTES
        self._theirs = nonce
        return MAGIC + self._nonce + derive(self._secret, "proof of the client", self._theirs, self._nonce)

    @property
    def record_keys(self) -> RecordKeys:
        """The keys of this connection's records, once the server has sent its nonce."""
        sends = derive(self._secret, "records of the client", self._theirs, self._nonce)
        return RecordKeys(sends, derive(self._secret, "records of the server", self._theirs, self._nonce))

    def accept(self, reply: bytes) -> tuple[FrameReader, FrameWriter]:
        """The two directions of the connection, if the server accepted and proved that it holds the secret."""
        assert len(reply) == REPLY_BYTES
        if reply[:1] != _ACCEPTED:
            raise WrongSecretError("it holds another secret than this rank")
        if not hmac.compare_digest(reply[1:], derive(self._secret, "proof of the server", self._theirs, self._nonce)):
            raise WrongSecretError("what listens there does not hold this job's secret")
        return (
            FrameReader(derive(self._secret, "frames of the server", self._theirs, self._nonce), MAX_FRAME_BYTES),
            FrameWriter(derive(self._secret, "frames of the client", self._theirs, self._nonce)),
        )
