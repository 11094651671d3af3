"""Chaos between machines: ranks in several network namespaces, whose cables are pulled and put back beside all else.

A cut leaves both sides alive, and a majority goes on. Whatever all ranks of a communicator are told must be the same,
also on machines that could not reach each other meanwhile. The ranks of a minority come back one by one once the cable
is back.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from tests.helpers.network.hosts import PORT, Cables, Hosts, enter
from tests.run.chaos.driver import KINDS, Chaos, Kind
from tests.run.chaos.rank import Settings

WHERE = ((0, 0, 1, 1), (0, 0, 1, 2))  # on which machine the places of a job are
PER_JOB = 40
SETTINGS = Settings(shrink_s=3.0, grow_s=1.0)
PAUSE_S, LOST_S = 0.8, 5.0
BRIEF_S, LONG_S = 0.4, 4.0
# Over cables that lose packets, TCP sends again after 0.3 s, 0.6 s ..., and carries 100 KB a second. A process that
# joins makes five connections to each rank, one after another, of 0.3 s and more.
LOSSY_SETTINGS = Settings(call_s=2.0, shrink_s=10.0, grow_s=10.0, sizes=(1, 7, 3000, 8000))
LOSSY_LOST_S = 20.0


def _enter(names: Sequence[str], place: int) -> None:
    enter(names[place])


class NetworkChaos(Chaos):
    """The driver of one job on several machines."""

    def __init__(self, seed: int, where: Sequence[int] | None = None, cables: Cables | None = None) -> None:
        self.where = WHERE[seed % len(WHERE)] if where is None else where
        self.hosts = Hosts(max(self.where) + 1, cables)
        self._mends_s: dict[tuple[int, int], float] = {}  # cables that are pulled, and until when
        names = [self.hosts.names[machine] for machine in self.where]
        try:
            self.hosts.make()
            super().__init__(seed, self._settings(), functools.partial(_enter, names))
        except BaseException:
            self.hosts.remove()
            raise
        self.kinds, self.pause_s = NETWORK_KINDS, PAUSE_S
        self.lost_s = LOSSY_LOST_S if self.hosts.cables.is_lossy else LOST_S

    def _settings(self) -> Settings:
        settings = LOSSY_SETTINGS if self.hosts.cables.is_lossy else SETTINGS
        return replace(settings, address=self.hosts.addresses[0], addresses=",".join(self.hosts.addresses))

    def intact(self) -> list[tuple[int, int]]:
        """The cables that are not pulled."""
        return [cable for cable in combinations(range(len(self.hosts.names)), 2) if cable not in self._mends_s]

    def possible(self) -> dict[str, tuple[int, Kind]]:
        """What is cut already cannot be cut, so that would be no event."""
        return {kind: how for kind, how in self.kinds.items() if self.intact() or not kind.startswith("cut")}

    def port(self) -> int:
        """Where the ranks meet: nobody else is on their machine."""
        return PORT

    def machine_of(self, place: int) -> int:
        """On which machine the processes of a place are."""
        return self.where[place]

    def cut(self, one: int, other: int, seconds: float) -> None:
        """Pull the cable between two machines for so long."""
        cable = (min(one, other), max(one, other))
        if cable not in self._mends_s:
            self._mends_s[cable] = time.monotonic() + seconds
            self.hosts.cut_cable(*cable)
            self.note(f"cable {cable} was pulled for {seconds:.2f} s")

    def look(self, seconds: float, *, replace: bool = True) -> None:
        """Put back what it is time to put back, beside all else."""
        end_s = time.monotonic() + seconds
        while True:
            for cable, until_s in list(self._mends_s.items()):
                if until_s <= time.monotonic():
                    self._mend(cable)
            soonest_s = min([end_s, *self._mends_s.values()])
            super().look(max(0.0, soonest_s - time.monotonic()), replace=replace)
            if time.monotonic() >= end_s or self.wrong:
                return

    def stop(self) -> None:
        """Put everything back first."""
        try:
            for cable in list(self._mends_s):
                self._mend(cable)
            super().stop()
        finally:
            self.hosts.remove()

    def victims(self) -> list[int]:
        """Whom something bad may happen to: of two on two machines, one alone could not go on."""
        awake = self.awake(inside=True)
        return awake if len(awake) > 2 else []

    def _mend(self, cable: tuple[int, int]) -> None:
        self.hosts.mend_cable(*cable)
        del self._mends_s[cable]
        self.note(f"cable {cable} was put back")


def _cut_briefly(chaos: Chaos, pid: int) -> None:
    """Often so briefly that a call goes through all the same."""
    _cut(chaos, pid, BRIEF_S)


def _cut_long(chaos: Chaos, pid: int) -> None:
    _cut(chaos, pid, LONG_S)


def _cut_and_kill(chaos: Chaos, pid: int) -> None:
    """On either side, at any moment of what follows on the cut."""
    _cut(chaos, pid, LONG_S)
    chaos.look(chaos.random.uniform(0, LONG_S))
    there = chaos.victims()
    if there:
        chaos.kill(chaos.random.choice(there))


def _cut_one(chaos: Chaos, pid: int) -> None:
    """One cable only: where there are three machines, two cannot reach each other, but the third reaches both."""
    del pid
    assert isinstance(chaos, NetworkChaos)
    one, other = chaos.random.choice(chaos.intact())
    chaos.cut(one, other, chaos.random.uniform(0, LONG_S))


def _cut(chaos: Chaos, pid: int, longest_s: float) -> None:
    """All cables of a machine."""
    del pid
    assert isinstance(chaos, NetworkChaos)
    machine, seconds = chaos.random.choice(chaos.random.choice(chaos.intact())), chaos.random.uniform(0, longest_s)
    for other in range(len(chaos.hosts.names)):
        if other != machine:
            chaos.cut(machine, other, seconds)


NETWORK_KINDS: dict[str, tuple[int, Kind]] = {
    "cut": (20, _cut_briefly),
    "cut long": (20, _cut_long),
    "cut one": (10, _cut_one),
    "cut and kill": (20, _cut_and_kill),
    "kill": (20, KINDS["kill"][1]),
    "stop": (15, KINDS["stop"][1]),
    "stop and kill": (5, KINDS["stop and kill"][1]),
    "leave": (5, KINDS["leave"][1]),
}
