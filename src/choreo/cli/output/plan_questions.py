"""Other questions to `choreo plan`: a model by itself, a row for each value, what is sent, the parameter server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from choreo.cli.output.table import Column, echo_json, echo_line, echo_table
from choreo.cli.plan_options import batch_of, count_of, fixed_of, job_arguments, workload_of
from choreo.errors import PlanError, UsageError
from choreo.show.plan.words import plan_words, title
from choreo.units import counted, format_bandwidth, format_bytes, format_count, format_time

if TYPE_CHECKING:
    from choreo.plan import Planning

__all__ = ["describe", "print_parameter_server", "print_traffic", "print_varied"]

WIDTHS = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5}


def describe(options: dict[str, object], as_json: bool) -> None:
    """A model by itself: its parameters, a layer's bytes, FLOPs a token."""
    from choreo.workload import Model

    precision = str(options["precision"] or "bf16")
    if precision not in WIDTHS:
        raise UsageError(f"precision must be one of {', '.join(WIDTHS)}, not {precision!r}")
    width = WIDTHS[precision]
    if options["parameters"] is not None:
        found = _by_count(options, width)
    else:
        work = workload_of(options)
        found = {"model": work.name, "parameters": float(work.parameters), "bytes": work.parameters * width}
        if isinstance(work, Model):
            seq = int(str(options["seq"] or work.max_seq or 2048))
            layer = max(work.parameters_per_layer(number) for number in {0, work.layers - 1})
            found |= {
                "layers": work.layers,
                "parameters_per_layer": float(layer),
                "layer_bytes": layer * width,
                "active_parameters": float(work.active_parameters),
                "seq": seq,
                "forward_flops_per_token": work.flops_per_token(seq),
            }
    if as_json:
        echo_json(found | {"precision": precision})
        return
    per = f"{width:g} {'byte' if width == 1 else 'bytes'}"
    whole = format_bytes(float(str(found["bytes"])), binary=False)
    click.echo(f"{found['model']}: {format_count(float(str(found['parameters'])))} parameters, {whole} at {per}")
    if "layers" in found:
        layer_bytes = format_bytes(float(str(found["layer_bytes"])), binary=False)
        each = format_count(float(str(found["parameters_per_layer"])))
        click.echo(f"{found['layers']} layers of {each} parameters: a layer needs {layer_bytes} at {per}")
    if "forward_flops_per_token" in found:
        flops = format_count(float(str(found["forward_flops_per_token"]))).replace("B", "G")
        click.echo(f"a token takes {flops}FLOP forward in a sequence of {found['seq']} tokens, and twice that backward")


def _by_count(options: dict[str, object], width: float) -> dict[str, object]:
    parameters = count_of(str(options["parameters"]))
    if not isinstance(options["layers"], int) or options["layers"] < 1:
        raise UsageError("--parameters goes with --layers N, at least 1: a model known by its parameters and layers")
    each = parameters / options["layers"]
    return {
        "model": f"a model of {options['layers']} layers",
        "parameters": parameters,
        "bytes": parameters * width,
        "layers": options["layers"],
        "parameters_per_layer": each,
        "layer_bytes": each * width,
    }


def print_parameter_server(options: dict[str, object], as_json: bool) -> None:
    """What one parameter server must take in, against its adapter."""
    from choreo.plan.parameter_server import parameter_server

    for name, example in (("gpus", "--gpus 256"), ("steps_per_s", "--steps-per-s 3")):
        if options[name] is None:
            raise UsageError(f"--parameter-server needs --{name.replace('_', '-')}, as in {example}")
    if options["gradients"] is not None:
        if options["model"] is not None:
            raise UsageError(f"{options['model']} already says how large the gradients are; leave out --gradients")
        size = float(str(options["gradients"]))
    else:
        size = workload_of(options).parameters * WIDTHS.get(str(options["precision"] or "fp32"), 4)
    found = parameter_server(
        size, int(str(options["gpus"])), float(str(options["steps_per_s"])), float(str(options["parameter_server"]))
    )
    if as_json:
        echo_json(
            {
                "gradient_bytes": found.gradient_bytes,
                "gpus": found.devices,
                "steps_per_s": found.steps_per_s,
                "nic_bytes_per_s": found.nic_bytes_per_s,
                "needed_bytes_per_s": found.needed_bytes_per_s,
                "holds": found.holds,
                "most_steps_per_s": found.most_steps_per_s,
                "ring_bytes_per_s": found.ring_bytes_per_s,
            }
        )
        return
    nic = format_bandwidth(found.nic_bytes_per_s)
    size_words = format_bytes(found.gradient_bytes, binary=False)
    click.echo(
        f"{counted(found.devices, 'GPU')} that each send {size_words} of gradients "
        f"{found.steps_per_s:g} times per second: the server takes in {format_bandwidth(found.needed_bytes_per_s)}"
    )
    if found.holds:
        click.echo(f"its adapter carries {nic}: enough, up to {found.most_steps_per_s:.3g} steps per second")
    else:
        click.echo(
            f"its adapter carries {nic}: not enough; {found.most_steps_per_s:.3g} steps per second are possible, or "
            f"{counted(found.most_devices, 'GPU')} at that pace"
        )
    click.echo(f"a ring all_reduce sends {format_bandwidth(found.ring_bytes_per_s)} through each GPU instead")


def print_traffic(planning: Planning, as_json: bool) -> None:
    """What the best plan sends, and whether the links inside a server keep up with those between."""
    from choreo.plan.traffic import balance, traffic

    if planning.job is None:
        raise UsageError(f"--traffic is of a transformer's plan, not of {planning.workload.name}; leave it out")
    best = planning.best.plan
    rows, weighed = traffic(planning.job, best), balance(planning.job, best)
    if as_json:
        echo_json(
            {
                "plan": best.fields(),
                "traffic": [
                    {
                        "axes": row.axes,
                        "collective": row.collective,
                        "ranks": row.ranks,
                        "size_bytes": row.size_bytes,
                        "sent_bytes": row.through_bytes,
                        "times": row.times,
                        "step_bytes": row.step_bytes,
                        "link": row.link,
                        "bandwidth_bytes_per_s": row.bandwidth_bytes_per_s,
                        "seconds": row.seconds,
                    }
                    for row in rows
                ],
                "balance": weighed
                and {
                    "ratio": weighed.ratio,
                    "inside_bytes_per_s": weighed.inside_bytes_per_s,
                    "between_bytes_per_s": weighed.between_bytes_per_s,
                    "holds": weighed.holds,
                },
            }
        )
        return
    echo_line(title(planning))
    click.echo(plan_words(best))
    click.echo()
    echo_table(
        [
            Column("along", left=True),
            Column("collective", left=True),
            Column("ranks"),
            Column("size", 1),
            Column("a GPU sends"),
            Column("times", 3),
            Column("in a step", 5),
            Column("over", 2, left=True),
            Column("at", 6),
            Column("takes", 4),
        ],
        [
            [
                row.axes,
                row.collective,
                str(row.ranks),
                format_bytes(row.size_bytes),
                format_bytes(row.through_bytes),
                f"{row.times:,}",
                format_bytes(row.step_bytes, binary=False),
                row.link,
                format_bandwidth(row.bandwidth_bytes_per_s),
                format_time(row.seconds),
            ]
            for row in sorted(rows, key=lambda row: -row.step_bytes)
        ],
    )
    if weighed is not None:
        inside, between = map(format_bandwidth, (weighed.inside_bytes_per_s, weighed.between_bytes_per_s))
        there = weighed.inside_bytes_per_s / weighed.between_bytes_per_s
        click.echo()
        click.echo(
            f"an all_reduce of n among {best.tp} GPUs moves {weighed.ratio:g} n over each link inside the server, "
            f"a pipeline n between servers:\ninside must be {weighed.ratio:g} times between; it is {inside} to "
            f"{between}, {there:.3g} times: {'enough' if weighed.holds else 'not enough'}"
        )


def print_varied(options: dict[str, object], as_json: bool) -> None:
    """A row for each value of what is varied."""
    name, values = _varied(str(options["vary"]))
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
    click.echo(title(first).replace(first.device.name, first.device.name.split(",")[0]) + f"; {name} varied")
    click.echo()
    unit = "tokens/s" if first.job is not None else "samples/s"
    piped = any(run.best.plan.pp > 1 for _, run in runs)
    rows = []
    for value, run in tried:
        if isinstance(run, PlanError):
            rows.append([value, *[""] * (8 if piped else 6), f"cannot be run: {run}"])
            continue
        step = run.best.step
        exposed = sum(seconds for kind, seconds in step.exposed_comm_s.items() if kind != "pp send")
        bubble = [f"{100 * step.bubble_s / step.step_time_s:.1f} %", f"{step.bubble_s / _ideal_s(run):.3f}"]
        rows.append(
            [
                value,
                format_time(step.step_time_s),
                f"{step.tokens_per_s_per_gpu * run.gpus:,.0f}",
                f"{step.tokens_per_s_per_gpu:,.0f}",
                f"{100 * step.mfu / (float(value) if name == 'compute' else 1):.1f} %",
                format_bytes(step.memory_bytes, binary=False),
                f"{100 * exposed / step.step_time_s:.1f} %",
                *(bubble if piped else []),
                str(run.best.plan),
            ]
        )
    columns = [
        Column(name),
        Column("step"),
        Column(unit, 6),
        Column("a GPU", 3),
        Column("MFU"),
        Column("memory", 4),
        Column("exposed", 5),
        *([Column("bubble", 1), Column("of ideal", 2)] if piped else []),
        Column("plan", wrap=True),
    ]
    echo_table(columns, rows)


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
    from choreo.plan import get_cluster, get_software, plan
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
        *_fields(options),
    )
    if field not in changeable:
        from choreo.errors import UnknownNameError

        raise UnknownNameError("thing to vary", name, [*VARIABLES, *(one.replace("_", "-") for one in changeable)])
    whole = field in ("gpus", "seq", "tp", "pp", "dp", "cp", "ep", "zero", "micro_batch", "interleave")
    if whole and not value.isdigit():
        raise UsageError(f"{value!r} is not a whole number; write --vary {name}=1,2,4")
    if field == "global_batch":
        batch_of(value, 1)
    from choreo.cli.commands.plan import planned

    return planned(options | {field: int(value) if whole else value})


def _fields(options: dict[str, object]) -> list[str]:
    from choreo.cli.commands.plan import FIXED

    return [name for name in FIXED if name in options]
