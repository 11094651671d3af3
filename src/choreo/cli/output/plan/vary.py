"""Print the table of `choreo plan --vary`: a row for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.options.plan import FIXED, batch_of, fixed_of, job_arguments, planned, share_of
from choreo.cli.output.text.table import Column, echo_json, echo_line, echo_note, echo_table
from choreo.cli.progress import waiting
from choreo.errors import PlanError, UsageError
from choreo.show.plan.words import title
from choreo.units import format_bytes, format_time

if TYPE_CHECKING:
    from choreo.plan import Planning

__all__ = ["print_varied"]


def print_varied(options: dict[str, object], as_json: bool) -> None:
    """Print a row for each value of what is varied."""
    name, values = _varied(str(options["vary"]))
    with waiting("searching plans"):
        tried = [(value, _tried(options, name, value)) for value in values]
    runs = [(value, run) for value, run in tried if not isinstance(run, PlanError)]
    if not runs:
        raise next(run for _, run in tried if isinstance(run, PlanError))
    if as_json:
        found = [
            {"value": value} | ({"error": str(run)} if isinstance(run, PlanError) else run.to_dict())
            for value, run in tried
        ]
        echo_json({"vary": name, "runs": found})
        return
    first = runs[0][1]
    heading = title(first, varied=name, global_batch=str(options["global_batch"])).replace(
        first.device.name, first.device.name.split(",")[0]
    )
    echo_line(f"{heading}; {name} varied")
    for warning in dict.fromkeys(warning for _, run in runs for warning in run.best.step.warnings):
        echo_note(f"note: {warning}")
    click.echo()
    _print_rows(name, tried, runs)


def _print_rows(name: str, tried: list[tuple[str, Planning | PlanError]], runs: list[tuple[str, Planning]]) -> None:
    """A row for each value that was `tried`; `runs` are those that have a plan."""
    unit = "tokens/s" if runs[0][1].job is not None else "samples/s"
    piped = any(run.best.plan.pp > 1 for _, run in runs)
    columns = [
        Column(name),
        Column("step"),
        Column(unit, 6),
        Column(f"{unit}/GPU", 3),
        Column("MFU"),
        Column("memory", 4),
        Column("exposed", 5),
        *([Column("bubble", 1), Column("bubble/ideal", 2)] if piped else []),
        Column("plan", wrap=True),
    ]
    none = [""] * (len(columns) - 2)
    rows = [
        [value, *none, f"cannot be run: {run}"]
        if isinstance(run, PlanError)
        else [value, *_cells(run, float(value) if name == "compute" else 1, piped=piped)]
        for value, run in tried
    ]
    echo_table(columns, rows)


def _cells(run: Planning, faster: float, *, piped: bool) -> list[str]:
    """The best plan of a run in figures, on devices of that many times the speed."""
    step = run.best.step
    room = format_bytes(step.device_bytes, binary=False)
    exposed = sum(seconds for kind, seconds in step.exposed_comm_s.items() if kind != "pp send")
    bubble = [f"{100 * step.bubble_s / step.step_time_s:.1f} %", f"{step.bubble_s / _ideal_s(run):.3f}"]
    return [
        format_time(step.step_time_s),
        f"{step.tokens_per_s_per_gpu * run.gpus:,.0f}",
        f"{step.tokens_per_s_per_gpu:,.0f}",
        f"{100 * step.mfu / faster:.1f} %",
        format_bytes(step.memory_bytes, binary=False),
        f"{100 * exposed / step.step_time_s:.1f} %",
        *(bubble if piped else []),
        str(run.best.plan) + ("" if step.fits else f"; does not fit in {room}"),
    ]


def _ideal_s(run: Planning) -> float:
    """Seconds that the busiest stage works: what a pipeline without a bubble would take."""
    pipeline = run.best.step.pipeline
    return pipeline.busy_s[pipeline.busiest]


def _varied(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    values = [value.strip() for value in rest.split(",") if value.strip()]
    if not equals or not values:
        raise UsageError(f"--vary {text!r} is not understood; write flops=0.5,1,2 or gpus=8,16,32")
    return name.strip().replace("_", "-"), values


def _tried(options: dict[str, object], name: str, value: str) -> Planning | PlanError:
    """The plan for a value, or why there is none."""
    try:
        return _run(options, name, value)
    except PlanError as error:
        return error


def _run(options: dict[str, object], name: str, value: str) -> Planning:
    from choreo.plan import HEADROOM, get_cluster, get_software, plan
    from choreo.plan.what_if import VARIABLES, vary_place, vary_software

    best = int(str(options["best"]))
    if name in VARIABLES:
        asked = job_arguments(options)
        try:
            factor = float(value)
        except ValueError:
            raise UsageError(f"{value!r} is not a factor of {name}; write --vary {name}=0.5,1,2") from None
        cluster = get_cluster(asked["cluster"])
        place, device = vary_place(cluster, cluster.chip(asked["device"]), name, factor)
        return plan(
            asked["workload"],
            cluster=place,
            gpus=asked["gpus"],
            global_batch=asked["global_batch"],
            seq=asked["seq"],
            precision=asked["precision"],
            software=vary_software(get_software(asked["software"]), name, factor),
            device=device,
            best=best,
            headroom=HEADROOM if options["headroom"] is None else share_of(str(options["headroom"])),
            **fixed_of(options),
        )
    field = name.replace("-", "_")
    changeable = (
        "gpus",
        "global_batch",
        "seq",
        "cluster",
        "device",
        "precision",
        "software",
        "model",
        *FIXED,
    )
    if field not in changeable:
        from choreo.errors import UnknownNameError

        raise UnknownNameError("quantity", name, [*VARIABLES, *(known.replace("_", "-") for known in changeable)])
    whole = field in {"gpus", "seq", *FIXED} - {"schedule", "recompute", "recompute_modules", "split"}
    if whole and not value.isdigit():
        raise UsageError(f"{value!r} is not a whole number; write --vary {name}=1,2,4")
    if field == "global_batch":
        batch_of(value, 1)
    return planned(options | {field: int(value) if whole else value})
