"""A rule that a plan may break, and the case (model, GPUs, batch) that the plan is checked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from choreo.errors import PlanError
from choreo.workload.choices import SCHEDULES, SPLITS

if TYPE_CHECKING:
    from choreo.workload.model import Model
    from choreo.workload.plan import Plan

__all__ = ["BALANCED", "EVEN", "LISTED", "Columns", "Numbers", "Request", "Rule", "row_of"]

Ints = npt.NDArray[np.int64]
Columns = Mapping[str, Ints]
Numbers = Mapping[str, Any]  # an int per field, or a column of them
COLUMNS = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "interleave", "sequence_parallel", "etp", "shard_size")
EVEN, BALANCED, LISTED = range(len(SPLITS) + 1)  # how layers are split; those of a list have the last code


@dataclass(frozen=True, slots=True)
class Request:
    """The case that a plan is checked for.

    `uneven` if the program allows unequal numbers of layers per stage. `trained` if `choreo train` is to run it, within
    what torch can do.
    """

    model: Model
    gpus: int
    global_batch: int
    seq: int
    uneven: bool = False
    trained: bool = False
    listed: tuple[int, ...] = ()  # the layers of each virtual stage, where the plan lists them

    def __post_init__(self) -> None:
        for name in ("gpus", "global_batch", "seq"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PlanError(f"{name} must be a whole number of at least 1, not {value!r}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A reason why plans cannot be run, the test that finds them, and the sentence with a hint for one of them."""

    reason: str
    field: str  # the field of the plan to change
    holds: Callable[[Request, Numbers], Any]  # a bool, or a column of them
    sentence: Callable[[Request, Plan], str]


def row_of(plan: Plan) -> dict[str, int]:
    """The numbers of one plan that rules use."""
    row = {name: int(getattr(plan, name)) for name in COLUMNS}
    split = SPLITS.index(plan.split) if plan.split in SPLITS else LISTED
    return row | {"schedule": SCHEDULES.index(plan.schedule), "split": split}
