"""The space of plans: every combination of the open fields, as columns, and why some of them cannot be run.

The space is a product of cuts, runs and options (`axes.py`). A plan that cannot be run is counted under the first rule
it breaks. Duplicates (such as a schedule without a pipeline) are counted too, so that `considered` is the whole
product. Pipelines whose layers do not divide well, or whose head is heavy, are considered a second time with their
layers balanced.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.errors import PlanError
from choreo.plan.pipeline.split import worth_balancing
from choreo.plan.search.axes import (
    CUT,
    MOST_INTERLEAVE,
    SEVERAL,
    Fixed,
    implied_recompute,
    list_cuts,
    list_options,
    list_runs,
    modules_code,
    modules_of,
)
from choreo.plan.search.products import Reasoned, keep, keep_products
from choreo.plan.software.ability import Ability, ability_of
from choreo.workload import Model, Plan
from choreo.workload.legal import BALANCED, CHUNK_EXTRAS, LISTED, RULES, Columns, Request, Rule, divisors, even
from choreo.workload.plan import RECOMPUTE, SCHEDULES, SPLITS, listed_layers

__all__ = ["CUT", "FIELDS", "SAME", "Among", "Fixed", "Space", "enumerate_plans", "space_of"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SAME = "the same as another plan"
FIELDS = (
    *CUT, "zero", "sequence_parallel", "micro_batch", "interleave", "schedule", "recompute", "recompute_layers",
    "recompute_modules", "overlap", "split",
)  # fmt: skip
PLAINEST = {"micro_batch": 1, "interleave": 1, "zero": 1, "schedule": SCHEDULES.index("1f1b")}


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The plans that can be run, as columns of integers, and how many others were ruled out, by reason.

    Besides the fields of a plan there is a column `cut`, the same for plans with the same fields `CUT`.
    """

    columns: Mapping[str, Ints]
    considered: int
    ruled_out: Mapping[str, int]
    precision: str = "bf16"
    splits: tuple[str, ...] = SPLITS  # what the codes of the column `split` stand for

    def __len__(self) -> int:
        return len(self.columns["dp"])

    def __getitem__(self, name: str) -> Ints:
        return self.columns[name]

    def __add__(self, other: Space) -> Space:
        """The plans of two spaces of one job."""
        columns = {name: np.concatenate([column, other[name]]) for name, column in self.columns.items()}
        return replace(self, columns=columns, considered=self.considered + other.considered)

    def with_column(self, name: str, column: Ints) -> Space:
        """The same plans with new values of one field."""
        return replace(self, columns={**self.columns, name: column})

    def plan(self, row: int) -> Plan:
        """One plan of the space, by row."""
        values = {name: int(self.columns[name][row]) for name in FIELDS}
        return Plan(
            **{name: values[name] for name in (*CUT, "zero", "micro_batch", "interleave", "recompute_layers")},
            sequence_parallel=bool(values["sequence_parallel"]),
            overlap=bool(values["overlap"]),
            schedule=SCHEDULES[values["schedule"]],
            recompute=RECOMPUTE[values["recompute"]],
            recompute_modules=modules_of(values["recompute_modules"]),
            split=self.splits[values["split"]],
            precision=self.precision,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Among:
    """Some cuts by their numbers, and rules that their plans must keep."""

    cuts: Ints
    rules: Sequence[Reasoned]


def space_of(plans: Sequence[Plan]) -> Space:
    """Some plans of one precision, as a space.

    >>> space_of([Plan(dp=8), Plan(dp=4, tp=2)])["tp"]
    array([1, 2])
    """
    splits = tuple(dict.fromkeys([*SPLITS, *(plan.split for plan in plans)]))
    codes: dict[str, Callable[..., int]] = {"schedule": SCHEDULES.index, "recompute": RECOMPUTE.index}
    codes |= {"split": splits.index, "recompute_modules": modules_code}
    columns = {
        name: np.array([int(codes.get(name, int)(getattr(plan, name))) for plan in plans], np.int64) for name in FIELDS
    }
    cuts: dict[tuple[int, ...], int] = {}
    keys = (tuple(getattr(plan, name) for name in CUT) for plan in plans)
    columns["cut"] = np.array([cuts.setdefault(key, len(cuts)) for key in keys], np.int64)
    return Space(columns, len(plans), {}, plans[0].precision, splits)


def enumerate_plans(
    model: Model,
    gpus: int,
    global_batch: int,
    seq: int,
    *,
    fixed: Fixed | None = None,
    precision: str = "bf16",
    software: str = "",
    node_gpus: int = 0,
    further: Among | None = None,
) -> Space:
    """Every plan with the fixed fields; plans that the `software` does not have are left out.

    Hybrid sharding is tried where the software has it and the size of a node is given. With `further`, the plans are
    those with balanced layers that are left out otherwise.
    """
    fixed = dict(fixed or {})
    ability = ability_of(software)
    _check(gpus, fixed)
    given = str(fixed.get("split", "even"))
    listed = listed_layers(given)
    splits = (*SPLITS, given) if listed else SPLITS
    request = Request(model, gpus, global_batch, seq, ability.uneven_stages, listed=listed)
    cuts = list_cuts(model, gpus, fixed, node_gpus if ability.hybrid else 0)
    options = list_options(model, ability, fixed)
    if further is not None:
        options = keep(options, ability.zero_rules(fixed), Counter())
        kept = _balanced(request, ability, fixed, cuts, options, precision, further)
        return Space(kept, len(kept["dp"]), {}, precision, splits)
    most = range(2, min(MOST_INTERLEAVE, model.layers) + 1)
    if "split" not in fixed:
        chunks = [v for v in most if even(model.layers, v, CHUNK_EXTRAS)]
    else:
        chunks = [v for v in most if not listed or len(listed) % v == 0]
    runs = list_runs(global_batch, seq, fixed, chunks)
    considered = len(cuts["dp"]) * len(runs["micro_batch"]) * len(options["zero"])
    ruled_out: Counter[str] = Counter()
    # Combinations that a program never supports need not be enumerated.
    runs = keep(runs, ability.schedule_rules(fixed), ruled_out, len(cuts["dp"]) * len(options["zero"]))
    options = keep(options, ability.zero_rules(fixed), ruled_out, len(cuts["dp"]) * len(runs["micro_batch"]))
    kept = _runnable(request, ability, fixed, (cuts, runs, options), split=splits.index(given), ruled_out=ruled_out)
    if "split" not in fixed and ability.balances:
        more = _balanced(request, ability, fixed, cuts, options, precision)
        considered += len(more["dp"])
        kept = {name: np.concatenate([column, more[name]]) for name, column in kept.items()}
    return Space(kept, considered, dict(ruled_out), precision, splits)


def _runnable(
    request: Request,
    ability: Ability,
    fixed: Fixed,
    axes: tuple[Columns, Columns, Columns],
    *,
    split: int,
    ruled_out: Counter[str],
    more: Sequence[Reasoned] = (),
) -> dict[str, Ints]:
    """Of a product of cuts, runs and options, the plans that can be run with a split; others are counted by reason.

    `more` are rules that are checked after all others.
    """
    cuts, runs, options = axes

    def legal(rule: Rule) -> Reasoned:
        return rule.reason, lambda t: rule.holds(request, t)

    # A cut that cannot be run in the plainest way cannot be run at all; but a list of layers may need its chunks.
    rules = [legal(rule) for rule in RULES if split != LISTED or rule.field not in ("pp", "interleave")]
    plainest = {name: np.full(len(cuts["dp"]), value) for name, value in (PLAINEST | {"split": split}).items()}
    plainest["sequence_parallel"] = (cuts["etp"] > 0).astype(np.int64)
    each = len(runs["micro_batch"]) * len(options["zero"])
    table = keep({**cuts, **plainest}, [*ability.cut_rules(fixed), *rules], ruled_out, each)
    rules = [*map(legal, RULES), *_distinct(fixed), *ability.run_rules(fixed), *more]
    return keep_products({name: table[name] for name in (*cuts, "split")}, runs, options, rules, ruled_out)


def _balanced(  # noqa: PLR0917 -- what plans depend on
    request: Request,
    ability: Ability,
    fixed: Fixed,
    cuts: Columns,
    options: Columns,
    precision: str,
    further: Among | None = None,
) -> dict[str, Ints]:
    """The plans that are worth a balanced split, or `further` ones."""
    most = min(MOST_INTERLEAVE, request.model.layers)
    stages = np.unique(cuts["pp"]).tolist()
    chunks = [int(fixed["interleave"])] if "interleave" in fixed else range(1, most + 1)
    few = ability.overlaps_experts or bool({"pp", "interleave", "schedule"} & set(fixed))
    wanted = np.zeros((max(stages, default=0) + 1, max(*chunks, most) + 1), np.bool_)
    for pp in stages:
        for v in chunks:
            worth = [
                worth_balancing(request.model, pp, v, request.seq, precision=precision, asked=asked)
                for asked in (few or v == 1, True)
            ]
            wanted[pp, v] = worth[0] if further is None else worth[1] and not worth[0]
    here = np.asarray(wanted.any(axis=1))[cuts["pp"]]
    if further is not None:
        here &= np.isin(cuts["cut"], further.cuts)
    cuts = {name: column[here] for name, column in cuts.items()}
    more = [v for v in chunks if v > 1 and wanted[:, v].any()]
    runs = list_runs(request.global_batch, request.seq, fixed, more)
    runs = keep(runs, ability.schedule_rules(fixed), Counter())
    rules: list[Reasoned] = [("not worth balancing", lambda t: wanted[t["pp"], t["interleave"]])]
    rules += further.rules if further is not None else ()
    axes = (cuts, runs, options)
    return _runnable(request, ability, fixed, axes, split=BALANCED, ruled_out=Counter(), more=rules)


def _distinct(fixed: Fixed) -> list[Reasoned]:
    """Of equivalent plans only the plainest: no schedule without a pipeline, no ZeRO without replicas."""
    one_by_one = SCHEDULES.index("1f1b")
    # Interleaved 1F1B is called interleaved; 1F1B and GPipe have one chunk per stage.
    single = np.isin(SCHEDULES, ("gpipe", "1f1b", "zero-bubble", "dualpipe"))
    several = np.isin(SCHEDULES, (*SEVERAL, "dualpipev"))

    def distinct_run(t: Columns) -> Bools:
        good = np.ones(len(t["dp"]), np.bool_)
        if "schedule" not in fixed:
            good &= (t["pp"] > 1) | (t["schedule"] == one_by_one)
            if "interleave" in fixed:
                good &= np.where(t["interleave"] > 1, several[t["schedule"]], single[t["schedule"]])
        return good

    def distinct_options(t: Columns) -> Bools:
        good = np.ones(len(t["dp"]), np.bool_)
        if "sequence_parallel" not in fixed:
            good &= (t["tp"] > 1) | (t["sequence_parallel"] == 0)
        replicas = t["dp"] * t["cp"]
        if "zero" not in fixed:
            good &= (replicas > 1) | (t["zero"] == 0)
        if "overlap" not in fixed:
            good &= (replicas > 1) | (t["overlap"] == 1)
        return good

    # Gathering layer by layer gains from staying in a node; sharding over fewer ranks otherwise only costs memory.
    rules: list[Reasoned] = [(SAME, distinct_run), (SAME, distinct_options)]
    if "shard_size" not in fixed:
        rules.append(("hybrid sharding without ZeRO-3", lambda t: (t["shard_size"] == 0) | (t["zero"] == 3)))
    return rules


def _check(gpus: int, fixed: Fixed) -> None:
    """Refuse fixed fields that no plan has, or whose product is not the number of devices."""
    for name in fixed:
        if name not in FIELDS:
            raise PlanError(f"a plan has no field {name!r}; it has {', '.join(FIELDS)}")
    implied = implied_recompute(fixed)
    alone = {"recompute": implied} if implied else {}
    Plan(**alone | dict(fixed))  # type: ignore[arg-type]  # each value by itself
    given = {name: int(fixed[name]) for name in ("dp", "tp", "pp", "cp") if name in fixed}
    product = math.prod(given.values())
    if gpus % product == 0 and (len(given) < 4 or product == gpus):
        return
    factors = " × ".join(f"{name} {value}" for name, value in given.items())
    if len(given) == 4:
        factors += f" is {product} devices, not {gpus}"
        inner = product // given["dp"]
        if gpus % inner == 0:
            raise PlanError(f"{factors}; dp {gpus // inner} would")
    else:
        factors += (f" = {product}" if len(given) > 1 else "") + f" does not divide {gpus} GPUs"
    for name, value in reversed(given.items()):
        rest, left = divmod(gpus * value, product)
        if not left:
            near = min(divisors(rest), key=lambda d: (abs(d - value), d))
            raise PlanError(f"{factors}; {name} {near} would")
    raise PlanError(f"{factors}; {max(1, round(gpus / product)) * product} GPUs would")
