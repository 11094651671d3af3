"""How two strangers find out that they belong to the same job, before either believes a byte of the other.

    rank 0                                        another rank
    magic, nonce s                   ->
                                     <-           magic, nonce c, proof of the client over s and c
    verdict, proof of the server     ->

Rank 0 proves itself only to somebody who has, so a stranger who knocks learns nothing that depends on the secret. All
three messages have a fixed size; a stranger can make rank 0 keep 72 bytes of theirs and no more. Neither class
touches a socket: they are given bytes and return bytes.
"""

from __future__ import annotations

import hmac
import secrets

from choreo.errors import MeetingError
from choreo.run.transport.frames import FrameReader, FrameWriter
from choreo.run.transport.limits import MAX_FRAME_BYTES
from choreo.run.transport.secret import DIGEST_BYTES, derive

__all__ = [
    "HANDSHAKE_S",
    "MAGIC",
    "NONCE_BYTES",
    "VERDICT_BYTES",
    "Doorkeeper",
    "StrangerError",
    "Visitor",
    "WrongSecretError",
]

HANDSHAKE_S = 5.0  # for one attempt, on either side
MAGIC = b"choreo\x00\x01"  # the last byte is the version of what is said from here on
NONCE_BYTES = 32
ANSWER_BYTES = len(MAGIC) + NONCE_BYTES + DIGEST_BYTES
VERDICT_BYTES = 1 + DIGEST_BYTES
JOIN_LIMIT_BYTES = 4096
_REFUSED, _ACCEPTED = b"\x00", b"\x01"


class WrongSecretError(MeetingError):
    """The two sides of a connection do not hold the same secret."""


class StrangerError(MeetingError):
    """What is at the other end does not speak as a rank of a job does."""


class Doorkeeper:
    """Rank 0's side of one handshake."""

    refusal = _REFUSED + bytes(DIGEST_BYTES)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._answer = b""
        self.greeting = MAGIC + self._nonce

    @property
    def needs_bytes(self) -> int:
        """How many bytes are still to come; no more must be read."""
        return ANSWER_BYTES - len(self._answer)

    def feed(self, data: bytes) -> tuple[bytes, FrameReader, FrameWriter] | None:
        """The verdict to send and the sealed connection, once the answer is complete.

        A stranger raises: `StrangerError` before anything is due, `WrongSecretError` when `refusal` is due.
        """
        assert len(data) <= self.needs_bytes
        self._answer += data
        if not MAGIC.startswith(self._answer[: len(MAGIC)]):
            raise StrangerError("it does not speak as a rank of a job does")
        if self.needs_bytes:
            return None
        theirs = self._answer[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
        proof = self._answer[len(MAGIC) + NONCE_BYTES :]
        if not hmac.compare_digest(proof, derive(self._secret, "proof of the client", self._nonce, theirs)):
            raise WrongSecretError("it does not hold this job's secret")
        return (
            _ACCEPTED + derive(self._secret, "proof of the server", self._nonce, theirs),
            FrameReader(derive(self._secret, "frames of the client", self._nonce, theirs), JOIN_LIMIT_BYTES),
            FrameWriter(derive(self._secret, "frames of the server", self._nonce, theirs)),
        )


class Visitor:
    """The side of a rank that knocks."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._theirs = b""

    def recognise(self, magic: bytes) -> None:
        """Make sure that what listens there is a job's rank 0, by the first bytes it says."""
        if magic[:-1] != MAGIC[:-1]:
            raise StrangerError("what listens there is not rank 0 of a job")
        if magic != MAGIC:
            raise StrangerError(
                f"rank 0 speaks version {magic[-1]} of what is said at a meeting, this rank version {MAGIC[-1]}; "
                "install the same Choreo everywhere"
            )

    def answer(self, nonce: bytes) -> bytes:
        """What is said to the greeting of rank 0, of which this is the rest."""
        assert len(nonce) == NONCE_BYTES
        self._theirs = nonce
        return MAGIC + self._nonce + derive(self._secret, "proof of the client", self._theirs, self._nonce)

    def accept(self, verdict: bytes) -> tuple[FrameReader, FrameWriter]:
        """The sealed connection, if the verdict is good and proves that the other side holds the secret too."""
        assert len(verdict) == VERDICT_BYTES
        if verdict[:1] != _ACCEPTED:
            raise WrongSecretError("it holds another secret than this rank")
        if not hmac.compare_digest(verdict[1:], derive(self._secret, "proof of the server", self._theirs, self._nonce)):
            raise WrongSecretError("what listens there does not hold this job's secret")
        return (
            FrameReader(derive(self._secret, "frames of the server", self._theirs, self._nonce), MAX_FRAME_BYTES),
            FrameWriter(derive(self._secret, "frames of the client", self._theirs, self._nonce)),
        )
