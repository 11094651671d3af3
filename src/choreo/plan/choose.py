"""What a published run left out, filled in: the best legal choice that fits, or the program's default.

A field that is empty in a row was not published. Where the row is about speed, its authors tuned that field, so every
legal value is tried and the fastest that fits in memory is taken; where it is about what fits and what does not
(`status=` in its notes), nobody tuned anything, and the program's default is taken.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from choreo.errors import ChoreoError, UsageError
from choreo.hardware import Device, get_device
from choreo.plan.defaults import Defaults, program_defaults, program_name
from choreo.plan.measured import MeasuredRow
from choreo.plan.row_model import row_model
from choreo.workload import Model, Plan

if TYPE_CHECKING:
    pass

__all__ = ["Case", "best", "read_case", "read_precision"]

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
INTERLEAVES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
TENSOR_PARALLEL = (1, 2, 4, 8)
PLANNED = (
    "tp", "pp", "dp", "cp", "ep", "zero", "sequence_parallel", "micro_batch", "interleave", "recompute",
)  # fmt: skip
MOST = 400  # candidates a row may have before the search is refused as under-determined


@dataclass(frozen=True, slots=True)
class Case:
    """A row as a job that can be evaluated: what is fixed, and every plan that may have been run.

    `share` is the part of a whole number of micro-batches that the row's batch is: programs that cut a batch unevenly
    run a smaller last one.
    """

    row: MeasuredRow
    model: Model
    device: Device
    network: str | None
    software: str
    global_batch: int
    share: float
    plans: tuple[Plan, ...]
    chosen: dict[str, object]
    open_fields: tuple[str, ...]


class Result(Protocol):
    """What has to be known of a plan to prefer it."""

    @property
    def step_time_s(self) -> float:
        """Of one step."""

    @property
    def fits(self) -> bool:
        """Whether it fits in memory."""

    @property
    def memory_bytes(self) -> float:
        """What it needs."""


R = TypeVar("R", bound=Result)


def best(case: Case, evaluate: Callable[[Plan], R]) -> tuple[Plan, R]:
    """The fastest plan that fits; if none does, the one that needs least."""
    if len(case.plans) == 1:
        return case.plans[0], evaluate(case.plans[0])
    found: list[tuple[bool, float, Plan, R]] = []
    refusal: ChoreoError | None = None
    for plan in case.plans:
        if _dominated(plan, found):
            continue
        try:
            result = evaluate(plan)
        except ChoreoError as error:
            refusal = error
            continue
        found.append((not result.fits, result.step_time_s if result.fits else result.memory_bytes, plan, result))
    if not found:
        raise refusal or UsageError("no legal plan was found")
    _, _, plan, result = min(found, key=lambda one: one[:2])
    return plan, result


def _dominated(plan: Plan, found: Iterable[tuple[bool, float, Plan, object]]) -> bool:
    """Recomputing more than is needed to fit is never faster."""
    less = {"none": (), "selective": ("none",), "full": ("none", "selective")}[plan.recompute]
    return any(
        not too_big and one.recompute in less and replace(one, recompute=plan.recompute) == plan
        for too_big, _, one, _ in found
    )


def read_case(row: MeasuredRow) -> Case:
    """Everything that the row fixes, and the plans it leaves open."""
    model, chosen = row_model(row)
    device = get_device(row.gpu)
    precision, option = read_precision(row, device)
    if row.precision is None:
        chosen["precision"] = precision
    software = _software(row, option)
    default = program_defaults(row.software)
    plans, open_fields = _plans(row, model, precision, default)
    global_batch, share = _batch(row, plans[0], chosen)
    return Case(row, model, device, _network(row.gpu), software, global_batch, share, plans, chosen, open_fields)


def read_precision(row: MeasuredRow, device: Device) -> tuple[str, str]:
    """The precision of matrix products, and "+autocast" or "+pure" if the text tells what parameters are kept in."""
    text = (row.precision or "").lower()
    option = "+autocast" if re.search(r"amp|autocast|mixed", text) else "+pure" if row.pure_precision else ""
    for name in ("fp8", "fp4", "bf16", "fp16", "tf32", "fp32"):
        if name in text:
            return name, option
    if "float8" in text or "e4m3" in text:
        return "fp8", option
    if text and text not in {"half", "bfloat16", "float16", "float32", "mixed"}:
        raise UsageError(f"precision is {row.precision!r}; it must be fp32, tf32, fp16, bf16, fp8 or fp4, or empty")
    default = "bf16" if device.peak_flops.get("bf16") else "fp16"
    return {"half": "fp16", "float16": "fp16", "float32": "fp32"}.get(text, default), option


def _software(row: MeasuredRow, option: str) -> str:
    name = program_name(row.software)
    if name == "nanotron" and row.blocking_pipeline:
        name = "nanotron-blocking-pipeline"
    return name + option + ("+compile" if row.compiled and name == "torchtitan" else "")


def _network(gpu: str) -> str | None:
    return "efa" if re.search(r"\befa\b|\bp[45]d?e?\b", gpu, re.IGNORECASE) else None


def _schedule(row: MeasuredRow, interleave: int) -> str:
    notes = row.notes.lower()
    if "zero-bubble" in notes or "zero bubble" in notes:
        return "zero-bubble"
    if "gpipe" in notes:
        return "gpipe"
    return "interleaved" if interleave > 1 else "1f1b"


def _plans(
    row: MeasuredRow, model: Model, precision: str, default: Defaults
) -> tuple[tuple[Plan, ...], tuple[str, ...]]:
    tuned = row.status is None
    axes = list(_axes(row, model))
    open_fields = [name for name in PLANNED if getattr(row, name) is None]
    plans: dict[Plan, None] = {}
    for tp, pp, cp, dp, ep in axes:
        for micro_batch in _micro_batches(row, dp, tuned=tuned):
            count = max(1, (row.global_batch or dp * micro_batch) // (dp * micro_batch))
            for interleave in _interleaves(row, model, pp, count, tuned=tuned and default.interleaves):
                for recompute in _recomputes(row, default, tuned=tuned):
                    plan = Plan(
                        dp=dp,
                        tp=tp,
                        pp=pp,
                        cp=cp,
                        ep=ep,
                        zero=default.zero if row.zero is None else row.zero,
                        sequence_parallel=_sequence_parallel(row, default, tp),
                        micro_batch=micro_batch,
                        interleave=interleave,
                        schedule=_schedule(row, interleave) if pp > 1 else "1f1b",
                        recompute=recompute,
                        overlap=re.search(r"no (dp|data-parallel)? ?overlap", row.notes, re.IGNORECASE) is None,
                        precision=precision,
                    )
                    plans[plan] = None
    if not plans:
        raise UsageError(
            f"no plan is legal for tp {row.tp}, pp {row.pp}, dp {row.dp}, cp {row.cp} on {row.gpus} GPUs with "
            f"{model.layers} layers, {model.heads} heads and a batch of {row.global_batch}"
        )
    if len(plans) > MOST:
        kept = itertools.islice(plans, 0, len(plans), len(plans) // MOST + 1)
        plans = dict.fromkeys(kept)
    return tuple(plans), tuple(open_fields)


def _sequence_parallel(row: MeasuredRow, default: Defaults, tp: int) -> bool:
    return tp > 1 and (default.sequence_parallel if row.sequence_parallel is None else row.sequence_parallel)


def _axes(row: MeasuredRow, model: Model) -> Iterator[tuple[int, int, int, int, int]]:
    """Every (tp, pp, cp, dp, ep) that agrees with the row and multiplies to its GPUs."""
    cp = row.cp or 1
    ep = row.ep or 1
    given = [value for value in (row.tp, row.pp, row.dp) if value is not None]
    if len(given) == 3:
        product = (row.tp or 1) * (row.pp or 1) * (row.dp or 1) * cp
        if product == row.gpus:
            # Stages without a layer have nothing to do.
            yield row.tp or 1, min(row.pp or 1, model.layers), cp, row.dp or 1, ep
            return
        # Some count the replicas of an expert as dp.
        if product * ep == row.gpus:
            yield row.tp or 1, row.pp or 1, cp, (row.dp or 1) * ep, ep
            return
        fits = row.gpus // max(1, (row.tp or 1) * (row.pp or 1) * cp)
        raise UsageError(
            f"dp {row.dp} × tp {row.tp} × pp {row.pp} × cp {cp} is {product}, not the row's {row.gpus} GPUs; "
            f"dp {max(1, fits)} would use {max(1, fits) * (row.tp or 1) * (row.pp or 1) * cp}"
        )
    for tp in (row.tp,) if row.tp else TENSOR_PARALLEL:
        if model.heads % tp:
            continue
        for pp in (row.pp,) if row.pp else _divisors(model.layers, 64):
            rest, left = divmod(row.gpus, tp * pp * cp)
            if left or rest < 1 or row.dp not in {None, rest}:
                continue
            if row.global_batch is not None and row.global_batch % rest:
                continue
            yield tp, pp, cp, rest, ep


def _divisors(number: int, most: int) -> list[int]:
    return [value for value in range(1, min(number, most) + 1) if number % value == 0]


def _micro_batches(row: MeasuredRow, dp: int, *, tuned: bool) -> Iterable[int]:
    if row.micro_batch is not None:
        return (row.micro_batch,)
    each = (row.global_batch or dp) / dp
    if row.accumulation and each % row.accumulation == 0:
        return (int(each) // row.accumulation,)
    legal = [value for value in MICRO_BATCHES if each % value == 0]
    return (legal or [1]) if tuned else (1,)


def _interleaves(row: MeasuredRow, model: Model, pp: int, micro_batches: int, *, tuned: bool) -> Iterable[int]:
    if pp == 1:
        return (1,)
    if row.interleave is not None:
        return (row.interleave,)
    if not tuned or micro_batches % pp:
        return (1,)
    # The embedding and the head may count as a layer each.
    return [
        value
        for value in INTERLEAVES
        if value == 1 or (pp * value <= model.layers and any((model.layers + e) % (pp * value) == 0 for e in (0, 1, 2)))
    ]


def _recomputes(row: MeasuredRow, default: Defaults, *, tuned: bool) -> Iterable[str]:
    if row.recompute is not None:
        return (row.recompute,)
    return ("none", "selective", "full") if tuned and default.recompute == "none" else (default.recompute,)


def _batch(row: MeasuredRow, plan: Plan, chosen: dict[str, object]) -> tuple[int, float]:
    """The batch in whole micro-batches, and the row's batch as a share of it."""
    each = plan.dp * plan.micro_batch
    if row.global_batch is None:
        count = row.accumulation or (4 * plan.pp if plan.pp > 1 else 1)
        chosen["global_batch"] = each * count
        return each * count, 1.0
    if row.global_batch % each == 0:
        return row.global_batch, 1.0
    count = -(-row.global_batch // each)
    return count * each, row.global_batch / (count * each)
