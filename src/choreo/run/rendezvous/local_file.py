"""Rendezvous without a secret, for ranks of one user on one host: through a file that only this user can read.

Rank 0 publishes a record with a fresh secret and the loopback port it listens on; the others read it. The file is made
with O_EXCL and mode 0600, in a directory of mode 0700 that belongs to the user. The directory is opened once, and then
used only through its descriptor, so nobody else can replace anything in it. The record holds the pid and start time of
its owner; if that process is gone, the next job removes the record.
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
from choreo.run.rendezvous.participant import NotReadyError
from choreo.run.rendezvous.processes import is_alive, start_time
from choreo.run.transport.addresses import format_address
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.secret import make_secret

__all__ = [
    "NOTE",
    "NOTE_S",
    "AlreadyPublishedError",
    "CoordinatorRecord",
    "find_published",
    "publish",
    "read_private",
    "sweep",
    "user_directory",
    "write_private",
]

MAX_RECORD_BYTES = 2048
INCOMPLETE_S = 5.0  # after which a record that is not written completely is abandoned
NOTE_S = 10.0  # for which a note that rank 0 gave up is heeded by ranks that begin after it
NOTE = "gave-up-"  # begins the name of such a note
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class CoordinatorRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rank 0's address, its secret, and its process."""

    pid: int
    started: int
    host_id: str
    address: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    secret: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]

    def __repr__(self) -> str:
        return (
            f"CoordinatorRecord(pid={self.pid}, started={self.started}, at={format_address(self.address, self.port)})"
        )

    @property
    def valid(self) -> bool:
        """Whether the process that published it still runs on this host."""
        return self.host_id == host_id() and is_alive(self.pid, self.started)


class AlreadyPublishedError(Exception):
    """A process that still runs has published a record of this name."""

    def __init__(self, record: CoordinatorRecord) -> None:
        super().__init__(f"pid {record.pid} uses this name")
        self.record = record


@contextmanager
def publish(job: str, address: str, port: int, deadline: Deadline) -> Iterator[bytes]:
    """Publish where rank 0 of a job listens, and remove the record in the end; gives the record's secret."""
    record = CoordinatorRecord(os.getpid(), start_time(os.getpid()), host_id(), address, port, make_secret())
    name = _name(job)
    with user_directory() as directory:
        with _locked(directory, deadline):
            sweep(directory)
            with suppress(NotReadyError):
                there = _read(directory, name)
                if there.valid:
                    raise AlreadyPublishedError(there)
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            mine = write_private(directory, name, msgspec.json.encode(record))
        try:
            yield record.secret.encode()
        finally:
            with suppress(OSError):
                there_now = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if (there_now.st_dev, there_now.st_ino) == (mine.st_dev, mine.st_ino):
                    os.unlink(name, dir_fd=directory)


def find_published(job: str) -> CoordinatorRecord:
    """The record of a job whose rank 0 still runs; NotReadyError if there is none."""
    with user_directory() as directory:
        record = _read(directory, _name(job))
        if not record.valid:
            raise NotReadyError(f"the only record is of pid {record.pid}, which no longer runs")
        return record


def write_private(directory: int, name: str, content: bytes) -> os.stat_result:
    """A new file that only this user can read."""
    descriptor = os.open(name, _CREATE, 0o600, dir_fd=directory)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask
        file.write(content)
        return os.fstat(descriptor)


def _name(job: str) -> str:
    # Ranks in other network or process namespaces could not use it, so they get another name.
    return "meet-" + hashlib.sha256(f"{host_id()}\0{job}".encode()).hexdigest()[:40]


@contextmanager
def user_directory() -> Iterator[int]:
    """A descriptor of the directory; UsageError if another user could read or change it."""
    path = _path()
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UsageError(f"{shown(path)}: not a directory of yours but a link or a file; remove it") from None
        raise UsageError(f"{shown(path)}: the ranks cannot find each other through it: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.geteuid():
            raise UsageError(
                f"{shown(path)}: it belongs to user {facts.st_uid}, not to you ({os.geteuid()}); set CHOREO_SECRET to "
                "do without it"
            )
        if facts.st_mode & 0o077:
            raise UsageError(
                f"{shown(path)}: other users can read or change it (mode {stat.S_IMODE(facts.st_mode):04o}); "
                "chmod 700 it"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _path() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with suppress(OSError):
        facts = os.stat(runtime)  # noqa: PTH116 - an empty text is not the current directory here
        if runtime.startswith("/") and stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid():
            return Path(runtime) / "choreo"
    # Not TMPDIR, which may differ between ranks.
    return Path(f"/tmp/choreo-{os.geteuid()}")


@contextmanager
def _locked(directory: int, deadline: Deadline) -> Iterator[None]:
    """Hold the lock on the directory; it ends with the process that holds it."""
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if deadline.passed:
                raise UsageError(
                    f"{shown(_path())}: another process has kept it locked for {deadline.timeout_s:.3g} s; end it"
                ) from None
            time.sleep(0.01)
    try:
        yield
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)


def _read(directory: int, name: str) -> CoordinatorRecord:
    """A record that only this user can have written; NotReadyError if there is none, or only a part of one."""
    try:
        text = read_private(directory, name)
    except FileNotFoundError:
        raise NotReadyError("rank 0 has not published its address for this user") from None
    except OSError as error:
        raise UsageError(f"{_spelled(name)}: the record cannot be read: {error.strerror}; remove it") from None
    try:
        return msgspec.json.decode(text, type=CoordinatorRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotReadyError("rank 0 is writing its address, or died while it did") from None


def read_private(directory: int, name: str) -> bytes:
    """A small file that only this user can have written; an OSError or UsageError if it is none."""
    descriptor = os.open(name, _READ, dir_fd=directory)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise UsageError(
                f"{_spelled(name)}: the record is not a file that only you can read (user {facts.st_uid}, mode "
                f"{stat.S_IMODE(facts.st_mode):04o}); remove it"
            )
        return file.read(MAX_RECORD_BYTES + 1)


def sweep(directory: int) -> None:
    """Remove the records of jobs that were killed during their rendezvous, and notes of those that gave up."""
    for name in os.listdir(directory):
        with suppress(OSError, UsageError):
            try:
                record = _read(directory, name)
                # Processes of other namespaces cannot be seen from here, so their records stay.
                stale = boot_of(record.host_id) != boot_of(host_id()) or (
                    record.host_id == host_id() and not record.valid
                )
            except NotReadyError:
                age_s = time.time() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
                stale = age_s > (NOTE_S if name.startswith(NOTE) else INCOMPLETE_S)
            if stale:
                os.unlink(name, dir_fd=directory)


def _spelled(name: str) -> str:
    return shown(_path() / name)
