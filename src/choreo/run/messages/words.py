"""Words of shared memory by which the ranks of one host notify each other of messages, and copies of what they send.

Each rank has a channel for each peer in its own segment: some words, and a ring. The peer maps them read-only. A rank
that notifies a peer rings its doorbell: it increments a word, and wakes the peer if it sleeps. `core/words.c` does the
same as `Words` and the functions here, without the GIL and with futexes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from functools import cache
from types import ModuleType
from typing import Protocol, cast

import numpy as np

from choreo.compiled import import_compiled, prefers_python
from choreo.run.execute.peer_memory import read_memory

__all__ = ["WORDS", "MessageCore", "Words", "message_core"]

WORDS = 8  # before those that `rings` adds
BELL = 0  # 1 and 6 are for the compiled twin: whether a rank sleeps, and on which core it is
# A rank in Python looks this often without a pause, and then with pauses that grow up to the longest.
LOOKS, LONGEST_PAUSE_S = 50, 0.001


class Words:
    """The words of a rank and its peers.

    Word `at` of a channel is 8 bytes. A peer is its segment and where its channels begin, or None if it is on another
    host. Channels are `stride` bytes apart, and begin with `words` words. `alone` is for the
    compiled twin: whether every rank has a core of its own.
    """

    def __init__(
        self,
        rank: int,
        own: object,
        at: int,
        peers: list[tuple[object, int] | None],
        stride: int,
        words: int,
        alone: bool,
        /,
    ) -> None:
        self._ours: dict[int, memoryview] = {}
        self._theirs: dict[int, memoryview] = {}
        for peer, one in enumerate(peers):
            if peer == rank or one is None:
                continue
            there = one[1] + rank * stride
            self._ours[peer] = memoryview(own)[at + peer * stride :][: 8 * words].cast("Q")  # type: ignore[arg-type]
            self._theirs[peer] = memoryview(one[0])[there : there + 8 * words].cast("Q")  # type: ignore[arg-type]
        self._woken = 0
        self._fence = threading.Lock()  # taken before a word is written: the barrier where stores are reordered

    def read(self, peer: int, word: int, /) -> int:
        """A word that a peer has written for this rank."""
        return self._theirs[peer][word]

    def write(self, peer: int, word: int, value: int, /) -> None:
        """Write a word for a peer."""
        with self._fence:
            self._ours[peer][word] = value

    def tell(self, peer: int, word: int, value: int, /) -> None:
        """Write a word for a peer, and ring its doorbell. In Python nobody sleeps for long, so nobody is woken."""
        self.write(peer, word, value)
        with self._fence:
            self._ours[peer][BELL] += 1

    def bells(self) -> int:
        """The number of times that all doorbells have rung."""
        return self._woken + sum(theirs[BELL] for theirs in self._theirs.values())

    def wait(self, bells: int, seconds: float, /) -> None:
        """Wait until the doorbells have rung more often than this, or for as many seconds."""
        end_s, pause_s = time.monotonic() + seconds, 0.0
        for look in range(1 << 62):
            if self.bells() != bells or time.monotonic() > end_s:
                return
            if look > LOOKS:
                pause_s = min(pause_s + 1e-5, LONGEST_PAUSE_S)
            time.sleep(pause_s)

    def wake_threads(self) -> None:
        """Wake the threads of this process that wait."""
        self._woken += 1


def copy(into: memoryview, given: memoryview, shared: bool = False, /) -> None:
    """Copy bytes; `shared`: to memory that a peer has read before, which costs more unless it bypasses the caches."""
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(given, np.uint8))


def address_of(given: memoryview, /) -> int:
    """The address of a buffer in this process."""
    return int(np.frombuffer(given, np.uint8).__array_interface__["data"][0])


def memory_at(address: int, length: int, /) -> memoryview:
    """The bytes at an address of this process, valid as long as the memory is."""
    return memoryview((ctypes.c_ubyte * length).from_address(address) if length else bytearray()).cast("B")


def read_process(into: memoryview, pid: int, address: int, /) -> None:
    """Read memory of another process; OSError if that cannot be done."""
    at, length, done = address_of(into), len(into), 0
    while done < length:
        got = read_memory(pid, address + done, at + done, length - done)
        if got <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        done += got


class MessageCore(Protocol):
    """The interface of this module and its compiled twin."""

    Words: type[Words]

    def copy(self, into: memoryview, given: memoryview, shared: bool = False, /) -> None:
        """Copy bytes; `shared`: to where a peer has read before."""

    def address_of(self, given: memoryview, /) -> int:
        """Where a buffer is in this process."""
        ...

    def memory_at(self, address: int, length: int, /) -> memoryview:
        """The bytes at an address of this process, for as long as what is there stays."""
        ...

    def read_process(self, into: memoryview, pid: int, address: int, /) -> None:
        """Read memory of another process; OSError if that cannot be done."""


def message_core() -> MessageCore:
    """The compiled twin of this module if there is one, unless CHOREO_PURE_PYTHON=1 asks for this one."""
    return cast("MessageCore", (None if prefers_python() else _compiled()) or sys.modules[__name__])


@cache
def _compiled() -> ModuleType | None:
    return import_compiled("choreo.run.messages._core")
