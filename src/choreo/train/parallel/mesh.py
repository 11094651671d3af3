"""The ranks of a job as a mesh: this rank's position along each axis, and a process group for each axis.

Ranks are numbered as in `Plan`: tensor parallel innermost, then context, then data, pipeline stages outermost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from choreo.workload import Plan, stage_layers

__all__ = ["Mesh"]

VARIABLE = "CHOREO_ALGORITHM"
# All ranks of a job are one group, whichever axis they are on: these collectives tell what it is used for.
ONLY_FOR = {"all_to_all": "ep", "all_reduce": "replicas"}


@dataclass(eq=False)
class Mesh:
    """This rank's place in a plan. Making one is a collective call: every rank makes the same groups in the same order.

    `replicas` are the ranks that hold the same dense parameters (context × data), "edp" those that hold the same
    experts, and "ends" the first and the last stage, which share a tied embedding. `algorithm` is that of the replicas'
    all_reduce, if it is not to be chosen by price. Without `grouped` there are no groups, for ranks that only send.
    """

    plan: Plan
    rank: int
    device: torch.device
    algorithm: str = ""
    grouped: bool = True
    groups: dict[str, Any] = field(default_factory=dict)  # by axis; an axis of one rank has none
    members: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan, ranks = self.plan, range(self.plan.gpus)
        self.index = self._place(self.rank)
        if not self.grouped:
            self.members["replicas"] = list(ranks)
            return
        keys: dict[str, Callable[[dict[str, int]], tuple[int, ...]]] = {
            "tp": lambda i: (i["cp"], i["dp"], i["pp"]),
            "cp": lambda i: (i["tp"], i["dp"], i["pp"]),
            "replicas": lambda i: (i["tp"], i["pp"]),
            "ep": lambda i: (i["tp"], i["edp"], i["pp"]),
            "edp": lambda i: (i["tp"], i["ep"], i["pp"]),
            "pp": lambda i: (i["tp"], i["cp"], i["dp"]),
        }
        for axis, key in keys.items():
            if (axis == "ep" and plan.ep == 1) or (axis == "edp" and plan.ep == 1):
                continue
            self._make(axis, [[r for r in ranks if key(self._place(r)) == value] for value in self._distinct(key)])
        if plan.pp > 2:
            ends = [(self.members_of(r, "pp")[0], self.members_of(r, "pp")[-1]) for r in ranks]
            self._make("ends", [list(pair) for pair in dict.fromkeys(ends)])
        elif plan.pp == 2:
            self.groups["ends"], self.members["ends"] = self.groups["pp"], self.members["pp"]

    def _place(self, rank: int) -> dict[str, int]:
        plan = self.plan
        tp, rest = rank % plan.tp, rank // plan.tp
        cp, rest = rest % plan.cp, rest // plan.cp
        dp, pp = rest % plan.dp, rest // plan.dp
        replica = dp * plan.cp + cp
        return {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": replica % plan.ep, "edp": replica // plan.ep,
                "replicas": replica}  # fmt: skip

    def _distinct(self, key: Callable[[dict[str, int]], tuple[int, ...]]) -> list[tuple[int, ...]]:
        return list(dict.fromkeys(key(self._place(rank)) for rank in range(self.plan.gpus)))

    def members_of(self, rank: int, axis: str) -> list[int]:
        """The ranks along an axis through a rank, in order."""
        place = self._place(rank)
        others = [name for name in ("tp", "cp", "dp", "pp") if name != axis]
        return [r for r in range(self.plan.gpus) if all(self._place(r)[name] == place[name] for name in others)]

    def _make(self, axis: str, groups: list[list[int]]) -> None:
        for ranks in groups:
            if len(ranks) == 1:
                continue
            algorithm = self.algorithm if axis == "replicas" else ""
            whole = len(ranks) == self.plan.gpus and not algorithm
            with _forced(algorithm):
                group = None if whole else dist.new_group(ranks, group_desc=axis)
            if self.rank in ranks:
                self.groups[axis] = dist.group.WORLD if group is None else group
                self.members[axis] = ranks

    def stages(self, layers: int) -> list[tuple[int, tuple[int, ...]]]:
        """Numbers of the pipeline stages that this rank holds, each with its layers."""
        plan = self.plan
        all_stages = stage_layers(layers, plan.pp, plan.interleave)
        return [(number, all_stages[number]) for number in range(self.index["pp"], len(all_stages), plan.pp)]

    def size(self, axis: str) -> int:
        """Ranks along an axis."""
        return len(self.members.get(axis, [self.rank]))

    def group(self, axis: str) -> Any:
        """The process group along an axis; None for one rank."""
        return self.groups.get(axis)

    def axis_of(self, group: Any, collective: str = "") -> str:
        """The purpose of a group, as a plan's figures name it; if it has several, the purpose of this collective."""
        axes = [axis for axis, members in self.groups.items() if members is group]
        if not axes:
            return "all" if self.grouped else "dp"
        axis = next((name for name in axes if name == ONLY_FOR.get(collective)), axes[0])
        return {"replicas": "dp", "edp": "dp", "ends": "pp"}.get(axis, axis)

    def close(self) -> None:
        """Destroy the groups."""
        for group in {id(group): group for group in self.groups.values() if group is not dist.group.WORLD}.values():
            dist.destroy_process_group(group)


@contextmanager
def _forced(algorithm: str) -> Iterator[None]:
    """Force the algorithm of all_reduce in the groups that are made inside; "" forces none."""
    before = os.environ.get(VARIABLE)
    if algorithm:
        os.environ[VARIABLE] = f"{before or ''},all_reduce:{algorithm}"
    try:
        yield
    finally:
        if before is not None:
            os.environ[VARIABLE] = before
        elif algorithm:
            del os.environ[VARIABLE]
