"""The constants of each program, fitted to published runs, and the error on runs they were not fitted to.

`FITTED` lists them with the range that makes physical sense. A fit minimises the weighted mean of
|log(predicted / measured)|, which a few odd rows cannot drag, plus a small pull towards the figure that was assumed
before any row was seen. Rows that differ only in the number of replicas count as one. The predictor is linearised
around the current constants, so that each fold is a small linear program without further simulation. The rows that were
left out are then predicted in full.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from choreo.errors import ChoreoError
from choreo.plan.software import Software, get_software
from choreo.validate.plan.case import Case
from choreo.validate.plan.validate import GroupError, PredictedRow, group_errors, predict_case, read_cases
from choreo.workload import Plan

__all__ = ["FITTED", "Constant", "Fold", "fit", "folds", "leave_one_out", "whole_source"]

Floats = NDArray[np.float64]
PULL = 0.002  # of |log error| for moving a constant across its whole range
PROBE = 0.06  # of a constant's range, for its derivative


@dataclass(frozen=True, slots=True)
class Constant:
    """One fitted figure of one program; `prior` is what would be assumed without any rows."""

    software: str
    name: str
    low: float
    high: float
    prior: float
    memory: bool = False  # fitted to memory rather than to time


# Without a row, Megatron of 2021 is assumed to launch as plain PyTorch does, in a Python that is 1.25 times as slow.
FITTED: tuple[Constant, ...] = (
    Constant("megatron-2021", "efficiency", 0.7, 1.0, 0.95),
    Constant("megatron-2021", "host_s", 10e-6, 90e-6, 40e-6),
    Constant("megatron-2021", "host_collective_s", 10e-6, 200e-6, 50e-6),
    Constant("megatron-core", "efficiency", 0.7, 1.0, 0.95),
    Constant("nemo", "efficiency", 0.7, 1.0, 0.95),
    Constant("fsdp", "efficiency", 0.7, 1.0, 0.95),
    Constant("fsdp", "contention", 0.0, 1.0, 0.3),
    Constant("torchtitan", "efficiency", 0.7, 1.0, 0.95),
    Constant("jax", "efficiency", 0.7, 1.0, 0.95),
    Constant("torch-eager", "efficiency", 0.7, 1.0, 0.95),
    Constant("torch-compile", "efficiency", 0.7, 1.0, 0.95),
    Constant("nanotron", "efficiency", 0.7, 1.0, 0.95),
    Constant("nanotron", "host_collective_s", 0.05e-3, 2e-3, 0.3e-3),
    Constant("nanotron", "network_collective_s", 0.05e-3, 2e-3, 0.3e-3),
    Constant("nanotron", "pipelined_hop_s", 0.02e-3, 1e-3, 0.1e-3),
    Constant("nanotron", "zero1_copy_s", 2e-6, 100e-6, 10e-6),
    Constant("nanotron-blocking-pipeline", "p2p_host_s", 0.1, 1.0, 0.4),
    Constant("nanotron", "fragmentation", 0.0, 0.6, 0.1, memory=True),
    Constant("nanotron", "stream_kept", 0.0, 4.0, 1.0, memory=True),
)


@dataclass(frozen=True, slots=True)
class Fold:
    """The rows that were left out, predicted with constants fitted to the rest."""

    software: str
    left_out: str
    constants: dict[str, float]
    rows: tuple[PredictedRow, ...]


def leave_one_out(path: Path | str | Sequence[Path]) -> tuple[list[Fold], list[GroupError]]:
    """Leave out each whole source in turn, fit to the rest, and predict it.

    A whole source is a paper or a project with all its tables and releases. Where a program has one, each model in turn
    is left out instead.
    """
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    cases = [case for path in paths for case in read_cases(path)[0]]
    found = [fold for name in dict.fromkeys(family(case.software) for case in cases) for fold in folds(name, cases)]
    return found, group_errors([row for fold in found for row in fold.rows])


def folds(name: str, cases: Iterable[Case]) -> list[Fold]:
    """The folds of one program."""
    own_cases = [case for case in cases if family(case.software) == name]
    sources = dict.fromkeys(whole_source(case.row.source) for case in own_cases)
    keys = [whole_source(case.row.source) if len(sources) > 1 else case.row.model for case in own_cases]
    constants = [constant for constant in FITTED if family(constant.software) == name]
    problem = _Problem(own_cases, constants) if constants else None
    found = []
    for key in dict.fromkeys(keys):
        kept = np.array([other != key for other in keys])
        values = problem.solve(kept) if problem is not None and kept.any() else {}
        programs = _programs(own_cases, values)
        rows = [
            row for case, keep in zip(own_cases, kept, strict=True) if not keep and (row := _predict(case, programs))
        ]
        found.append(
            Fold(
                name,
                key,
                {f"{constant.software} {constant.name}": values[constant] for constant in values},
                tuple(rows),
            )
        )
    return found


def fit(cases: Sequence[Case], *, rounds: int = 3) -> dict[Constant, float]:
    """The constants that fit all rows best."""
    found: dict[Constant, float] = {}
    for name in dict.fromkeys(family(case.software) for case in cases):
        own_cases = [case for case in cases if family(case.software) == name]
        constants = [constant for constant in FITTED if family(constant.software) == name]
        values: dict[Constant, float] = {}
        for _ in range(rounds if constants else 0):
            values = _Problem(own_cases, constants, values).solve(np.ones(len(own_cases), dtype=bool))
        found |= values
    return found


def family(software: str) -> str:
    """The program of a variant: "nanotron" for "nanotron-blocking-pipeline+autocast"."""
    return software.split("+", maxsplit=1)[0].removesuffix("-blocking-pipeline")


def whole_source(source: str) -> str:
    """The paper or project that a table or release belongs to.

    >>> whole_source("Narayanan SC'21 Table 2"), whole_source("Megatron-Bridge perf summary 26.04 (MoE)")
    ("Narayanan SC'21", 'Megatron-Bridge')
    """
    return re.sub(r"[\s,]+(Table|Fig|sec|v\d|perf summary|benchmarks|\(|README\b(?= \d)).*$", "", source).strip()


class _Problem:
    """Residuals of the rows of one program, and their derivatives by its constants."""

    def __init__(
        self, cases: Sequence[Case], constants: Sequence[Constant], start: Mapping[Constant, float] | None = None
    ) -> None:
        self.constants = list(constants)
        self.cases = list(cases)
        self.start = {constant: _current(constant, start or {}) for constant in self.constants}
        programs = _programs(self.cases, self.start)
        first = [_predict(case, programs) for case in self.cases]
        self.plans = [None if row is None else row.plan for row in first]
        self.residuals = np.array([_residuals(row) for row in first])
        self.slopes = np.zeros((len(self.constants), *self.residuals.shape))
        for number, constant in enumerate(self.constants):
            place = _place(constant, self.start[constant])
            step = PROBE if place + PROBE <= 1 else -PROBE
            moved = _programs(self.cases, self.start | {constant: _value(constant, place + step)})
            rows = [_predict(case, moved, plan) for case, plan in zip(self.cases, self.plans, strict=True)]
            self.slopes[number] = (np.array([_residuals(row) for row in rows]) - self.residuals) / step
        self.weights = _weights(self.cases, self.plans)

    def solve(self, kept: NDArray[np.bool_]) -> dict[Constant, float]:
        """Least weighted absolute residual over the kept rows, by linear programming; time and memory separately."""
        values: dict[Constant, float] = {}
        for column, memory in ((0, False), (1, True)):
            chosen = [number for number, constant in enumerate(self.constants) if constant.memory == memory]
            use = kept & np.isfinite(self.residuals[:, column])
            if not chosen:
                continue
            if not use.any():
                values |= {self.constants[number]: self.constants[number].prior for number in chosen}
                continue
            constants = [self.constants[number] for number in chosen]
            moves = _least_absolute(
                self.residuals[use, column],
                self.slopes[chosen][:, use, column].T,
                self.weights[use],
                np.array([_place(constant, self.start[constant]) for constant in constants]),
                np.array([_place(constant, constant.prior) for constant in constants]),
            )
            values |= {
                constant: _value(constant, float(place)) for constant, place in zip(constants, moves, strict=True)
            }
        return values


def _least_absolute(residuals: Floats, slopes: Floats, weights: Floats, start: Floats, prior: Floats) -> Floats:
    """Places p in [0, 1] that minimise sum w |r + S (p - start)| + PULL |p - prior|."""
    from scipy.optimize import linprog

    rows, size = slopes.shape
    weights = weights / weights.sum()
    cost = np.concatenate([np.zeros(size), weights, np.full(size, PULL)])
    offset = residuals - slopes @ start
    spread, pull = np.eye(rows), np.eye(size)
    none, less = np.zeros((rows, size)), np.zeros((size, rows))
    above = np.block([[slopes, -spread, none], [-slopes, -spread, none], [pull, less, -pull], [-pull, less, -pull]])
    limit = np.concatenate([-offset, offset, prior, -prior])
    bounds = [(0.0, 1.0)] * size + [(0.0, None)] * (rows + size)
    found = linprog(cost, A_ub=above, b_ub=limit, bounds=bounds, method="highs")
    return start if found.x is None else np.asarray(found.x, dtype=np.float64)[:size]


def _residuals(row: PredictedRow | None) -> tuple[float, float]:
    if row is None:
        return math.nan, math.nan
    step = row.predicted_step_s / row.measured_step_s if row.measured_step_s else math.nan
    memory = row.predicted_mem_bytes / row.measured_mem_bytes if row.measured_mem_bytes else math.nan
    return math.log(step), math.log(memory)


def _weights(cases: Sequence[Case], plans: Sequence[Plan | None]) -> Floats:
    """Rows that differ only in the number of replicas share one weight. The weight of a source grows as the root of its
    rows, because a mistake of the source is in all of them."""
    keys = [
        (case.row.source, case.row.model, case.row.seq, None if plan is None else replace(plan, dp=1))
        for case, plan in zip(cases, plans, strict=True)
    ]
    each = [1 / keys.count(key) for key in keys]
    totals: dict[str, float] = {}
    for case, weight in zip(cases, each, strict=True):
        totals[case.row.source] = totals.get(case.row.source, 0.0) + weight
    return np.array([weight / math.sqrt(totals[case.row.source]) for case, weight in zip(cases, each, strict=True)])


def _programs(cases: Sequence[Case], values: Mapping[Constant, float]) -> dict[str, Software]:
    """The programs of the cases with these constants; those of a variant come before those of its family."""
    found = {}
    for name in dict.fromkeys(case.software for case in cases):
        base = name.split("+")[0]
        changes = {constant.name: value for constant, value in values.items() if constant.software == family(name)}
        if base != family(name):
            own = {constant.name for constant in FITTED if constant.software == base}
            changes = {key: value for key, value in changes.items() if key not in own}
            changes |= {constant.name: value for constant, value in values.items() if constant.software == base}
        found[name] = replace(get_software(name), **changes)  # type: ignore[arg-type]
    return found


def _predict(case: Case, programs: Mapping[str, Software], plan: Plan | None = None) -> PredictedRow | None:
    try:
        return predict_case(case, programs, plan=plan)
    except ChoreoError:
        return None


def _current(constant: Constant, start: Mapping[Constant, float]) -> float:
    value = start[constant] if constant in start else float(getattr(get_software(constant.software), constant.name))
    return float(min(max(value, constant.low), constant.high))


def _place(constant: Constant, value: float) -> float:
    """A value's place in its range, from 0 to 1; a range of more than a decade is logarithmic."""
    if constant.low > 0 and constant.high / constant.low > 10:
        return math.log(value / constant.low) / math.log(constant.high / constant.low)
    return (value - constant.low) / (constant.high - constant.low)


def _value(constant: Constant, place: float) -> float:
    if constant.low > 0 and constant.high / constant.low > 10:
        return constant.low * math.exp(place * math.log(constant.high / constant.low))
    return constant.low + place * (constant.high - constant.low)
