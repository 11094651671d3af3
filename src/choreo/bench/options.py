"""The options of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass

from choreo.algorithms import build, get_algorithm, list_algorithms
from choreo.bench.inputs import OPERATIONS, dtype_of
from choreo.checks import whole_number
from choreo.collectives import get_collective
from choreo.errors import ChoreoError, UsageError

__all__ = ["PEERS", "BenchOptions"]

PEERS = ("gloo", "openmpi", "ray")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of a benchmark, in the words of nccl-tests; times in seconds."""

    collective: str
    ranks: int
    sizes: tuple[int, ...]
    dtype: str = "float"
    op: str = "sum"
    root: int = 0
    warmup: int = 5
    checks: int = 1
    iterations: int | None = None  # None: as many as fill `round_s`
    rounds: int = 5
    round_s: float = 0.02
    algorithm: str | None = None  # None: the one that is chosen; "all": every one
    against: tuple[str, ...] = ()
    registered: bool = False
    pin: bool = False  # pin each rank of each library to a core, in turn
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        contract = get_collective(self.collective)
        dtype_of(self.dtype)
        if self.op not in OPERATIONS:
            raise UsageError(f"there is no operation {self.op!r}; use one of {', '.join(OPERATIONS)}")
        if self.ranks < 1:
            raise UsageError(f"there must be at least 1 rank, not {self.ranks}")
        if contract.rooted:
            contract.check_root(self.root, self.ranks)
        if self.algorithm not in (None, "all"):
            get_algorithm(self.collective, str(self.algorithm))
        for name in self.against:
            if name not in PEERS:
                raise UsageError(f"there is no library {name!r} to run against; use {', '.join(PEERS)}")
        for name, least in (("rounds", 1), ("warmup", 0), ("checks", 0)):
            whole_number(name, getattr(self, name), least)
        if not self.sizes:
            raise UsageError("there is no size to measure; give one at least")
        if not self.timeout_s > 0:
            raise UsageError(f"the timeout of a round must be more than 0 s, not {self.timeout_s:g}")

    def algorithms(self) -> list[str | None]:
        """The algorithms to measure; None is the one that is chosen."""
        if self.algorithm != "all":
            return [self.algorithm]
        found: list[str | None] = []
        for algorithm in list_algorithms(self.collective):
            try:
                schedule = build(self.collective, algorithm.name, self.ranks)
            except ChoreoError:
                continue
            if not schedule.switches:
                found.append(algorithm.name)
        return found
