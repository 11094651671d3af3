"""The words that ranks of one host share: the compiled ones, and those in Python."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import cast

import pytest

from choreo.compiled import import_compiled
from choreo.run.messages import words
from choreo.run.messages.words import MessageCore, Words

STRIDE, COUNT = 256, 16
COMPILED = cast("MessageCore | None", import_compiled("choreo.run.messages._core"))
PYTHON = cast("MessageCore", words)
CORES = [PYTHON] if COMPILED is None else [PYTHON, COMPILED]
Pair = tuple[Words, Words]


@pytest.fixture(params=[(a, b) for a in CORES for b in CORES], ids=lambda pair: "-".join(one.__name__ for one in pair))
def pair(request: pytest.FixtureRequest) -> Pair:
    """Two ranks that map each other's memory, each with one of the two implementations."""
    maps = [mmap.mmap(-1, 4096) for _ in range(2)]
    first, second = request.param
    peers: list[tuple[object, int] | None] = [(maps[0], 64), (maps[1], 128)]
    return (
        first.Words(0, maps[0], 64, peers, STRIDE, COUNT, True),
        second.Words(1, maps[1], 128, peers, STRIDE, COUNT, True),
    )


def test_what_one_writes_the_other_reads(pair: Pair) -> None:
    one, other = pair
    one.write(1, 9, 2**64 - 1)
    other.write(0, 9, 7)
    assert (one.read(1, 9), other.read(0, 9)) == (7, 2**64 - 1)
    bells = one.bells(), other.bells()
    other.tell(0, 10, 3)
    assert one.read(1, 10) == 3
    assert (one.bells(), other.bells()) == (bells[0] + 1, bells[1])


def ring(rung: Words) -> None:
    time.sleep(0.05)
    rung.tell(0, 8, 1)


def wake(waits: Words) -> None:
    time.sleep(0.05)
    waits.wake_threads()


@pytest.mark.parametrize("by", [ring, wake])
def test_a_bell_ends_a_wait(pair: Pair, by: Callable[[Words], None]) -> None:
    bells = pair[0].bells()
    alone = by is ring and type(pair[0]) is not type(pair[1])  # one in Python wakes nobody, so sleeps are short
    thread = threading.Thread(target=by, args=(pair[1] if by is ring else pair[0],))
    thread.start()
    began_s = time.monotonic()
    while pair[0].bells() == bells:
        pair[0].wait(bells, 0.01 if alone else 60.0)
    assert time.monotonic() - began_s < 50.0
    thread.join()


def test_a_wait_ends_by_itself(pair: Pair) -> None:
    pair[0].wait(pair[0].bells(), 0.01)
    pair[0].wait(pair[0].bells() + 5, 60.0)  # not what they are: at once


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.__name__)
def test_copies(core: MessageCore) -> None:
    for length in (0, 1, 255, 256, 4099, 200_001):
        given = os.urandom(length)
        into = bytearray(length)
        core.copy(memoryview(into), memoryview(given))
        assert into == given
        if length:
            into = bytearray(length)
            core.read_process(memoryview(into), os.getpid(), core.address_of(memoryview(given)))
            assert into == given
    with pytest.raises(OSError):
        core.read_process(memoryview(bytearray(8)), os.getpid(), 8)


@pytest.mark.skipif(COMPILED is None, reason="there is no compiled one")
def test_a_word_that_is_none() -> None:
    assert COMPILED is not None
    maps = [mmap.mmap(-1, 4096) for _ in range(2)]
    made = COMPILED.Words(0, maps[0], 64, [None, (maps[1], 64)], STRIDE, COUNT, False)
    for peer, word in ((0, 8), (2, 8), (-1, 8), (1, COUNT), (1, -1)):
        with pytest.raises(IndexError):
            made.read(peer, word)
    with pytest.raises(ValueError, match="too small"):
        COMPILED.Words(0, maps[0], 4096 - 64, [None, (maps[1], 64)], STRIDE, COUNT, False)
    for stride, count in ((1 << 63, COUNT), (0, 0), (STRIDE, 1)):  # their product overflows, or there is no bell
        with pytest.raises(ValueError, match="channels overlap"):
            COMPILED.Words(0, maps[0], 64, [None, (maps[1], 64)], stride, count, False)
