"""What training programs support: the plans that a search for one of them leaves out.

These are not rules about what can be run. A field that the user fixed is accepted for any program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from choreo.plan.pipeline.dual import DUAL
from choreo.workload.legal import Columns
from choreo.workload.plan import MODULES, RECOMPUTE, SCHEDULES, Plan

__all__ = ["Ability", "ability_of"]

Bools = npt.NDArray[np.bool_]
FULL, MOE = RECOMPUTE.index("full"), 1 << MODULES.index("moe")
ROW = ("dp", "tp", "pp", "cp", "ep", "zero", "interleave", "sequence_parallel", "etp")
Lacks = tuple[str, Callable[[Columns], Bools]]


USUAL = tuple(name for name in SCHEDULES if name not in DUAL)


@dataclass(frozen=True, slots=True)
class Ability:
    """What a program supports: its schedules, its ZeRO stages, and whether it cuts tensors, layers and sequences."""

    name: str = ""
    schedules: tuple[str, ...] = SCHEDULES
    zero: tuple[int, ...] = (0, 1, 2, 3)
    zero_beside_pipeline: int = 3  # the highest
    tensors: bool = True
    stages: bool = True
    contexts: bool = True
    experts_alone: bool = True  # expert and tensor parallelism together without sequence parallelism
    uneven_stages: bool = False  # any number of stages, whose layers need not divide
    trained: bool = False  # it is `choreo train`, and has its rules
    balances: bool = False  # layers by stage can be listed
    single: tuple[str, ...] = SCHEDULES  # schedules with one chunk of layers a stage
    some_layers: bool = False  # full recomputation of some layers of a stage
    modules: bool = False  # selective recomputation of modules by name
    fused_attention: bool = False  # so that recomputing core attention saves nothing
    hybrid: bool = False  # ZeRO within groups of replicas
    overlaps_experts: bool = False  # the all_to_all of one micro-batch runs under the compute of another

    def cut_rules(self, fixed: Mapping[str, object]) -> list[Lacks]:
        """Ways to cut the devices that it does not support."""
        lacks = (
            ("tp", self.tensors, "tensor parallelism"),
            ("pp", self.stages, "pipeline"),
            ("cp", self.contexts, "context parallelism"),
        )
        return [
            (f"{self.name} has no {what}", lambda t, axis=axis: t[axis] == 1)  # type: ignore[misc]
            for axis, has, what in lacks
            if not has and axis not in fixed
        ]

    def schedule_rules(self, fixed: Mapping[str, object]) -> list[Lacks]:
        """The schedules that it does not support."""
        has = np.isin(SCHEDULES, self.schedules)
        single = np.isin(SCHEDULES, self.single)
        rule = (
            f"a schedule that {self.name} does not have",
            lambda t: has[t["schedule"]] & ((t["interleave"] > 1) | single[t["schedule"]]),
        )
        return [] if "schedule" in fixed else [rule]

    def zero_rules(self, fixed: Mapping[str, object]) -> list[Lacks]:
        """The ZeRO stages that it does not support."""
        rule = (f"a ZeRO stage that {self.name} does not have", lambda t: np.isin(t["zero"], self.zero))
        return [] if "zero" in fixed else [rule]

    def run_rules(self, fixed: Mapping[str, object]) -> list[Lacks]:
        """Combinations of fields that it does not support."""
        rules: list[Lacks] = []
        if not self.experts_alone and "sequence_parallel" not in fixed:
            rules.append(
                (
                    f"ep beside tp without sequence parallelism, which {self.name} requires",
                    lambda t: (t["ep"] == 1) | (t["tp"] == 1) | (t["sequence_parallel"] == 1),
                )
            )
        if self.zero_beside_pipeline < max(self.zero) and "zero" not in fixed:
            rules.append(
                (
                    f"a ZeRO stage that {self.name} does not have beside a pipeline",
                    lambda t: (t["pp"] == 1) | (t["zero"] <= self.zero_beside_pipeline),
                )
            )
        if self.overlaps_experts and "recompute" not in fixed:
            rules.append(
                (
                    f"experts computed again, as {self.name} does not where their all_to_all is overlapped",
                    lambda t: (t["recompute"] != FULL) & (t["recompute_modules"] & MOE == 0),
                )
            )
        if self.overlaps_experts and "interleave" not in fixed:
            rules.append(
                (
                    f"an overlapped all_to_all in a pipeline of one chunk a stage, which {self.name} does not have",
                    lambda t: (t["ep"] == 1) | (t["pp"] == 1) | (t["interleave"] > 1),
                )
            )
        return rules

    def lacks(self, plan: Plan) -> list[str]:
        """What a plan needs that the program does not support.

        >>> ability_of("megatron-core").lacks(Plan(pp=2, schedule="gpipe"))
        ['a schedule that Megatron does not have']
        """
        row = {name: np.array([int(getattr(plan, name))]) for name in ROW}
        row["schedule"] = np.array([SCHEDULES.index(plan.schedule if plan.pp > 1 else "1f1b")])
        if plan.schedule == "1f1b" and plan.interleave > 1:
            row["schedule"] = np.array([SCHEDULES.index("interleaved")])
        row["recompute"] = np.array([RECOMPUTE.index(plan.recompute)])
        row["recompute_modules"] = np.array([MOE * ("moe" in plan.modules)])
        rules = [*self.cut_rules({}), *self.schedule_rules({}), *self.zero_rules({}), *self.run_rules({})]
        found = [reason for reason, holds in rules if not holds(row)[0]]
        if plan.pp > 1 and plan.split != "even" and not self.balances:
            found.append(f"an uneven split of layers, which {self.name} does not have")
        if plan.shard_size and not self.hybrid:
            found.append(f"hybrid sharding, which {self.name} does not have")
        if plan.modules and not self.modules:
            found.append(f"recomputation by module, which {self.name} does not have")
        return found


# Megatron-LM: its schedules are 1F1B with and without interleaving, its distributed optimizer is ZeRO-1, Megatron-FSDP
# is ZeRO-2 and 3, and it requires sequence parallelism if experts and tensors are both cut. Since 2024 it takes a list
# of the layers of each stage.
MEGATRON = Ability(
    "Megatron",
    ("1f1b", "interleaved"),
    (0, 1, 2, 3),
    1,
    experts_alone=False,
    balances=True,
    single=("1f1b",),
    some_layers=True,
    modules=True,
    fused_attention=True,
    hybrid=True,
)
OLD_MEGATRON = Ability("Megatron of 2021", ("1f1b", "interleaved"), (0, 1), 1, experts_alone=False, single=("1f1b",))
ABILITIES = {
    "megatron-2021": OLD_MEGATRON,
    "megatron": MEGATRON,
    "nemo": MEGATRON,
    "megascale": MEGATRON,
    "nanotron": Ability("nanotron", ("gpipe", "1f1b"), (0, 1), 1, contexts=False, uneven_stages=True),
    "fsdp": Ability("FSDP", zero=(0, 2, 3), tensors=False, stages=False, contexts=False, hybrid=True),
    # PyTorch's zero-bubble schedules have two chunks per stage or more.
    "torchtitan": Ability("torchtitan", (*USUAL, "dualpipev"), zero=(0, 2, 3), single=("gpipe", "1f1b"), hybrid=True),
    "hai-llm": Ability(
        "HAI-LLM", SCHEDULES, (0, 1), 1, tensors=False, balances=True, modules=True, fused_attention=True
    ),
    "choreo-train": Ability("choreo train", USUAL, uneven_stages=True, trained=True),
    # It differentiates whole stages, so that weight gradients cannot wait.
    "jax": Ability("JAX", ("gpipe", "1f1b", "interleaved")),
    "torch": Ability("PyTorch by itself", zero=(0,), tensors=False, stages=False, contexts=False),
}


def ability_of(software: str) -> Ability:
    """What is known about a program; an unknown one supports everything.

    >>> ability_of("megatron-core").schedules
    ('1f1b', 'interleaved')
    """
    name = software.strip().lower()
    found = next((ability for prefix, ability in ABILITIES.items() if name.startswith(prefix)), Ability())
    return replace(found, overlaps_experts=True) if found is MEGATRON and "+ep-overlap" in name else found
