"""Words of shared memory with arguments that nobody would give, in a process with the sanitizers; see fuzz_core.py."""

from __future__ import annotations

import importlib
import mmap
import sys
from contextlib import suppress
from random import Random
from typing import Any

ODD = (0, 1, 7, 8, 63, 65, 4096, 65536, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 61, 1 << 63, (1 << 64) - 64, -1)
ERRORS = (ValueError, TypeError, BufferError, OverflowError, MemoryError, IndexError)


def main(folder: str, cases: int, seed: int) -> None:
    """Make words of everything, and use those that are made."""
    sys.path.insert(0, folder)
    core: Any = importlib.import_module("_core")
    random = Random(seed)
    maps: list[mmap.mmap] = []
    made = 0
    for case in range(cases):
        if case % 50 == 0:
            maps = [mmap.mmap(-1, 4096 * random.randrange(1, 4)) for _ in range(3)]
        with suppress(*ERRORS):
            words = core.Words(random.randrange(-1, 5), random.choice(maps), *_arguments(random, maps))
            made += 1
            for _ in range(6):
                with suppress(*ERRORS):
                    _use(words, random)
        with suppress(*ERRORS):
            core.copy(bytearray(random.randrange(9)), bytes(random.randrange(9)))
    print(f"{cases} words: {made} made")


def _number(random: Random) -> int:
    return random.choice(ODD) if random.random() < 0.2 else 64 * random.randrange(40)


def _arguments(random: Random, maps: list[mmap.mmap]) -> tuple[object, ...]:
    """Where channels begin, peers, bytes from channel to channel, words of a channel, spins."""
    peers = [
        random.choice([None, 3, (b"x" * 64, 0), (random.choice(maps), _number(random)), (random.choice(maps), 0)])
        for _ in range(random.randrange(5))
    ]
    words = random.choice((2, 8, 16, _number(random)))
    return _number(random), peers, _number(random), words, random.randrange(3)


def _use(words: Any, random: Random) -> None:
    peer, word = random.choice((0, 1, 2, 3, -1, 1 << 40)), random.choice((0, 1, 2, 7, 15, 16, 1000, -1))
    match random.randrange(5):
        case 0:
            words.read(peer, word)
        case 1:
            words.write(peer, word, random.getrandbits(64))
        case 2:
            words.tell(peer, word, 1)
        case 3:
            words.wake_threads()
        case _:
            words.wait(words.bells() + 1, 0.0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
