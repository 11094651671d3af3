"""A parallel plan: how many ways a job is cut along each axis, and how the pieces run.

Ranks are numbered as in Megatron: tensor parallel innermost, then context, then data, and pipeline stages outermost.
Layers of experts cut the same ranks of a stage in their own way: expert-tensor parallel innermost, then experts, then
replicas of an expert.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from choreo.errors import PlanError, excerpt
from choreo.workload.choices import MODULES, PRECISIONS, RECOMPUTE, SCHEDULES, SPLITS

if TYPE_CHECKING:
    from choreo.workload.model import Model

__all__ = ["MODULES", "PRECISIONS", "RECOMPUTE", "SCHEDULES", "SPLITS", "Plan", "listed_layers", "stage_layers"]

PART = r"\d{1,7}(\*\d{1,7})?"  # of a list of stages: layers, and how many stages have so many
LISTED = re.compile(rf"{PART}(,{PART})*")
SPARE = 3  # stages that may hold no layer: they have the embedding, the head, or a layer that predicts further tokens
# The least value of each, in words.
AT_LEAST_1 = (1, " of at least 1")
WHOLE_NUMBERS = dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "micro_batch", "interleave"), AT_LEAST_1) | {
    "etp": (0, ", 0 for as many as tp"),
    "shard_size": (0, ", 0 for all replicas"),
    "recompute_layers": (0, ", 0 for all"),
}
MOST = 1 << 20  # the greatest value of any of them
WIDE = ("fp32", "tf32")  # activations of four bytes; all others keep them in two


@dataclass(frozen=True, slots=True)
class Plan:
    """A parallel plan over dp × tp × pp × cp devices. Groups of ep × etp ranks of a stage divide the experts.

    >>> print(Plan(dp=4, tp=8, zero=1, sequence_parallel=True))
    dp4 tp8 zero1 sp mb1 bf16
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0  # 1: optimizer state cut over dp, 2: gradients too, 3: parameters too (FSDP)
    sequence_parallel: bool = False
    micro_batch: int = 1
    interleave: int = 1  # virtual pipeline stages a device
    schedule: str = "1f1b"
    recompute: str = "none"
    overlap: bool = True  # data-parallel communication while computing
    precision: str = "bf16"
    split: str = "even"  # of layers over stages: even, balanced by cost, or listed, as in "7,8*14,7"
    recompute_layers: int = 0  # of each stage, where recomputation is full; 0: all
    etp: int = 0  # ranks that cut one expert's matrices; 0: as many as tp
    recompute_modules: str = (
        ""  # what selective recomputation repeats, as in "layernorm,moe_act"; "": the program's own
    )
    shard_size: int = 0  # data-parallel ranks that ZeRO shards the state over (HSDP, MiCS); 0: all

    def __post_init__(self) -> None:
        for name, (least, bound) in WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise PlanError(f"{name} must be a whole number{bound}, not {excerpt(value)}")
            if value > MOST:
                raise PlanError(f"{name} must be at most {MOST}, not {excerpt(value)}")
        for name in ("sequence_parallel", "overlap"):
            if not isinstance(getattr(self, name), bool):
                raise PlanError(f"{name} must be true or false, not {excerpt(getattr(self, name))}")
        if self.recompute_layers and self.recompute != "full":
            problem = f"recompute_layers {self.recompute_layers} goes with recompute full"
            raise PlanError(f"{problem}, not {self.recompute}; give that, or leave it 0")
        self._check_modules()
        if isinstance(self.zero, bool) or self.zero not in (0, 1, 2, 3):
            raise PlanError(f"zero must be 0, 1, 2 or 3, not {excerpt(self.zero)}")
        for name, known in (("schedule", SCHEDULES), ("recompute", RECOMPUTE), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise PlanError(f"{name} must be one of {', '.join(known)}, not {excerpt(getattr(self, name))}")
        if self.split not in SPLITS and not (isinstance(self.split, str) and LISTED.fullmatch(self.split)):
            raise PlanError(
                f"split must be {', '.join(SPLITS)}, or the layers of each stage, as in 7,8*14,7, not "
                f"{excerpt(self.split)}"
            )
        if self.split not in SPLITS and (stages := sum(times for _, times in _listed(self.split))) > MOST:
            raise PlanError(f"split lists {stages} stages; there may be at most {MOST}")

    def _check_modules(self) -> None:
        """Put the modules into one order, so that equal plans are equal."""
        if not isinstance(self.recompute_modules, str):
            raise PlanError(
                f"recompute_modules must be text, as in layernorm,moe_act, not {excerpt(self.recompute_modules)}"
            )
        names = {name.strip() for name in self.recompute_modules.split(",") if name.strip()}
        for name in sorted(names - set(MODULES)):
            raise PlanError(f"recompute_modules must be of {', '.join(MODULES)}, not {excerpt(name)}")
        if names and self.recompute != "selective":
            modules = self.recompute_modules
            raise PlanError(f"recompute_modules {modules} goes with recompute selective, not {self.recompute}")
        object.__setattr__(self, "recompute_modules", ",".join(name for name in MODULES if name in names))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that are computed again."""
        return tuple(self.recompute_modules.split(",")) if self.recompute_modules else ()

    def without_recomputation(self) -> Plan:
        """The same plan with nothing computed again."""
        return replace(self, recompute="none", recompute_modules="", recompute_layers=0)

    @property
    def gpus(self) -> int:
        """Devices it takes."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def expert_tp(self) -> int:
        """Ranks that cut one expert's matrices."""
        return self.etp or self.tp

    @property
    def shards(self) -> int:
        """Data-parallel ranks that ZeRO shards the state over; the other ranks hold replicas of these shards."""
        return self.shard_size or self.dp

    @property
    def activation_bytes(self) -> int:
        """Bytes of one number of an activation; with fp8 and fp4 they are kept in bf16."""
        return 4 if self.precision in WIDE else 2

    def micro_batches(self, global_batch: int) -> int:
        """Micro-batches that a replica runs in a step."""
        return global_batch // (self.dp * self.micro_batch)

    def axis_size(self, axis: str) -> int:
        """Ranks along an axis; "edp" are the replicas of one expert."""
        if axis == "edp":
            return self.tp * self.cp * self.dp // (self.expert_tp * self.ep)
        return self.expert_tp if axis == "etp" else int(getattr(self, axis))

    def group(self, axes: Sequence[str]) -> tuple[int, int]:
        """Ranks of a group along neighbouring axes, and the stride between them."""
        strides = {
            "tp": 1,
            "etp": 1,
            "cp": self.tp,
            "ep": self.expert_tp,
            "dp": self.tp * self.cp,
            "edp": self.expert_tp * self.ep,
            "pp": self.tp * self.cp * self.dp,
        }
        size = math.prod(self.axis_size(axis) for axis in axes)
        return size, min((strides[axis] for axis in axes if self.axis_size(axis) > 1), default=1)

    def fields(self) -> dict[str, object]:
        """Its fields as plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def data_parallel_only(self, name: str) -> Plan:
        """The plan of a model that only data parallelism cuts; another is refused."""
        if self.gpus != self.dp:
            raise PlanError(
                f"{name} is cut over dp alone, not tp {self.tp}, pp {self.pp}, cp {self.cp}; leave these 1 and take dp "
                f"{self.gpus}"
            )
        return Plan(dp=self.dp, micro_batch=self.micro_batch, precision=self.precision)

    def check(
        self,
        model: Model,
        gpus: int,
        global_batch: int,
        seq: int,
        *,
        uneven_stages: bool = False,
        trained: bool = False,
    ) -> None:
        """Refuse a plan that cannot be run, in a sentence with the nearest choice that can.

        `uneven_stages` is for programs that give pipeline stages unequal numbers of layers, `trained` for plans that
        `choreo train` is to run.

        >>> from choreo.workload import get_model
        >>> Plan(pp=7).check(get_model("llama3-70b"), gpus=7, global_batch=8, seq=4096)
        Traceback (most recent call last):
        choreo.errors.PlanError: layers 80 of llama3-70b are not divisible by pp 7; use pp 5 or 8
        """
        from choreo.workload.legal import Request, check_plan

        check_plan(self, Request(model, gpus, global_batch, seq, uneven_stages, trained, listed_layers(self.split)))

    def __str__(self) -> str:
        parts = [f"{name}{getattr(self, name)}" for name in ("dp", "tp", "pp", "cp", "ep") if getattr(self, name) > 1]
        parts += [f"etp{self.etp}"] * (self.etp > 0)
        parts += [f"zero{self.zero}"] * (self.zero > 0) + [f"shard{self.shard_size}"] * (self.shard_size > 0)
        parts += ["sp"] * self.sequence_parallel
        parts += [f"mb{self.micro_batch}"] + [f"v{self.interleave}"] * (self.interleave > 1)
        parts += [self.schedule] * (self.pp > 1) + [f"split-{self.split}"] * (self.pp > 1 and self.split != "even")
        some = f"-{self.recompute_layers}" if self.recompute_layers else ""
        some += f"-{self.recompute_modules}" if self.recompute_modules else ""
        parts += [f"recompute-{self.recompute}{some}"] * (self.recompute != "none")
        return " ".join((*(parts), self.precision))


def stage_layers(layers: int, pp: int, interleave: int = 1) -> tuple[tuple[int, ...], ...]:
    """The layers of each virtual stage, in order of the data: stage v * pp + d is chunk v of device d.

    If layers do not divide evenly, the stages in the middle get one more: the first and the last also have the
    embedding and the output layer, and may have no layer at all.

    >>> [len(stage) for stage in stage_layers(layers=10, pp=4)]
    [2, 3, 3, 2]
    >>> [len(stage) for stage in stage_layers(layers=6, pp=4, interleave=2)]
    [0, 1, 1, 1, 1, 1, 1, 0]
    """
    stages = pp * interleave
    if layers + SPARE < stages or stages > 2 * layers:
        raise PlanError(f"{layers} layers cannot be cut into {stages} stages (pp {pp} × interleave {interleave})")
    each, more = divmod(layers, stages)
    start = (stages - more) // 2
    bounds = [0]
    for stage in range(stages):
        bounds.append(bounds[-1] + each + (start <= stage < start + more))
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(bounds))


def listed_layers(split: str) -> tuple[int, ...]:
    """The number of layers in each virtual stage, if the split lists them; otherwise empty.

    >>> listed_layers("3,2*3,0")
    (3, 2, 2, 2, 0)
    """
    if split in SPLITS:
        return ()
    return tuple(itertools.chain.from_iterable([count] * times for count, times in _listed(split)))


def _listed(split: str) -> list[tuple[int, int]]:
    """The parts of a list of stages: layers, and how many stages have so many."""
    parts = (part.partition("*") for part in split.split(","))
    return [(int(count), int(times or 1)) for count, _, times in parts]
