"""Which layers each stage of a pipeline has.

even       as many each; where they do not divide, those in the middle have one more
balanced   so that the costliest stage costs least, the head counted in layers, what stays in 16 bits at its own rate
listed     as the plan says
cost       by parameters with the head, as nanotron does
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from choreo.plan.layer.work import further_kinds, layer_kind
from choreo.plan.pipeline.dual import DUAL
from choreo.workload import Model, stage_layers
from choreo.workload.flops import forward_flops
from choreo.workload.legal import CHUNK_EXTRAS, STAGE_EXTRAS, even
from choreo.workload.plan import SPLITS, listed_layers

__all__ = ["PipelineStage", "cost_split", "layers_per_stage", "stage_list", "worth_balancing"]

Kinds = tuple[str, ...]
# A balanced split is worth trying if it takes this much off the busiest device, or brings it this close to the mean
# where layers do not divide.
GAIN, ABOVE_MEAN = 0.99, 1.06
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
    if split == "even" and program == "cost" and pp > 1 and chunks == 1:
        held = cost_split(model, pp)
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
    return _balanced(_costs(model, seq, precision), pp * chunks)


def _numbered(counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    bounds = itertools.accumulate(counts, initial=0)
    return tuple(tuple(range(start, end)) for start, end in itertools.pairwise(bounds))


def cost_split(model: Model, pp: int) -> tuple[tuple[int, ...], ...]:
    """Layers per stage, split by parameters including the head, as in nanotron.

    A stage ends with the layer that takes the sum past its share. Late stages may be empty; the last has the head.
    """
    costs = [float(model.parameters_per_layer(layer)) for layer in range(model.layers)]
    total = sum(costs) + model.vocab * model.hidden
    held: list[list[int]] = [[] for _ in range(pp)]
    stage, passed = 0, 0.0
    for layer, cost in enumerate(costs):
        held[stage].append(layer)
        passed += cost
        if stage < pp - 1 and passed > total * (stage + 1) / pp * (1 + 1e-3):
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
def _balanced(costs: tuple[float, ...], stages: int) -> tuple[int, ...]:
    """The split with the least maximum cost and, of those, the least sum of squares.

    best[n] is the least sum of squares for the first n layers in the stages so far. No stage costs more than the
    maximum, nor less than what is left if all others cost that much, so few numbers of layers have to be tried.
    """
    *layers, head = costs
    sums = np.concatenate([[0.0], np.cumsum(layers)])
    most = _least_most(sums, head, stages) * (1 + 1e-9)
    if stages == 1:
        return (len(layers),)
    ends = np.arange(len(sums))
    widest = int((np.searchsorted(sums, sums + most, "right") - 1 - ends).max())
    left = sums[-1] + head - (stages - 1) * most
    fewest = max(int(left / max(layers) * (1 - 1e-9)), 0)
    begins = ends - np.arange(widest, fewest - 1, -1)[:, None]  # the stages that end there, longest first
    between = sums - sums[np.maximum(begins, 0)]
    squares = np.where((begins >= 0) & (between <= most), between**2, np.inf)
    best, came = np.where(sums <= most, sums**2, np.inf), []
    for _ in range(stages - 2):
        ways = best[np.maximum(begins, 0)] + squares
        chosen = np.argmin(ways, axis=0)
        came.append(begins[chosen, ends])
        best = ways[chosen, ends]
    last = sums[-1] - sums + head
    found = [len(layers), int(np.argmin(best + np.where(last <= most, last**2, np.inf)))]
    for where in reversed(came):
        found.append(int(where[found[-1]]))
    return tuple(end - start for start, end in itertools.pairwise([0, *reversed(found)]))


def _least_most(sums: np.ndarray[tuple[int], np.dtype[np.float64]], head: float, stages: int) -> float:
    """The least possible cost of the costliest stage, by bisection: stages filled in order must hold everything."""
    total = float(sums[-1]) + head
    low, high = max(total / stages, float(np.max(np.diff(sums))), head), total

    def holds(most: float) -> bool:
        at = 0
        for _ in range(stages - 1):
            at = int(np.searchsorted(sums, sums[at] + most * (1 + 1e-12), "right")) - 1
        return bool(sums[-1] - sums[at] + head <= most * (1 + 1e-12))

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

    Where layers do not divide, it must come close to the mean, and chunks must be nearly equal, unless that many stages
    were `asked` for.

    >>> from choreo.workload import get_model
    >>> worth_balancing(get_model("gpt3-175b"), 4, 1, 2048), worth_balancing(get_model("llama3.2-1b"), 4, 1, 2048)
    (False, True)
    """
    layers, stages = model.layers, pp * chunks
    if pp < 2 or pp > layers or stages > layers + CHUNK_EXTRAS:
        return False
    divides = even(layers, pp) and (chunks == 1 or even(layers, stages, CHUNK_EXTRAS))
    if not divides and not asked and chunks > 1 and -layers % stages > STAGE_EXTRAS:
        return False
    costs = _costs(model, seq, precision)
    balanced = _busiest(costs, layers_per_stage(model, pp, chunks, SPLITS[1], seq, precision), pp)
    if divides:
        return balanced < GAIN * _busiest(costs, layers_per_stage(model, pp, chunks), pp)
    return asked or balanced < ABOVE_MEAN * sum(costs) / pp


def _busiest(costs: tuple[float, ...], counts: Sequence[int], pp: int) -> float:
    """The cost of the busiest device."""
    ends = list(itertools.accumulate(counts))
    stages = [sum(costs[end - count : end]) for count, end in zip(counts, ends, strict=True)]
    stages[-1] += costs[-1]
    return max(sum(stages[device::pp]) for device in range(pp))
