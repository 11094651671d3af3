"""Find out which ranks are on one host, and so may share memory.

Two ranks are on one host if they have the same kernel, the same network, process and user namespaces, the same user and
the same /dev/shm, and if each sees a file that the other puts there. A network namespace counts as a separate host:
processes that share a kernel but not a network were separated on purpose.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

from choreo.errors import RendezvousError, UsageError
from choreo.run.rendezvous.bootstrap import Bootstrap, exchange_made
from choreo.run.rendezvous.processes import is_alive, start_time
from choreo.run.transport.shortage import SHORT, no_room

__all__ = ["boot_of", "host_id", "host_name", "lowest_rank_per_host", "pid_namespace"]

SHARED_MEMORY = Path("/dev/shm")
PROBE = "choreo-probe"
PROBE_BYTES = 16
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def host_name() -> str:
    """The host's name, in printable characters."""
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in socket.gethostname())[:255] or "?"


def host_id() -> str:
    """An identity that two processes have in common if they can share memory, as far as each can tell by itself.

    Virtual machines started from one snapshot may have the same; `lowest_rank_per_host` tells them apart. An OSError if
    this process has no descriptor to find out with.
    """
    parts = [_boot_id()]
    for namespace in ("net", "pid", "user"):
        try:
            parts.append(f"{namespace}:{Path(f'/proc/self/ns/{namespace}').stat().st_ino}")
        except OSError:
            parts.append(f"{namespace}:?")
    try:
        # Within one kernel, the same device and inode are the same directory, whatever the mount namespace.
        facts = SHARED_MEMORY.stat()
        parts.append(f"shm:{facts.st_dev}:{facts.st_ino}")
    except OSError:
        parts.append(f"shm:none:{os.getpid()}")  # nothing to share
    parts.append(f"user:{os.geteuid()}")
    return "/".join(parts)


def boot_of(identity: str) -> str:
    """The part of a host id that changes when the host reboots."""
    return identity.partition("/")[0]


def lowest_rank_per_host(bootstrap: Bootstrap, timeout_s: float) -> list[int]:
    """For each rank, the lowest rank on its host.

    All ranks call it and get the same answer. It takes two exchanges: each rank puts a file into shared memory, and
    looks for the files of ranks with the same host id.
    """
    mine, lowest = host_id().encode(), bootstrap.rank
    with _Probe() as probe:
        probes = exchange_made(bootstrap.exchange, lambda: probe.make() + b"\0" + mine, timeout_s)

        def find() -> bytes:
            nonlocal lowest
            for rank, blob in enumerate(probes[: bootstrap.rank]):
                name, _, theirs = blob[PROBE_BYTES:].partition(b"\0")
                if theirs == mine and _sees(blob[:PROBE_BYTES], name):
                    lowest = rank
                    break
            return lowest.to_bytes(4, "big")

        found = exchange_made(bootstrap.exchange, find, timeout_s)
    lowest_of = [int.from_bytes(blob, "big") for blob in found]
    for rank, first in enumerate(lowest_of):
        if first > rank or lowest_of[first] != first:
            raise RendezvousError(
                f"rank {rank} says that it shares memory with rank {first}, which does not", ranks=(rank,)
            )
    return lowest_of


class _Probe:
    """A small file in shared memory, for the other ranks to look for."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def __enter__(self) -> _Probe:
        return self

    def make(self) -> bytes:
        """Make the file, and return its content and name; without a name if there is no shared memory to make it in."""
        _sweep()
        token = secrets.token_bytes(PROBE_BYTES)
        name = f"{PROBE}-{pid_namespace()}-{os.getpid()}-{start_time(os.getpid())}-{secrets.token_hex(8)}"
        path = SHARED_MEMORY / name
        try:
            descriptor = os.open(path, _CREATE, 0o600)
            self._path = path
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(token)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise UsageError(no_room(PROBE_BYTES, SHARED_MEMORY)) from None
            if error.errno in SHORT:
                raise
            return bytes(PROBE_BYTES)
        return token + name.encode()

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _sees(token: bytes, name: bytes) -> bool:
    if not name.startswith(PROBE.encode()) or b"/" in name or b"\0" in name or len(name) > 255:
        return False
    try:
        descriptor = os.open(SHARED_MEMORY / os.fsdecode(name), _READ)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return False
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return file.read(PROBE_BYTES + 1) == token


def _sweep() -> None:
    """Remove the probes of processes that were killed."""
    for path in SHARED_MEMORY.glob(f"{PROBE}-{pid_namespace()}-*"):
        parts = path.name.removeprefix(f"{PROBE}-").split("-")
        with suppress(OSError, ValueError, IndexError):
            if path.lstat().st_uid == os.geteuid() and not is_alive(int(parts[1]), int(parts[2])):
                path.unlink()


def pid_namespace() -> int:
    """The namespace in which pids have this process's meaning; 0 if it is unknown."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError as error:
        if error.errno in SHORT:  # with another identity this rank would seem to be on another host
            raise
        return f"host:{host_name()[:64]}"
