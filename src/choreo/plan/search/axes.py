"""The axes of the space of plans: ways to cut the devices, ways to run a cut, and options.

A cut is dp x tp x pp x cp, ep and etp, and the number of replicas that ZeRO shards over. A run is a micro-batch, a
schedule and its interleave. Options are the ZeRO stage, sequence parallelism, recomputation and overlap. Each is a
table of columns; the space is their product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from choreo.plan.software.ability import Ability
from choreo.workload import Model
from choreo.workload.legal import divisors
from choreo.workload.plan import MODULES, RECOMPUTE, SCHEDULES

__all__ = [
    "CUT",
    "Fixed",
    "implied_recompute",
    "list_cuts",
    "list_options",
    "list_runs",
    "module_sets",
    "modules_code",
    "modules_of",
]

Ints = npt.NDArray[np.int64]
Fixed = Mapping[str, int | bool | str]

CUT = ("dp", "tp", "pp", "cp", "ep", "etp", "shard_size")
# The limits of the search; a fixed field may be anything.
MOST_TP, MOST_CP, MOST_INTERLEAVE = 64, 64, 48
MOST_MICRO_BATCH, MOST_TOKENS = 64, 1 << 18  # sequences per micro-batch: this many, or more if they are short
SEVERAL = ("interleaved", "zero-bubble")  # schedules that may have several chunks of layers per stage
SELECTIVE = RECOMPUTE.index("selective")
# Modules that are cheap to recompute, and those that keep the most.
CHEAP_MODULES, LARGE_MODULES = ("mla_up_proj", "layernorm", "moe_act"), ("mla_up_proj", "layernorm", "mlp", "moe")


def modules_of(code: int) -> str:
    """The modules that a value of the column `recompute_modules` stands for: one bit each.

    >>> modules_of(modules_code("moe_act,layernorm"))
    'layernorm,moe_act'
    """
    return ",".join(name for bit, name in enumerate(MODULES) if code >> bit & 1)


def modules_code(modules: str) -> int:
    """Modules as a number, a bit each."""
    return sum(1 << MODULES.index(name) for name in modules.split(",") if name)


def list_cuts(model: Model, gpus: int, fixed: Fixed, node_gpus: int = 0) -> dict[str, Ints]:
    """The ways to cut the devices. If nodes have `node_gpus`, the state may be sharded within a node."""
    of_gpus = divisors(gpus)
    experts = divisors(model.experts) if model.experts else [1]

    def values(name: str, open_to: list[int]) -> list[int]:
        return [int(fixed[name])] if name in fixed else open_to

    # Experts are cut as tensors are, or not at all.
    widths = [0, 1] if model.experts else [0]
    cuts: list[tuple[int, ...]] = []
    for tp in values("tp", [d for d in of_gpus if d <= MOST_TP]):
        for cp in values("cp", [d for d in of_gpus if d <= MOST_CP]):
            for pp in values("pp", of_gpus):
                dp, left = divmod(gpus, tp * cp * pp)
                if left or dp != fixed.get("dp", dp):
                    continue
                cut_too = values("etp", widths if tp > 1 else [0])
                for ep in values("ep", experts):
                    inside = node_gpus // (tp * cp)
                    hybrid = pp == ep == 1 and 1 < inside < dp and dp % inside == 0
                    shards = values("shard_size", [0, inside] if hybrid else [0])
                    cuts += [(dp, tp, pp, cp, ep, etp, shard) for etp in cut_too for shard in shards]
    table = np.array(cuts, np.int64).reshape(-1, len(CUT))
    return {name: table[:, number] for number, name in enumerate(CUT)} | {"cut": np.arange(len(table))}


def list_runs(global_batch: int, seq: int, fixed: Fixed, chunks: Sequence[int]) -> dict[str, Ints]:
    """Micro-batches by schedules with their interleave, which is one of `chunks` where a schedule has it."""
    most = max(MOST_MICRO_BATCH, MOST_TOKENS // seq)
    batches = [batch for batch in divisors(global_batch) if batch <= most]
    if "micro_batch" in fixed:
        batches = [int(fixed["micro_batch"])]
    pairs: list[tuple[int, int]] = []
    for number, name in enumerate(SCHEDULES):
        if name != fixed.get("schedule", name):
            continue
        if "interleave" in fixed:
            pairs.append((number, int(fixed["interleave"])))
            continue
        if name == "dualpipev":
            pairs.append((number, 2))
            continue
        if name != "interleaved":
            pairs.append((number, 1))
        if name in SEVERAL:
            pairs += [(number, v) for v in chunks]
    ways = np.array(pairs, np.int64).reshape(-1, 2)
    return {
        "micro_batch": np.repeat(np.array(batches, np.int64), len(ways)),
        "schedule": np.tile(ways[:, 0], len(batches)),
        "interleave": np.tile(ways[:, 1], len(batches)),
    }


def list_options(model: Model, ability: Ability, fixed: Fixed) -> dict[str, Ints]:
    """ZeRO stages by sequence parallelism by recomputation by overlap."""
    ways = _ways_to_recompute(model, ability, fixed)

    def values(name: str, open_to: Sequence[int]) -> Sequence[int]:
        return [int(fixed[name])] if name in fixed else open_to

    axes = np.meshgrid(
        values("zero", (0, 1, 2, 3)),
        values("sequence_parallel", (0, 1)),
        range(len(ways)),
        values("recompute_layers", (0,)),
        values("overlap", (1, 0)),
        indexing="ij",
    )
    zero, sequence_parallel, way, layers, overlap = (axis.ravel() for axis in axes)
    table = np.array(ways, np.int64)
    return {
        "zero": zero,
        "sequence_parallel": sequence_parallel,
        "recompute": table[way, 0],
        "recompute_modules": table[way, 1],
        "recompute_layers": layers,
        "overlap": overlap,
    }


def implied_recompute(fixed: Fixed) -> str | None:
    """The recomputation that fixed modules or layers go with, if any are fixed.

    >>> implied_recompute({"recompute_layers": 2}), implied_recompute({"tp": 2})
    ('full', None)
    """
    if fixed.get("recompute_modules"):
        return "selective"
    return "full" if fixed.get("recompute_layers") else None


def _ways_to_recompute(model: Model, ability: Ability, fixed: Fixed) -> list[tuple[int, int]]:
    """Codes of recomputation and of its modules; some sets of modules are tried if the program supports them."""
    recompute = fixed.get("recompute", implied_recompute(fixed))
    wanted = range(len(RECOMPUTE)) if recompute is None else [RECOMPUTE.index(str(recompute))]
    if "recompute_modules" in fixed:
        code = modules_code(str(fixed["recompute_modules"]).replace(" ", ""))
        return [(way, code if way == SELECTIVE else 0) for way in wanted]
    # Recomputing fused core attention saves nothing; a user may still ask for it.
    wanted = [way for way in wanted if recompute is not None or way != SELECTIVE or not ability.fused_attention]
    ways = [(way, 0) for way in wanted]
    if recompute not in (None, "selective") or not ability.modules:
        return ways
    return ways + [(SELECTIVE, modules_code(names)) for names in module_sets(model)]


def module_sets(model: Model) -> list[str]:
    """The sets of a model's modules that are worth computing again: the cheap ones, and the large ones.

    >>> from choreo.workload import get_model
    >>> module_sets(get_model("mixtral-8x7b")), module_sets(get_model("llama3-8b"))
    (['layernorm,moe_act', 'layernorm,moe'], ['mlp'])
    """
    dense = model.moe_layers < model.layers
    there = {"mla_up_proj": model.latent is not None, "layernorm": model.latent is not None or model.experts > 0}
    there |= {"moe_act": model.experts > 0, "mlp": dense, "moe": model.experts > 0}
    sets = [",".join(name for name in names if there[name]) for names in (CHEAP_MODULES, LARGE_MODULES)]
    return [names for names in dict.fromkeys(sets) if names]
