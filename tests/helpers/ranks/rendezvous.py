"""Ranks as real processes: forked from a server that has everything loaded, told what to do, and heard out."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess

from choreo.errors import ChoreoError, RendezvousError
from choreo.run.rendezvous.rendezvous import Rendezvous, rendezvous
from tests.helpers.ranks.fork_server import CONTEXT, start_server

SECRET = b"a secret of the tests: 0123456789"
OTHER = b"another secret of the tests: 9876"


@dataclass(frozen=True)
class Outcome:
    """How a process fared: what it returned or what it raised, and when."""

    pid: int
    value: object = None
    error: BaseException | None = None
    seconds: float = 0.0

    @property
    def told(self) -> str:
        assert isinstance(self.error, ChoreoError), self
        return str(self.error)

    @property
    def ranks(self) -> tuple[int, ...]:
        assert isinstance(self.error, RendezvousError), self
        return self.error.ranks


@dataclass
class Process:
    """A process that does one thing."""

    do: Callable[..., object]
    arguments: dict[str, object]
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        start_server()
        self._receiver, sender = CONTEXT.Pipe(duplex=False)
        self._process: ForkServerProcess = CONTEXT.Process(
            target=_work, args=(sender, self.do, self.arguments, self.variables), daemon=True
        )
        self._process.start()
        sender.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def outcome(self, timeout_s: float = 90.0) -> Outcome:
        """What became of it; a process that hangs fails the test, and one that was killed has no outcome."""
        try:
            ready = wait([self._receiver], timeout_s)
            assert ready, f"{self.do.__name__} {self.arguments} hangs"
            found = self._receiver.recv()
        except EOFError:
            found = Outcome(self.pid)
        finally:
            self.end()
        assert isinstance(found, Outcome)
        return found

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.kill()
        self._process.join()
        self._receiver.close()


def _work(
    sender: Connection, do: Callable[..., object], arguments: dict[str, object], variables: dict[str, str]
) -> None:
    os.environ.update(variables)
    began_s = time.monotonic()
    try:
        value, error = do(**arguments), None
    except BaseException as raised:
        value, error = None, raised
    sender.send(Outcome(os.getpid(), value, error, time.monotonic() - began_s))


def wait_for_listener(port: int) -> None:
    """Until rank 0 listens there; it sees a outsider who says nothing and goes."""
    for _ in range(2000):
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5.0):
            return
        time.sleep(0.01)
    raise AssertionError("rank 0 does not listen")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def join(
    rank: int,
    world_size: int,
    port: int,
    *,
    secret: bytes | None = SECRET,
    timeout_s: float = 60.0,
    address: str = "127.0.0.1",
    job: str = "",
) -> Rendezvous:
    return rendezvous(rank, world_size, address, port, secret, timeout_s=timeout_s, job=job)


def join_and_exchange(rank: int, world_size: int, port: int, times: int = 1, **how: object) -> list[list[bytes]]:
    """Join, exchange something `times` times, and leave."""
    with join(rank, world_size, port, **how) as joined:  # type: ignore[arg-type]
        return [joined.exchange(share(rank, number), 60.0) for number in range(times)]


def share(rank: int, number: int) -> bytes:
    return b"%d of %d;" % (number, rank) * (rank * 7 % 5)


def shares(world_size: int, times: int) -> list[list[bytes]]:
    return [[share(rank, number) for rank in range(world_size)] for number in range(times)]


def ranks_do(
    do: Callable[..., object], world_size: int, port: int, *, only: range | None = None, **how: object
) -> list[Process]:
    """A process for each rank."""
    return [
        Process(do, {"rank": rank, "world_size": world_size, "port": port} | how) for rank in only or range(world_size)
    ]


def outcomes(processes: list[Process]) -> list[Outcome]:
    try:
        return [process.outcome() for process in processes]
    finally:
        for process in processes:
            process.end()


def same_reason(found: list[Outcome], *parts: str) -> str:
    """All were told the same, and it has these parts."""
    reason = found[0].told
    assert {outcome.told for outcome in found} == {reason}
    for part in parts:
        assert re.search(part, reason), (part, reason)
    return reason
