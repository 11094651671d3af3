"""Ranks that are killed, stopped, cut off and resumed at random: see `chaos`, which does it as long as one likes."""

from __future__ import annotations

import random

import pytest

from tests.helpers.faults import start_server
from tests.helpers.hosts import why_no_hosts
from tests.run.chaos import chaos
from tests.run.chaos.network import NetworkChaos

EVENTS, NETWORK_EVENTS = 300, 10


def test_chaos() -> None:
    events = EVENTS if why_no_hosts() else EVENTS - NETWORK_EVENTS
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    start_server()
    before = chaos.descriptors()
    done, wrong, counted = chaos.run(events, seed)
    print(f"{done} events: {counted}")
    assert not wrong, f"seed {seed}: {wrong}"
    assert done == events and chaos.descriptors() <= before
    # It was about something: ranks failed, others came, and what they had was compared.
    for kind in ("failed", "shrunk", "grown", "joined", "same"):
        assert counted[kind] > events // 10, f"seed {seed}: {counted}"


def test_chaos_between_machines() -> None:
    if why_no_hosts():
        pytest.skip(why_no_hosts())
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    start_server()
    before = chaos.descriptors()
    done, wrong, counted = chaos.run(NETWORK_EVENTS, seed, make=NetworkChaos)
    print(f"{done} events: {counted}")
    assert not wrong, f"seed {seed}: {wrong}"
    assert done == NETWORK_EVENTS and chaos.descriptors() <= before
    assert counted["same"], f"seed {seed}: {counted}"
