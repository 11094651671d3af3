"""A published run as a job with one or more candidate plans.

A field that is empty in a row was not published. If the row is about speed, its authors tuned that field: every legal
value is tried, and the fastest that fits in memory is taken. If the row is about what fits (`status=` in its notes),
nothing was tuned, and the program's default is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from choreo.errors import ChoreoError, UsageError
from choreo.hardware import Device, get_device
from choreo.plan.software.ability import ability_of
from choreo.plan.software.defaults import Defaults, program_defaults, program_name
from choreo.validate.plan.measured import MeasuredRow
from choreo.validate.plan.recipes import Recipe
from choreo.validate.plan.row_model import row_model
from choreo.validate.plan.row_software import of_2024, row_recipe, row_software
from choreo.workload import Model, Plan
from choreo.workload.legal import CHUNK_EXTRAS, even

__all__ = ["Case", "best", "read_case", "read_precision"]

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
INTERLEAVES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
TENSOR_PARALLEL = (1, 2, 4, 8)
MOST_EP = 64  # the most ranks that divide the experts, if a row does not say
# As rows write them, the narrowest first: in "fp8 with bf16" the products are fp8. int8 goes at the speed of fp8.
PRECISIONS = {
    "fp4": "fp4", "fp8": "fp8", "e4m3": "fp8", "int8": "fp8", "bf16": "bf16", "fp16": "fp16", "half": "fp16",
    "tf32": "tf32", "fp32": "fp32",
}  # fmt: skip
NETWORK = re.compile(
    r"\b(?:efa|p[45]d?e?n?|ib|infiniband|roce|[ehnx]dr\d*|slingshot|ethernet|tcpx?)\b|\d\s*[x×]\s*\d{2,3}\s*G",
    re.IGNORECASE,
)
Axes = tuple[int, int, int, int, int]
PLANNED = (
    "tp", "pp", "dp", "cp", "ep", "zero", "sequence_parallel", "micro_batch", "interleave", "recompute",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A row as a job that can be evaluated, and every plan that may have been run.

    `share` is the row's batch over the next whole number of micro-batches: some programs run a smaller last one.
    """

    row: MeasuredRow
    model: Model
    device: Device
    network: str  # as text, if the row has it
    software: str
    global_batch: int
    share: float
    plans: tuple[Plan, ...]
    chosen: dict[str, object]
    open_fields: tuple[str, ...]


class Result(Protocol):
    """What decides which plan is better."""

    @property
    def step_time_s(self) -> float:
        """Seconds of a step."""

    @property
    def fits(self) -> bool:
        """Whether it fits in memory."""

    @property
    def memory_bytes(self) -> float:
        """Memory that it needs."""


R = TypeVar("R", bound=Result)


def best(plans: Sequence[Plan], evaluate: Callable[[Plan], R]) -> tuple[Plan, R]:
    """The fastest plan that fits; if none does, the one that needs least."""
    if len(plans) == 1:
        return plans[0], evaluate(plans[0])
    found: list[tuple[bool, float, Plan, R]] = []
    refusal: ChoreoError | None = None
    for plan in plans:
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
        not too_big
        and one.recompute in less
        and replace(one, recompute=plan.recompute, recompute_layers=plan.recompute_layers) == plan
        for too_big, _, one, _ in found
    )


def read_case(row: MeasuredRow) -> Case:
    """A row as a job, with the plans that it leaves open."""
    model, chosen = row_model(row)
    device = get_device(row.gpu)
    precision, option = read_precision(row, device)
    if row.precision is None:
        chosen["precision"] = precision
    recipe = row_recipe(row, device.chip)
    software = row_software(row, model, recipe, option)
    default = program_defaults(row.software)
    plans, open_fields = _plans(row, model, precision, default, recipe)
    global_batch, share = _batch(row, plans[0], chosen)
    return Case(row, model, device, _network(row.gpu), software, global_batch, share, plans, chosen, open_fields)


def read_precision(row: MeasuredRow, device: Device) -> tuple[str, str]:
    """The precision of matrix products, and "+autocast" or "+pure" where the row says what parameters are kept in."""
    text = (row.precision or "").lower().replace("float", "fp").replace("bfp16", "bf16")
    # In plain PyTorch "bf16-mixed" is autocast; Megatron's mixed precision keeps 16-bit parameters.
    mixed = "amp|autocast" if program_name(row.software).startswith("mega") else "amp|autocast|mixed"
    casts = re.search(mixed, text)
    option = "+autocast" if casts else "+pure" if row.pure_precision else ""
    for written, name in PRECISIONS.items():
        if written in text:
            return name, option
    if text.strip(" -_+") not in {"", "amp", "mixed", "autocast"}:
        raise UsageError(f"precision is {row.precision!r}; it must be fp32, tf32, fp16, bf16, fp8 or fp4, or empty")
    return "bf16" if device.peak_flops.get("bf16") else "fp16", option


def _network(gpu: str) -> str:
    """What the gpu column says of the network, as in "A100-SXM (80G; 8/node, 4x200G IB)"."""
    networks = [part.strip() for part in re.split(r"[(),;]", gpu) if NETWORK.search(part)]
    return ", ".join(networks)


def _schedule(row: MeasuredRow, interleave: int) -> str:
    notes = row.notes.lower()
    if "zero-bubble" in notes or "zero bubble" in notes:
        return "zero-bubble"
    if "gpipe" in notes:
        return "gpipe"
    return "interleaved" if interleave > 1 else "1f1b"


def _plans(
    row: MeasuredRow, model: Model, precision: str, default: Defaults, recipe: Recipe | None
) -> tuple[tuple[Plan, ...], tuple[str, ...]]:
    tuned = row.status is None
    axes = _axes(row, model)
    open_fields = [name for name in PLANNED if getattr(row, name) is None]
    plans: dict[Plan, None] = {}
    for tp, pp, cp, dp, ep in axes:
        for micro_batch in _micro_batches(row, dp, pp, tuned=tuned):
            count = max(1, (row.global_batch or dp * micro_batch) // (dp * micro_batch))
            for interleave in _interleaves(row, model, pp, count, tuned=tuned and default.interleaves):
                for recompute, modules in _recomputes(row, default, recipe, tuned=tuned):
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
                        recompute_modules=modules,
                        etp=_expert_tensors(row, model, (tp, cp, dp, ep)),
                        overlap=re.search(r"no (dp|data-parallel)? ?overlap", row.notes, re.IGNORECASE) is None,
                        precision=precision,
                        split=_split(row, model, pp, interleave, recipe),
                    )
                    plans[plan] = None
    if not plans:
        raise UsageError(
            f"no plan is legal for tp {row.tp}, pp {row.pp}, dp {row.dp}, cp {row.cp} on {row.gpus} GPUs with "
            f"{model.layers} layers, {model.heads} heads and a batch of {row.global_batch}"
        )
    return tuple(plans), tuple(open_fields)


def _split(row: MeasuredRow, model: Model, pp: int, interleave: int, recipe: Recipe | None) -> str:
    """A measured run did run, so layers that do not divide were assigned by hand, as BLOOM's 70 in 12 stages.

    With multi-token prediction, NVIDIA's recipes fill all stages but the last, which has the rest of the layers.
    """
    chunks = pp * interleave
    each = -(-model.layers // chunks)
    last = model.layers - each * (chunks - 1)
    if pp > 1 and recipe is not None and model.mtp_layers and 0 < last < each:
        return f"{each}*{chunks - 1},{last}"
    if pp == 1 or ability_of(program_name(row.software)).uneven_stages:
        return "even"
    divides = even(model.layers, pp) and (interleave == 1 or even(model.layers, pp * interleave, CHUNK_EXTRAS))
    return "even" if divides else "balanced"


def _sequence_parallel(row: MeasuredRow, default: Defaults, tp: int) -> bool:
    return tp > 1 and (default.sequence_parallel if row.sequence_parallel is None else row.sequence_parallel)


def _axes(row: MeasuredRow, model: Model) -> list[Axes]:
    """Every (tp, pp, cp, dp, ep) that agrees with the row and multiplies to its GPUs."""
    if row.tp and model.heads % row.tp:
        near = min(_divisors(model.heads, model.heads), key=lambda tp: abs(tp - (row.tp or 1)))
        raise UsageError(f"heads {model.heads} of {row.model} are not divisible by tp {row.tp}; use tp {near}")
    if row.tp and row.pp and row.dp:
        return _given_axes(row, row.tp, row.pp, row.dp, model)
    ability = ability_of(program_name(row.software))
    usual = [tp for tp in TENSOR_PARALLEL if model.heads % tp == 0] if ability.tensors else [1]
    stages = _divisors(model.layers, 64) if ability.stages else [1]
    # Few runs need other sizes than the usual.
    odd = [tp for tp in _divisors(model.heads, 64) if row.gpus % tp == 0]
    for tensors, pipelines, whole in ((usual, stages, True), (odd, stages, True), (odd, stages, False)):
        if found := list(_open_axes(row, model, tensors, pipelines, whole=whole)):
            return found
    return []


def _given_axes(row: MeasuredRow, tp: int, pp: int, dp: int, model: Model) -> list[Axes]:
    cp, ep = row.cp or 1, row.ep or 1
    product = tp * pp * dp * cp
    if product == row.gpus:
        # No more stages than layers.
        return [(tp, min(pp, model.layers), cp, dp, one) for one in _experts_shared(row, model, tp * cp * dp)]
    # Some papers count only the replicas of an expert as dp, some also the ranks of context parallelism.
    if product * ep == row.gpus:
        return [(tp, pp, cp, dp * ep, ep)]
    if tp * pp * dp == row.gpus and dp % cp == 0:
        return [(tp, pp, cp, dp // cp, one) for one in _experts_shared(row, model, tp * dp)]
    fits = max(1, row.gpus // max(1, tp * pp * cp))
    raise UsageError(
        f"dp {dp} × tp {tp} × pp {pp} × cp {cp} is {product}, not the row's {row.gpus} GPUs; "
        f"dp {fits} would use {fits * tp * pp * cp}"
    )


def _experts_shared(row: MeasuredRow, model: Model, ranks: int) -> list[int]:
    """The sizes of expert parallelism over the ranks of a stage: the row's, or all powers of two."""
    if row.ep is not None or not model.experts:
        return [row.ep or 1]
    powers = [1 << power for power in range(MOST_EP.bit_length())]
    return [ep for ep in powers if ep <= MOST_EP and model.experts % ep == 0 and ranks % ep == 0]


def _open_axes(
    row: MeasuredRow, model: Model, tensors: Iterable[int], pipelines: Iterable[int], *, whole: bool
) -> Iterator[Axes]:
    """Axes with the row's sizes; with `whole` the batch must divide by the replicas."""
    cp = row.cp or 1
    for tp in (row.tp,) if row.tp else tensors:
        for pp in (row.pp,) if row.pp else pipelines:
            rest, left = divmod(row.gpus, tp * pp * cp)
            if left or rest < 1 or row.dp not in {None, rest}:
                continue
            if whole and row.global_batch is not None and row.global_batch % rest:
                continue
            for ep in _experts_shared(row, model, rest * cp * tp):
                if rest * cp * tp % ep == 0:
                    yield tp, pp, cp, rest, ep


def _divisors(number: int, most: int) -> list[int]:
    return [value for value in range(1, min(number, most) + 1) if number % value == 0]


def _micro_batches(row: MeasuredRow, dp: int, pp: int, *, tuned: bool) -> Iterable[int]:
    each = (row.global_batch or dp) / dp
    if pp > 1 and program_name(row.software) == "torchtitan" and row.micro_batch in (None, each):
        # A local batch, which the pipeline splits: into as many parts as stages in 2024, into single samples since.
        if not of_2024(row):
            return (1,)
        if each % pp == 0:
            return (int(each) // pp,)
    if row.micro_batch is not None:
        return (row.micro_batch,)
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
    return [value for value in INTERLEAVES if value == 1 or even(model.layers, pp * value, CHUNK_EXTRAS)]


def _recomputes(
    row: MeasuredRow, default: Defaults, recipe: Recipe | None, *, tuned: bool
) -> Iterable[tuple[str, str]]:
    """Ways to recompute, each with the modules that are named."""
    if row.recompute is not None:
        return ((row.recompute, ""),)
    if recipe is not None:
        return (("selective" if recipe.modules else "none", recipe.modules),)
    ways = ("none", "selective", "full") if tuned and default.recompute == "none" else (default.recompute,)
    return tuple((way, "") for way in ways)


def _expert_tensors(row: MeasuredRow, model: Model, sizes: tuple[int, int, int, int]) -> int:
    """Ranks that cut one expert, 0 for as many as tp: what the notes say ("ETP 4").

    It is one in NVIDIA's recipes, and where experts are shared out over tensor-parallel ranks too.
    """
    tp, cp, dp, ep = sizes
    if not model.experts or tp == 1:
        return 0
    if told := re.search(r"\bETP\s*[= ]\s*(\d+)", row.notes, re.IGNORECASE):
        return 0 if int(told[1]) == tp else int(told[1])
    recipes = program_name(row.software) == "nemo" or program_name(f"{row.source} {row.notes}") == "nemo"
    return 1 if recipes or dp * cp % ep else 0


def _batch(row: MeasuredRow, plan: Plan, chosen: dict[str, object]) -> tuple[int, float]:
    """The batch in whole micro-batches, and the row's batch as a share of it."""
    each = plan.dp * plan.micro_batch
    if row.global_batch is None:
        count = row.accumulation or (4 * plan.pp if plan.pp > 1 else 1)
        chosen["global_batch"] = each * count
        return each * count, 1.0
    # An interleaved pipeline takes its micro-batches in rounds of as many as it has stages.
    rounds = plan.pp if plan.interleave > 1 else 1
    if row.global_batch % (each * rounds) == 0:
        return row.global_batch, 1.0
    count = -(-row.global_batch // (each * rounds)) * rounds
    return count * each, row.global_batch / (count * each)
