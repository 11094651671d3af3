"""A call: a collective or a message on its devices, possibly by several groups that do the same at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from choreo.schedule import Schedule

__all__ = ["Asymmetry", "Call", "Members"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=False, eq=False)
class Members:
    """The devices of a call, one row for each group that makes it; for a message the sender's is first.

    `node` says which of the call's nodes stands for each member. Ranks that do the same share a node.
    """

    devices: Ints
    node: Ints

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The rows."""
        return tuple(map(tuple, self.devices.tolist()))

    @cached_property
    def first(self) -> Ints:
        """For each node of the call the first member that it stands for, counted over all rows."""
        _, first = np.unique(self.node, return_index=True)
        return first


@dataclass(frozen=True, slots=True)
class Call:
    """A collective with its schedule, or a message."""

    number: int
    schedule: Schedule
    size_bytes: float
    members: Members
    is_message: bool = False


class Asymmetry(Exception):  # noqa: N818 - caught by whoever folds: not an error, but what to keep apart
    """Devices whose ranks were in one class but differ, and a label for each."""

    def __init__(self, devices: Ints, labels: Ints) -> None:
        super().__init__("ranks that were folded into one differ")
        self.devices, self.labels = devices, labels
