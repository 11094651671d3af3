"""Hosts for tests: network namespaces, and ranks in them that start as those of a job do."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import secrets
import subprocess
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import choreo
from tests.helpers.network.relay import Relay
from tests.helpers.ranks.faults import PATIENCE_S, Ended, Pipe, Ranks, run_body
from tests.helpers.ranks.fork_server import CONTEXT, start_server

CLONE_NEWNET = 0x40000000
PORT = 29_700
NETNS = Path("/run/netns")


@dataclass(frozen=True)
class Cables:
    """What the cables between hosts are like."""

    loss: float = 0.0  # of packets
    delay_s: float = 0.0  # each way
    ipv6: bool = False

    @property
    def is_lossy(self) -> bool:
        return bool(self.loss or self.delay_s)


class Hosts:
    """Namespaces that reach each other under `addresses`, by a cable between every two."""

    def __init__(self, count: int, cables: Cables | None = None) -> None:
        self.tag = f"choreo{os.getpid()}x{secrets.token_hex(2)}"
        self.names = [f"{self.tag}h{number}" for number in range(count)]
        self.cables = cables or Cables()
        self._relay: Relay | None = None
        network = "fd00::" if self.cables.ipv6 else "10.77.0."
        self.addresses = [f"{network}{number + 1}" for number in range(count)]

    def make(self) -> None:
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", address, "dev", "lo")
        if self.cables.is_lossy:
            self._relay = Relay(self.names, enter, self.cables.loss, self.cables.delay_s)
        else:
            for low, high in combinations(range(len(self.names)), 2):
                there = ("peer", "name", f"to{low}", "netns", self.names[high])
                _ip("-n", self.names[low], "link", "add", f"to{high}", "type", "veth", *there)
        for cable in combinations(range(len(self.names)), 2):
            self.mend_cable(*cable)

    def cut(self, number: int) -> None:
        """Pull all cables of a host; nobody is told."""
        for other in range(len(self.names)):
            if other != number:
                self.cut_cable(number, other)

    def mend(self, number: int) -> None:
        """Put the cables of a host back."""
        for other in range(len(self.names)):
            if other != number:
                self.mend_cable(number, other)

    def cut_cable(self, one: int, other: int) -> None:
        """Pull the cable between two hosts."""
        _ip("-n", self.names[one], "link", "set", f"to{other}", "down")

    def mend_cable(self, one: int, other: int) -> None:
        """Put the cable between two hosts back."""
        ends = ((one, other), (other, one))
        for here, there in ends:
            _ip("-n", self.names[here], "link", "set", f"to{there}", "up")
            if self.cables.ipv6:  # an end answers for its own addresses only, and loses them with the cable
                _ip("-n", self.names[here], "addr", "replace", self.addresses[here], "dev", f"to{there}", "nodad")
        for here, there in ends:
            way = (self.addresses[there], "dev", f"to{there}", "src", self.addresses[here])
            _ip("-n", self.names[here], "route", "replace", *way)

    def deafen(self, sender: int, hearer: int) -> None:
        """Let nothing that one host sends arrive at another, which is still heard itself."""
        nobody = ("lladdr", "02:00:00:00:00:99", "dev", f"to{hearer}", "nud", "permanent")
        _ip("-n", self.names[sender], "neigh", "replace", self.addresses[hearer], *nobody)

    def undeafen(self, sender: int, hearer: int) -> None:
        """Let it arrive again."""
        _ip("-n", self.names[sender], "neigh", "del", self.addresses[hearer], "dev", f"to{hearer}")

    def remove(self) -> None:
        if self._relay is not None:
            self._relay.stop()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def hosts(count: int, cables: Cables | None = None) -> Iterator[Hosts]:
    """This many hosts, for as long as they are needed."""
    made = Hosts(count, cables)
    try:
        made.make()
        yield made
    finally:
        made.remove()


@cache
def why_no_hosts() -> str:
    """Why hosts cannot be made here; empty if they can."""
    try:
        with hosts(2):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"") or str(error).encode()
        return f"network namespaces cannot be made here: {told.decode(errors='replace').strip()}"


def enter(name: str) -> None:
    """Move this process into a namespace; it must have one thread."""
    with (NETNS / name).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")


class NetworkJob(Ranks):
    """Ranks on hosts; `where` says on which; all run one function of their communicator and their pipe to the test.

    `before` is called in each of them before they meet.
    """

    def __init__(
        self,
        made: Hosts,
        where: Sequence[int],
        body: Callable[..., Any],
        *args: object,
        timeout_s: float = 30.0,
        before: Callable[[], object] | None = None,
        **variables: str,
    ) -> None:
        start_server()
        talks = [CONTEXT.Pipe() for _ in where]
        self.talks = [mine for mine, _ in talks]
        self.processes = []
        told = {
            "WORLD_SIZE": str(len(where)),
            "MASTER_ADDR": made.addresses[where[0]],
            "MASTER_PORT": str(PORT),
            "CHOREO_SECRET": secrets.token_hex(16),
        }
        for rank, host in enumerate(where):
            given = (
                made.names[host],
                timeout_s,
                told | {"RANK": str(rank)} | variables,
                talks[rank][1],
                before,
                body,
                args,
            )
            self.processes.append(CONTEXT.Process(target=_rank, args=given, daemon=True))
        for process in self.processes:
            process.start()
        for _, theirs in talks:
            theirs.close()


def _rank(
    host: str,
    timeout_s: float,
    variables: dict[str, str],
    talk: Pipe,
    before: Callable[[], object] | None,
    body: Callable[..., Any],
    args: Any,
) -> None:
    faulthandler.dump_traceback_later(0.8 * PATIENCE_S)  # where it hangs, if it does
    try:
        enter(host)
        os.environ.update(variables)
        if before is not None:
            before()
        ended = run_body(_with_communicator, None, talk, body, args, timeout_s)
    except BaseException:  # whatever it is, the test must hear of it
        ended = Ended(error="in the test", text=traceback.format_exc())
    with suppress(OSError):
        talk.send(ended)
        wait([talk], PATIENCE_S)  # the end of a process is a failure to those who are still at it


def _with_communicator(_: None, talk: Pipe, body: Callable[..., Any], args: Any, timeout_s: float) -> Any:
    communicator = choreo.init(timeout=20.0)
    communicator.timeout_s = timeout_s
    return body(communicator, talk, *args)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
