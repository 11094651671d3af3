"""Where the ranks of a job find each other: who is there, and an all-gather of small blobs to agree on the rest.

Rank 0 listens, the others come to it; each proves to the other that it holds the job's secret before either believes a
byte (`handshake`), and what they say after that is sealed (`frames`). Without a secret only ranks of the same user on
the same machine can meet (`notice`). No wait is without end, and whatever goes wrong with one rank is told to all.
"""

from __future__ import annotations

import errno
import os
import socket
import time

from choreo.errors import MeetingError, UsageError
from choreo.run.rendezvous.coordinator import Coordinator
from choreo.run.rendezvous.hosts import host_id, host_name
from choreo.run.rendezvous.local_file import OccupiedError, put_up, read_notice
from choreo.run.rendezvous.member import Door, Guest, attend
from choreo.run.rendezvous.messages import Join, Member, blob_limit_bytes
from choreo.run.transport.addresses import LOOPBACK, is_local, listen, spelled
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import VerdictError
from choreo.run.transport.limits import MAX_RANKS
from choreo.run.transport.secret import check_secret

__all__ = ["Meeting", "check_local", "meet"]

# How long rank 0 waits for a port or a name that is taken: whoever has it may be about to end.
TAKEN_S = 5.0
CLAIM_S = 2.0


class Meeting:
    """The ranks of a job, come together. Not for several threads at once."""

    def __init__(self, rank: int, members: list[Member], side: Coordinator | Guest | None) -> None:
        self.rank = rank
        self.members = tuple(members)
        self._side = side
        self._pid = os.getpid()
        self._over: str | None = None

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blobs, in the order of ranks. All ranks call it, as often as they like."""
        limit = blob_limit_bytes(self.world_size)
        if len(blob) > limit:
            raise UsageError(
                f"{len(blob)} bytes are more than the {limit} that each of {self.world_size} ranks may share"
            )
        deadline = Deadline.after(timeout_s)
        if os.getpid() != self._pid:
            raise UsageError(f"the meeting is that of pid {self._pid}; its fork {os.getpid()} must meet anew")
        if self._over is not None:
            raise MeetingError(f"the meeting is over: {self._over}")
        if self._side is None:
            return [bytes(blob)]
        try:
            return self._side.exchange(bytes(blob), deadline)
        except BaseException as error:
            self._over = str(error) or "it was interrupted"
            self._side.hang_up()
            raise

    def close(self) -> None:
        """Leave. Whoever still wants to exchange something is told so."""
        if os.getpid() != self._pid:
            if self._side is not None:
                self._side.hang_up()
        elif self._over is None and self._side is not None:
            self._side.close()
        self._over = self._over or f"rank {self.rank} has left it"

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def meet(
    rank: int,
    world_size: int,
    address: str,
    port: int,
    secret: bytes | None,
    *,
    timeout_s: float,
    job: str = "",
) -> Meeting:
    """Come together with the other ranks of the job.

    Rank 0 listens on `address` and `port` until all have come. Without a secret it listens on loopback, on a port that
    the system chooses, and `address`, `port` and `job` only name the job. `timeout_s` is for all of it.
    """
    deadline = Deadline.after(timeout_s)
    if not 1 <= world_size <= MAX_RANKS:
        raise UsageError(f"a job of {world_size} ranks cannot be; there are 1 to {MAX_RANKS}")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is not one of {world_size} ranks, which go from 0 to {world_size - 1}")
    if not 1 <= port <= 65535:
        raise UsageError(f"{port} is not a port; they go from 1 to 65535")
    me = Join(rank, world_size, os.getpid(), host_name(), host_id(), timeout_s)
    if world_size == 1:
        return Meeting(0, [Member(0, me.pid, me.host, me.host_id, LOOPBACK)], None)
    if secret is None:
        check_local(address, deadline)
        job = f"{spelled(address, port)}\0{job}"
        return (
            _host_locally(job, address, port, me, deadline)
            if rank == 0
            else _attend_locally(job, spelled(address, port), me, deadline)
        )
    secret = check_secret(secret, "this call")
    door = Door(address, port, secret, certain=True)
    if rank != 0:
        guest = attend(lambda: door, me, str(door), deadline)
        return Meeting(rank, guest.members, guest)
    listener, foreign = _listen(door, me, deadline)
    note = f"; {address} is no address of {me.host}, which listened on all it has" if foreign else ""
    return _host(listener, secret, me, deadline, note)


def _host(listener: socket.socket, secret: bytes, me: Join, deadline: Deadline, note: str = "") -> Meeting:
    coordinator = Coordinator(listener, secret, me, note)
    coordinator.gather(deadline)
    return Meeting(0, coordinator.members, coordinator)


def _host_locally(job: str, address: str, port: int, me: Join, deadline: Deadline) -> Meeting:
    patience = deadline.capped(TAKEN_S)
    while True:
        listener = socket.create_server((LOOPBACK, 0), backlog=socket.SOMAXCONN)
        try:
            with put_up(job, LOOPBACK, listener.getsockname()[1], deadline) as secret:
                return _host(listener, secret, me, deadline)
        except OccupiedError as error:
            listener.close()
            there = error.notice
            _claim(Door(there.address, there.port, there.secret.encode(), certain=True), me, deadline)
            if patience.passed:
                raise MeetingError(
                    f"another job of yours meets at {spelled(address, port)} (pid {there.pid}); choose another "
                    "MASTER_PORT",
                    ranks=(0,),
                ) from None
        except BaseException:
            listener.close()
            raise
        time.sleep(0.1)


def _attend_locally(job: str, where: str, me: Join, deadline: Deadline) -> Meeting:
    def find() -> Door:
        notice = read_notice(job, deadline)
        return Door(notice.address, notice.port, notice.secret.encode(), certain=False)

    guest = attend(find, me, f"{where} without a secret", deadline)
    return Meeting(me.rank, guest.members, guest)


def check_local(address: str, deadline: Deadline) -> None:
    """Refuse an address of another machine, where there is no secret to be known by."""
    try:
        if is_local(address, deadline):
            return
        reason = "is not this machine"
    except OSError as error:
        reason = f"cannot be looked up ({error.strerror or error})"
    raise UsageError(
        f"MASTER_ADDR {address} {reason}, and without a secret only ranks of one user on one machine can meet; give "
        "all ranks the same CHOREO_SECRET or --secret-file"
    )


def _listen(door: Door, me: Join, deadline: Deadline) -> tuple[socket.socket, bool]:
    patience = deadline.capped(TAKEN_S)
    while True:
        try:
            return listen(door.address, door.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or patience.passed:
                raise MeetingError(
                    f"rank 0 (pid {me.pid} on {me.host}) cannot listen at {door}: {os.strerror(error.errno or 0)}; "
                    "choose another MASTER_PORT",
                    ranks=(0,),
                ) from None
        _claim(door, me, deadline)
        time.sleep(0.1)


def _claim(door: Door, me: Join, deadline: Deadline) -> None:
    """Somebody is where rank 0 should be. If it is rank 0 of the same job there are two, and all must hear of it."""
    try:
        attend(lambda: door, me, str(door), deadline.capped(CLAIM_S))
    except VerdictError:
        raise
    except MeetingError:
        return
