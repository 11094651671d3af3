"""Divide layers into the stages and chunks of a pipeline, and numbers into factors."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from choreo.workload.choices import SCHEDULES
from choreo.workload.legal.rule import EVEN, LISTED, Numbers, Request

__all__ = ["CHUNK_EXTRAS", "STAGE_EXTRAS", "chunks_hold", "divisors", "even", "rounds_hold", "stages_hold"]

Bools = npt.NDArray[np.bool_]
DUALPIPEV = SCHEDULES.index("dualpipev")
ROUND = 32  # layers: a number that stages divide
STAGE_EXTRAS, CHUNK_EXTRAS = 3, 2  # parts other than layers that may count as one, to reach a round number


def divisors(number: int) -> list[int]:
    """The divisors of a number, from the smallest.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def even(layers: int, stages: int, extras: int = STAGE_EXTRAS) -> bool:
    """Whether layers divide into stages.

    Some models are a few layers short of a round number, so that the embedding, the head and a second prediction head
    fill the gap (Llama 3.1 405B's 126, Qwen3's 94, DeepSeek-V3's 61): up to `extras` of these count as layers.

    >>> even(80, 8), even(80, 7), even(126, 16), even(126, 128)
    (True, False, True, True)
    """
    if stages > layers + extras:
        return False
    whole = (layers + extra for extra in range(1, extras + 1) if (layers + extra) % ROUND == 0)
    return layers % stages == 0 or any(total % stages == 0 for total in whole)


@lru_cache(maxsize=256)
def _even(layers: int, extras: int) -> Bools:
    """`even` for 0 to `layers + extras` stages; one stage more stands for too many."""
    return np.array([False, *(even(layers, stages, extras) for stages in range(1, layers + extras + 1)), False])


def stages_hold(request: Request, t: Numbers) -> Any:
    """Whether layers divide into the stages."""
    layers = request.model.layers
    if request.uneven:
        return t["pp"] <= layers
    dividing = _even(layers, STAGE_EXTRAS)[np.minimum(t["pp"], layers + STAGE_EXTRAS + 1)] & (t["pp"] <= layers)
    return np.where(t["split"] == EVEN, dividing, _split(request, t, t["pp"] * t["interleave"]))


def _split(request: Request, t: Numbers, stages: Any) -> Any:
    """Whether a split that is not even gives every stage its layers."""
    layers, listed = request.model.layers, request.listed
    whole = (stages == len(listed)) & (sum(listed) == layers)
    return np.where(t["split"] == LISTED, whole, (t["pp"] <= layers) & (stages <= layers + CHUNK_EXTRAS))


def chunks_hold(request: Request, t: Numbers) -> Any:
    """Whether layers divide into the chunks of all stages."""
    layers = request.model.layers
    stages = t["pp"] * t["interleave"]
    chunks = _even(layers, CHUNK_EXTRAS)[np.minimum(stages, layers + CHUNK_EXTRAS + 1)]
    return (t["interleave"] == 1) | (t["pp"] == 1) | np.where(t["split"] == EVEN, chunks, _split(request, t, stages))


def rounds_hold(request: Request, t: Numbers) -> Any:
    """Whether the number of micro-batches is a multiple of the stages, as interleaved chunks require."""
    micro_batches = request.global_batch // (t["dp"] * t["micro_batch"])
    # DualPipeV's two chunks do not go round.
    alone = (t["interleave"] == 1) | (t["pp"] == 1) | (t["schedule"] == DUALPIPEV)
    return alone | (micro_batches % t["pp"] == 0)
