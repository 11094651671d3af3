"""Ranks that are killed, stopped and resumed at random: see `chaos`, which does it for as long as one likes."""

from __future__ import annotations

import random

import chaos

EVENTS, SECONDS = 300, 45.0  # whichever comes first: a machine that does other things does fewer


def test_chaos() -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    done, wrong, counted = chaos.run(EVENTS, seed, SECONDS)
    print(f"{done} events: {counted}")
    assert not wrong, f"seed {seed}: {wrong}"
    assert done >= 10 and counted.get("shrunk", 0) >= 1, f"seed {seed}: {counted}"
