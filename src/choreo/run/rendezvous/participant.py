"""A rendezvous in every rank but rank 0: one connection to the coordinator."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from choreo.errors import RendezvousError
from choreo.run.rendezvous.coordinator_connection import CoordinatorConnection, connect_to_coordinator
from choreo.run.rendezvous.messages import (
    Abort,
    Join,
    Leave,
    Member,
    Welcome,
    blob_payload,
    decode,
    encode,
    parse_all,
)
from choreo.run.transport.addresses import format_address, resolve
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import AbortError, FrameError, ProtocolError, WrongSecretError
from choreo.run.transport.frames import FrameKind
from choreo.run.transport.handshake import HANDSHAKE_S
from choreo.run.transport.limits import MAX_REASON
from choreo.run.transport.shortage import why

__all__ = ["CoordinatorAddress", "NotReadyError", "Participant", "dial_until_accepted", "register"]

FAREWELL_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.25


class CoordinatorAddress(NamedTuple):
    """The coordinator's address, and the secret to prove to it."""

    address: str
    port: int
    secret: bytes
    final: bool  # whether a refusal is final; an address found in a file may be that of a job that is ending
    patience_s: float = HANDSHAKE_S  # how long to wait for an answer there

    def __str__(self) -> str:
        return format_address(self.address, self.port)


class NotReadyError(Exception):
    """The coordinator cannot be found yet; the message says why."""


class Participant:
    """A registered rank."""

    def __init__(self, connection: CoordinatorConnection, me: Join, members: list[Member]) -> None:
        self._connection = connection
        self._me = me
        self._number = 0
        self.members = members

    def exchange(self, blob: bytes, deadline: Deadline) -> list[bytes]:
        """The blobs of all ranks, by rank."""
        self._number += 1
        phase = f"in exchange {self._number}"
        receive = _Receiver(self._connection, self.members[0], phase)
        try:
            self._connection.send(FrameKind.BLOB, blob_payload(self._number, deadline.left_s, blob), deadline)
            payload = receive(FrameKind.ALL, deadline)
            return parse_all(payload, self._number, self._me.world_size)
        except TimeoutError:
            reason = f"{self.members[0]} did not answer {_name(self._me)} {phase} within {deadline.timeout_s:.3g} s"
            self.close(reason)
            raise RendezvousError(f"{reason}; it is late or stuck", ranks=(0,)) from None
        except OSError:
            raise receive.last_words() from None
        except FrameError as error:
            reason = f"{self.members[0]} broke the protocol {phase}: {error}"
            self.close(reason)
            raise RendezvousError(reason, ranks=(0,)) from None

    def close(self, reason: str = "") -> None:
        """Tell the coordinator that this rank leaves, and why; then disconnect."""
        with suppress(OSError):
            self._connection.send(FrameKind.LEAVE, encode(Leave(reason[:MAX_REASON])), Deadline.after(FAREWELL_S))
        self._connection.close()

    def disconnect(self) -> None:
        """Close the connection without a message."""
        self._connection.close()


def register(find: Callable[[], CoordinatorAddress], me: Join, where: str, deadline: Deadline) -> Participant:
    """Find the coordinator, authenticate, register, and wait until all ranks have."""
    connection, address = _connect(find, me, where, deadline)
    try:
        rank_0 = f"rank 0 at {address}"
        phase = f"before all {me.world_size} ranks had joined"
        receive = _Receiver(connection, rank_0, phase)
        me = Join(me.rank, me.world_size, me.pid, me.host, me.host_id, deadline.left_s)
        try:
            connection.send(FrameKind.JOIN, encode(me), deadline)
            members = decode(receive(FrameKind.WELCOME, deadline), Welcome).members
        except TimeoutError:
            raise RendezvousError(
                f"{rank_0} did not say within {deadline.timeout_s:.3g} s that all {me.world_size} ranks had joined; "
                "look for the rank that is missing, or wait longer"
            ) from None
        except OSError:
            raise receive.last_words() from None
        except FrameError as error:
            raise RendezvousError(f"{rank_0} broke the protocol {phase}: {error}", ranks=(0,)) from None
        _check_complete(members, me, rank_0)
    except BaseException:
        connection.close()
        raise
    return Participant(connection, me, members)


def _check_complete(members: list[Member], me: Join, rank_0: str) -> None:
    if [member.rank for member in members] != list(range(me.world_size)):
        raise RendezvousError(f"{rank_0} listed {len(members)} ranks, not {me.world_size}", ranks=(0,))


def _connect(
    find: Callable[[], CoordinatorAddress], me: Join, where: str, deadline: Deadline
) -> tuple[CoordinatorConnection, CoordinatorAddress]:
    try:
        return dial_until_accepted(find, _name(me), deadline)
    except WrongSecretError as error:
        raise WrongSecretError(str(error), ranks=(me.rank,)) from None
    except NotReadyError as error:
        raise RendezvousError(
            f"{_name(me)} did not find rank 0 at {where} within {deadline.timeout_s:.3g} s: {error}; start rank 0, "
            "and give every rank the same MASTER_ADDR and MASTER_PORT",
            ranks=(0,),
        ) from None


def dial_until_accepted(
    find: Callable[[], CoordinatorAddress], who: str, deadline: Deadline
) -> tuple[CoordinatorConnection, CoordinatorAddress]:
    """Look for the coordinator and connect to it, again and again until it accepts; NotReadyError at the deadline.

    A refusal at an address that is final is raised at once.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            address = find()
            return _dial(address, who, deadline), address
        except NotReadyError as error:
            reason = str(error)
        except OSError as error:
            reason = why(error)
        if deadline.passed:
            raise NotReadyError(reason)
        # Ranks that start together should not all dial at the same moment.
        time.sleep(min(deadline.left_s, pause_s * random.uniform(0.5, 1.0)))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _dial(address: CoordinatorAddress, who: str, deadline: Deadline) -> CoordinatorConnection:
    targets = resolve(address.address, address.port, deadline)
    last: OSError = ConnectionRefusedError("nobody listens there")
    for target in targets:
        try:
            return connect_to_coordinator(target, address.secret, deadline.capped(address.patience_s))
        except TimeoutError:
            last = TimeoutError("what listens there does not answer")
        except OSError as error:
            last = error
        except WrongSecretError as error:
            if not address.final:
                raise NotReadyError(str(error)) from None
            raise WrongSecretError(
                f"rank 0 at {address} and {who} do not belong to the same job: {error}; give all ranks the same "
                "CHOREO_SECRET or --secret-file"
            ) from None
        except ProtocolError as error:
            if not address.final:
                raise NotReadyError(str(error)) from None
            raise ProtocolError(f"{who} looked for rank 0 at {address}: {error}; is the port right?") from None
    raise last


class _Receiver:
    """Waits for a frame of one kind from rank 0, and raises the right error for any other."""

    def __init__(self, connection: CoordinatorConnection, rank_0: object, phase: str) -> None:
        self._connection, self._rank_0, self._phase = connection, rank_0, phase

    def __call__(self, kind: FrameKind, deadline: Deadline) -> bytes:
        try:
            frame = self._connection.receive(deadline)
        except EOFError:
            self._connection.close()
            raise self._lost() from None
        if frame.kind != kind:
            self._raise(frame.kind, frame.payload)
        return frame.payload

    def last_words(self) -> RendezvousError:
        """The last thing that rank 0 said before the connection broke, or else that it broke."""
        try:
            self._raise(*self._connection.receive(Deadline.after(FAREWELL_S)))
        except FrameError:
            return self._lost()
        except RendezvousError as error:
            return error
        except (OSError, EOFError):
            return self._lost()

    def _lost(self) -> RendezvousError:
        return RendezvousError(
            f"{self._rank_0} was lost {self._phase}: its process ended or the connection was cut", ranks=(0,)
        )

    def _raise(self, kind: FrameKind, payload: bytes) -> NoReturn:
        if kind == FrameKind.ABORT:
            abort = decode(payload, Abort)
            self._connection.close()
            raise AbortError(abort.reason, ranks=abort.ranks)
        if kind == FrameKind.LEAVE:
            reason = decode(payload, Leave).reason
            self._connection.close()
            raise RendezvousError(
                f"{self._rank_0} left the rendezvous {self._phase}" + (f": {reason}" if reason else ""), ranks=(0,)
            )
        raise FrameError(f"unexpected frame of kind {kind.name}")


def _name(me: Join) -> str:
    return f"rank {me.rank} (pid {me.pid} on {me.host})"
