"""Choose the algorithm of a call: the cheapest by price, with the machine's own constants."""

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
from choreo.run.execute.constants import Constants, default_constants
from choreo.run.execute.host_price import host_profile
from choreo.units import counted, format_bandwidth, format_time

__all__ = ["Chooser", "forced_algorithms", "forced_by_environment", "load_algorithms"]


class Chooser:
    """Chooses the algorithm of a call, identically on all ranks: constants and forced algorithms come from rank 0.

    `hosts` are the numbers of the hosts that the ranks are on, or none if they share one. Then they share memory, and
    the cores that the constants are for. Among several hosts the constants are those of the network.
    """

    def __init__(
        self, world_size: int, constants: Constants, forced: dict[str, str], hosts: tuple[int, ...] = ()
    ) -> None:
        self.world_size, self.constants, self.forced, self.hosts = world_size, constants, forced, hosts
        self._chosen: dict[tuple[str, int], str] = {}

    def for_ranks(self, world_size: int) -> Chooser:
        """The same choice for another number of ranks, of one host."""
        return Chooser(world_size, self.constants, self.forced)

    def among(self, hosts: tuple[tuple[int, ...], ...]) -> Chooser:
        """The same choice for ranks on these hosts, of which each is given by its ranks."""
        numbers = dict(sorted((rank, host) for host, ranks in enumerate(hosts) for rank in ranks))
        found = tuple(numbers.values()) if len(hosts) > 1 else ()
        return Chooser(len(numbers), self.constants, self.forced, found)

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
        names = _choices(collective, self.world_size)
        priced = sorted(
            (self.time_s(collective, name, size_bytes, cores=cores), steps, name) for name, steps in names.items()
        )
        return [(time_s, name) for time_s, _, name in priced]

    def time_s(self, collective: str, algorithm: str, size_bytes: float, *, cores: int | None = None) -> float:
        """The price of one algorithm in seconds, also of one that is never chosen."""
        model = self.constants.cost_model_for(size_bytes, self.world_size)
        if self.hosts:
            memory = default_constants().cost_model_for(size_bytes, max(map(self.hosts.count, self.hosts)))
            return host_profile(collective, algorithm, self.hosts).time_s(size_bytes, model, memory)
        counted = _profile(collective, algorithm, self.world_size, (cores or self.constants.cores) or None)
        return price_of(counted, size_bytes, model).total_s

    def explain(self, collective: str, size_bytes: float) -> str:
        """Explain the algorithm of a call of this size in a few lines."""
        get_collective(collective)
        if isinstance(size_bytes, bool) or not isinstance(size_bytes, Real) or not 0 <= size_bytes < 2**63:
            raise UsageError(f"the size must be a number of bytes, not {excerpt(size_bytes)}")
        what = f"{collective} of {size_bytes} bytes over {counted(self.world_size, 'rank')}"
        ranked = self.ranked(collective, size_bytes)
        prices = "\n".join(f"  {name}: {time * 1e6:.1f} us" for time, name in ranked)
        forced = self.forced.get(collective)
        if forced is not None:
            mark = "" if get_algorithm(collective, forced).same_bits else ", though ranks may get different bits"
            return f"{what}: {forced}, because CHOREO_ALGORITHM says so{mark}; priced without it:\n{prices}"
        model = self.constants.cost_model_for(size_bytes, self.world_size)
        constants = (
            f"alpha {format_time(model.alpha_s)}, {format_bandwidth(model.bandwidth_bytes_per_s)}, "
            f"gamma {model.gamma_s_per_byte:g} s/byte"
        )
        return f"{what}: {ranked[0][1]}, the cheapest by price with rank 0's constants ({constants}):\n{prices}"

    def to_json(self) -> bytes:
        """The constants as JSON. Rank 0 sends them to the others, so that all choose alike."""
        return msgspec.json.encode((self.constants, self.forced))

    @staticmethod
    def from_json(text: bytes, world_size: int) -> Chooser:
        """The chooser of rank 0."""
        constants, forced = msgspec.json.decode(text, type=tuple[Constants, dict[str, str]])
        return Chooser(world_size, constants, forced)


def load_algorithms() -> None:
    """Read the files that a choice needs now, so that no call has to open them."""
    for name in _choices("all_gather", 2):
        _profile("all_gather", name, 2, None)


@lru_cache(maxsize=256)
def _choices(collective: str, world_size: int) -> dict[str, int]:
    """The algorithms to choose from, with their steps: those of Choreo that can run here and give all the same bits."""
    found = {}
    for algorithm in list_algorithms(collective):
        if not (algorithm.in_library and algorithm.same_bits):
            continue
        try:
            schedule = build(collective, algorithm.name, world_size)
        except RefusedError:
            continue
        if not schedule.switches:
            found[algorithm.name] = schedule.num_steps
    return found


@lru_cache(maxsize=4096)
def _profile(collective: str, algorithm: str, world_size: int, cores: int | None) -> Profile:
    return profile(build(collective, algorithm, world_size), "read", cores=cores)


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
