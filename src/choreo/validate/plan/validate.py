"""Predicted against measured, run by run: step time, memory, and whether it fits; errors by source, software and all.

The error of a row is predicted over measured, minus one. A table's error is the mean of the absolute values, and its
bias the mean of the errors themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from choreo.errors import ChoreoError
from choreo.nccl.system.reading import held_gpus
from choreo.plan.job import TrainingJob
from choreo.plan.network import Cluster, get_cluster
from choreo.plan.software import Software, get_software
from choreo.plan.step import Step, evaluate
from choreo.results import Result, result
from choreo.units import counted
from choreo.validate.errors import grouped, mean
from choreo.validate.plan.case import Case, best, read_case, whole_batch
from choreo.validate.plan.choice import Choice, choices_among
from choreo.validate.plan.measured import DATA, MeasuredRow, read_measured
from choreo.validate.plan.predicted_row import PredictedRow
from choreo.validate.plan.shortlist import shortlist
from choreo.validate.rows import Skipped
from choreo.workload import Plan

__all__ = [
    "GroupError",
    "PredictedRow",
    "Validation",
    "cluster_of",
    "group_errors",
    "predict_case",
    "read_cases",
    "validate",
]

# These log the memory of their first rank, which is in the first stage; others log the fullest rank's.
LOG_FIRST_RANK = ("nanotron",)
FILES = (DATA / "training_measured.csv", DATA / "training_measured_sweep.csv")


@result
class GroupError(Result):
    """The errors of a group of rows; None if there is nothing to compare."""

    columns: ClassVar[tuple[str, ...]] = (
        "kind",
        "name",
        "rows",
        "step_rows",
        "step_mape",
        "step_bias",
        "memory_rows",
        "memory_mape",
        "memory_bias",
        "fits_rows",
        "fits_right",
    )

    kind: str  # "source", "software" or "overall"
    name: str
    rows: int
    step_rows: int
    step_mape: float | None
    step_bias: float | None
    memory_rows: int
    memory_mape: float | None
    memory_bias: float | None
    fits_rows: int
    fits_right: float | None


@result
class Validation(Result):
    """A file, predicted."""

    rows: tuple[PredictedRow, ...]
    skipped: tuple[Skipped, ...]
    groups: tuple[GroupError, ...]
    choices: tuple[Choice, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Every row, what was skipped and why, the errors, and the choice in each group of measured plans."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "skipped": [{"index": skip.row, "reason": skip.reason} for skip in self.skipped],
            "errors": [group.to_dict() for group in self.groups],
            "choices": [choice.to_dict() for choice in self.choices],
        }

    def summary(self) -> str:
        """How many rows there were."""
        return f"{counted(len(self.rows), 'row')} predicted, {len(self.skipped)} skipped"


def validate(
    path: Path | str,
    *,
    software: Mapping[str, Software] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Predict every row of a file with the columns of training_measured.csv; duplicate rows count once.

    `software` replaces the figures of some programs, by name. `progress` is called with the rows done and the total.

    >>> validate(DATA / "h200_steps.csv").groups[-1].step_rows
    18
    """
    cases, skipped = read_cases(path)
    found: dict[MeasuredRow, PredictedRow | ChoreoError] = {}
    rows: list[PredictedRow] = []
    for done, case in enumerate(cases):
        same = replace(case.row, index=0)
        if same not in found:
            try:
                found[same] = predict_case(case, software)
            except ChoreoError as error:
                found[same] = error
        predicted = found[same]
        if isinstance(predicted, ChoreoError):
            skipped.append(Skipped(case.row.index, str(predicted)))
        else:
            rows.append(PredictedRow(**vars(predicted) | {"index": case.row.index}))
        if progress is not None:
            progress(done + 1, len(cases))
    skipped.sort(key=lambda row: row.row)
    return Validation(tuple(rows), tuple(skipped), tuple(group_errors(rows)), tuple(choices_among(rows)))


def read_cases(path: Path | str) -> tuple[list[Case], list[Skipped]]:
    """The rows of a file as jobs, and those that had to be skipped."""
    measured, skipped = read_measured(path)
    cases: list[Case] = []
    for row in measured:
        try:
            cases.append(read_case(row))
        except ChoreoError as error:
            skipped.append(Skipped(row.index, str(error)))
    return cases, skipped


def predict_case(
    case: Case, software: Mapping[str, Software] | None = None, *, plan: Plan | None = None
) -> PredictedRow:
    """Predict one row, with the given plan or with the best of those that the row leaves open."""
    program = (software or {}).get(case.software) or get_software(case.software)
    row = case.row
    cluster = cluster_of(case)
    run = _runner(case, program, cluster)
    if plan is None:
        precision, gpus = case.plans[0].precision, case.plans[0].gpus
        job = TrainingJob(case.model, gpus, case.global_batch, row.seq, cluster, case.device, program, precision)
        plan, step = best(shortlist(job, case.plans), run)
        if not step.fits and row.zero is None and row.status is None and plan.zero == 0:
            # A published run did fit, so its program sharded the optimizer's state, too.
            plan, step = best(shortlist(job, [replace(other, zero=1) for other in case.plans]), run)
    else:
        step = run(plan)
    chosen = case.chosen | {_column(name): _plain(getattr(plan, name)) for name in case.open_fields}
    return PredictedRow(
        index=row.index,
        source=row.source,
        software=row.software,
        gpu=row.gpu,
        model=row.model,
        gpus=row.gpus,
        plan=plan,
        measured_step_s=row.step_time_s,
        predicted_step_s=step.step_time_s,
        measured_mem_bytes=row.mem_bytes,
        predicted_mem_bytes=_logged(step, program, allocated="alloc" in row.mem_kind.lower()),
        measured_fits=row.status,
        predicted_fits=step.fits,
        chosen=chosen,
        program=program.name.split("+", maxsplit=1)[0],
        architecture=case.device.architecture,
        experts=bool(case.model.experts),
        precision=row.precision or case.plans[0].precision,
        seq=row.seq,
        global_batch=row.global_batch,
        model_parameters=case.model.parameters,
        memory_share=step.memory_bytes / step.device_bytes,
        device_bytes=step.device_bytes,
    )


def _column(field: str) -> str:
    return "zero_stage" if field == "zero" else field


def _plain(value: object) -> object:
    """As the columns have it: 0 and 1 for no and yes."""
    return int(value) if isinstance(value, bool) else value


def _logged(step: Step, program: Software, *, allocated: bool) -> float:
    """The memory that the program's log would show."""
    if not program.name.startswith(LOG_FIRST_RANK):
        return step.peak_allocated_bytes if allocated else step.peak_reserved_bytes
    apart = ("context", "fragmentation") if allocated else ("context",)
    return sum(size for part, size in step.stage_memory[0].items() if part not in apart)


def _runner(case: Case, program: Software, cluster: Cluster) -> Callable[[Plan], Step]:
    row = case.row

    def run(plan: Plan) -> Step:
        batch, share = whole_batch(row.global_batch or case.global_batch, plan)
        step = evaluate(
            case.model,
            plan,
            cluster=cluster,
            gpus=plan.gpus,
            global_batch=batch,
            seq=row.seq,
            software=program,
        )
        return Step(**vars(step) | {"step_time_s": step.step_time_s * share})

    return run


def cluster_of(case: Case) -> Cluster:
    """The cluster of a row, with its nodes and network as far as the row tells them."""
    return _cluster(case.device.cluster, case.row.gpu, case.network)


@cache
def _cluster(name: str, gpu: str, network: str) -> Cluster:
    """The usual cluster of a GPU, with the row's nodes ("4/node") and network."""
    from choreo.hardware import get_device

    found = get_cluster(name, device=get_device(gpu))
    if told := held_gpus(gpu):
        found = found.with_node_gpus(told)
    return found.with_network_text(network)


def group_errors(rows: Sequence[PredictedRow]) -> list[GroupError]:
    """Errors by source, by software and of all rows, in the order they first appear."""
    found: list[GroupError] = []
    for kind in ("source", "software"):
        groups = grouped(rows, lambda row, kind=kind: str(getattr(row, kind)))  # type: ignore[misc]
        found += [_group(kind, name, members) for name, members in groups.items()]
    return [*found, _group("overall", "all", rows)]


def _group(kind: str, name: str, rows: Sequence[PredictedRow]) -> GroupError:
    steps = [error for row in rows if (error := row.step_error) is not None]
    memory = [error for row in rows if (error := row.memory_error) is not None]
    fits = [right for row in rows if (right := row.fits_right) is not None]
    return GroupError(
        kind=kind,
        name=name,
        rows=len(rows),
        step_rows=len(steps),
        step_mape=mean(abs(error) for error in steps),
        step_bias=mean(steps),
        memory_rows=len(memory),
        memory_mape=mean(abs(error) for error in memory),
        memory_bias=mean(memory),
        fits_rows=len(fits),
        fits_right=mean(float(right) for right in fits),
    )
