"""Addresses where a joining process may find a job whose MASTER_ADDR is gone: the other hosts of its last membership.

A rank remembers the addresses of its communicator. A restarted process reads them from its environment:
CHOREO_ADDRESSES lists them, and CHOREO_ADDRESSES_FILE, which `choreo run --restarts` sets, names a file that the ranks
of its host keep up to date.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from choreo.errors import UsageError
from choreo.files import read_text
from choreo.run.transport.addresses import check_host, parse_address

__all__ = ["FILE", "known_addresses", "remember_addresses"]

VARIABLE, FILE = "CHOREO_ADDRESSES", "CHOREO_ADDRESSES_FILE"
MAX_FILE_BYTES = 1 << 20

_last: tuple[str, ...] = ()  # of this process's last communicator of several hosts


def remember_addresses(addresses: Iterable[str], *, write: bool) -> None:
    """Remember where the ranks of this process's communicator are. One rank of each host writes them to the file."""
    global _last  # noqa: PLW0603 - a process is a rank of one job
    found = tuple(dict.fromkeys(filter(None, addresses)))
    if not found:
        return
    _last = found
    path = os.environ.get(FILE, "")
    if path and write:
        with suppress(OSError):  # only a restarted process needs it
            new = Path(f"{path}.{os.getpid()}")
            new.write_text(",".join(found), encoding="ascii")
            new.replace(path)


def known_addresses(port: int) -> list[tuple[str, int]]:
    """All addresses but MASTER_ADDR at which a job may admit this process. `port` is for those without one.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"CHOREO_ADDRESSES": "node1, node2:29501"}, clear=True):
    ...     known_addresses(29500)
    [('node1', 29500), ('node2', 29501)]
    """
    texts = {VARIABLE: os.environ.get(VARIABLE, "")}
    path = os.environ.get(FILE, "")
    if path:
        with suppress(UsageError):  # it may not be there yet
            texts[FILE] = read_text(path, MAX_FILE_BYTES, "a file of addresses")
    given = [
        _with_port(text.strip(), port, where)
        for where, several in texts.items()
        for text in several.split(",")
        if text.strip()
    ]
    return list(dict.fromkeys([*given, *((address, port) for address in _last)]))


def _with_port(text: str, port: int, where: str) -> tuple[str, int]:
    has_port = text.rpartition(":")[0].endswith("]") if text.startswith("[") else text.count(":") == 1
    if has_port:
        return parse_address(text)
    return check_host(text.strip("[]"), where), port
