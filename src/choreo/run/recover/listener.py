"""The listener of a running job: processes that want to join connect between calls, and wait until the ranks call
`grow`."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from choreo.errors import JoinError
from choreo.run.connection import Connection
from choreo.run.rendezvous.admission import AdmissionServer, can_admit_here, open_admission
from choreo.run.rendezvous.environment import JobAddress
from choreo.run.transport.addresses import plain, resolve
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.limits import MAX_RANKS

__all__ = ["AdmissionListener", "is_admitting_rank", "listen"]

OPEN_S = 0.5


class AdmissionListener:
    """Listens where the job admits processes. `server` is what `grow` admits them with."""

    def __init__(self, server: AdmissionServer, stack: ExitStack) -> None:
        self.server, self._stack = server, stack

    def close(self) -> None:
        """Stop listening; a process that waits will try again."""
        self._stack.close()

    def drop(self) -> None:
        """Close what a fork has inherited, and leave the parent's listener as it is."""
        self._stack.pop_all()
        self.server.close()


def is_admitting_rank(job: JobAddress, connection: Connection) -> bool:
    """Whether this rank admits processes: the lowest on the job's host, or rank 0 if no rank is there.

    Only `grow` knows for certain which ranks are there; it closes a listener that is not needed.
    """
    rank, deadline = connection.rank, Deadline.after(OPEN_S)
    if not connection.remote[:rank].all():
        return False
    if can_admit_here(job, deadline):
        return True
    with suppress(OSError):
        there = {plain(str(target.address[0])) for target in resolve(job.address, job.port, deadline)}
        return rank == 0 and not any(peer.address in there for peer in connection.peers)
    return rank == 0


def listen(job: JobAddress, world_size: int) -> AdmissionListener | None:
    """Listen, unless another process listens there now."""
    deadline = Deadline.after(OPEN_S)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(
                open_admission(job, world_size, MAX_RANKS - world_size, deadline, lambda: True)
            )
        except JoinError:
            return None
        return AdmissionListener(server, stack.pop_all())
    return None
