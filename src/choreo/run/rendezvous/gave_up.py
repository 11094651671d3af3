"""Tell the ranks of rank 0's host that rank 0 gave up: it leaves a note where only its user can write.

Without it they would dial until their deadline. A note is of one job, and of one attempt: ranks heed those that were
written since they began. Ranks of other hosts cannot read it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from contextlib import suppress

import msgspec

from choreo.errors import RendezvousError, UsageError
from choreo.run.rendezvous.hosts import host_id
from choreo.run.rendezvous.local_file import NOTE, NOTE_S, read_private, sweep, user_directory, write_private
from choreo.run.rendezvous.processes import start_time
from choreo.run.transport.errors import CannotListenError

__all__ = ["Attempt"]

MAX_REASON_LENGTH = 500
_attempts = itertools.count()  # of this process


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The note: when rank 0 gave up, in seconds since boot, and why."""

    at_s: float
    reason: str


class Attempt:
    """One attempt to meet the ranks of a job. It began with its process, if that meets nobody else before."""

    def __init__(self, job: str, secret: bytes | None) -> None:
        now_s = _now_s()
        # Processes of a job are started at about the same time: rank 0 may give up before another rank begins to meet.
        self._began_s = now_s if next(_attempts) else max(_started_s(), now_s - NOTE_S)
        named = f"{host_id()}\0{job}\0".encode() + (secret or b"")
        self._name = NOTE + hashlib.sha256(named).hexdigest()[:40]

    def check(self) -> None:
        """Raise rank 0's reason, if it has given up."""
        with suppress(OSError, UsageError, msgspec.DecodeError, UnicodeDecodeError), user_directory() as directory:
            note = msgspec.json.decode(read_private(directory, self._name), type=_Note)
            if note.at_s >= self._began_s:
                raise RendezvousError(note.reason, ranks=(0,))

    def __enter__(self) -> None:
        """Rank 0 begins: what it left when it gave up earlier holds no longer."""
        with suppress(OSError, UsageError), user_directory() as directory:
            os.unlink(self._name, dir_fd=directory)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """If rank 0 cannot listen, leave a note for the other ranks of this host, where that is possible."""
        if isinstance(error, CannotListenError):
            note = msgspec.json.encode(_Note(_now_s(), str(error)[:MAX_REASON_LENGTH]))
            with suppress(OSError, UsageError), user_directory() as directory:
                sweep(directory)
                write_private(directory, self._name, note)


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _started_s() -> float:
    with suppress(OSError):  # no descriptor to find out with
        ticks = start_time(os.getpid())
        if ticks:
            return ticks / os.sysconf("SC_CLK_TCK")
    return _now_s()
