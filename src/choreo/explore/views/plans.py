"""Plans: every plan of a search as a point, and one of them in detail."""

from __future__ import annotations

import base64
from collections import OrderedDict
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from choreo.errors import UnknownNameError, UsageError
from choreo.explore.fields import FieldError, reading
from choreo.plan import Planning, plan
from choreo.plan.network import get_cluster
from choreo.plan.search.search import Found, detailed
from choreo.plan.search.space import CUT, FIELDS
from choreo.plan.what_if import vary_place
from choreo.show.plan.page import plan_html
from choreo.show.plan.words import notes
from choreo.topology.catalogue import names_file
from choreo.workload import list_models
from choreo.workload.choices import RECOMPUTE, SCHEDULES

__all__ = ["One", "Plans", "PlansData", "one_plan", "plan_page", "plans"]

# The bubble limits a plan from this fraction of its time.
LONG_BUBBLE = 0.15
# The codes of what limits a plan.
LIMITS = ("none of these", "does not fit in memory", "pipeline bubble", "no overlap", "recomputes all")

Name = Annotated[str, Meta(max_length=200)]
Factor = Annotated[float, Meta(ge=0.1, le=10)]
WHAT_IF = ("bandwidth", "latency", "flops", "memory_bandwidth", "memory")


class Plans(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job to plan."""

    model: Name = "llama3-8b"
    cluster: Name = "hgx-h100:8"
    global_batch: Annotated[int, Meta(ge=1, le=1 << 20)] = 256
    seq: Annotated[int, Meta(ge=1, le=1 << 22)] = 8192
    software: Name = "megatron-core"
    # What-if factors on the cluster's figures.
    bandwidth: Factor = 1.0
    latency: Factor = 1.0
    flops: Factor = 1.0
    memory_bandwidth: Factor = 1.0
    memory: Factor = 1.0


class One(Plans, frozen=True, forbid_unknown_fields=True):
    """One plan of the job, by its row."""

    row: Annotated[int, Meta(ge=0)] = 0


class PlansData(TypedDict):
    """Every plan that can be run, as columns of little-endian numbers in base64.

    `memory_bytes` and `time_s` are float32, the fields of the plans int16, `limit` the code of one of `limits`. `front`
    are the rows that no other beats in both time and memory, `best` those of the best plans, evaluated in detail.
    """

    title: str
    count: int
    considered: int
    ruled_out: dict[str, int]
    room_bytes: float
    memory_bytes: str
    time_s: str
    limit: str
    limits: list[str]
    fields: dict[str, str]
    words: dict[str, list[str]]
    front: list[int]
    best: list[int]
    seconds: float


_kept: OrderedDict[Plans, Planning] = OrderedDict()


def _planning(asked: Plans) -> Planning:
    key = Plans(**{name: getattr(asked, name) for name in Plans.__struct_fields__})
    models = {model.name for model in list_models()}
    if asked.model not in models:
        raise FieldError("model", UnknownNameError("model", asked.model, models))
    if names_file(asked.cluster) or "/" in asked.cluster or "\\" in asked.cluster:
        message = f"the page takes names of machines and blocks, not files like {asked.cluster!r}; use choreo plan"
        raise FieldError("cluster", UsageError(message))
    if key not in _kept:
        _kept[key] = _planned(key, best=5)
        while len(_kept) > 2:
            _kept.popitem(last=False)
    return _kept[key]


def _planned(job: Plans, **fixed: Any) -> Planning:
    """The best plans of a job, or the one whose fields are fixed, on the what-if cluster."""
    cluster, device = get_cluster(job.cluster), None
    for name in WHAT_IF:
        if getattr(job, name) != 1:
            chip = device or cluster.chip(None)
            cluster, device = vary_place(cluster, chip, name.replace("_", "-"), getattr(job, name))
    return plan(
        job.model,
        cluster=cluster,
        global_batch=job.global_batch,
        seq=job.seq,
        software=job.software,
        device=device,
        **fixed,
    )


def plans(asked: Plans) -> PlansData:
    """Every plan of the search."""
    planning = reading("model", lambda: _planning(asked))
    found = planning.found
    if found is None:
        message = f"{planning.model} has one plan, data parallelism; plans are searched for transformers"
        raise FieldError("model", UsageError(message))
    space, guess = found.space, found.estimate
    return {
        "title": f"{planning.summary()}{notes(planning)}",
        "count": len(space),
        "considered": planning.considered,
        "ruled_out": dict(planning.ruled_out),
        "room_bytes": float(planning.device.memory_bytes),
        "memory_bytes": _column(guess.memory_bytes, "<f4"),
        "time_s": _column(guess.time_s, "<f4"),
        "limit": _column(_limits(found, float(planning.device.memory_bytes), planning.global_batch), "<i2"),
        "limits": list(LIMITS),
        "fields": {name: _column(space[name], "<i2") for name in FIELDS},
        "words": {"schedule": list(SCHEDULES), "recompute": list(RECOMPUTE), "split": list(space.splits)},
        "front": pareto(guess.memory_bytes, guess.time_s),
        "best": _rows(found),
        "seconds": planning.seconds,
    }


def one_plan(asked: One) -> dict[str, Any]:
    """One plan, evaluated in detail."""
    planning = reading("model", lambda: _planning(asked))
    if planning.found is None or planning.job is None or asked.row >= len(planning.found.space):
        raise FieldError("model", UsageError(f"there is no plan {asked.row}"))
    chosen = planning.found.space.plan(asked.row)
    step = detailed(planning.job, chosen)
    return {"plan": str(chosen), "fields": chosen.fields(), "step": step.to_dict(), "summary": step.summary()}


def plan_page(asked: One) -> dict[str, str]:
    """The page of one plan, as `choreo plan --html` writes it with all of the plan's fields given."""
    planning = reading("model", lambda: _planning(asked))
    if planning.found is None or asked.row >= len(planning.found.space):
        raise FieldError("model", UsageError(f"there is no plan {asked.row}"))
    chosen = planning.found.space.plan(asked.row)
    return {"html": plan_html(_planned(asked, **{name: getattr(chosen, name) for name in FIELDS}))}


def pareto(memory: npt.NDArray[np.float64], time_s: npt.NDArray[np.float64]) -> list[int]:
    """The rows that no other beats in both, by memory.

    >>> pareto(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 4.0]))
    [0, 2]
    """
    order = np.lexsort((time_s, memory))
    least = np.minimum.accumulate(time_s[order])
    first = np.concatenate(([True], least[1:] < least[:-1])) if len(order) else np.zeros(0, np.bool_)
    front: list[int] = order[first].tolist()
    return front


def _limits(found: Found, room: float, global_batch: int) -> npt.NDArray[np.int64]:
    """What limits each plan, judging by its fields and its estimate."""
    space = found.space
    batches = np.maximum(1, global_batch // np.maximum(1, space["dp"] * space["micro_batch"]))
    bubble = (space["pp"] - 1) / (batches * np.maximum(1, space["interleave"]))
    limit = np.zeros(len(space), np.int64)
    limit[space["recompute"] == len(RECOMPUTE) - 1] = 4
    limit[space["overlap"] == 0] = 3
    limit[bubble > LONG_BUBBLE] = 2
    limit[found.estimate.memory_bytes > room] = 1
    return limit


def _rows(found: Found) -> list[int]:
    """The rows of the best plans."""
    rows: list[int] = []
    for best, _ in found.plans:
        same = np.ones(len(found.space), np.bool_)
        for name in (*CUT, "zero", "micro_batch", "interleave"):
            same &= found.space[name] == getattr(best, name)
        rows.append(next(row for row in np.flatnonzero(same).tolist() if found.space.plan(row) == best))
    return rows


def _column(values: npt.NDArray[np.generic], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values.astype(kind)).tobytes()).decode()
