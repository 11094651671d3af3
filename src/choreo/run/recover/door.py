"""The door of a running job: new processes wait at it between calls, until the ranks call `grow`."""

from __future__ import annotations

from contextlib import ExitStack

from choreo.errors import JoinError
from choreo.run.rendezvous.admission import AdmissionServer, can_admit_here, open_admission
from choreo.run.rendezvous.environment import JobAddress
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.limits import MAX_RANKS

__all__ = ["Door", "open_door"]

OPEN_S = 0.5


class Door:
    """Listens where the job admits processes. `server` is what `grow` admits them with."""

    def __init__(self, server: AdmissionServer, stack: ExitStack) -> None:
        self.server, self._stack = server, stack

    def close(self) -> None:
        """Stop listening; a process that waits will try again."""
        self._stack.close()

    def drop(self) -> None:
        """Close what a fork has inherited, and leave the parent's door as it is."""
        self._stack.pop_all()
        self.server.close()


def open_door(job: JobAddress, world_size: int) -> Door | None:
    """The door, if this host can admit processes and nobody else listens there now."""
    deadline = Deadline.after(OPEN_S)
    if not can_admit_here(job, deadline):
        return None
    with ExitStack() as stack:
        try:
            server = stack.enter_context(
                open_admission(job, world_size, MAX_RANKS - world_size, deadline, lambda: True)
            )
        except JoinError:
            return None
        return Door(server, stack.pop_all())
    return None
