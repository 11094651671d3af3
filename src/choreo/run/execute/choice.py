"""Which algorithm a call uses: the cheapest by price, with the machine's own constants."""

from __future__ import annotations

import os
from functools import lru_cache
from numbers import Real

import msgspec

from choreo.algorithms import build, get_algorithm, list_algorithms
from choreo.collectives import get_collective
from choreo.errors import ChoreoError, RefusedError, UsageError, excerpt
from choreo.price import Profile, profile
from choreo.price.price import price_of
from choreo.run.execute.constants import Constants

__all__ = ["Chooser", "forced_algorithms", "forced_by_environment", "load_algorithms"]


class Chooser:
    """Chooses the algorithm of a call, identically on all ranks: constants and forced algorithms come from rank 0.

    `ports` is that of `price`. Ranks that share memory ("read") also share the cores that the constants are for.
    """

    def __init__(self, world_size: int, constants: Constants, forced: dict[str, str], ports: str = "read") -> None:
        self.world_size, self.constants, self.forced, self.ports = world_size, constants, forced, ports
        self._chosen: dict[tuple[str, int], str] = {}

    def for_ranks(self, world_size: int) -> Chooser:
        """The same choice for another number of ranks."""
        return Chooser(world_size, self.constants, self.forced, self.ports)

    def through(self, ports: str) -> Chooser:
        """The same choice for other ports."""
        return self if ports == self.ports else Chooser(self.world_size, self.constants, self.forced, ports)

    def choose(self, collective: str, size_bytes: int) -> str:
        """The algorithm for a collective of this size."""
        if collective in self.forced:
            return self.forced[collective]
        key = (collective, size_bytes)
        if key not in self._chosen:
            if len(self._chosen) >= 4096:
                self._chosen.clear()
            self._chosen[key] = self.ranked(collective, size_bytes)[0][1]
        return self._chosen[key]

    def ranked(self, collective: str, size_bytes: float, *, cores: int | None = None) -> list[tuple[float, str]]:
        """All algorithms to choose from by price in seconds, cheapest first; of equals the one with fewer steps.

        `cores` are those that these ranks share: all that the constants are for, unless others compute beside them.
        """
        model = self.constants.cost_model_for(size_bytes, self.world_size)
        cores = (cores or self.constants.cores) if self.ports == "read" else None
        profiles = _profiles(collective, self.world_size, self.ports, cores or None)
        priced = [(price_of(counted, size_bytes, model).total_s, counted.num_steps, counted) for counted in profiles]
        return [
            (time_s, one.algorithm) for time_s, _, one in sorted(priced, key=lambda row: (*row[:2], row[2].algorithm))
        ]

    def time_s(self, collective: str, algorithm: str, size_bytes: float, *, cores: int | None = None) -> float:
        """The price of one algorithm in seconds, also of one that is never chosen."""
        cores = (cores or self.constants.cores) if self.ports == "read" else None
        counted = _profile(collective, algorithm, self.world_size, self.ports, cores or None)
        return price_of(counted, size_bytes, self.constants.cost_model_for(size_bytes, self.world_size)).total_s

    def explain(self, collective: str, size_bytes: float) -> str:
        """Which algorithm a call of this size takes, and why, in a few lines."""
        get_collective(collective)
        if isinstance(size_bytes, bool) or not isinstance(size_bytes, Real) or not 0 <= size_bytes < 2**63:
            raise UsageError(f"the size must be a number of bytes, not {excerpt(size_bytes)}")
        what = f"{collective} of {size_bytes} bytes over {self.world_size} ranks"
        ranked = self.ranked(collective, size_bytes)
        prices = "\n".join(f"  {name}: {time * 1e6:.1f} us" for time, name in ranked)
        forced = self.forced.get(collective)
        if forced is not None:
            mark = "" if get_algorithm(collective, forced).same_bits else ", though ranks may get different bits"
            return f"{what}: {forced}, because CHOREO_ALGORITHM says so{mark}; priced without it:\n{prices}"
        model = self.constants.cost_model_for(size_bytes, self.world_size)
        return f"{what}: {ranked[0][1]}, the cheapest by price with rank 0's {model}:\n{prices}"

    def to_json(self) -> bytes:
        """What rank 0 sends to the others, so that they choose alike."""
        return msgspec.json.encode((self.constants, self.forced))

    @staticmethod
    def from_json(text: bytes, world_size: int) -> Chooser:
        """The chooser of rank 0."""
        constants, forced = msgspec.json.decode(text, type=tuple[Constants, dict[str, str]])
        return Chooser(world_size, constants, forced)


def load_algorithms() -> None:
    """Read the files that a choice needs now, so that no call has to open them."""
    _profiles("all_gather", 2, "read", None)


@lru_cache(maxsize=256)
def _profiles(collective: str, world_size: int, ports: str, cores: int | None) -> tuple[Profile, ...]:
    """The algorithms to choose from: those of Choreo that can run here and give all ranks the same bits."""
    found = []
    for algorithm in list_algorithms(collective):
        if not (algorithm.in_library and algorithm.same_bits):
            continue
        try:
            schedule = build(collective, algorithm.name, world_size)
        except RefusedError:
            continue
        if not schedule.switches:
            found.append(profile(schedule, ports, cores=cores))
    return tuple(found)


@lru_cache(maxsize=64)
def _profile(collective: str, algorithm: str, world_size: int, ports: str, cores: int | None) -> Profile:
    return profile(build(collective, algorithm, world_size), ports, cores=cores)


def forced_algorithms(text: str) -> dict[str, str]:
    """Read CHOREO_ALGORITHM.

    >>> forced_algorithms("all_reduce:ring, broadcast:mst")
    {'all_reduce': 'ring', 'broadcast': 'mst'}
    """
    forced: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        collective, colon, name = part.partition(":")
        if not colon:
            raise UsageError(
                f"CHOREO_ALGORITHM: {excerpt(part)} is not understood; write all_reduce:ring,broadcast:mst"
            )
        try:
            forced[collective.strip()] = get_algorithm(collective.strip(), name.strip()).name
        except ChoreoError as error:
            raise UsageError(f"CHOREO_ALGORITHM: {error}") from None
    return forced


def forced_by_environment() -> dict[str, str]:
    """The algorithms that CHOREO_ALGORITHM asks for in this process."""
    return forced_algorithms(os.environ.get("CHOREO_ALGORITHM", ""))
