"""Names and numbers of machines, and the socket that rank 0 listens on."""

from __future__ import annotations

import errno
import ipaddress
import queue
import socket
import threading
from contextlib import suppress
from typing import NamedTuple

from choreo.errors import UsageError, shown
from choreo.run.transport.deadline import Deadline

__all__ = ["Target", "is_local", "is_loopback", "listen", "parse_address", "plain", "resolve", "spelled"]

LOOPBACK = "127.0.0.1"


class Target(NamedTuple):
    """A numeric address that a socket of this family can be bound or connected to."""

    family: int
    address: tuple[str | int, ...]


def resolve(address: str, port: int, deadline: Deadline) -> list[Target]:
    """The numeric addresses of a name; an OSError where it has none, or where nobody says so in time."""
    if _is_number(address):
        return _look_up(address, port)
    # The system's resolver takes as long as it takes, so it is asked by a thread that one need not wait for.
    answers: queue.SimpleQueue[list[Target] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_look_up(address, port))
        except OSError as error:
            answers.put(error)
        except UnicodeError:  # a label of 64 letters, an empty one
            answers.put(OSError(errno.EINVAL, "it is not a name that a machine can have"))

    threading.Thread(target=ask, name="choreo-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline.left_s)
    except queue.Empty:
        raise TimeoutError(errno.ETIMEDOUT, f"nobody said within {deadline.patience_s:g} s what {address} is") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def is_local(address: str, deadline: Deadline) -> bool:
    """Whether an address is one of this machine's, in this network namespace: one can listen on it."""
    for family, target in resolve(address, 0, deadline):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(target)
            return True
    return False


def is_loopback(address: str) -> bool:
    """Whether this is a way for a machine to talk to itself only."""
    return address == "localhost" or (_is_number(address) and ipaddress.ip_address(plain(address)).is_loopback)


def listen(address: str, port: int) -> tuple[socket.socket, bool]:
    """A socket that listens on this address, and whether it is a number that is not one of this machine's.

    Then it listens on all that the machine has, since something may forward to it; and so it does for a name, which
    others may look up with another answer (many machines give their own name a loopback address).
    """
    foreign = False
    if address == "localhost":
        address = LOOPBACK
    if _is_number(address):
        family, target = _look_up(address, port)[0]
        try:
            return socket.create_server(target[:2], family=family, backlog=socket.SOMAXCONN), False
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            foreign = True
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            both = socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=socket.SOMAXCONN, dualstack_ipv6=True
            )
            return both, foreign
    return socket.create_server(("", port), backlog=socket.SOMAXCONN), foreign


def plain(address: str) -> str:
    """A number as people write it: an IPv4 address that came through an IPv6 socket is IPv4."""
    number = ipaddress.ip_address(address)
    mapped = getattr(number, "ipv4_mapped", None)
    return str(mapped or number)


def spelled(address: str, port: int) -> str:
    """`HOST:PORT`, `[::1]:PORT`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """The address and port in `HOST:PORT` or `[::1]:PORT`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{shown(text)} is not HOST:PORT; write an IPv6 address in brackets, like [::1]:29500")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not (colon and host and host.isprintable() and " " not in host and digits and 1 <= int(port) <= 65535):
        raise UsageError(f"{shown(text)} is not HOST:PORT, like node0:29500, with a port from 1 to 65535")
    return host, int(port)


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _look_up(address: str, port: int) -> list[Target]:
    flags = socket.AI_NUMERICHOST if _is_number(address) else 0
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)
    return [Target(family, target) for family, _, _, _, target in found if isinstance(target[0], str)]
