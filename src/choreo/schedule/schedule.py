"""The schedule: a collective's contract, and the transfers of each step that fulfil it. Every verb reads this type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from choreo.checks import MAX_RANKS, check_ranks, whole_number
from choreo.collectives import Collective, Layout, get_collective
from choreo.errors import ScheduleError, UsageError, excerpt, shown
from choreo.results import drawn
from choreo.schedule.steps import Steps
from choreo.schedule.transfers import BoolColumn, IntColumn, StepMoves, Transfers
from choreo.schedule.weights import MAX_WEIGHT
from choreo.units import counted

__all__ = ["Phase", "Schedule", "algorithm_label", "check_schedule"]

MAX_CHUNKS = 1 << 28
MAX_NAME = 200
MAX_AXES = 4000


class Phase(NamedTuple):
    """A run of steps that is a collective of its own: the first half of a ring all_reduce is a reduce_scatter."""

    collective: str
    num_steps: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Schedule:
    """A collective and the steps that carry it out.

    The vector is cut into `num_chunks` chunks. Where the contract has blocks (rank r's share), each block is the same
    number of consecutive chunks. `weights` gives the chunks' relative sizes as whole numbers; None means that all are
    equal. A chunk of weight 0 is empty and need not be sent. `phases` names the parts of a schedule that was composed
    of several collectives.

    All members can hold, add and forward data. The ranks come first, then `relays` (devices that are not ranks), then
    `switches` that reduce. Relays and switches have no input and no output in the contract.

    With `receive_in_order`, a rank also receives in step order: a message starts only after those of earlier steps to
    the same port of its receiver have ended. Without it, messages that arrive at the same time share the port.

    `axes` are the axes of the mesh that a hierarchical schedule was built along: `8x4:direct,ring`. `file_bytes` is the
    size of the file that the schedule was read from, which limits the work that it may demand.

    Make a schedule with `Schedule.from_list`, `from_function` or `from_rule`, or compose existing ones (`then`,
    `backwards`, `pipelined` and the others in `choreo.schedule`).
    """

    collective: str
    body: Steps
    root: int | None = None
    algorithm: str = "unnamed"
    weights: IntColumn | None = None
    phases: tuple[Phase, ...] = ()
    switches: int = 0
    axes: str | None = None
    file_bytes: int | None = None
    receive_in_order: bool = False
    relays: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.body, Steps):
            raise UsageError(f"a Schedule is made of Steps, not of {type(self.body).__name__}; see Schedule.from_list")
        for name in ("relays", "switches"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 0))
        _check_helpers(self.relays, self.switches, self.members)
        contract = self.contract
        ranks, chunks = check_ranks(self.ranks), self.num_chunks
        object.__setattr__(self, "root", contract.check_root(self.root, ranks))
        if not 1 <= chunks <= MAX_CHUNKS:
            many = excerpt(chunks)
            raise ScheduleError(f"a vector cannot be cut into {many} chunks; there must be 1 to {MAX_CHUNKS}")
        if len(self.algorithm) > MAX_NAME:
            raise UsageError(f"a schedule's name may have at most {MAX_NAME} characters, not {len(self.algorithm)}")
        if self.axes is not None and len(self.axes) > MAX_AXES:
            raise UsageError(f"a schedule's axes may have at most {MAX_AXES} characters, not {len(self.axes)}")
        if chunks % contract.blocks(ranks):
            raise ScheduleError(
                f"{contract.name} over {ranks} ranks has {contract.blocks(ranks)} blocks, so the number of chunks must "
                f"be a multiple of that, not {chunks}"
            )
        if self.weights is not None:
            object.__setattr__(self, "weights", self._checked_weights(self.weights))

    @staticmethod
    def from_rule(
        collective: str,
        ranks: int,
        num_steps: int,
        rule: Callable[[IntColumn], StepMoves],
        *,
        num_chunks: int | None = None,
        root: int | None = None,
        switches: int = 0,
    ) -> Schedule:
        """A schedule whose step k is `rule(k)`; see `Steps.from_rule` for what the rule may do."""
        chunks = _chunks(collective, ranks, num_chunks)
        return Schedule(collective, Steps.from_rule(ranks + switches, chunks, num_steps, rule), root, switches=switches)

    @staticmethod
    def from_function(
        collective: str,
        ranks: int,
        num_steps: int,
        step: Callable[[int], StepMoves],
        *,
        num_chunks: int | None = None,
        root: int | None = None,
        switches: int = 0,
    ) -> Schedule:
        """A schedule whose step k is `step(k)`, made one step at a time."""
        chunks = _chunks(collective, ranks, num_chunks)
        body = Steps.from_function(ranks + switches, chunks, num_steps, step)
        return Schedule(collective, body, root, switches=switches)

    @staticmethod
    def from_list(
        collective: str,
        ranks: int,
        steps: Sequence[StepMoves],
        *,
        num_chunks: int | None = None,
        root: int | None = None,
        switches: int = 0,
    ) -> Schedule:
        """A schedule given step by step, each step a move or a list of moves."""
        chunks = _chunks(collective, ranks, num_chunks)
        return Schedule(collective, Steps.from_list(ranks + switches, chunks, steps), root, switches=switches)

    @property
    def contract(self) -> Collective:
        """The contract of the collective that the schedule implements."""
        return get_collective(self.collective)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.body.ranks - self.relays - self.switches

    @property
    def members(self) -> int:
        """The number of members that send and receive: the ranks, then the relays, then the switches that reduce."""
        return self.body.ranks

    @property
    def num_chunks(self) -> int:
        """The number of chunks that the vector is cut into."""
        return self.body.num_chunks

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return self.body.num_steps

    @property
    def chunks_a_block(self) -> int:
        """The number of chunks in one block of the contract."""
        return self.num_chunks // self.contract.blocks(self.ranks)

    @property
    def num_transfers(self) -> int:
        """The number of transfers, counted by making them."""
        return sum(len(rows) for rows in self.blocks())

    def count_transfers(self, most: int) -> int:
        """The number of transfers, or a number beyond `most` if there are more: counting stops there."""
        count = 0
        for rows in self.blocks():
            count += len(rows)
            if count > most:
                break
        return count

    def steps(self) -> Iterator[Transfers]:
        """The transfers of each step in turn, as columns; nothing is kept."""
        for block in self.blocks():
            yield from block.each_step()

    def columns(self) -> Transfers:
        """All transfers as columns: `s.columns().src`; `pandas.DataFrame(s.columns())` is their table.

        >>> from choreo import build
        >>> next(iter(build("all_gather", "ring", 4).columns()))
        Transfer(step=0, src=0, dst=1, chunk=0, count=1, reduce=False, from_input=False)
        """
        return Transfers.join(list(self.blocks()))

    def to_dict(self) -> dict[str, IntColumn | BoolColumn]:
        """All transfers as a dict of columns: `pandas.DataFrame(schedule.to_dict())` is their table."""
        return dict(self.columns())

    def blocks(self) -> Iterator[Transfers]:
        """All transfers in order, some whole steps at a time, checked; an error names the schedule."""
        try:
            yield from self.body.blocks(self.who)
        except ScheduleError as error:
            raise ScheduleError(f"{self.collective} by {shown(self.algorithm)}: {error}", field=error.field) from None

    def held_before(self, low: int = 0, high: int | None = None) -> BoolColumn:
        """A mask of chunks low to high - 1 (columns) that the contract gives to each member (rows)."""
        return self._held(self.contract.before, low, high)

    def held_after(self, low: int = 0, high: int | None = None) -> BoolColumn:
        """A mask of chunks low to high - 1 (columns) that each member (rows) must hold at the end.

        A chunk of weight 0 is empty, so no member has to end up with it.
        """
        due = self._held(self.contract.after, low, high)
        return due if self.weights is None else due & (self.weights[low:high] > 0)

    @property
    def total_weight(self) -> int:
        """The sum of the chunks' weights, each 1 where all are equal."""
        return self.num_chunks if self.weights is None else int(self.weights.sum())

    def weights_of(self, rows: Transfers) -> IntColumn:
        """The summed weight of the chunks that each transfer carries."""
        if self.weights is None:
            return rows.count
        before = np.concatenate(([0], np.cumsum(self.weights)))
        carried: IntColumn = before[rows.chunk + rows.count] - before[rows.chunk]
        return carried

    def member_name(self, member: int) -> str:
        """The name of a member in messages: rank 3, relay 1, or switch 0."""
        for kind, number in (("rank", self.ranks), ("relay", self.relays)):
            if member < number:
                return f"{kind} {member}"
            member -= number
        return f"switch {member}"

    @property
    def who(self) -> str:
        """The members by kind, in words: 4 ranks and 1 switch."""
        kinds = [counted(self.ranks, "rank")]
        kinds += [counted(self.relays, "relay")] if self.relays else []
        kinds += [counted(self.switches, "switch", "switches")] if self.switches else []
        return " and ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)

    @property
    def label(self) -> str:
        """The algorithm, with the axes it was built along, if any."""
        return algorithm_label(self.algorithm, self.axes)

    def named(self, algorithm: str) -> Schedule:
        """The same schedule under another algorithm's name."""
        return replace(self, algorithm=algorithm)

    def __reduce__(self) -> tuple[object, ...]:
        # Functions that make rows cannot be pickled; the rows can.
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "body"}
        return (_restored, (self.members, self.num_chunks, self.num_steps, self.columns(), rest))

    def __repr__(self) -> str:
        return f"<Schedule {self.summary()}>"

    def summary(self) -> str:
        """The schedule in one line."""
        who = counted(self.ranks, "rank")
        who += f", {counted(self.relays, 'relay')}" if self.relays else ""
        who += f", {counted(self.switches, 'switch', 'switches')}" if self.switches else ""
        root = "" if self.root is None else f", root {self.root}"
        return (
            f"{self.collective} by {shown(self.label)}: {who}{root}, "
            f"{counted(self.num_chunks, 'chunk')}, {counted(self.num_steps, 'step')}"
        )

    def _repr_html_(self) -> str:
        return drawn(self)

    def _held(self, layout: Layout, low: int, high: int | None) -> BoolColumn:
        block = np.arange(low, self.num_chunks if high is None else high) // self.chunks_a_block
        held = layout.holds(np.arange(self.ranks)[:, None], block[None, :], self.ranks, self.root)
        if self.members == self.ranks:
            return held
        return np.concatenate((held, np.zeros((self.members - self.ranks, len(block)), np.bool_)))

    def _checked_weights(self, weights: IntColumn) -> IntColumn | None:
        """The weights in lowest terms, as a read-only copy; None if all are equal."""
        given = np.asarray(weights)
        if given.shape != (self.num_chunks,):
            raise ScheduleError(f"there are {given.size} weights for {self.num_chunks} chunks; give one a chunk")
        if given.dtype.kind not in "iu" or given.min() < 0 or not given.any():
            raise ScheduleError("chunk weights must be whole numbers of at least 0, some above")
        lowest: IntColumn = given.astype(np.int64) // int(np.gcd.reduce(given))
        if float(lowest.sum(dtype=np.float64)) > MAX_WEIGHT:
            raise ScheduleError(f"chunk weights must add up to at most {MAX_WEIGHT} in lowest terms; use smaller ones")
        lowest.setflags(write=False)
        return None if (lowest == 1).all() else lowest


def check_schedule(given: object, done: str) -> None:
    """Refuse what is no schedule; `done` says what was to be done with it.

    >>> check_schedule("ring", "can be proved")
    Traceback (most recent call last):
    choreo.errors.UsageError: only a Schedule can be proved, not str; choreo.build("all_reduce", "ring", ranks=8) \
makes one
    """
    if not isinstance(given, Schedule):
        raise UsageError(
            f'only a Schedule {done}, not {type(given).__name__}; choreo.build("all_reduce", "ring", ranks=8) makes one'
        )


def algorithm_label(algorithm: str, axes: str | None) -> str:
    """An algorithm as summaries show it, with its axes if any: `hierarchical 8x4:direct,ring`.

    >>> algorithm_label("hierarchical", "8x4:direct,ring"), algorithm_label("ring", None)
    ('hierarchical 8x4:direct,ring', 'ring')
    """
    return algorithm if axes is None else f"{algorithm} {axes}"


def _restored(members: int, num_chunks: int, num_steps: int, rows: Transfers, rest: dict[str, Any]) -> Schedule:
    return Schedule(body=Steps.from_transfers(members, num_chunks, num_steps, rows), **rest)


def _check_helpers(relays: int, switches: int, members: int) -> None:
    for name, number in (("relays", relays), ("switches", switches)):
        if number > MAX_RANKS:
            raise UsageError(f"there can be at most {MAX_RANKS} {name}, not {number}")
    if relays + switches >= members:
        kinds = " or ".join(name for name, number in (("relays", relays), ("switches", switches)) if number)
        raise UsageError(
            f"the last {relays + switches} of {counted(members, 'member')} cannot be {kinds}; at least one must be a "
            "rank"
        )


def _chunks(collective: str, ranks: int, num_chunks: int | None) -> int:
    """The number of chunks: `num_chunks` if given, otherwise one for each block of the contract."""
    ranks = check_ranks(ranks)
    return get_collective(collective).blocks(ranks) if num_chunks is None else num_chunks
