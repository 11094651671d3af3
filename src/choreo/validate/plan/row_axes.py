"""How a published run may have cut its devices: the sizes of the row, or all that agree with those it gives.

A run that was published did run. So sizes that do not multiply to the number of GPUs were counted in another way, or
are misprints, and the nearest way to cut that is possible is taken; the prediction names it among what was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from choreo.errors import UsageError
from choreo.plan.software.ability import ability_of
from choreo.plan.software.defaults import program_name
from choreo.validate.plan.measured import MeasuredRow
from choreo.workload import Model
from choreo.workload.legal import even

__all__ = ["Axes", "expert_tensors", "read_axes"]

TENSOR_PARALLEL = (1, 2, 4, 8)
MOST_STAGES = 64
MOST_EP = 64  # the most ranks that divide the experts, if a row does not say
Axes = tuple[int, int, int, int, int]


def read_axes(row: MeasuredRow, model: Model) -> list[Axes]:
    """Every (tp, pp, cp, dp, ep) that agrees with the row and multiplies to its GPUs."""
    if row.tp and row.pp and row.dp:
        return _given_axes(row, row.tp, row.pp, row.dp, model)
    ability = ability_of(program_name(row.software))
    usual = [tp for tp in TENSOR_PARALLEL if model.heads % tp == 0] if ability.tensors else [1]
    # A program that shards gradients is seldom run with a pipeline beside that.
    piped = ability.stages and not (row.pp is None and (row.zero or 0) >= 2)
    stages = [pp for pp in range(1, MOST_STAGES + 1) if even(model.layers, pp)] if piped else [1]
    # Few runs need other sizes than the usual.
    odd = [tp for tp in _divisors(model.heads, 64) if row.gpus % tp == 0 and model.ffn % tp == 0]
    any_stages = [pp for pp in _divisors(row.gpus, 64) if pp <= model.layers]
    for tensors, pipelines, whole in (
        (usual, stages, True), (odd, stages, True), (usual, stages, False), (odd, stages, False),
        (odd, any_stages, False),
    ):  # fmt: skip
        if found := list(_open_axes(row, model, tensors, pipelines, whole=whole)):
            # The row's own expert parallelism, where some way to cut allows it.
            return [axes for axes in found if axes[-1] == row.ep] or found
    if row.dp and row.gpus % row.dp:
        raise UsageError(f"dp {row.dp} does not divide the row's {row.gpus} GPUs")
    raise UsageError(f"tp {row.tp}, pp {row.pp}, dp {row.dp} and cp {row.cp} cannot multiply to {row.gpus} GPUs")


def _given_axes(row: MeasuredRow, tp: int, pp: int, dp: int, model: Model) -> list[Axes]:
    cp, ep = row.cp or 1, row.ep or 1
    pp = min(pp, model.layers)  # no more stages than layers
    product = tp * pp * dp * cp
    # Some papers count only the replicas of an expert as dp, some also the ranks of context parallelism.
    if product != row.gpus and product * ep == row.gpus:
        return [(tp, pp, cp, dp * ep, ep)]
    if product != row.gpus and tp * pp * dp == row.gpus and dp % cp == 0:
        dp //= cp
    elif product != row.gpus and row.gpus % (tp * pp * cp) == 0:
        dp = row.gpus // (tp * pp * cp)
    elif product != row.gpus and not row.gpus / 2 <= product <= 2 * row.gpus:
        fits = max(1, row.gpus // max(1, tp * pp * cp))
        raise UsageError(
            f"dp {dp} × tp {tp} × pp {pp} × cp {cp} is {product}, not the row's {row.gpus} GPUs; "
            f"dp {fits} would use {fits * tp * pp * cp}"
        )
    return [(tp, pp, cp, dp, ep) for ep in _experts_shared(row, model, tp * cp * dp)]


def _experts_shared(row: MeasuredRow, model: Model, ranks: int) -> list[int]:
    """The sizes of expert parallelism over the ranks of a stage: the row's, the nearest below, or all powers of two."""
    if not model.experts:
        return [1]
    if row.ep is not None:
        shared = [ep for ep in _divisors(ranks, min(row.ep, model.experts)) if model.experts % ep == 0 or ep == row.ep]
        return [max(shared)]
    powers = [1 << power for power in range(MOST_EP.bit_length())]
    return [ep for ep in powers if ep <= MOST_EP and model.experts % ep == 0 and ranks % ep == 0]


def _open_axes(
    row: MeasuredRow, model: Model, tensors: Iterable[int], pipelines: Iterable[int], *, whole: bool
) -> Iterator[Axes]:
    """Axes with the row's sizes; with `whole` the batch must divide by the replicas."""
    cp = row.cp or 1
    for tp in (row.tp,) if row.tp else tensors:
        for pp in (min(row.pp, model.layers),) if row.pp else pipelines:
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


def expert_tensors(row: MeasuredRow, model: Model, sizes: tuple[int, int, int, int]) -> int:
    """Ranks that cut one expert, 0 for as many as tp: what the notes say ("ETP 4").

    It is one in NVIDIA's recipes, and where experts are shared out over tensor-parallel ranks too.
    """
    tp, cp, dp, ep = sizes
    if not model.experts or tp == 1:
        return 0
    told = re.search(r"\bETP\s*[= ]\s*(\d+)", row.notes, re.IGNORECASE)
    if told and tp * cp * dp % (ep * max(1, int(told[1]))) == 0:
        return 0 if int(told[1]) == tp else int(told[1])
    recipes = program_name(row.software) == "nemo" or program_name(f"{row.source} {row.notes}") == "nemo"
    return 1 if recipes or dp * cp % ep else 0
