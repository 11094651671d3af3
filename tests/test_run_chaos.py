"""Ranks that are killed, stopped and resumed at random: see `chaos`, which does it for as long as one likes."""

from __future__ import annotations

import random

import chaos
from fault_helpers import start_server

EVENTS = 300


def test_chaos() -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    start_server()
    before = chaos.descriptors()
    done, wrong, counted = chaos.run(EVENTS, seed)
    print(f"{done} events: {counted}")
    assert not wrong, f"seed {seed}: {wrong}"
    assert done == EVENTS and chaos.descriptors() <= before
    # It was about something: ranks failed, others came, and what they had was compared.
    for kind in ("failed", "shrunk", "grown", "joined", "same"):
        assert counted[kind] > EVENTS // 10, f"seed {seed}: {counted}"
