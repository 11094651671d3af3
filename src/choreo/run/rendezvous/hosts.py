"""Which ranks are on one machine, so that they may share memory.

Two ranks are when the kernel, the network, process and user namespaces, the user and the directory of shared memory
are the same, and each sees what the other puts there. Network namespaces count as machines of their own: what shares
a kernel but not a network was separated on purpose.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from choreo.errors import MeetingError
from choreo.run.rendezvous.processes import is_alive, start_time

__all__ = ["boot_of", "host_id", "host_name", "machines", "pid_namespace"]

SHARED_MEMORY = Path("/dev/shm")
PROBE = "choreo-probe"
PROBE_BYTES = 16
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Gathering(Protocol):
    """Ranks that can tell each other something."""

    @property
    def rank(self) -> int:
        """Which of them this is."""
        ...

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blob, by rank."""
        ...


def host_name() -> str:
    """The machine's name, fit to be printed."""
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in socket.gethostname())[:255] or "?"


def host_id() -> str:
    """A text that is the same for two processes only if they can share memory, as far as one can tell from inside.

    Machines that were started from one snapshot have the same; `machines` finds those out too.
    """
    parts = [_boot_id()]
    for namespace in ("net", "pid", "user"):
        try:
            parts.append(f"{namespace}:{Path(f'/proc/self/ns/{namespace}').stat().st_ino}")
        except OSError:
            parts.append(f"{namespace}:?")
    try:
        # The same numbers in two mount namespaces of one kernel are the same directory.
        facts = SHARED_MEMORY.stat()
        parts.append(f"shm:{facts.st_dev}:{facts.st_ino}")
    except OSError:
        parts.append(f"shm:none:{os.getpid()}")  # nothing to share: alone
    parts.append(f"user:{os.geteuid()}")
    return "/".join(parts)


def boot_of(identity: str) -> str:
    """The part of a host id that changes when the machine is started again."""
    return identity.partition("/")[0]


def machines(gathering: Gathering, timeout_s: float) -> list[int]:
    """For each rank, the lowest rank that shares memory with it: ranks with the same number are on one machine.

    All ranks call it and get the same answer. It takes two exchanges: each rank puts a file into shared memory, and
    looks for those of the ranks that claim to be on the same machine.
    """
    with _Probe() as probe:
        mine = host_id().encode()
        shown = gathering.exchange(probe.told + b"\0" + mine, timeout_s)
        lowest = gathering.rank
        for rank, told in enumerate(shown[: gathering.rank]):
            where, _, theirs = told[PROBE_BYTES:].partition(b"\0")
            if theirs == mine and _sees(told[:PROBE_BYTES] + where):
                lowest = rank
                break
        found = gathering.exchange(lowest.to_bytes(4, "big"), timeout_s)
    lowest_of = [int.from_bytes(blob, "big") for blob in found]
    for rank, first in enumerate(lowest_of):
        if first > rank or lowest_of[first] != first:
            raise MeetingError(
                f"rank {rank} says that it shares memory with rank {first}, which does not", ranks=(rank,)
            )
    return lowest_of


class _Probe:
    """A small file in shared memory, there for as long as the others look for it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self.told = bytes(PROBE_BYTES)  # nothing more, where nothing can be put there

    def __enter__(self) -> _Probe:
        _sweep()
        token = secrets.token_bytes(PROBE_BYTES)
        name = f"{PROBE}-{pid_namespace()}-{os.getpid()}-{start_time(os.getpid())}-{secrets.token_hex(8)}"
        path = SHARED_MEMORY / name
        try:
            descriptor = os.open(path, _CREATE, 0o600)
        except OSError:
            return self
        self._path = path
        with os.fdopen(descriptor, "wb", buffering=0) as file, suppress(OSError):
            if file.write(token) == PROBE_BYTES:
                self.told = token + name.encode()
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _sees(told: bytes) -> bool:
    token, name = told[:PROBE_BYTES], told[PROBE_BYTES:]
    if not name.startswith(PROBE.encode()) or b"/" in name or b"\0" in name or len(name) > 255:
        return False
    try:
        descriptor = os.open(SHARED_MEMORY / os.fsdecode(name), _READ)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return file.read(PROBE_BYTES + 1) == token


def _sweep() -> None:
    """Remove the probes of processes that were killed while they had one."""
    for path in SHARED_MEMORY.glob(f"{PROBE}-{pid_namespace()}-*"):
        parts = path.name.removeprefix(f"{PROBE}-").split("-")
        with suppress(OSError, ValueError, IndexError):
            if path.lstat().st_uid == os.geteuid() and not is_alive(int(parts[1]), int(parts[2])):
                path.unlink()


def pid_namespace() -> int:
    """Where numbers of processes mean the same as here; 0 if nobody knows."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"host:{host_name()[:64]}"
