"""The one type everything in Choreo reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from choreo.collectives import Collective, Layout, get_collective
from choreo.errors import ScheduleError, UsageError
from choreo.schedule.steps import Steps
from choreo.schedule.transfers import BoolColumn, IntColumn, StepMoves, Transfers

__all__ = ["Schedule"]

MAX_RANKS = 1 << 22
MAX_CHUNKS = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Schedule:
    """A collective's promise and the steps that keep it.

    The vector is cut into `num_chunks` chunks. Where the contract speaks of blocks (rank r's share), each block is
    the same number of consecutive chunks. `weights` gives the chunks' relative sizes as whole numbers; None means
    that all are equal.

    Make one with `Schedule.from_list`, `from_function` or `from_rule`, or compose existing ones (`then`,
    `backwards`, `pipelined` and the others in `choreo.schedule`).
    """

    collective: str
    body: Steps
    root: int | None = None
    algorithm: str = "unnamed"
    weights: IntColumn | None = None

    def __post_init__(self) -> None:
        contract = self.contract
        ranks, chunks = self.ranks, self.num_chunks
        if not 1 <= ranks <= MAX_RANKS:
            raise UsageError(f"{ranks} ranks cannot take part; there must be 1 to {MAX_RANKS}")
        object.__setattr__(self, "root", contract.check_root(self.root, ranks))
        if not 1 <= chunks <= MAX_CHUNKS:
            raise ScheduleError(f"a vector cannot be cut into {chunks} chunks; there must be 1 to {MAX_CHUNKS}")
        if chunks % contract.blocks(ranks):
            raise ScheduleError(
                f"{contract.name} over {ranks} ranks has {contract.blocks(ranks)} blocks, so the number of chunks must "
                f"be a multiple of that, not {chunks}"
            )
        if self.weights is not None:
            self._check_weights(self.weights)

    @staticmethod
    def from_rule(
        collective: str,
        ranks: int,
        num_steps: int,
        rule: Callable[[IntColumn], StepMoves],
        *,
        num_chunks: int | None = None,
        root: int | None = None,
    ) -> Schedule:
        """A schedule whose step k is `rule(k)`; see `Steps.from_rule` for what the rule may do."""
        chunks = _chunks(collective, ranks, num_chunks)
        return Schedule(collective, Steps.from_rule(ranks, chunks, num_steps, rule), root)

    @staticmethod
    def from_function(
        collective: str,
        ranks: int,
        num_steps: int,
        step: Callable[[int], StepMoves],
        *,
        num_chunks: int | None = None,
        root: int | None = None,
    ) -> Schedule:
        """A schedule whose step k is `step(k)`, made one step at a time."""
        chunks = _chunks(collective, ranks, num_chunks)
        return Schedule(collective, Steps.from_function(ranks, chunks, num_steps, step), root)

    @staticmethod
    def from_list(
        collective: str,
        ranks: int,
        steps: Sequence[StepMoves],
        *,
        num_chunks: int | None = None,
        root: int | None = None,
    ) -> Schedule:
        """A schedule given step by step, each step a move or a list of moves."""
        chunks = _chunks(collective, ranks, num_chunks)
        return Schedule(collective, Steps.from_list(ranks, chunks, steps), root)

    @property
    def contract(self) -> Collective:
        """What the schedule promises."""
        return get_collective(self.collective)

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return self.body.ranks

    @property
    def num_chunks(self) -> int:
        """How many chunks the vector is cut into."""
        return self.body.num_chunks

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return self.body.num_steps

    @property
    def chunks_a_block(self) -> int:
        """How many chunks make up one block of the contract."""
        return self.num_chunks // self.contract.blocks(self.ranks)

    def steps(self) -> Iterator[Transfers]:
        """The transfers of each step in turn, as columns; nothing is kept."""
        return self.body.each()

    def columns(self) -> Transfers:
        """All transfers as columns: `s.columns().src`, or `dict(s.columns())`."""
        return self.body.all()

    def held_before(self, low: int = 0, high: int | None = None) -> BoolColumn:
        """Which ranks (rows) are given which of the chunks low to high - 1 (columns) by the contract."""
        return self._held(self.contract.before, low, high)

    def held_after(self, low: int = 0, high: int | None = None) -> BoolColumn:
        """Which ranks (rows) must end up with which of the chunks low to high - 1 (columns) by the contract."""
        return self._held(self.contract.after, low, high)

    def cumulative_weights(self) -> IntColumn:
        """The summed weights of all chunks before each chunk; the last entry is the total."""
        if self.weights is None:
            return np.arange(self.num_chunks + 1, dtype=np.int64)
        return np.concatenate(([0], np.cumsum(self.weights)))

    def named(self, algorithm: str) -> Schedule:
        """The same schedule under another algorithm's name."""
        return replace(self, algorithm=algorithm)

    def __repr__(self) -> str:
        root = "" if self.root is None else f", root {self.root}"
        return (
            f"<Schedule {self.collective} by {self.algorithm}: {self.ranks} ranks{root}, {self.num_chunks} chunks, "
            f"{self.num_steps} steps>"
        )

    def _repr_html_(self) -> str:
        # A noun reaching for a verb: a notebook asks the object itself to draw, so there is no other place.
        from choreo.show import notebook_html

        return notebook_html(self)

    def _held(self, layout: Layout, low: int, high: int | None) -> BoolColumn:
        block = np.arange(low, self.num_chunks if high is None else high) // self.chunks_a_block
        return layout.holds(np.arange(self.ranks)[:, None], block[None, :], self.ranks, self.root)

    def _check_weights(self, weights: IntColumn) -> None:
        if len(weights) != self.num_chunks:
            raise ScheduleError(f"there are {len(weights)} weights for {self.num_chunks} chunks; give one a chunk")
        if weights.min() < 0 or weights.sum() <= 0 or float(weights.sum(dtype=np.float64)) > 2**53:
            raise ScheduleError("chunk weights must be whole numbers of at least 0, some above, with a sum up to 2**53")
        weights.setflags(write=False)


def _chunks(collective: str, ranks: int, num_chunks: int | None) -> int:
    """The number of chunks: what was asked for, or one for each block of the contract."""
    if not 1 <= ranks <= MAX_RANKS:
        raise UsageError(f"{ranks} ranks cannot take part; there must be 1 to {MAX_RANKS}")
    return get_collective(collective).blocks(ranks) if num_chunks is None else num_chunks
