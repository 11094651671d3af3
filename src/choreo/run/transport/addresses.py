"""Host names, IP addresses, and the socket that rank 0 listens on."""

from __future__ import annotations

import errno
import ipaddress
import queue
import socket
from contextlib import suppress
from typing import NamedTuple

from choreo.errors import ChoreoError, UsageError, excerpt, shown
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.shortage import start_thread

__all__ = [
    "Target",
    "check_host",
    "format_address",
    "is_local",
    "is_loopback",
    "listen",
    "parse_address",
    "plain",
    "resolve",
]

LOOPBACK = "127.0.0.1"
MAX_HOST = 253  # characters of a host's name


class Target(NamedTuple):
    """A numeric address that a socket of this family can be bound or connected to."""

    family: int
    address: tuple[str | int, ...]


def resolve(address: str, port: int, deadline: Deadline) -> list[Target]:
    """The numeric addresses of a name; an OSError if it has none, or if the resolver does not answer in time."""
    if _is_number(address):
        return _look_up(address, port)
    # The system's resolver has no timeout, so a thread asks it.
    answers: queue.SimpleQueue[list[Target] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_look_up(address, port))
        except OSError as error:
            answers.put(error)
        except UnicodeError:  # a label of 64 letters, an empty one
            answers.put(OSError(errno.EINVAL, "it is not a valid host name"))

    try:
        start_thread(ask, "choreo-resolve", f"the address of {address}")
    except ChoreoError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    try:
        answer = answers.get(timeout=deadline.left_s)
    except queue.Empty:
        raise TimeoutError(errno.ETIMEDOUT, f"{address} was not resolved within {deadline.timeout_s:g} s") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def is_local(address: str, deadline: Deadline) -> bool:
    """Whether an address belongs to this host, in this network namespace, so that one can listen on it."""
    for family, target in resolve(address, 0, deadline):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(target)
            return True
    return False


def is_loopback(address: str) -> bool:
    """Whether this is a loopback address."""
    return address == "localhost" or (_is_number(address) and ipaddress.ip_address(plain(address)).is_loopback)


def listen(address: str, port: int) -> tuple[socket.socket, bool]:
    """A socket that listens on this address, and whether the address is numeric and foreign to this host.

    For a foreign address the socket listens on all addresses of the host, since something may forward to it. It does so
    for a name as well: other hosts may resolve it differently, as many hosts map their own name to loopback.
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
    """A numeric address in its usual form: an IPv4 address seen through an IPv6 socket is IPv4."""
    number = ipaddress.ip_address(address)
    mapped = getattr(number, "ipv4_mapped", None)
    return str(mapped or number)


def check_host(text: str, where: str) -> str:
    """A host's name or address, as a resolver may be asked for it.

    >>> check_host("node0", "MASTER_ADDR")
    'node0'
    """
    fits = text.isprintable() and " " not in text and len(text) <= MAX_HOST and _is_name(text)
    if not (fits or _is_number(text)):
        raise UsageError(f"{where} is {excerpt(text)}, which is no host's name and no address; write node0 or 10.0.0.1")
    return text


def format_address(address: str, port: int) -> str:
    """`HOST:PORT`, `[::1]:PORT`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """The address and port in `HOST:PORT` or `[::1]:PORT`."""
    if not isinstance(text, str):
        raise UsageError(f"an address must be text, HOST:PORT, not {excerpt(text)}")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{shown(text)} is not HOST:PORT; write an IPv6 address in brackets, like [::1]:29500")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not (colon and host and host.isprintable() and " " not in host and digits and 1 <= int(port) <= 65535):
        raise UsageError(f"{shown(text)} is not HOST:PORT, like node0:29500, with a port from 1 to 65535")
    return check_host(host, "the address"), int(port)


def _is_name(text: str) -> bool:
    if text.isascii():  # as the codec has it, which opens files when it is first used
        *labels, last = text.split(".")
        return bool(text) and all(0 < len(label) < 64 for label in labels) and len(last) < 64
    try:
        return bool(text.encode("idna"))
    except UnicodeError:  # a label of 64 letters, an empty one
        return False


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _look_up(address: str, port: int) -> list[Target]:
    flags = socket.AI_NUMERICHOST if _is_number(address) else 0
    # As bytes: for text Python loads a codec, and if it cannot the first time, for lack of memory, it never will.
    host = address.encode() if address.isascii() else address
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [Target(family, target) for family, _, _, _, target in found if isinstance(target[0], str)]
