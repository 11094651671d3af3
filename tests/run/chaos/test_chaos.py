"""Ranks that are killed, stopped, cut off and resumed at random: see `chaos`, which does it as long as one likes."""

from __future__ import annotations

import functools
import random

import pytest

from tests.helpers.network.hosts import why_no_hosts
from tests.helpers.ranks.fork_server import start_server
from tests.helpers.ranks.launchers import find_launcher
from tests.run.chaos import chaos
from tests.run.chaos.driver import Chaos
from tests.run.chaos.launched import LaunchedChaos
from tests.run.chaos.network import NetworkChaos
from tests.run.chaos.rank import Settings

EVENTS, NETWORK_EVENTS, LAUNCHED_EVENTS = 300, 10, 12


def test_chaos() -> None:
    events = EVENTS if why_no_hosts() else EVENTS - NETWORK_EVENTS
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    start_server()
    before = chaos.descriptors()
    done, wrong, counted = chaos.run(events, seed)
    print(f"{done} events: {dict(counted)}")
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
    done, wrong, counted = chaos.run(NETWORK_EVENTS, seed, make=NetworkChaos, options=" --network")
    print(f"{done} events: {dict(counted)}")
    assert not wrong, f"seed {seed}: {wrong}"
    assert done == NETWORK_EVENTS and chaos.descriptors() <= before
    assert counted["same"], f"seed {seed}: {counted}"  # every job begins with that


@pytest.mark.parametrize(
    "launcher", ["mpirun", *(pytest.param(one, marks=pytest.mark.grid) for one in ("torchrun", "choreo"))]
)
def test_chaos_under_a_launcher(launcher: str) -> None:
    if find_launcher(launcher) is None:
        pytest.skip(f"there is no {launcher} here")
    seed = random.SystemRandom().randrange(1 << 30)
    make = functools.partial(LaunchedChaos, launcher=launcher)
    done, wrong, counted = chaos.run(LAUNCHED_EVENTS, seed, make=make, options=f" --launcher {launcher}")
    assert not wrong, f"seed {seed}: {wrong}"
    assert done == LAUNCHED_EVENTS and counted["same"], f"seed {seed}: {counted}"


class LosesEverybody(Chaos):
    """A job of which nobody is left before anything has happened."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, Settings(ranks=0))

    def run(self, events: int, end_s: float = 0.0) -> int:
        self.counted["jobs that lost everybody"] += 1
        return 0


def test_jobs_that_lose_everybody_are_counted_and_do_not_go_on_for_ever() -> None:
    done, wrong, counted = chaos.run(2, 0, make=LosesEverybody)
    assert done == 0 and counted["same"] == 0 and counted["jobs that lost everybody"] == 3
    assert "too slow" in wrong[0] and "--seed 2 --events 2" in wrong[1]
