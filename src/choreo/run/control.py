"""How a new or restarted rank comes into a job that runs: `grow` on every rank that is there, `join` in the newcomer.

The lowest rank listens. Newcomer and rank prove to each other that they hold the job's secret, and seal what they say
from there on. The others take part through the communicator that they have. Whether the new one stands is settled in
the old one's ledger, so if somebody dies on the way all the others go on with the new one, or all stay with the old.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets as random
import socket
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from choreo.errors import CommunicatorClosed, JoinError, PeerFailure, UsageError
from choreo.run.agreement import Circle
from choreo.run.calibration import Constants
from choreo.run.choice import Chooser
from choreo.run.connection import Connection, connect
from choreo.run.recovery import release, shrink

if TYPE_CHECKING:
    from choreo.run.communicator import Communicator

__all__ = ["Welcome", "grow", "join"]

NONCE_BYTES, PROOF_BYTES, SEAL_BYTES = 32, 32, 16
MAX_FRAME_BYTES = 1 << 20
HANDSHAKE_S = 2.0
BLOB_BYTES = 1024
EXTRA_S = 3.0  # by which those who wait for the one who listens outlast it
GROWN = CommunicatorClosed("this communicator has grown; use the one that grow() returned")
_LENGTH, _NUMBER = struct.Struct(">I"), struct.Struct(">Q")


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a newcomer needs to know."""

    rank: int
    name: str
    machine: str
    ranks: tuple[int, ...]  # the original numbers of all, by rank
    timeout_s: float
    constants: Constants
    forced: dict[str, str]


class _Shares(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    error: str
    blobs: tuple[bytes, ...] = ()


class _Line:
    """A socket on which both sides have proved that they hold the secret, and everything is sealed."""

    def __init__(self, link: socket.socket, key: bytes, *, listens: bool) -> None:
        self._link = link
        sides = (b"listener", b"newcomer") if listens else (b"newcomer", b"listener")
        self._keys = [hmac.digest(key, side, "sha256") for side in sides]
        self._numbers = [0, 0]

    def send(self, payload: bytes, end_s: float) -> None:
        """Say something before a moment."""
        self._link.settimeout(_left(end_s))
        self._link.sendall(_LENGTH.pack(len(payload)) + payload + self._seal(0, payload))

    def receive(self, end_s: float) -> bytes:
        """What is said next, before a moment; what carries no seal of this job is an error."""
        (length,) = _LENGTH.unpack(_exactly(self._link, _LENGTH.size, end_s))
        if length > MAX_FRAME_BYTES:
            raise JoinError(f"{length} bytes were announced, where at most {MAX_FRAME_BYTES} may come")
        payload = _exactly(self._link, length, end_s)
        if not hmac.compare_digest(_exactly(self._link, SEAL_BYTES, end_s), self._seal(1, payload)):
            raise JoinError("what came does not carry the seal of this job")
        return payload

    def close(self) -> None:
        """Hang up."""
        self._link.close()

    def _seal(self, direction: int, payload: bytes) -> bytes:
        number = _NUMBER.pack(self._numbers[direction])
        self._numbers[direction] += 1
        return hmac.digest(self._keys[direction], number + payload, "sha256")[:SEAL_BYTES]


def grow(communicator: Communicator, newcomers: int, *, address: str, secret: bytes, timeout_s: float) -> Communicator:
    """A communicator of all who are there and so many newcomers, which takes the place of this one.

    All ranks call it, with the same arguments. Newcomers get the lowest numbers that nobody has. If they do not come
    in time all ranks raise `JoinError`, and the communicator is as it was.
    """
    _check(newcomers, secret)
    end_s = time.monotonic() + timeout_s
    connection = communicator._engine.connection
    ranks = communicator.ranks
    free = (number for number in range(len(ranks) + newcomers) if number not in ranks)
    ranks += tuple(next(free) for _ in range(newcomers))
    with contextlib.ExitStack() as lines:
        meeting = _Growth(communicator, newcomers, end_s)
        if communicator.rank == 0:
            chooser = communicator._engine.chooser
            name = random.token_hex(6)
            try:
                for line in _open_door(address, newcomers, secret, end_s, lines):
                    rank = communicator.world_size + len(meeting.lines)
                    facts = (rank, name, connection.machine, ranks, communicator.timeout_s)
                    line.send(msgspec.json.encode(Welcome(*facts, chooser.constants, chooser.forced)), end_s)
                    meeting.lines.append(line)
            except (OSError, JoinError) as error:
                meeting.error = f"{len(meeting.lines)} of {newcomers} newcomers came to {address}: {error}"
        left_s = max(0.001, end_s - time.monotonic())
        try:
            made = connect(meeting, random.token_hex(6), connection.machine, left_s)
        except OSError as error:
            # Somebody died before this rank had their memory open. The others wait in the next exchange, to hear it.
            meeting.exchange(f"{type(error).__name__}: {error}".encode()[:200], left_s)
            raise
    release(connection, GROWN)
    return _together(communicator, made, ranks)


def _together(communicator: Communicator, connection: Connection, ranks: tuple[int, ...]) -> Communicator:
    """The new communicator, or what is left of it: whoever dies now dies in that, and the old one is gone."""
    communicator.retire(GROWN)
    while True:
        try:
            made = communicator.beside(connection)
        except PeerFailure:
            connection, members = shrink(connection)
            ranks = tuple(ranks[member] for member in members)
            continue
        made.ranks = ranks
        return made


def join(address: str, secret: bytes, timeout_s: float) -> Communicator:
    """Come into a job whose ranks call `grow`."""
    from choreo.run.communicator import Communicator

    connection, welcome = _joined(address, secret, timeout_s)
    ranks = welcome.ranks
    while True:
        chooser = Chooser(connection.world_size, welcome.constants, welcome.forced)
        try:
            made = Communicator(connection, chooser, timeout_s=welcome.timeout_s)
        except PeerFailure:
            connection, members = shrink(connection)
            ranks = tuple(ranks[member] for member in members)
            continue
        made.ranks = ranks
        return made


def _joined(address: str, secret: bytes, timeout_s: float) -> tuple[Connection, Welcome]:
    _check(1, secret)
    end_s = time.monotonic() + timeout_s
    line = _knock(address, secret, end_s)
    try:
        welcome = msgspec.json.decode(line.receive(end_s), type=Welcome)
        meeting = _Newcomer(line, welcome, end_s)
        return connect(meeting, welcome.name, welcome.machine, timeout_s), welcome
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise JoinError(f"the ranks at {address} were lost on the way in: {error}") from None
    finally:
        line.close()


class _Growth:
    """A meeting of those who are there, over their communicator, and of newcomers, over their lines to the lowest."""

    def __init__(self, communicator: Communicator, newcomers: int, end_s: float) -> None:
        self._communicator, self._end_s = communicator, end_s
        self._circle: Circle = communicator._engine.connection.circle
        self._topic = f"grow {communicator._engine.connection.calls}"
        self.rank, self.world_size = communicator.rank, communicator.world_size + newcomers
        self.lines: list[_Line] = []
        self.error = ""
        self._exchanges = 0

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blob, by rank; the second time it is settled whether all go on together."""
        self._exchanges += 1
        last = self._exchanges == 2
        try:
            shares = self._shared(blob, timeout_s + EXTRA_S, last=last)
        except PeerFailure:
            # Somebody who was there has died. If the new communicator had been settled before that, it stands.
            if not last or self._circle.ledger.decide(self._topic, b"no") == b"no":
                raise
            return []
        if shares.error:
            raise JoinError(shares.error)
        return list(shares.blobs)

    def _shared(self, blob: bytes, timeout_s: float, *, last: bool) -> _Shares:
        communicator = self._communicator
        packed = np.zeros(BLOB_BYTES, np.uint8)
        packed[: 4 + len(blob)] = np.frombuffer(_LENGTH.pack(len(blob)) + blob, np.uint8)
        found = communicator.all_gather(packed, timeout=timeout_s)
        shares = _Shares("")
        if self.rank == 0:
            blobs = [_unpacked(row.tobytes()) for row in found]
            wrong = [blob.decode(errors="replace") for blob in blobs if blob] if last else []
            shares = _Shares(f"somebody was lost meanwhile: {wrong[0]}") if wrong else self._with_newcomers(blobs)
            if last and not shares.error and self._circle.ledger.decide(self._topic, b"yes") == b"no":
                shares = _Shares("a rank died meanwhile")
        payload = _spread(communicator, msgspec.json.encode(shares), timeout_s)
        if self.rank == 0:
            for line in self.lines:
                with contextlib.suppress(OSError):
                    line.send(payload, max(self._end_s, time.monotonic() + 1.0))
        return msgspec.json.decode(payload, type=_Shares)

    def _with_newcomers(self, blobs: list[bytes]) -> _Shares:
        if self.error:
            return _Shares(self.error)
        try:
            return _Shares("", (*blobs, *(line.receive(self._end_s) for line in self.lines)))
        except (OSError, EOFError, JoinError) as error:
            return _Shares(f"a newcomer was lost on the way in: {error or type(error).__name__}")


class _Newcomer:
    """The same meeting, for one who comes."""

    def __init__(self, line: _Line, welcome: Welcome, end_s: float) -> None:
        self._line, self._end_s = line, end_s
        self.rank, self.world_size = welcome.rank, len(welcome.ranks)

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blob, by rank."""
        del timeout_s  # is for all of it
        self._line.send(blob, self._end_s)
        shares = msgspec.json.decode(self._line.receive(self._end_s + EXTRA_S), type=_Shares)
        if shares.error:
            raise JoinError(shares.error)
        return list(shares.blobs)


def _spread(communicator: Communicator, payload: bytes, timeout_s: float) -> bytes:
    """The payload of rank 0, on all ranks."""
    size = np.array([len(payload)], np.int64)
    communicator.broadcast(size, root=0, timeout=timeout_s)
    data = np.frombuffer(payload, np.uint8).copy() if communicator.rank == 0 else np.empty(int(size[0]), np.uint8)
    communicator.broadcast(data, root=0, timeout=timeout_s)
    return data.tobytes()


def _unpacked(row: bytes) -> bytes:
    (length,) = _LENGTH.unpack_from(row)
    return row[4 : 4 + length]


# ---- proving oneself ----


def _open_door(address: str, newcomers: int, secret: bytes, end_s: float, lines: contextlib.ExitStack) -> list[_Line]:
    """Let in so many who hold the secret; others are sent away."""
    found: list[_Line] = []
    with _listener(address) as listener:
        while len(found) < newcomers:
            listener.settimeout(_left(end_s))
            link, _ = listener.accept()
            try:
                line = _prove(link, secret, min(end_s, time.monotonic() + HANDSHAKE_S))
            except (OSError, EOFError, JoinError):
                link.close()
                continue
            lines.callback(line.close)
            found.append(line)
    return found


def _prove(link: socket.socket, secret: bytes, end_s: float) -> _Line:
    mine = random.token_bytes(NONCE_BYTES)
    link.settimeout(_left(end_s))
    link.sendall(mine)
    answer = _exactly(link, NONCE_BYTES + PROOF_BYTES, end_s)
    nonces = mine + answer[:NONCE_BYTES]
    if not hmac.compare_digest(answer[NONCE_BYTES:], _derived(secret, b"newcomer", nonces)):
        raise JoinError("it does not hold this job's secret")
    link.sendall(_derived(secret, b"listener", nonces))
    return _Line(link, _derived(secret, b"key", nonces), listens=True)


def _knock(address: str, secret: bytes, end_s: float) -> _Line:
    """A line to the one who listens, as soon as somebody does."""
    while True:
        link = _socket(address)
        try:
            link.settimeout(_left(end_s))
            link.connect(_place(address))
            theirs = _exactly(link, NONCE_BYTES, end_s)
            mine = random.token_bytes(NONCE_BYTES)
            link.sendall(mine + _derived(secret, b"newcomer", theirs + mine))
            try:
                proof = _exactly(link, PROOF_BYTES, end_s)
            except (EOFError, ConnectionError):
                raise JoinError(
                    f"{address} was asked to let this process in, and refused: it holds another secret"
                ) from None
            _check_proof(proof, _derived(secret, b"listener", theirs + mine), address)
            return _Line(link, _derived(secret, b"key", theirs + mine), listens=False)
        except (ConnectionError, FileNotFoundError, EOFError) as error:
            link.close()
            if time.monotonic() >= end_s:
                raise JoinError(f"nobody let this process in at {address}: {error or 'it hung up'}") from None
            time.sleep(0.02)
        except TimeoutError:
            link.close()
            raise JoinError(f"nobody let this process in at {address} in time") from None
        except BaseException:
            link.close()
            raise


def _check_proof(proof: bytes, expected: bytes, address: str) -> None:
    if not hmac.compare_digest(proof, expected):
        raise JoinError(f"what listens at {address} does not hold this job's secret")


def _derived(secret: bytes, purpose: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"choreo grow 1: " + purpose + b"\0" + nonces, "sha256")


@contextlib.contextmanager
def _listener(address: str) -> Iterator[socket.socket]:
    link = _socket(address)
    try:
        if link.family != socket.AF_UNIX:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        link.bind(_place(address))
        link.listen(64)
        yield link
    finally:
        link.close()


def _socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_UNIX if address.startswith("unix:") else socket.AF_INET, socket.SOCK_STREAM)


def _place(address: str) -> str | tuple[str, int]:
    if address.startswith("unix:"):
        return f"\0choreo-{os.getuid()}-{address.removeprefix('unix:')}"  # no file, so nothing is left behind
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise UsageError(f"{address!r} is not an address to join at; write host:port, or unix:name on one machine")
    return host, int(port)


def _exactly(link: socket.socket, size_bytes: int, end_s: float) -> bytes:
    data = b""
    while len(data) < size_bytes:
        link.settimeout(_left(end_s))
        more = link.recv(min(1 << 16, size_bytes - len(data)))
        if not more:
            raise EOFError("it hung up")
        data += more
    return data


def _left(end_s: float) -> float:
    return max(0.001, end_s - time.monotonic())


def _check(newcomers: int, secret: bytes) -> None:
    if newcomers < 1:
        raise UsageError(f"{newcomers} newcomers are none; a communicator grows by at least 1")
    if len(secret) < 16:
        raise UsageError(f"a secret of {len(secret)} bytes can be guessed; it must have at least 16")
