"""The search: every plan is estimated at once, and the best few are evaluated in detail.

The estimate decides which plans are evaluated, the evaluation decides which are best. Of plans with the same cut only
the best is kept, so that the answer shows different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.errors import PlanError
from choreo.plan.how_sure.how_sure import NINE_OF_TEN, errors_of
from choreo.plan.job import TrainingJob
from choreo.plan.layer.table import tabulate
from choreo.plan.search.axes import implied_recompute
from choreo.plan.search.estimate import Estimate, estimate
from choreo.plan.search.further import may_be_faster
from choreo.plan.search.space import CUT, Among, Fixed, Space, enumerate_plans, space_of
from choreo.plan.software.ability import ability_of
from choreo.plan.step import Step, evaluate, evaluate_job
from choreo.workload import Plan

__all__ = ["TOO_LARGE", "Found", "detailed", "search"]

TOO_LARGE = "does not fit in memory"
# Evaluated in detail: this many of the best estimates, and the best estimate of this many cuts.
DETAILED, CUTS = 32, 12
# Then those that may still be the best, this many at most: a plan takes at least this share of its estimate.
FURTHER, AT_LEAST = 160, 0.985
# Standard deviations below which nine of ten values are.
LIKELY = 1.282
# Plans whose times differ by less than this are equally good: the simpler one goes first.
ALIKE = 3e-3


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best plans with their steps, and the reasons why others were ruled out."""

    plans: tuple[tuple[Plan, Step], ...]
    considered: int
    ruled_out: Mapping[str, int]
    space: Space
    estimate: Estimate


def detailed(job: TrainingJob, plan: Plan, *, timeline: bool = False) -> Step:
    """One plan, checked and simulated."""
    return evaluate(
        job.model,
        plan,
        cluster=job.cluster,
        gpus=job.gpus,
        global_batch=job.global_batch,
        seq=job.seq,
        software=job.software,
        device=job.device,
        timeline=timeline,
    )


def search(job: TrainingJob, *, fixed: Fixed | None = None, best: int = 5) -> Found:
    """The best plans with the fixed fields, one for each cut, best first."""
    fixed = dict(fixed or {})
    space = _space(job, fixed)
    if len(space) == 0:
        raise _nothing(job, fixed, space)
    table = tabulate(job, space)
    guess = estimate(job, space, table, job.room_bytes)
    room = _room(job, float(guess.memory_bytes.min()))
    if room > job.room_bytes:
        guess = estimate(job, space, table, room)
    space = space.with_column("recompute_layers", guess.recompute_layers)
    tables, first = [table], len(space)
    balances = ability_of(job.software.name).balances and not {"split", "pp", "interleave", "schedule"} & set(fixed)
    if balances and (among := may_be_faster(job, space, guess, room)):
        further = _space(job, fixed, among)
        if len(further):
            tables.append(tabulate(job, further))
            more = estimate(job, further, tables[1], room)
            space += further.with_column("recompute_layers", more.recompute_layers)
            guess += more

    def one(row: int) -> tuple[Plan, Step]:
        plan, later = space.plan(row), row >= first
        return plan, evaluate_job(job, plan, table=tables[later].of_plan(row - first * later))

    rows = promising(space, guess, room)
    steps = [one(row) for row in rows]
    steps += [one(row) for row in may_be_best(guess, room, rows, [step for _, step in steps])]
    # Plans that leave enough memory free go before plans that merely fit.
    roomy = [one for one in steps if one[1].memory_bytes <= room]
    kept = best_of_each_cut(roomy or steps)
    if kept[0][1].fits:
        kept = [found for found in kept if found[1].fits]
    too_large = int(np.count_nonzero(guess.memory_bytes > room))
    ruled_out = {**space.ruled_out, **({TOO_LARGE: too_large} if too_large else {})}
    return Found(tuple(kept[:best]), space.considered, ruled_out, space, guess)


def _space(job: TrainingJob, fixed: Fixed, further: Among | None = None) -> Space:
    """Every plan, or further ones."""
    return enumerate_plans(
        job.model,
        job.gpus,
        job.global_batch,
        job.seq,
        fixed=fixed,
        precision=job.precision,
        software=job.software.name,
        node_gpus=job.cluster.node_gpus,
        further=further,
    )


def _room(job: TrainingJob, least: float) -> float:
    """The memory that a plan may take, if one takes the `least`: all but the headroom where that suffices.

    Otherwise what nine of ten plans would fit with; otherwise all that there is.
    """
    device = float(job.device.memory_bytes)
    likely = device / (1 + errors_of(job).memory) ** (LIKELY / NINE_OF_TEN)
    return next((room for room in (job.room_bytes, max(likely, job.room_bytes)) if least <= room), device)


def best_of_each_cut(steps: list[tuple[Plan, Step]]) -> list[tuple[Plan, Step]]:
    """One plan of each cut, best first: the simplest of those about as fast as its fastest.

    A plan that is kept is never more than `ALIKE` slower than one that is left out.
    """
    cuts: dict[tuple[int, ...], list[tuple[Plan, Step]]] = {}
    for plan, step in steps:
        cuts.setdefault(tuple(getattr(plan, name) for name in CUT), []).append((plan, step))
    kept: list[tuple[Plan, Step]] = []
    fastest: list[float] = []
    for found in cuts.values():
        fit = [one for one in found if one[1].fits]
        if fit:
            least = min(step.step_time_s for _, step in fit)
            alike = [one for one in fit if one[1].step_time_s <= (1 + ALIKE) * least]
            kept.append(alike[np.lexsort(_complexity(space_of([plan for plan, _ in alike]))[::-1])[0]])
        else:
            kept.append(min(found, key=lambda one: one[1].memory_bytes))
            least = kept[-1][1].step_time_s
        fastest.append(least)
    kept = [one for one, least in zip(kept, fastest, strict=True) if not _cut_in_vain(one, least, kept)]
    return sorted(kept, key=lambda one: (not one[1].fits, one[1].step_time_s if one[1].fits else one[1].memory_bytes))


def _cut_in_vain(one: tuple[Plan, Step], fastest: float, kept: list[tuple[Plan, Step]]) -> bool:
    """Whether a plan with less context parallelism, or none of hybrid sharding, is as fast as the `fastest` of this."""
    plan, step = one
    return any(
        (other.tp, other.pp) == (plan.tp, plan.pp)
        and (other.cp, other.shard_size > 0) < (plan.cp, plan.shard_size > 0)
        and at.fits >= step.fits
        and at.step_time_s <= (1 + ALIKE) * fastest
        for other, at in kept
    )


def promising(space: Space, guess: Estimate, room: float) -> list[int]:
    """Rows to evaluate: the best that fit, and the best of the best cuts; if none fits, those with the least memory."""
    fits = np.flatnonzero(guess.memory_bytes <= room)
    if not len(fits):
        return [int(row) for row in np.argsort(guess.memory_bytes, kind="stable")[:DETAILED]]
    steps = np.round(np.log(guess.time_s[fits]) / ALIKE)
    order = fits[np.lexsort((*(column[fits] for column in reversed(_complexity(space))), steps))]
    _, first = np.unique(space["cut"][order], return_index=True)
    return list(dict.fromkeys([*order[:DETAILED].tolist(), *order[np.sort(first)[:CUTS]].tolist()]))


def may_be_best(guess: Estimate, room: float, done: Sequence[int], steps: Sequence[Step]) -> list[int]:
    """Further rows that may be faster than the best of those evaluated, as far as an estimate can be too slow."""
    best = min((step.step_time_s for step in steps if step.memory_bytes <= room), default=0.0)
    rows = np.setdiff1d(np.flatnonzero((AT_LEAST * guess.time_s < best) & (guess.memory_bytes <= room)), done)
    return [int(row) for row in rows[np.argsort(guess.time_s[rows], kind="stable")][:FURTHER]]


def _complexity(space: Space) -> list[npt.NDArray[np.int64]]:
    """How complicated a plan is, most significant first: of equally fast plans the simplest is best.

    Fewer cuts count most; then no recomputation, overlapping communication, and a lower ZeRO stage.
    """
    names = ("recompute", "overlap", "zero", "interleave", "sequence_parallel", "micro_batch")
    columns = [1 - space[name] if name == "overlap" else space[name] for name in names]
    return [space["tp"] + space["pp"] + space["cp"], *columns]


def _nothing(job: TrainingJob, fixed: Fixed, space: Space) -> PlanError:
    """Why no plan can be run: the first rule that the plainest plan breaks, or the rule that most plans break."""
    named = {name: value for name, value in fixed.items() if name != "dp"}
    inner = 1
    for name in ("tp", "pp", "cp"):
        inner *= int(named.get(name, 1))
    if job.gpus % inner == 0:
        plain: dict[str, object] = {"dp": job.gpus // inner, **named, "precision": job.precision}
        plain["recompute"] = named.get("recompute", implied_recompute(fixed) or "none")
        try:
            uneven = ability_of(job.software.name).uneven_stages
            one = Plan(**plain)  # type: ignore[arg-type]
            one.check(job.model, job.gpus, job.global_batch, job.seq, uneven_stages=uneven)
        except PlanError as error:
            return error
    reasons = sorted(space.ruled_out.items(), key=lambda reason: -reason[1])
    listed = ", ".join(f"{reason} ({count})" for reason, count in reasons[:3])
    return PlanError(
        f"none of {space.considered} plans of {job.model.name} on {job.gpus} GPUs with a global batch of "
        f"{job.global_batch} can be run: {listed}; fix fewer of them, or take a batch that divides by more"
    )
