"""The coordinator of a rendezvous, which runs in rank 0: it collects all ranks, and passes their blobs around.

When something goes wrong with one rank, the coordinator tells all others the same reason, and the rendezvous is over.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from choreo.errors import RendezvousError
from choreo.run.rendezvous.messages import (
    Abort,
    Join,
    Leave,
    Member,
    Welcome,
    all_payload,
    blob_limit_bytes,
    blob_payload,
    decode,
    encode,
    format_members,
    format_ranks,
    parse_blob,
)
from choreo.run.rendezvous.server import Client, Server
from choreo.run.transport.addresses import is_loopback, plain
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.errors import FrameError
from choreo.run.transport.frames import FrameKind, SealedFrame
from choreo.run.transport.limits import MAX_REASON

__all__ = ["Coordinator"]

ABORT_S = 1.0  # how long the coordinator waits for its abort to be read
FAREWELL_S = 0.2


class Coordinator:
    """Rank 0's side of a rendezvous."""

    def __init__(self, listener: socket.socket, secret: bytes, me: Join, note: str = "") -> None:
        self._me = Member(0, me.pid, me.host, me.host_id, plain(listener.getsockname()[0]))
        self._world_size = me.world_size
        self._note = note  # added to the error if ranks do not join
        self._server = Server(listener, secret, self._on_frame, self._on_lost)
        self._clients: dict[int, Client] = {}
        self._missing = set(range(1, me.world_size))  # ranks that the present wait is for
        self._earliest: Deadline | None = None  # of the ranks that wait
        self._lost: dict[int, RendezvousError] = {}  # in the order in which they were lost
        self._number = 0
        self._blobs: dict[int, bytes] = {}
        self._early: dict[int, tuple[bytes, Deadline]] = {}  # blobs of the next exchange, from fast ranks
        self._abort: RendezvousError | None = None
        self._timed_out = False
        self.members: list[Member] = []

    def gather(self, deadline: Deadline) -> None:
        """Wait until all ranks have joined, and send the list of members to all."""

        def late(timeout_s: float) -> RendezvousError:
            return RendezvousError(
                f"{format_ranks(self._missing)} did not join the rendezvous within {timeout_s:.3g} s; "
                f"{len(self._clients) + 1} of {self._world_size} ranks did{self._server.refusals()}{self._note}",
                ranks=sorted(self._missing),
            )

        with self._aborting():
            self._wait(deadline, late)
            self.members = self._reachable_members()
            self._send_to_ranks(FrameKind.WELCOME, encode(Welcome(self.members)), deadline)

    def exchange(self, blob: bytes, deadline: Deadline) -> list[bytes]:
        """The blobs of all ranks, by rank."""
        self._number += 1
        self._blobs = {0: blob}
        self._missing = set(self._clients)
        self._earliest = None
        early, self._early = self._early, {}
        for rank, (theirs, their_deadline) in early.items():
            self._add_blob(rank, theirs, their_deadline)

        def late(timeout_s: float) -> RendezvousError:
            return RendezvousError(
                f"{format_members([self.members[rank] for rank in sorted(self._missing)])} did not come to exchange "
                f"{self._number} within {timeout_s:.3g} s, where {self._world_size - len(self._missing)} of "
                f"{self._world_size} ranks waited",
                ranks=sorted(self._missing),
            )

        with self._aborting():
            self._wait(deadline, late)
            blobs = [self._blobs[rank] for rank in range(self._world_size)]
            self._send_to_ranks(FrameKind.ALL, all_payload(self._number, blobs), deadline)
        return blobs

    def close(self, reason: str = "") -> None:
        """Tell all ranks that rank 0 leaves, and why; then close all connections."""
        self._server.send_to_all(FrameKind.LEAVE, encode(Leave(reason[:MAX_REASON])))
        self._server.close_gracefully(Deadline.after(FAREWELL_S))

    def disconnect(self) -> None:
        """Close all connections without a message."""
        self._server.close()

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Send an error that is raised inside to all ranks before it is raised here."""
        try:
            yield
        except RendezvousError as error:
            self._abort = error
            self._server.send_to_all(FrameKind.ABORT, _abort_payload(error))
            # Ranks that are about to join get the abort too, unless the error is that they did not join.
            expected = set() if self.members or self._timed_out else self._missing
            self._server.close_gracefully(Deadline.after(ABORT_S), lambda: expected)
            raise
        except BaseException:
            self.close("it was interrupted")
            raise

    def _wait(self, deadline: Deadline, late: Callable[[float], RendezvousError]) -> None:
        """Wait until no rank is missing; raise if a rank is lost or the time is up.

        The wait ends a little before the first of the waiting ranks would give up, so that all of them get the abort.
        """
        own = _slightly_before(deadline)
        while True:
            if self._lost:
                raise next(iter(self._lost.values()))
            if not self._missing:
                return
            until = own if self._earliest is None else min(own, self._earliest, key=lambda deadline: deadline.at_s)
            if until.passed:
                self._timed_out = True
                raise late(until.timeout_s)
            self._server.poll(until)

    def _send_to_ranks(self, kind: FrameKind, payload: bytes, deadline: Deadline) -> None:
        """Send to all ranks, and wait until the system has taken it; a rank lost meanwhile fails the next exchange."""
        for client in self._clients.values():
            self._server.send(client, kind, payload)
        while waiting := [
            client.member for client in self._clients.values() if client.outgoing and client.member is not None
        ]:
            if deadline.passed:
                raise RendezvousError(
                    f"{format_members(waiting)} did not read what was sent within {deadline.timeout_s:.3g} s: "
                    "stopped, stuck or cut off",
                    ranks=[member.rank for member in waiting],
                )
            self._server.poll(deadline)

    # Events

    def _on_frame(self, client: Client, frame: SealedFrame) -> None:
        if client.member is None:
            if frame.kind != FrameKind.JOIN:
                raise FrameError(f"a frame of kind {frame.kind.name} instead of JOIN")
            self._on_join(client, decode(frame.payload, Join))
        elif frame.kind == FrameKind.LEAVE:
            self._on_lost(client, "left the rendezvous", decode(frame.payload, Leave).reason)
        elif frame.kind == FrameKind.BLOB and self.members:
            number, timeout_s, blob = parse_blob(frame.payload)
            rank, their_deadline = client.member.rank, _slightly_before(_deadline(timeout_s))
            if number == self._number and rank in self._missing:
                self._add_blob(rank, blob, their_deadline)
            elif number == self._number + 1 and rank not in self._missing and rank not in self._early:
                self._early[rank] = blob, their_deadline
            else:
                raise FrameError(f"a blob of exchange {number} came, where exchange {self._number} is due")
        else:
            raise FrameError(f"unexpected frame of kind {frame.kind.name}")

    def _on_lost(self, client: Client, what: str, why: str) -> None:
        assert client.member is not None
        if not self.members:
            phase = f"before all {self._world_size} ranks had joined"
        elif self._missing:
            phase = f"in exchange {self._number}"
        else:
            phase = f"after exchange {self._number}" if self._number else "after all ranks had joined"
        reason = f"{client.member} {what} {phase}" + (f": {why}" if why else "")
        self._lost.setdefault(client.member.rank, RendezvousError(reason, ranks=(client.member.rank,)))

    def _on_join(self, client: Client, join: Join) -> None:
        member = Member(join.rank, join.pid, join.host, join.host_id, client.address)
        error = self._abort or self._objection(member, join.world_size)
        if error is None:
            assert client.sealed is not None
            client.sealed[0].limit_bytes = len(blob_payload(0, 0, b"")) + blob_limit_bytes(self._world_size)
            client.member = member
            self._clients[join.rank] = client
            self._missing.discard(join.rank)
            self._note_deadline(_slightly_before(_deadline(join.timeout_s)))
        elif not (self.members or self._abort):
            self._missing.discard(member.rank)
            raise error
        else:
            # All ranks have joined, or the rendezvous is over. Only this client gets the reason.
            self._server.send(client, FrameKind.ABORT, _abort_payload(error))
            client.ignored = True
            if self._abort is not None:
                self._missing.discard(member.rank)

    def _objection(self, member: Member, world_size: int) -> RendezvousError | None:
        client = self._clients.get(member.rank)
        other = self._me if member.rank == 0 else client.member if client is not None else None
        if world_size != self._world_size:
            reason = (
                f"{member} was told that there are {world_size} ranks, {self._me} that there are {self._world_size}; "
                "give every rank the same WORLD_SIZE"
            )
        elif member.rank >= self._world_size:
            reason = f"{member} is not one of {self._world_size} ranks, which go from 0 to {self._world_size - 1}"
        elif other is not None:
            reason = (
                f"two processes claim rank {member.rank}: pid {other.pid} on {other.host} and pid {member.pid} on "
                f"{member.host}; give every process its own RANK"
            )
        else:
            return None
        return RendezvousError(reason, ranks=(member.rank,))

    def _add_blob(self, rank: int, blob: bytes, their_deadline: Deadline) -> None:
        self._blobs[rank] = blob
        self._missing.discard(rank)
        self._note_deadline(their_deadline)

    def _note_deadline(self, theirs: Deadline) -> None:
        if self._earliest is None or theirs.at_s < self._earliest.at_s:
            self._earliest = theirs

    def _reachable_members(self) -> list[Member]:
        """All members, with addresses at which other hosts reach them.

        A rank that connected over loopback is on rank 0's host, so other hosts reach it as they reach rank 0.
        """
        local_addresses = [self._clients[rank].local_address for rank in sorted(self._clients)]
        outside = next((address for address in local_addresses if not is_loopback(address)), local_addresses[0])
        found = [Member(0, self._me.pid, self._me.host, self._me.host_id, outside)]
        for rank in range(1, self._world_size):
            member = self._clients[rank].member
            assert member is not None
            address = outside if is_loopback(member.address) else member.address
            found.append(Member(rank, member.pid, member.host, member.host_id, address))
        return found


def _abort_payload(error: RendezvousError) -> bytes:
    return encode(Abort(str(error)[:MAX_REASON], list(error.ranks)))


def _deadline(timeout_s: float) -> Deadline:
    return Deadline.after(max(timeout_s, 1e-3))


def _slightly_before(deadline: Deadline) -> Deadline:
    """Early enough that an abort still reaches a rank that gives up at this deadline."""
    return Deadline(deadline.timeout_s, deadline.at_s - min(0.5, 0.1 * deadline.left_s))
