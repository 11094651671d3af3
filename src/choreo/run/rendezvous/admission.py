"""Admit new processes to a running job: for a while, one rank accepts those that hold the job's secret.

It listens where rank 0 of the job listened during the rendezvous, or at the same port of its own host if no rank is on
that host any more. Without a secret it publishes its address in a file that only this user can read. Handshake and
frames are those of a rendezvous.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from choreo.errors import JoinError
from choreo.run.rendezvous.environment import JobAddress
from choreo.run.rendezvous.local_file import AlreadyPublishedError, find_published, publish
from choreo.run.rendezvous.messages import (
    Abort,
    Admission,
    AdmissionRequest,
    Member,
    all_payload,
    blob_limit_bytes,
    blob_payload,
    decode,
    encode,
    parse_blob,
)
from choreo.run.rendezvous.participant import CoordinatorAddress
from choreo.run.rendezvous.rendezvous import check_local
from choreo.run.rendezvous.server import Client, Server
from choreo.run.transport.addresses import LOOPBACK, format_address, is_local, listen
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import FrameKind, SealedFrame
from choreo.run.transport.handshake import HANDSHAKE_S
from choreo.run.transport.limits import MAX_REASON
from choreo.run.transport.secret import check_secret
from choreo.run.transport.shortage import SHORT, why

__all__ = ["AdmissionServer", "can_admit_here", "find_admission", "open_admission"]

TAKEN_S = 5.0  # how long to wait for a port or name that is taken: the process that has it may be about to end
POLL_S = 0.05  # how often to check for lost ranks
ONE_OF_SEVERAL_S = 1.0  # for an answer from one of several places
REQUEST_S = 0.05  # that `waiting` waits for a process that has just connected
ENOUGH = "the job has admitted as many processes as it wants"


class AdmissionServer:
    """Admits new processes and exchanges blobs with them. `rank_lost` says whether a rank of the job was lost."""

    def __init__(
        self, listener: socket.socket, secret: bytes, first_rank: int, wanted: int, rank_lost: Callable[[], bool]
    ) -> None:
        self._server = Server(listener, secret, self._on_frame, self._on_lost)
        self._first_rank, self._wanted, self._rank_lost = first_rank, wanted, rank_lost
        self._joiners: list[Client] = []
        self._blobs: dict[int, bytes] = {}
        self._exchange = 1  # the number of the next exchange
        self._complete = False
        self._joiner_lost = ""

    def waiting(self) -> int:
        """The number of processes that have asked to join. Waits only for one that is just saying who it is."""
        end = Deadline.after(REQUEST_S)
        self._server.poll(Deadline.after(1e-6))
        while self._server.in_handshake and not end.passed:
            self._server.poll(end)
        return len(self._joiners)

    def expect(self, wanted: int, rank_lost: Callable[[], bool]) -> None:
        """Admit this many of the processes that wait or come; the others are told to try again."""
        self._wanted, self._rank_lost = wanted, rank_lost
        for client in self._joiners[wanted:]:
            self._server.send(client, FrameKind.ABORT, encode(Abort(ENOUGH, [])))
            client.ignored = True
        del self._joiners[wanted:]

    def wait_for_joiners(self, deadline: Deadline) -> None:
        """Wait until enough processes have asked to join."""
        while len(self._joiners) < self._wanted:
            if deadline.passed:
                raise JoinError(
                    f"{len(self._joiners)} of {self._wanted} new processes came within {deadline.timeout_s:.3g} s"
                    f"{self._server.refusals()}"
                )
            self._poll(deadline)
        self._complete = True

    def admit(self, admission: Callable[[int], Admission]) -> None:
        """Send each new process the admission for its rank."""
        for at, client in enumerate(self._joiners):
            rank = self._first_rank + at
            assert client.member is not None and client.sealed is not None
            client.member = msgspec.structs.replace(client.member, rank=rank)
            message = admission(rank)
            client.sealed[0].limit_bytes = len(blob_payload(0, 0, b"")) + blob_limit_bytes(len(message.ranks))
            self._server.send(client, FrameKind.WELCOME, encode(message))

    def collect(self, deadline: Deadline) -> list[bytes]:
        """The blobs of the new processes for the next exchange, by rank."""
        while len(self._blobs) < self._wanted:
            if self._joiner_lost:
                raise JoinError(self._joiner_lost)
            if deadline.passed:
                raise JoinError(f"a new process did not answer within {deadline.timeout_s:.3g} s")
            self._poll(deadline)
        self._exchange += 1
        return [self._blobs.pop(self._first_rank + at) for at in range(self._wanted)]

    def distribute(self, blobs: list[bytes]) -> None:
        """Send the blobs of all ranks to the new processes."""
        for client in self._joiners:
            self._server.send(client, FrameKind.ALL, all_payload(self._exchange - 1, blobs))

    def abort(self, reason: str) -> None:
        """Tell the new processes that they are not admitted, and why."""
        self._server.send_to_all(FrameKind.ABORT, encode(Abort(reason[:MAX_REASON], [])))

    def close(self) -> None:
        """Stop listening; a process that still waits will try again."""
        self._server.close()

    def _poll(self, deadline: Deadline) -> None:
        if self._rank_lost():
            raise JoinError("a rank was lost meanwhile")
        self._server.poll(deadline.capped(POLL_S))

    def _on_frame(self, client: Client, frame: SealedFrame) -> None:
        if client.member is None:
            self._on_first_frame(client, frame)
            return
        if frame.kind != FrameKind.BLOB:
            raise FrameError(f"unexpected frame of kind {frame.kind.name}")
        number, _, blob = parse_blob(frame.payload)
        rank = client.member.rank
        if not self._complete or rank in self._blobs or number != self._exchange:
            raise FrameError(f"a blob of exchange {number} came, where exchange {self._exchange} is due")
        self._blobs[rank] = blob

    def _on_first_frame(self, client: Client, frame: SealedFrame) -> None:
        if frame.kind == FrameKind.REQUEST_ADMISSION:
            request = decode(frame.payload, AdmissionRequest)
            if len(self._joiners) < self._wanted:
                client.member = Member(self._first_rank, request.pid, request.host, request.host_id, client.address)
                self._joiners.append(client)
                return
            reason = ENOUGH
        elif frame.kind == FrameKind.JOIN:
            reason = "this job runs already; a process that is to join it calls choreo.join()"
        else:
            raise FrameError(f"unexpected frame of kind {frame.kind.name}")
        self._server.send(client, FrameKind.ABORT, encode(Abort(reason, [])))
        client.ignored = True

    def _on_lost(self, client: Client, what: str, why: str) -> None:
        assert client.member is not None
        if not self._complete:
            self._joiners.remove(client)
        elif not self._joiner_lost:
            who = f"the new process (pid {client.member.pid} on {client.member.host})"
            self._joiner_lost = f"{who} {what} while it joined: {why}"


@contextmanager
def open_admission(
    job: JobAddress, first_rank: int, wanted: int, deadline: Deadline, rank_lost: Callable[[], bool]
) -> Iterator[AdmissionServer]:
    """Listen for `wanted` new processes, and stop listening in the end."""
    where = format_address(job.address, job.port)
    port_deadline = deadline.capped(TAKEN_S)
    with ExitStack() as stack:
        while True:
            try:
                if job.secret is not None:
                    secret, (listener, _) = job.secret, listen(job.address, job.port)
                else:
                    with ExitStack() as resources:
                        listener = resources.enter_context(
                            socket.create_server((LOOPBACK, 0), backlog=socket.SOMAXCONN)
                        )
                        port = listener.getsockname()[1]
                        secret = resources.enter_context(publish(_published_name(job), LOOPBACK, port, deadline))
                        stack.enter_context(resources.pop_all())
                break
            except AlreadyPublishedError as error:
                reason = f"another job of yours admits processes there (pid {error.record.pid})"
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                if error.errno != errno.EADDRINUSE:
                    reason = why(error) if error.errno in SHORT else reason
                    raise JoinError(f"cannot listen at {where}: {reason}") from None
            if port_deadline.passed or rank_lost():
                raise JoinError(f"cannot listen at {where}: {reason}; choose another MASTER_PORT")
            time.sleep(POLL_S)
        stack.callback(listener.close)
        try:
            server = AdmissionServer(listener, secret, first_rank, wanted, rank_lost)
        except OSError as error:
            raise JoinError(f"cannot listen at {where}: {why(error)}") from None
        stack.callback(server.close)
        yield server


def find_admission(job: JobAddress, others: Sequence[tuple[str, int]] = (), attempt: int = 0) -> CoordinatorAddress:
    """Find where the job admits new processes: at its address, or at one of the others, which are tried in turn."""
    if job.secret is not None:
        places = [(job.address, job.port), *(place for place in others if place != (job.address, job.port))]
        address, port = places[attempt % len(places)]
        patience_s = HANDSHAKE_S if len(places) == 1 else ONE_OF_SEVERAL_S
        return CoordinatorAddress(address, port, job.secret, len(places) == 1, patience_s)
    record = find_published(_published_name(job))
    return CoordinatorAddress(record.address, record.port, record.secret.encode(), final=False)


def can_admit_here(job: JobAddress, deadline: Deadline) -> bool:
    """Whether this host has the job's address. Without a secret it must."""
    if job.secret is None:
        check_local(job.address, deadline)
        return True
    check_secret(job.secret, "this call")
    try:
        return is_local(job.address, deadline)
    except OSError:
        return False


def _published_name(job: JobAddress) -> str:
    # Not that of the rendezvous, whose ranks expect a coordinator there.
    return f"{format_address(job.address, job.port)}\0{job.job}\0admission"
