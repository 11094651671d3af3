"""The data that every rank, and every switch that reduces, holds after each step, in the detail a picture needs.

`prove` decides whether a schedule is right and stops at the first error. A picture also shows wrong schedules, so this
replay continues: a send from an empty place carries nothing, and a contribution that arrives twice is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from choreo.schedule import Schedule, Transfers

__all__ = ["Action", "Counts", "Mask", "Moment", "State", "moments", "wrong_at_end"]

Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class State(IntEnum):
    """How complete a place is."""

    EMPTY = 0
    PARTIAL = 1
    COMPLETE = 2
    DOUBLED = 3


class Action(IntEnum):
    """What the last step did to a place."""

    NOTHING = 0
    ADDED = 1
    COPIED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """What every member holds after a step, or (`step` is None) before the first.

    `held[member, chunk]` says how often each contribution is in the place: one number for each rank where the
    collective sums, a single one where a chunk has only one origin. `given[chunk]` is how many contributions there
    are to have, and `action[member, chunk]` what the step did.
    """

    step: int | None
    rows: Transfers
    held: npt.NDArray[np.uint8]
    given: Counts
    action: npt.NDArray[np.uint8]

    @property
    def have(self) -> Counts:
        """How many different contributions are in each place."""
        return np.asarray((self.held > 0).sum(axis=2))

    @property
    def state(self) -> npt.NDArray[np.uint8]:
        """The `State` of each place."""
        have = self.have
        state = np.where(have == 0, State.EMPTY, np.where(have < self.given, State.PARTIAL, State.COMPLETE))
        return np.where((self.held > 1).any(axis=2), State.DOUBLED, state).astype(np.uint8)


def moments(schedule: Schedule) -> Iterator[Moment]:
    """The start and then every step of the schedule, each with what the members hold after it."""
    has_input = schedule.held_before()
    given = has_input.sum(axis=0)
    own = _contributions(schedule, has_input)
    held = own.copy()
    nothing = np.zeros(has_input.shape, np.uint8)
    yield Moment(None, Transfers.none(), held.copy(), given, nothing)
    for rows in schedule.steps():
        before, action = held.copy(), nothing.copy()
        for row in np.argsort(rows.src, kind="stable").tolist():
            src, dst = int(rows.src[row]), int(rows.dst[row])
            chunks = slice(int(rows.chunk[row]), int(rows.chunk[row] + rows.count[row]))
            arriving = (own if rows.from_input[row] else before)[src, chunks]
            adds = bool(rows.reduce[row])
            held[dst, chunks] = np.minimum(held[dst, chunks] + arriving, 9) if adds else arriving
            action[dst, chunks] = Action.ADDED if adds else Action.COPIED
        yield Moment(int(rows.step[0]), rows, held.copy(), given, action)


def wrong_at_end(schedule: Schedule, moment: Moment) -> Mask:
    """Which places are wrong at the end, where the contract asks for them; before the last step, none."""
    if moment.step != (schedule.num_steps - 1 if schedule.num_steps else None):
        return np.zeros(moment.action.shape, np.bool_)
    return np.asarray(schedule.held_after() & (moment.state != State.COMPLETE))


def _contributions(schedule: Schedule, has_input: Mask) -> npt.NDArray[np.uint8]:
    if not schedule.contract.reduces:
        return has_input[:, :, None].astype(np.uint8)
    alone = np.eye(schedule.members, schedule.ranks, dtype=np.uint8)[:, None, :]
    return np.asarray(alone * has_input[:, :, None].astype(np.uint8))
