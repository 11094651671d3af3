"""The rendezvous of a job's ranks: the list of members, and an exchange of small blobs.

Rank 0 listens and the others connect to it. Both sides prove that they hold the job's secret (`handshake`), and then
send sealed frames (`frames`). Without a secret only ranks of one user on one host can find each other, through a file
(`local_file`). Every wait has a deadline, and when one rank fails, all get the reason.
"""

from __future__ import annotations

import errno
import os
import socket
import time

from choreo.errors import RendezvousError, UsageError
from choreo.run.rendezvous.coordinator import Coordinator
from choreo.run.rendezvous.gave_up import Attempt
from choreo.run.rendezvous.hosts import host_id, host_name
from choreo.run.rendezvous.local_file import AlreadyPublishedError, find_published, publish
from choreo.run.rendezvous.messages import Join, Member, blob_limit_bytes
from choreo.run.rendezvous.participant import CoordinatorAddress, Participant, register
from choreo.run.transport.addresses import LOOPBACK, format_address, is_local, listen
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import AbortError, CannotListenError
from choreo.run.transport.limits import MAX_RANKS
from choreo.run.transport.secret import check_secret
from choreo.run.transport.shortage import SHORT, why

__all__ = ["Rendezvous", "check_local", "rendezvous"]

# How long rank 0 waits for a port or a name that is taken: the process that has it may be about to end.
TAKEN_S = 5.0
CLAIM_S = 2.0


class Rendezvous:
    """The ranks of a job that have found each other. Not thread-safe."""

    def __init__(self, rank: int, members: list[Member], side: Coordinator | Participant | None) -> None:
        self.rank = rank
        self.members = tuple(members)
        self._side = side
        self._pid = os.getpid()
        self._over: str | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.members)

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of all ranks, by rank. All ranks call it, as often as they like."""
        limit = blob_limit_bytes(self.world_size)
        if len(blob) > limit:
            raise UsageError(
                f"{len(blob)} bytes are more than the {limit} that each of {self.world_size} ranks may exchange"
            )
        deadline = Deadline.after(timeout_s)
        if os.getpid() != self._pid:
            raise UsageError(f"this rendezvous belongs to pid {self._pid}; its fork {os.getpid()} must make its own")
        if self._over is not None:
            raise RendezvousError(f"the rendezvous is over: {self._over}")
        if self._side is None:
            return [bytes(blob)]
        try:
            return self._side.exchange(bytes(blob), deadline)
        except BaseException as error:
            self._over = str(error) or "it was interrupted"
            self._side.disconnect()
            raise

    def close(self, reason: str = "") -> None:
        """Leave. A rank that still waits for an exchange gets an error, with this reason."""
        if os.getpid() != self._pid:
            if self._side is not None:
                self._side.disconnect()
        elif self._over is None and self._side is not None:
            self._side.close(reason)
        self._over = self._over or f"rank {self.rank} has left it"

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close("" if error is None else str(error) or type(error).__name__)


def rendezvous(
    rank: int,
    world_size: int,
    address: str,
    port: int,
    secret: bytes | None,
    *,
    timeout_s: float,
    job: str = "",
) -> Rendezvous:
    """Find the other ranks of the job.

    Rank 0 listens on `address` and `port` until all have joined. Without a secret it listens on loopback, on a port
    that the system chooses; then `address`, `port` and `job` only name the job. `timeout_s` is for the whole call.
    """
    deadline = Deadline.after(timeout_s)
    if not 1 <= world_size <= MAX_RANKS:
        raise UsageError(f"a job has 1 to {MAX_RANKS} ranks, not {world_size}")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is not one of {world_size} ranks, which go from 0 to {world_size - 1}")
    if not 1 <= port <= 65535:
        raise UsageError(f"{port} is not a port; they go from 1 to 65535")
    try:
        me = Join(rank, world_size, os.getpid(), host_name(), host_id(), timeout_s)
    except OSError as error:
        raise RendezvousError(f"rank {rank} cannot begin to find the others: {why(error)}", ranks=(rank,)) from None
    if world_size == 1:
        return Rendezvous(0, [Member(0, me.pid, me.host, me.host_id, LOOPBACK)], None)
    attempt = Attempt(f"{format_address(address, port)}\0{job}", secret)
    if secret is None:
        check_local(address, deadline)
        job = f"{format_address(address, port)}\0{job}"
        if rank != 0:
            return _register_locally(job, format_address(address, port), attempt, me, deadline)
        with attempt:
            return _coordinate_locally(job, address, port, me, deadline)
    secret = check_secret(secret, "this call")
    coordinator = CoordinatorAddress(address, port, secret, final=True)
    if rank != 0:
        participant = register(lambda: _still(coordinator, attempt), me, str(coordinator), deadline)
        return Rendezvous(rank, participant.members, participant)
    with attempt:
        listener, foreign = _listen(coordinator, me, deadline)
        note = f"; {address} is no address of {me.host}, which listened on all its addresses" if foreign else ""
        try:
            mine = Coordinator(listener, secret, me, note)
        except OSError as error:
            listener.close()
            raise _cannot_listen(me, coordinator, error) from None
    return _gathered(mine, deadline)


def _still(coordinator: CoordinatorAddress, attempt: Attempt) -> CoordinatorAddress:
    attempt.check()
    return coordinator


def _gathered(coordinator: Coordinator, deadline: Deadline) -> Rendezvous:
    coordinator.gather(deadline)
    return Rendezvous(0, coordinator.members, coordinator)


def _coordinate_locally(job: str, address: str, port: int, me: Join, deadline: Deadline) -> Rendezvous:
    name_deadline = deadline.capped(TAKEN_S)
    while True:
        try:
            listener = socket.create_server((LOOPBACK, 0), backlog=socket.SOMAXCONN)
        except OSError as error:
            raise _cannot_listen(me, LOOPBACK, error) from None
        try:
            with publish(job, LOOPBACK, listener.getsockname()[1], deadline) as secret:
                return _gathered(Coordinator(listener, secret, me), deadline)
        except AlreadyPublishedError as error:
            listener.close()
            other = error.record
            _claim(CoordinatorAddress(other.address, other.port, other.secret.encode(), final=True), me, deadline)
            if name_deadline.passed:
                raise CannotListenError(
                    f"another job of yours uses {format_address(address, port)} (pid {other.pid}); choose another "
                    "MASTER_PORT",
                    ranks=(0,),
                ) from None
        except OSError as error:
            listener.close()
            raise _cannot_listen(me, LOOPBACK, error) from None
        except BaseException:
            listener.close()
            raise
        time.sleep(0.1)


def _cannot_listen(me: Join, where: object, error: OSError) -> CannotListenError:
    reason = why(error) if error.errno in SHORT else f"{os.strerror(error.errno or 0)}; choose another MASTER_PORT"
    return CannotListenError(f"rank 0 (pid {me.pid} on {me.host}) cannot listen at {where}: {reason}", ranks=(0,))


def _register_locally(job: str, where: str, attempt: Attempt, me: Join, deadline: Deadline) -> Rendezvous:
    def find() -> CoordinatorAddress:
        attempt.check()
        record = find_published(job)
        return CoordinatorAddress(record.address, record.port, record.secret.encode(), final=False)

    participant = register(find, me, f"{where} without a secret", deadline)
    return Rendezvous(me.rank, participant.members, participant)


def check_local(address: str, deadline: Deadline) -> None:
    """Refuse an address of another host: without a secret, ranks there could not authenticate."""
    try:
        if is_local(address, deadline):
            return
        reason = "is not an address of this host"
    except OSError as error:
        reason = f"cannot be resolved ({error.strerror or error})"
    raise UsageError(
        f"MASTER_ADDR {address} {reason}, and without a secret only ranks of one user on one host can find each other; "
        "give all ranks the same CHOREO_SECRET or --secret-file"
    )


def _listen(coordinator: CoordinatorAddress, me: Join, deadline: Deadline) -> tuple[socket.socket, bool]:
    port_deadline = deadline.capped(TAKEN_S)
    while True:
        try:
            return listen(coordinator.address, coordinator.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port_deadline.passed:
                raise _cannot_listen(me, coordinator, error) from None
        _claim(coordinator, me, deadline)
        time.sleep(0.1)


def _claim(coordinator: CoordinatorAddress, me: Join, deadline: Deadline) -> None:
    """Register as rank 0 with the process that has rank 0's place.

    If it is rank 0 of the same job, two processes claim rank 0, and it tells all ranks so.
    """
    try:
        register(lambda: coordinator, me, str(coordinator), deadline.capped(CLAIM_S))
    except AbortError:
        raise
    except RendezvousError:
        return
