"""A published run as a job with one or more candidate plans.

A field that is empty in a row was not published. If the row is about speed, its authors tuned that field: every legal
value is tried, and the fastest that fits in memory is taken. If the row is about what fits (`status=` in its notes),
nothing was tuned, and the program's default is taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from choreo.errors import ChoreoError, UsageError
from choreo.hardware import Device, get_device
from choreo.hardware.names import CHIP
from choreo.plan.network import get_cluster
from choreo.plan.search.axes import MOST_INTERLEAVE, module_sets
from choreo.plan.software.ability import ability_of
from choreo.plan.software.defaults import Defaults, program_defaults, program_name
from choreo.validate.plan.measured import MeasuredRow
from choreo.validate.plan.recipes import Recipe
from choreo.validate.plan.row_axes import expert_tensors, read_axes
from choreo.validate.plan.row_model import divisible, row_model
from choreo.validate.plan.row_software import has_adapters, of_2024, row_program, row_recipe, row_software
from choreo.workload import Model, Plan
from choreo.workload.legal import CHUNK_EXTRAS, even

__all__ = ["Case", "best", "read_case", "read_precision", "whole_batch"]

SHARDS_WEIGHTS = 3  # the ZeRO stage that does
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
INTERLEAVES = range(1, MOST_INTERLEAVE + 1)
# As rows write them, the narrowest first: in "fp8 with bf16" the products are fp8. int8 goes at the speed of fp8,
# "16-mixed" is in what the device has of 16 bits, and so are products of weights that are stored in four bits.
PRECISIONS = {
    "fp4": "fp4", "fp8": "fp8", "e4m3": "fp8", "e5m2": "fp8", "int8": "fp8", "8-bit": "fp8", "8bit": "fp8",
    "w8a8": "fp8", "4bit": "16", "4-bit": "16", "nf4": "16", "int4": "16", "bf16": "bf16", "fp16": "fp16",
    "half": "fp16", "tf32": "tf32", "fp32": "fp32", "fp64": "fp32", "16": "16",
}  # fmt: skip
# What a text says of a network: kinds, clouds' machines, "4x200G", "800 Gbps", "2xHDR", "8x CX7", "4 NICs".
NETWORK = re.compile(
    r"\b(?:efa|p[3-6]d?e?n?|ib|infiniband|roce|slingshot|ethernet|tcpxo?|perlmutter|omni-?path|spectrum)(?:v\d)?\b|"
    r"(?:\d\s*[x×*]\s*)?(?<![a-wyz])(?:[ehnx]dr|opa|cx-?[4-8]|connectx)[\s-]?\d*\b|"
    r"(?<![\w.])\d+\s*(?:[x×]\s*|(?:nics?|hcas?)\s*(?:of|x|×|at|@)?\s*)\d{2,3}\s*G|"
    r"(?<![\w.-])\d+(?:\.\d+)?\s*(?:gbe|[gt]bit|(?-i:[GT]b)(?:ps|/s)|(?-i:GB)(?:ps|/s)\s*(?:per|/|a)\s*(?:gpu|node|nic))|"
    r"(?<![\w.-])(?:25|50|56|100|200|400|800)\s?G(?:b|\b(?!iB))|"
    r"network\s+[\d.]+|\ba[234][- ]?(?:high|mega|ultra|edge)|\bND\d+",
    re.IGNORECASE,
)
INSIDE = re.compile(r"nv-?link|nv-?switch|hbm|infinity fabric|xgmi", re.IGNORECASE)  # what is no network
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
RECOMPUTED = ("recompute", "recompute_modules", "recompute_layers")


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
    _, _, plan, result = min(found, key=lambda candidate: candidate[:2])
    return plan, result


def _dominated(plan: Plan, found: Iterable[tuple[bool, float, Plan, object]]) -> bool:
    """Recomputing more than is needed to fit is never faster."""
    less = {"none": (), "selective": ("none",), "full": ("none", "selective")}[plan.recompute]
    return any(
        not too_big
        and other.recompute in less
        and not other.recompute_modules  # a few whole layers may cost less
        and replace(other, **{name: getattr(plan, name) for name in RECOMPUTED}) == plan
        for too_big, _, other, _ in found
    )


def read_case(row: MeasuredRow) -> Case:
    """A row as a job, with the plans that it leaves open."""
    model, chosen = row_model(row)
    chosen |= {name: getattr(row, name) for name in row.filled}
    model = divisible(model, row.tp or 1, chosen)
    device = get_device(row.gpu)
    precision, option = read_precision(row, device)
    if row.precision is None:
        chosen["precision"] = precision
    recipe = row_recipe(row, device.chip)
    software = row_software(row, model, recipe, option, device.architecture)
    default = program_defaults(row_program(row, device.architecture))
    plans, open_fields = _plans(row, model, precision, default, recipe, node=get_cluster(device.cluster).node_gpus)
    for name in ("pp", "dp", "ep"):
        # Sizes that the row's own do not allow.
        if getattr(row, name) is not None and getattr(plans[0], name) != getattr(row, name):
            chosen[name] = getattr(plans[0], name)
    global_batch, share = _batch(row, plans[0], chosen)
    return Case(row, model, device, _network(row.gpu), software, global_batch, share, plans, chosen, open_fields)


def read_precision(row: MeasuredRow, device: Device) -> tuple[str, str]:
    """The precision of matrix products, and "+autocast" or "+pure" where the row says what parameters are kept in."""
    text = (row.precision or "").lower().replace("float", "fp").replace("bfp16", "bf16")
    # In plain PyTorch "bf16-mixed" is autocast; Megatron's mixed precision keeps 16-bit parameters.
    mixed = "amp|autocast" if program_name(row.software).startswith("mega") else "amp|autocast|mixed"
    casts = re.search(mixed, text)
    option = "+autocast" if casts else "+pure" if row.pure_precision else ""
    usual = "bf16" if device.peak_flops.get("bf16") else "fp16"
    for written, name in PRECISIONS.items():
        if written in text:
            return usual if name == "16" else name, option
    if text.strip(" -_+") not in {"", "amp", "mixed", "autocast", "mp", "mixed precision"}:
        raise UsageError(f"precision is {row.precision!r}; it must be fp32, tf32, fp16, bf16, fp8 or fp4, or empty")
    return usual, option


def _network(gpu: str) -> str:
    """What the gpu column says of the network, as in "A100-SXM (80G; 8/node, 4x200G IB)".

    >>> _network("A100-SXM (80G; 8/node, 4x200G IB)"), _network("H100-80G 2xHDR"), _network("H100 (NVLink 900 GB/s)")
    ('4x200G IB', '2xHDR', '')
    """
    networks = []
    for part in re.split(r"[(),;]", gpu):
        found = None if INSIDE.search(part) else NETWORK.search(part)
        if found is not None:
            # Before it may be the GPU's name, with its memory.
            networks.append(part[found.start() :].strip() if CHIP.search(part.upper()) else part.strip())
    return ", ".join(networks)


def _schedule(row: MeasuredRow, pp: int, interleave: int, micro_batches: int) -> str:
    notes = row.notes.lower()
    enough = micro_batches >= 2 * pp
    if "dualpipev" in notes and enough and interleave == 2:
        return "dualpipev"
    if "dualpipe" in notes and enough and interleave == 1 and pp % 2 == micro_batches % 2 == 0:
        return "dualpipe"
    if "zero-bubble" in notes or "zero bubble" in notes:
        return "zero-bubble"
    if "gpipe" in notes:
        return "gpipe"
    return "interleaved" if interleave > 1 else "1f1b"


def _plans(
    row: MeasuredRow, model: Model, precision: str, default: Defaults, recipe: Recipe | None, *, node: int
) -> tuple[tuple[Plan, ...], tuple[str, ...]]:
    tuned = row.status is None
    axes = read_axes(row, model)
    open_fields = [name for name in PLANNED if getattr(row, name) is None]
    plans: dict[Plan, None] = {}
    for tp, pp, cp, dp, ep in axes:
        for micro_batch in _micro_batches(row, dp, pp, tuned=tuned):
            count = max(1, (row.global_batch or dp * micro_batch) // (dp * micro_batch))
            for interleave in _interleaves(row, model, pp, count, tuned=tuned and default.interleaves):
                for recompute, modules in _recomputes(row, model, default, recipe, tuned=tuned):
                    etp = expert_tensors(row, model, (tp, cp, dp, ep))
                    zero = default.zero if row.zero is None else row.zero
                    if row.zero is None and zero < SHARDS_WEIGHTS and has_adapters(row):
                        zero = 0  # there is little else to shard
                    plan = Plan(
                        dp=dp,
                        tp=tp,
                        pp=pp,
                        cp=cp,
                        ep=ep,
                        zero=zero,
                        shard_size=node if row.hybrid and zero and ep == 1 and dp % node == 0 else 0,
                        sequence_parallel=_sequence_parallel(row, default, tp, cp, etp),
                        micro_batch=micro_batch,
                        interleave=interleave,
                        schedule=_schedule(row, pp, interleave, count) if pp > 1 else "1f1b",
                        recompute=recompute,
                        recompute_modules=modules,
                        recompute_layers=_some_layers(row, model, pp),
                        etp=etp,
                        overlap=re.search(r"no (dp|data-parallel)? ?overlap", row.notes, re.IGNORECASE) is None,
                        precision=precision,
                        split=_split(row, model, pp, interleave, recipe),
                    )
                    plans[plan] = None
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
    if pp == 1 or (interleave == 1 and ability_of(program_name(row.software)).uneven_stages):
        return "even"
    divides = even(model.layers, pp) and (interleave == 1 or even(model.layers, pp * interleave, CHUNK_EXTRAS))
    return "even" if divides else "balanced"


def _sequence_parallel(row: MeasuredRow, default: Defaults, tp: int, cp: int, etp: int) -> bool:
    """As the row says, and where experts are cut otherwise than tensors, which needs it."""
    given = default.sequence_parallel if row.sequence_parallel is None else row.sequence_parallel
    return tp > 1 and row.seq % (tp * cp) == 0 and (given or etp not in (0, tp))


def _some_layers(row: MeasuredRow, model: Model, pp: int) -> int:
    """Layers of each stage that are computed again, 0 for all."""
    return row.recompute_layers if row.recompute_layers < -(-model.layers // pp) else 0


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
    if each % 1:  # a batch of so many tokens: whole micro-batches come near it
        each = math.ceil(each)
        return [value for value in {*MICRO_BATCHES, each} if each % value == 0] if tuned else (1,)
    legal = [value for value in MICRO_BATCHES if each % value == 0]
    return (legal or [1]) if tuned else (1,)


def _interleaves(row: MeasuredRow, model: Model, pp: int, micro_batches: int, *, tuned: bool) -> Iterable[int]:
    if pp == 1:
        return (1,)
    if row.interleave is not None:
        return (row.interleave if pp * row.interleave <= model.layers + CHUNK_EXTRAS else 1,)
    if not tuned or micro_batches % pp:
        return (1,)
    return [value for value in INTERLEAVES if value == 1 or even(model.layers, pp * value, CHUNK_EXTRAS)]


def _recomputes(
    row: MeasuredRow, model: Model, default: Defaults, recipe: Recipe | None, *, tuned: bool
) -> Iterable[tuple[str, str]]:
    """Ways to recompute, each with the modules that are named."""
    if row.recompute is not None:
        return ((row.recompute, row.recompute_modules),)
    if recipe is not None:
        return (("selective" if recipe.modules else "none", recipe.modules),)
    if not tuned or default.recompute != "none":
        return ((default.recompute, ""),)
    sets = module_sets(model) if ability_of(program_name(row.software)).modules else []
    return (*((way, "") for way in ("none", "selective")), *(("selective", names) for names in sets), ("full", ""))


def _batch(row: MeasuredRow, plan: Plan, chosen: dict[str, object]) -> tuple[int, float]:
    """The batch, and the row's as a share of it."""
    if row.global_batch is None:
        count = row.accumulation or (4 * plan.pp if plan.pp > 1 else 1)
        chosen["global_batch"] = plan.dp * plan.micro_batch * count
        return plan.dp * plan.micro_batch * count, 1.0
    return whole_batch(row.global_batch, plan)


def whole_batch(batch: int, plan: Plan) -> tuple[int, float]:
    """The next batch of whole micro-batches under a plan, and the given one as a share of it."""
    each = plan.dp * plan.micro_batch
    # An interleaved pipeline takes its micro-batches in rounds of as many as it has stages.
    rounds = plan.pp if plan.interleave > 1 else 1
    if batch % (each * rounds) == 0:
        return batch, 1.0
    count = -(-batch // (each * rounds)) * rounds
    return count * each, batch / (count * each)
