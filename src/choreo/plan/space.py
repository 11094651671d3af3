"""The space of plans: every combination of what was left open, as columns, and why those that cannot be run cannot.

The space is a product: how the devices are cut (dp x tp x pp x cp, and ep), times how a cut is run (micro-batch,
schedule and interleave), times what else can be said (zero, sequence parallel, recompute, overlap). A plan that cannot
be run is counted under the first reason there is; what is the same as another plan (a schedule without a pipeline) is
counted too, so that `considered` is the whole product.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.errors import PlanError
from choreo.plan.rules import SAME, Ability, Columns, ability_of, cut_reason, divisors, even, run_rules
from choreo.workload import Model, Plan
from choreo.workload.plan import RECOMPUTE, SCHEDULES

__all__ = ["FIELDS", "SAME", "Fixed", "Space", "enumerate_plans"]

Ints = npt.NDArray[np.int64]
Fixed = Mapping[str, int | bool | str]
Cut = tuple[int, int, int, int, int]

CUT = ("dp", "tp", "pp", "cp", "ep")
FIELDS = (
    *CUT, "zero", "sequence_parallel", "micro_batch", "interleave", "schedule", "recompute", "overlap",
)  # fmt: skip
# Beyond these it is nobody's plan; a fixed one may be anything.
MOST_TP, MOST_CP, MOST_MICRO_BATCH, MOST_INTERLEAVE = 64, 64, 64, 48
OPTIONS = {"zero": (0, 1, 2, 3), "sequence_parallel": (0, 1), "recompute": (0, 1, 2), "overlap": (1, 0)}


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The plans that can be run, as columns of whole numbers, and how many others there are and why.

    Beside the fields of a plan there is a column `cut`: plans with the same dp, tp, pp, cp and ep have the same.
    """

    columns: Mapping[str, Ints]
    considered: int
    ruled_out: Mapping[str, int]
    precision: str = "bf16"

    def __len__(self) -> int:
        return len(self.columns["dp"])

    def __getitem__(self, name: str) -> Ints:
        return self.columns[name]

    def plan(self, row: int) -> Plan:
        """One of them."""
        values = {name: int(self.columns[name][row]) for name in FIELDS}
        return Plan(
            **{name: values[name] for name in (*CUT, "zero", "micro_batch", "interleave")},
            sequence_parallel=bool(values["sequence_parallel"]),
            overlap=bool(values["overlap"]),
            schedule=SCHEDULES[values["schedule"]],
            recompute=RECOMPUTE[values["recompute"]],
            precision=self.precision,
        )


def enumerate_plans(
    model: Model,
    gpus: int,
    global_batch: int,
    seq: int,
    *,
    fixed: Fixed | None = None,
    precision: str = "bf16",
    software: str = "",
) -> Space:
    """Every plan of the space with the fixed fields as they are; `software` leaves out what that program cannot run."""
    fixed = dict(fixed or {})
    _check(gpus, global_batch, seq, fixed)
    ability = ability_of(software)
    runs, options = _runs(model, global_batch, fixed), _options(fixed)
    each = len(runs["micro_batch"]) * len(options["zero"])
    counted: Counter[str] = Counter()
    cuts, ways = _cuts(model, gpus, global_batch, seq, fixed, ability)
    found = []
    for cut, reason in zip(cuts, ways, strict=True):
        if reason:
            counted[reason] += each
        else:
            found.append(cut)
    table = _product(_columns(found), _product(runs, options))
    for reason, legal in run_rules(model, global_batch, seq, fixed, ability):
        good = legal(table)
        left = int(np.count_nonzero(good))
        if left < len(good):
            counted[reason] += len(good) - left
            table = {name: column[good] for name, column in table.items()}
    return Space(table, len(cuts) * each, dict(counted), precision)


def _check(gpus: int, global_batch: int, seq: int, fixed: Fixed) -> None:
    """Refuse what no plan can mend: numbers below 1, and fixed fields that do not fit together."""
    for name, value in (("gpus", gpus), ("global_batch", global_batch), ("seq", seq)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PlanError(f"{name} must be a whole number of at least 1, not {value!r}")
    for name in fixed:
        if name not in FIELDS:
            raise PlanError(f"a plan has no field {name!r}; it has {', '.join(FIELDS)}")
    Plan(**fixed)  # type: ignore[arg-type]  # each value by itself
    given = [name for name in ("dp", "tp", "pp", "cp") if name in fixed]
    product = math.prod(int(fixed[name]) for name in given)
    if (len(given) == 4 and product != gpus) or gpus % product:
        told = " × ".join(f"{name} {fixed[name]}" for name in given)
        if len(given) == 4:
            inner = product // int(fixed["dp"])
            hint = f"dp {gpus // inner} would" if gpus % inner == 0 else f"{_near_product(gpus, product)} GPUs would"
            raise PlanError(f"{told} is {product} devices, not {gpus}; {hint}")
        last = given[-1]
        rest = product // int(fixed[last])
        legal = [d for d in divisors(gpus) if gpus % (rest * d) == 0]
        hint = (
            f"{last} {min(legal, key=lambda d: (abs(d - int(fixed[last])), d))} would"
            if legal
            else f"{_near_product(gpus, product)} GPUs would"
        )
        made = f" = {product}" if len(given) > 1 else ""
        raise PlanError(f"{told}{made} does not divide {gpus} GPUs; {hint}")


def _near_product(gpus: int, product: int) -> int:
    return max(1, round(gpus / product)) * product


def _cuts(  # noqa: PLR0917 -- all that the rules are about
    model: Model, gpus: int, global_batch: int, seq: int, fixed: Fixed, ability: Ability
) -> tuple[list[Cut], list[str]]:
    """The ways to cut the devices, and for each why it cannot be run, or nothing."""
    of_gpus = divisors(gpus)
    experts = divisors(model.experts) if model.experts else [1]

    def values(name: str, open_to: list[int]) -> list[int]:
        return [int(fixed[name])] if name in fixed else open_to

    cuts: list[Cut] = []
    for tp in values("tp", [d for d in of_gpus if d <= MOST_TP]):
        for cp in values("cp", [d for d in of_gpus if d <= MOST_CP]):
            for pp in values("pp", of_gpus):
                dp, left = divmod(gpus, tp * cp * pp)
                if left or dp != fixed.get("dp", dp):
                    continue
                cuts += [(dp, tp, pp, cp, ep) for ep in values("ep", experts)]
    return cuts, [cut_reason(model, cut, global_batch, seq, fixed, ability) for cut in cuts]


def _columns(cuts: list[Cut]) -> Columns:
    table = np.array(cuts, np.int64).reshape(-1, len(CUT))
    return {name: table[:, number] for number, name in enumerate(CUT)} | {"cut": np.arange(len(table))}


def _runs(model: Model, global_batch: int, fixed: Fixed) -> Columns:
    """Micro-batches by schedules with their interleave."""
    if "micro_batch" in fixed:
        batches = [int(fixed["micro_batch"])]
    else:
        batches = [batch for batch in divisors(global_batch) if batch <= MOST_MICRO_BATCH]
    pairs: list[tuple[int, int]] = []
    for number, name in enumerate(SCHEDULES):
        if name != fixed.get("schedule", name):
            continue
        if "interleave" in fixed:
            pairs.append((number, int(fixed["interleave"])))
        elif name == "interleaved":
            most = min(MOST_INTERLEAVE, model.layers)
            pairs += [(number, v) for v in range(2, most + 1) if even(model.layers, v, 2)]
        else:
            pairs.append((number, 1))
    ways = np.array(pairs, np.int64).reshape(-1, 2)
    return {
        "micro_batch": np.repeat(np.array(batches, np.int64), len(ways)),
        "schedule": np.tile(ways[:, 0], len(batches)),
        "interleave": np.tile(ways[:, 1], len(batches)),
    }


def _options(fixed: Fixed) -> Columns:
    """ZeRO stages by sequence parallelism by recomputation by overlap."""
    lists = []
    for name, values in OPTIONS.items():
        if name not in fixed:
            lists.append(np.array(values, np.int64))
        else:
            value = fixed[name]
            lists.append(np.array([RECOMPUTE.index(value) if isinstance(value, str) else int(value)], np.int64))
    return {name: axis.ravel() for name, axis in zip(OPTIONS, np.meshgrid(*lists, indexing="ij"), strict=True)}


def _product(one: Columns, other: Columns) -> Columns:
    """Every row of one beside every row of the other."""
    rows, columns = len(next(iter(one.values()))), len(next(iter(other.values())))
    return {name: np.repeat(column, columns) for name, column in one.items()} | {
        name: np.tile(column, rows) for name, column in other.items()
    }
