"""What training programs can do: the plans that a search for one of them leaves out.

These are no rules of what can be run. A field that the user fixed is not held against a program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choreo.workload.legal import Columns
from choreo.workload.plan import SCHEDULES

__all__ = ["Ability", "ability_of"]

Bools = npt.NDArray[np.bool_]
Lacks = tuple[str, Callable[[Columns], Bools]]


@dataclass(frozen=True, slots=True)
class Ability:
    """What a program has: its schedules, its ZeRO stages, and whether it cuts tensors, layers and sequences."""

    name: str = ""
    schedules: tuple[str, ...] = SCHEDULES
    zero: tuple[int, ...] = (0, 1, 2, 3)
    zero_beside_pipeline: int = 3  # the highest
    tensors: bool = True
    stages: bool = True
    contexts: bool = True
    experts_alone: bool = True  # expert and tensor parallelism together without sequence parallelism
    uneven_stages: bool = False  # stages of unequal numbers of layers

    def cut_rules(self, fixed: Mapping[str, object]) -> list[Lacks]:
        """The ways to cut the devices that it does not have, and which plans have none of them."""
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

    def run_rules(self, fixed: Mapping[str, object]) -> list[Lacks]:
        """The schedules and options that it does not have, and which plans have none of them."""
        schedules = np.array([name in self.schedules or "schedule" in fixed for name in SCHEDULES])
        rules: list[Lacks] = [
            (f"a schedule that {self.name} does not have", lambda t: schedules[t["schedule"]] | (t["pp"] == 1))
        ]
        if not self.experts_alone and "sequence_parallel" not in fixed:
            rules.append(
                (
                    f"experts and tensors cut without sequence parallelism, as {self.name} does not",
                    lambda t: (t["ep"] == 1) | (t["tp"] == 1) | (t["sequence_parallel"] == 1),
                )
            )
        if "zero" not in fixed:
            rules.append((f"a ZeRO stage that {self.name} does not have there", self._has_zero))
        return rules

    def _has_zero(self, t: Columns) -> Bools:
        beside = (t["pp"] == 1) | (t["zero"] <= self.zero_beside_pipeline)
        return np.asarray(np.isin(t["zero"], self.zero) & beside)


# Megatron-LM: its schedules are 1F1B with and without interleaving, its distributed optimizer is ZeRO-1, and it asks
# for sequence parallelism where experts and tensors are both cut.
MEGATRON = Ability("Megatron", ("1f1b", "interleaved"), (0, 1), 1, experts_alone=False)
ABILITIES = {
    "megatron": MEGATRON,
    "nemo": MEGATRON,
    "megascale": MEGATRON,
    "nanotron": Ability("nanotron", ("gpipe", "1f1b"), (0, 1), 1, contexts=False, uneven_stages=True),
    "fsdp": Ability("FSDP", zero=(0, 2, 3), tensors=False, stages=False, contexts=False),
    "torchtitan": Ability("torchtitan", zero=(0, 2, 3)),
    "choreo-train": Ability("choreo train", uneven_stages=True),
    "torch": Ability("PyTorch by itself", zero=(0,), tensors=False, stages=False, contexts=False),
}


def ability_of(software: str) -> Ability:
    """What is known of a program; one that is not known can do everything.

    >>> ability_of("megatron-core").schedules
    ('1f1b', 'interleaved')
    """
    name = software.strip().lower()
    return next((found for prefix, found in ABILITIES.items() if name.startswith(prefix)), Ability())
