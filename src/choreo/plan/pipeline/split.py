"""Which layers each stage of a pipeline has.

even       as many each; where they do not divide, those in the middle have one more
balanced   so that the costliest stage costs least, the head counted in layers, what stays in 16 bits at its own rate
listed     as the plan says
cost       by parameters with the head, as nanotron does: a stage ends with the layer that reaches its share
past cost  the same, but with the layer that takes it past its share
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from choreo.plan.layer.work import further_kinds, layer_kind
from choreo.plan.pipeline.dual import DUAL
from choreo.workload import Model, stage_layers
from choreo.workload.flops import forward_flops
from choreo.workload.legal import CHUNK_EXTRAS, STAGE_EXTRAS, even
from choreo.workload.plan import SPLITS, listed_layers

__all__ = [
    "PipelineStage", "above_mean", "balanced_split", "cost_split", "layers_per_stage", "stage_list", "worth_balancing",
]  # fmt: skip

Kinds = tuple[str, ...]
Sums: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]  # of the costs of the layers up to each
# A balanced split is worth trying if it takes this much off the busiest device, or brings it this close to the mean
# where layers do not divide.
GAIN, ABOVE_MEAN = 0.997, 1.06
COST_SPLITS = ("cost", "past cost")
# Of a stage's share, what norms may add to a sum that a program takes over matrices only.
NEARLY = 1e-3
# How much faster matmuls of a precision are than attention and the head, which stay in 16 bits.
FASTER = {"fp8": 2.0, "fp4": 4.0}


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One stage: its position, and the kinds of its layers in order, of all chunks and chunk by chunk."""

    index: int
    layers: Kinds
    chunks: tuple[Kinds, ...]


@lru_cache(maxsize=512)
def stage_list(
    model: Model,
    pp: int,
    chunks: int,
    split: str = "even",
    *,
    seq: int = 1,
    precision: str = "bf16",
    program: str = "even",
    schedule: str = "1f1b",
) -> tuple[PipelineStage, ...]:
    """The stages in order; the first has the embedding, the last the head. `program` splits where the plan does not.

    A device has every pp-th chunk, or a chunk and its mirror image under DualPipe, whose two directions share them.

    >>> from choreo.workload import Model
    >>> [stage.layers for stage in stage_list(Model("small", layers=3, hidden=8, heads=2), pp=2, chunks=1)]
    [('embedding', 'dense', 'dense'), ('dense', 'head')]
    """
    if split == "even" and program in COST_SPLITS and pp > 1 and chunks == 1:
        held = cost_split(model, pp, past=program == COST_SPLITS[1])
    else:
        held = _numbered(layers_per_stage(model, pp, chunks, split, seq, precision))
    kinds = [tuple(layer_kind(model, layer) for layer in layers) for layers in held]
    kinds[0] = ("embedding", *kinds[0])
    kinds[-1] = (*kinds[-1], "head")
    # If a list leaves the last stage to the heads, the multi-token prediction layer goes before it.
    *further, head = further_kinds(model)
    alone = len(held) > 1 and split not in SPLITS and not held[-1]
    for _ in range(model.mtp_layers):
        at = -2 if alone else -1
        kinds[at] = (*kinds[at], *further)
        kinds[-1] = (*kinds[-1], head)
    chunked: list[tuple[Kinds, ...]] = [tuple(kinds[device::pp]) for device in range(pp)]
    if schedule in DUAL:
        chunked = [(kinds[device], kinds[-1 - device]) for device in range(pp)]
    return tuple(PipelineStage(device, sum(held, ()), held) for device, held in enumerate(chunked))


@lru_cache(maxsize=512)
def layers_per_stage(  # noqa: PLR0917 -- what a split depends on
    model: Model, pp: int, chunks: int, split: str = "even", seq: int = 1, precision: str = "bf16"
) -> tuple[int, ...]:
    """Layers per virtual stage, in order of the data.

    >>> from choreo.workload import get_model
    >>> layers_per_stage(get_model("llama3.2-1b"), pp=4, chunks=1, split="balanced", seq=2048)
    (5, 5, 5, 1)
    """
    if split == "even":
        return tuple(len(held) for held in stage_layers(model.layers, pp, chunks))
    if split != "balanced":
        return listed_layers(split)
    return balanced_split(_costs(model, seq, precision), pp * chunks)


def _numbered(counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    bounds = itertools.accumulate(counts, initial=0)
    return tuple(tuple(range(start, end)) for start, end in itertools.pairwise(bounds))


def cost_split(model: Model, pp: int, *, past: bool = False) -> tuple[tuple[int, ...], ...]:
    """Layers per stage, split by parameters including the head, as in nanotron.

    A stage ends with the layer at which the sum reaches its share or, with `past`, exceeds it. Late stages may be
    empty; the last has the head.
    """
    costs = [float(model.parameters_per_layer(layer)) for layer in range(model.layers)]
    total = sum(costs) + model.vocab * model.hidden
    held: list[list[int]] = [[] for _ in range(pp)]
    stage, passed = 0, 0.0
    for layer, cost in enumerate(costs):
        held[stage].append(layer)
        passed += cost
        if stage < pp - 1 and passed > total * (stage + 1) / pp * (1 + NEARLY * (1 if past else -1)):
            stage += 1
    return tuple(tuple(layers) for layers in held)


@lru_cache(maxsize=32)
def _costs(model: Model, seq: int, precision: str) -> tuple[float, ...]:
    """FLOPs per token of each layer and, last, of the head; those in 16 bits count as more of the faster matmuls."""
    slow = FASTER.get(precision, 1.0)
    plain = replace(model, mtp_layers=0)
    parts = forward_flops(plain, seq, causal="half")
    projections = parts["projections"] / model.layers
    scores = 2.0 * model.heads * (model.query_dim + model.value_dim)
    width = 2.0 * (3 if model.gated else 2) * model.hidden
    routed = width * (model.experts_per_token * model.expert_ffn + model.shared_ffn)
    costs = []
    for layer in range(model.layers):
        keys = model.seen_keys(seq, windowed=model.has_window(layer))
        mlp = routed if model.has_experts(layer) else width * model.ffn
        costs.append(projections + slow * scores * keys + mlp)
    further = sum(forward_flops(model, seq, causal="half").values()) - sum(parts.values())
    return (*costs, slow * parts["logits"] + further + (slow - 1) * model.mtp_layers * parts["logits"])


@lru_cache(maxsize=512)
def balanced_split(costs: tuple[float, ...], stages: int) -> tuple[int, ...]:
    """The split with the least maximum cost and, of those, the least sum of squares.

    best[n] is the least sum of squares for the first layers up to the n-th place where the stages so far can end
    (`_ends`). These are few, so few splits have to be tried.
    """
    *layers, head = costs
    if stages == 1:
        return (len(layers),)
    sums = np.concatenate([[0.0], np.cumsum(layers)])
    most = _least_most(sums.tolist(), head, stages) * (1 + 1e-9)
    widest = int((np.searchsorted(sums, sums + most, "right") - 1 - np.arange(len(sums))).max())
    fewest = max(int((sums[-1] + head - (stages - 1) * most) / max(layers) * (1 - 1e-9)), 0)
    best, came = np.zeros(1), []
    windows = _ends(sums.tolist(), head, stages, most)
    for (begin, begin_last), (first, last) in itertools.pairwise([(0, 0), *windows]):
        ends = np.arange(first, last + 1)
        widths = np.arange(min(widest, last - begin), max(fewest, first - begin_last) - 1, -1)[:, None]  # longest first
        begins = ends - widths
        at = np.clip(begins - begin, 0, begin_last - begin)
        between = sums[ends] - sums[at + begin]
        ways = np.where((at + begin == begins) & (between <= most), best[at] + between**2, np.inf)
        chosen = np.argmin(ways, axis=0), ends - first
        best = ways[chosen]
        came.append(begins[chosen])
    first, last = windows[-1]
    rest = sums[-1] - sums[first : last + 1] + head
    found = [len(layers), first + int(np.argmin(best + np.where(rest <= most, rest**2, np.inf)))]
    for (first, _), where in zip(reversed(windows), reversed(came), strict=True):
        found.append(int(where[found[-1] - first]))
    return tuple(end - start for start, end in itertools.pairwise(reversed(found)))


def _ends(sums: Sequence[float], head: float, stages: int, most: float) -> list[tuple[int, int]]:
    """Between which layers each stage but the last can end.

    The stages behind it must be able to hold the rest. And if every stage cost the mean of those without the head, the
    sum of squares would be least; a stage that costs d more or less adds d^2 or more. Some split comes close to that
    (`_near_mean`), so the d^2 of the best split add up to no more than those of this one.
    """
    total = sums[-1] + head
    earliest = [bisect_left(sums, total - most)]
    for _ in range(stages - 2):
        earliest.append(bisect_left(sums, sums[earliest[-1]] - most))
    earliest.reverse()
    last = max(head, total / stages)
    mean = (total - last) / (stages - 1)
    squares = _near_mean(sums, head, earliest, most, mean)
    spread = math.sqrt(max(squares - last**2 - (stages - 1) * mean**2, 0.0) + 1e-12 * squares)
    found, latest = [], 0
    for stage, least in enumerate(earliest, 1):
        latest = bisect_right(sums, sums[latest] + most) - 1
        away = math.sqrt(stage) * spread
        low = bisect_left(sums, stage * mean - away)
        high = bisect_right(sums, stage * mean + away) - 1
        found.append((max(least, low), min(latest, high)))
    return found


def _near_mean(sums: Sequence[float], head: float, earliest: Sequence[int], most: float, mean: float) -> float:
    """The sum of squares of a split whose stages cost about the mean, and at most so much."""
    at, squares = 0, 0.0
    for stage, least in enumerate(earliest, 1):
        full = bisect_right(sums, sums[at] + most) - 1
        end = min(max(bisect_left(sums, stage * mean), least), full)
        squares += (sums[end] - sums[at]) ** 2
        at = end
    return squares + (sums[-1] - sums[at] + head) ** 2


def _least_most(sums: Sequence[float], head: float, stages: int) -> float:
    """The least possible cost of the costliest stage, by bisection: stages filled in order must hold everything."""
    total = sums[-1] + head
    longest = max(end - start for start, end in itertools.pairwise(sums))
    low, high = max(total / stages, longest, head), total

    def holds(most: float) -> bool:
        at = 0
        for _ in range(stages - 1):
            at = bisect_right(sums, sums[at] + most * (1 + 1e-12)) - 1
        return sums[-1] - sums[at] + head <= most * (1 + 1e-12)

    if holds(low):
        return low
    while high - low > 1e-9 * total:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def worth_balancing(
    model: Model, pp: int, chunks: int, seq: int, *, precision: str = "bf16", asked: bool = False
) -> bool:
    """Whether the busiest device has clearly less to do with a balanced split than with an even one.

    Where layers do not divide, it must come close to the mean, unless that many stages were `asked` for.

    >>> from choreo.workload import get_model
    >>> worth_balancing(get_model("gpt3-175b"), 4, 1, 2048), worth_balancing(get_model("llama3.2-1b"), 4, 1, 2048)
    (False, True)
    """
    layers, stages = model.layers, pp * chunks
    if pp < 2 or pp > layers or stages > layers + CHUNK_EXTRAS:
        return False
    divides = even(layers, pp) and (chunks == 1 or even(layers, stages, CHUNK_EXTRAS))
    # Mixtures have so many plans already that theirs must also have chunks that are nearly equal.
    if not divides and not asked and model.experts and chunks > 1 and -layers % stages > STAGE_EXTRAS:
        return False
    costs = _costs(model, seq, precision)
    balanced = _busiest(costs, layers_per_stage(model, pp, chunks, SPLITS[1], seq, precision), pp)
    if divides:
        return balanced < GAIN * _busiest(costs, layers_per_stage(model, pp, chunks), pp)
    return asked or balanced < ABOVE_MEAN * sum(costs) / pp


def above_mean(model: Model, pp: int, seq: int, precision: str, split: str) -> float:
    """How much more than the mean the costliest of `pp` stages has to do.

    >>> from choreo.workload import get_model
    >>> round(above_mean(get_model("gpt3-175b"), 64, 2048, "bf16", "balanced"), 2)
    1.33
    """
    costs = _costs(model, seq, precision)
    return _busiest(costs, layers_per_stage(model, pp, 1, split, seq, precision), pp) * pp / sum(costs)


def _busiest(costs: tuple[float, ...], counts: Sequence[int], pp: int) -> float:
    """The cost of the busiest device."""
    ends = list(itertools.accumulate(counts))
    stages = [sum(costs[end - count : end]) for count, end in zip(counts, ends, strict=True)]
    stages[-1] += costs[-1]
    return max(sum(stages[device::pp]) for device in range(pp))
