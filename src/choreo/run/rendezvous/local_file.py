"""Where the ranks of one user on one machine find each other without a secret: a file only that user can read.

Rank 0 puts up a notice with a secret it has just made and the loopback port it listens on; the others read it. The file
is made with O_EXCL and mode 0600, in a directory of mode 0700 that belongs to the user and is opened once and never by
name again, so nobody else can put anything in its place. A notice whose owner (process and start time are in it) is
gone is removed by the next job.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec

from choreo.errors import UsageError, shown
from choreo.run.rendezvous.hosts import boot_of, host_id
from choreo.run.rendezvous.member import NotYetError
from choreo.run.rendezvous.processes import is_alive, start_time
from choreo.run.transport.addresses import spelled
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.secret import make_secret

__all__ = ["Notice", "OccupiedError", "put_up", "read_notice"]

MAX_NOTICE_BYTES = 2048
INCOMPLETE_S = 5.0  # after which a notice that is not written to its end is nobody's
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Notice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rank 0 lets the others of its user know."""

    pid: int
    started: int
    host_id: str
    address: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    secret: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]

    def __repr__(self) -> str:
        return f"Notice(pid={self.pid}, started={self.started}, at={spelled(self.address, self.port)})"

    @property
    def valid(self) -> bool:
        """Whether whoever put it up still runs, on this machine and since it was last started."""
        return self.host_id == host_id() and is_alive(self.pid, self.started)


class OccupiedError(Exception):
    """Somebody who still runs has put up a notice of this name."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(f"pid {notice.pid} meets under this name")
        self.notice = notice


@contextmanager
def put_up(job: str, address: str, port: int, deadline: Deadline) -> Iterator[bytes]:
    """Put up the notice of a job, whose rank 0 listens there, and take it down in the end; the secret to be proved."""
    notice = Notice(os.getpid(), start_time(os.getpid()), host_id(), address, port, make_secret())
    name = _name(job)
    with _directory(deadline) as directory:
        with _locked(directory, deadline):
            _sweep(directory)
            with suppress(NotYetError):
                there = _read(directory, name)
                if there.valid:
                    raise OccupiedError(there)
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            made = os.open(name, _CREATE, 0o600, dir_fd=directory)
            with os.fdopen(made, "wb", buffering=0) as file:
                os.fchmod(made, 0o600)  # whatever the umask
                file.write(msgspec.json.encode(notice))
                mine = os.fstat(made)
        try:
            yield notice.secret.encode()
        finally:
            with suppress(OSError):
                there_now = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if (there_now.st_dev, there_now.st_ino) == (mine.st_dev, mine.st_ino):
                    os.unlink(name, dir_fd=directory)


def read_notice(job: str, deadline: Deadline) -> Notice:
    """The notice of a job whose rank 0 still runs; NotYetError where there is none."""
    with _directory(deadline) as directory:
        notice = _read(directory, _name(job))
        if not notice.valid:
            raise NotYetError(f"the only notice there is from pid {notice.pid}, which no longer runs")
        return notice


def _name(job: str) -> str:
    # Ranks of other network or process namespaces cannot use it and need not find it.
    return "meet-" + hashlib.sha256(f"{host_id()}\0{job}".encode()).hexdigest()[:40]


@contextmanager
def _directory(deadline: Deadline) -> Iterator[int]:
    """The directory of notices, open; refused where somebody else could read or change what is in it."""
    path = _place()
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UsageError(f"{shown(path)}: not a directory of yours but a link or a file; remove it") from None
        raise UsageError(f"{shown(path)}: the ranks cannot meet there: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.geteuid():
            raise UsageError(
                f"{shown(path)}: it belongs to user {facts.st_uid}, not to you ({os.geteuid()}); set CHOREO_SECRET to "
                "meet without it"
            )
        if facts.st_mode & 0o077:
            raise UsageError(
                f"{shown(path)}: others can look into it or change it (mode {stat.S_IMODE(facts.st_mode):04o}); "
                "chmod 700 it"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _place() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with suppress(OSError):
        facts = os.stat(runtime)  # noqa: PTH116 - an empty text is not the current directory here
        if runtime.startswith("/") and stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid():
            return Path(runtime) / "choreo"
    # Not the directory of temporary files that TMPDIR names: that may be another one for each rank.
    return Path(f"/tmp/choreo-{os.geteuid()}")


@contextmanager
def _locked(directory: int, deadline: Deadline) -> Iterator[None]:
    """Alone in the directory; the lock goes with the process that holds it."""
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if deadline.passed:
                raise UsageError(
                    f"{shown(_place())}: another process has kept it locked for {deadline.patience_s:.3g} s; end it"
                ) from None
            time.sleep(0.01)
    try:
        yield
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)


def _read(directory: int, name: str) -> Notice:
    """A notice that can only be this user's own; NotYetError where there is none, or only the beginning of one."""
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except FileNotFoundError:
        raise NotYetError("rank 0 has not put up its notice for this user") from None
    except OSError as error:
        raise UsageError(f"{_spelled(name)}: the notice cannot be read: {error.strerror}; remove it") from None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise UsageError(
                f"{_spelled(name)}: the notice is not a file that you alone can read (user {facts.st_uid}, mode "
                f"{stat.S_IMODE(facts.st_mode):04o}); remove it"
            )
        text = file.read(MAX_NOTICE_BYTES + 1)
    try:
        return msgspec.json.decode(text, type=Notice)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotYetError("rank 0 is about to put up its notice, or died over it") from None


def _sweep(directory: int) -> None:
    """Remove what jobs left that were killed while they met."""
    for name in os.listdir(directory):
        with suppress(OSError, UsageError):
            try:
                notice = _read(directory, name)
                # Of another namespace of this machine one cannot tell from here whether its process still runs.
                left = boot_of(notice.host_id) != boot_of(host_id()) or (
                    notice.host_id == host_id() and not notice.valid
                )
            except NotYetError:
                age_s = time.time() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
                left = age_s > INCOMPLETE_S
            if left:
                os.unlink(name, dir_fd=directory)


def _spelled(name: str) -> str:
    return shown(_place() / name)
