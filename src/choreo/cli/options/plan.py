"""The options of `choreo plan` as a model, a job, and the fields of a plan that are fixed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypedDict

from choreo.cli.recording import keep
from choreo.errors import UsageError

if TYPE_CHECKING:
    from choreo.plan import Planning
    from choreo.plan.training_run import TrainingRun
    from choreo.workload import Workload

__all__ = [
    "FIXED",
    "NUMBERS",
    "SWITCHES",
    "WIDTHS",
    "JobArguments",
    "batch_of",
    "count_of",
    "fixed_of",
    "job_arguments",
    "mtbf_s",
    "planned",
    "run_of",
    "share_of",
    "workload_of",
]

# Fields of a plan that can be fixed, and the numbers that give a model.
FIXED = (
    "tp", "pp", "dp", "cp", "ep", "etp", "zero", "shard_size", "micro_batch", "interleave", "schedule", "recompute",
    "recompute_layers", "recompute_modules", "split",
)  # fmt: skip
SWITCHES = ("sequence_parallel", "overlap")
NUMBERS = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "parameters")
# Bytes of a number.
LONG = 8192  # tokens of a sequence in an example
WIDTHS = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5}
SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


class JobArguments(TypedDict):
    """What `plan` is called with."""

    workload: Workload
    cluster: str
    gpus: int
    global_batch: int
    seq: int
    precision: str
    software: str
    device: str | None


def fixed_of(options: dict[str, object]) -> dict[str, int | bool | str]:
    """The fields of a plan that were given."""
    found: dict[str, int | bool | str] = {}
    for name in (*FIXED, *SWITCHES):
        value = options[name]
        if isinstance(value, int | bool | str):
            found[name] = value
    return found


def workload_of(options: dict[str, object]) -> Workload:
    """The model: by name or file, or by numbers."""
    from choreo.workload import Model, get_workload

    given = {name: options[name] for name in NUMBERS if options[name] is not None and name != "parameters"}
    if options["model"] is not None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{options['model']} already says what the model is; leave out {names}")
        return get_workload(str(options["model"]))
    missing = [name for name in ("layers", "hidden", "heads") if name not in given]
    if not given:
        raise UsageError("say which model: MODEL, like llama3-70b or a config.json, or --layers, --hidden and --heads")
    if missing:
        more = ", ".join(f"--{name}" for name in missing)
        raise UsageError(f"a model by numbers needs --layers, --hidden and --heads; give {more} too")
    name = f"{given['layers']} layers of {given['hidden']}"
    return Model(name=name, **given)  # type: ignore[arg-type]


def job_arguments(options: dict[str, object]) -> JobArguments:
    """Everything that a job must have."""
    from choreo.plan import get_cluster
    from choreo.plan.software.defaults import usual_program
    from choreo.workload import Model

    workload = workload_of(options)
    transformer = isinstance(workload, Model)
    options = options | {"cluster": options["cluster"] or _usual_cluster(options["device"])}
    cluster = options["cluster"]
    counted = None if cluster is None else get_cluster(str(cluster)).gpus
    gpus = counted if options["gpus"] is None else int(str(options["gpus"]))
    _check_complete(options | {"gpus": gpus}, workload.max_seq or LONG if isinstance(workload, Model) else None)
    assert gpus is not None
    device = None if options["device"] is None else str(options["device"])
    family = get_cluster(str(options["cluster"])).chip(device).family
    default = ("bf16", usual_program(family)) if transformer else ("fp16", "torch-eager")
    if family == "cpu":
        default = ("fp32", usual_program(family))
    return JobArguments(
        workload=workload,
        cluster=str(options["cluster"]),
        gpus=gpus,
        global_batch=batch_of(str(options["global_batch"]), gpus),
        seq=1 if options["seq"] is None else int(str(options["seq"])),
        precision=str(options["precision"] or default[0]),
        software=str(options["software"] or default[1]),
        device=device,
    )


def _check_complete(options: dict[str, object], max_seq: int | None) -> None:
    """Name everything that a job still needs at once, with an example; `max_seq` is None where there are no tokens."""
    examples = {"cluster": "hgx-h100", "gpus": "64", "global_batch": "256"}
    if max_seq is not None:
        examples["seq"] = str(min(max_seq, LONG))
    lacking = {f"--{name.replace('_', '-')}": value for name, value in examples.items() if options[name] is None}
    example = " ".join(f"{option} {value}" for option, value in lacking.items())
    if lacking:
        cluster = options["cluster"]
        nodes = f"; {cluster}:8 would say how many GPUs there are" if options["gpus"] is None and cluster else ""
        raise UsageError(f"a job also needs {', '.join(lacking)}, as in {example}{nodes}")


def _usual_cluster(device: object) -> str | None:
    """The machine that a device is usually in, if a device was given and has one."""
    from choreo.hardware import get_device

    return None if device is None else get_device(str(device)).cluster or None


def batch_of(text: str, gpus: int) -> int:
    """A batch from `1024`, or from `256/gpu`."""
    match = re.fullmatch(r"\s*(\d{1,18})\s*(/\s*gpus?)?\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is not a global batch; write 1024, or 256/gpu")
    return int(match[1]) * (gpus if match[2] else 1)


def count_of(text: str, what: str) -> float:
    """A number of parameters or tokens (`what`) from `1.8T`, `70B`, `125e6`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE]\d+)?)\s*([kKmMbBgGtT]?)\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is not a number of {what}; write 1.8T, 70B or 125M")
    return float(match[1]) * SCALES[match[2].lower()]


FIT_SEQ = 4096


def planned(options: dict[str, object]) -> Planning:
    """The answer to what was asked on the command line."""
    from choreo.plan import HEADROOM, plan

    best = options["best"]
    if not isinstance(best, int) or best < 1:
        raise UsageError(f"--best must be at least 1, not {best}")
    headroom = HEADROOM if options["headroom"] is None else share_of(str(options["headroom"]))
    if options["fit"]:
        found = _least(options, best, headroom)
    else:
        asked = job_arguments(options)
        found = plan(
            asked["workload"],
            cluster=asked["cluster"],
            gpus=asked["gpus"],
            global_batch=asked["global_batch"],
            seq=asked["seq"],
            precision=asked["precision"],
            software=asked["software"],
            device=asked["device"],
            best=best,
            headroom=headroom,
            **fixed_of(options),
        )
    keep(found)
    return found


def _least(options: dict[str, object], best: int, headroom: float) -> Planning:
    """The least number of devices that suffices; for a sequence of `FIT_SEQ` tokens on each, if nothing is said."""
    from choreo.plan import least_gpus
    from choreo.workload import Model

    if options["gpus"] is not None:
        raise UsageError("--fit finds how many GPUs are needed; leave out --gpus, or --fit")
    batch = str(options["global_batch"] or "1/gpu")
    workload = workload_of(options)
    most = workload.max_seq if isinstance(workload, Model) else 0
    seq = options["seq"] or (min(FIT_SEQ, most or FIT_SEQ) if isinstance(workload, Model) else None)
    asked = job_arguments(options | {"gpus": 1, "global_batch": batch, "seq": seq})
    return least_gpus(
        asked["workload"],
        cluster=asked["cluster"],
        global_batch=batch if "/" in batch else asked["global_batch"],
        seq=asked["seq"],
        precision=asked["precision"],
        software=asked["software"],
        device=asked["device"],
        best=best,
        headroom=headroom,
        **fixed_of(options),
    )


def share_of(text: str) -> float:
    """A share from `10%` or `0.1`.

    >>> share_of("10%"), share_of("0.25")
    (0.1, 0.25)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(%?)\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is not a share; write 10% or 0.1")
    return float(match[1]) / (100 if match[2] else 1)


def mtbf_s(text: str) -> float:
    """The mean time between failures in seconds, from `50000h`, `30d`, `2y` or hours without a unit.

    >>> mtbf_s("2h"), mtbf_s("1d")
    (7200.0, 86400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE]\d+)?)\s*([a-z]?)\s*", text)
    units = {"": 3600.0, "h": 3600.0, "d": 86400.0, "y": 365.25 * 86400.0}
    if match is None or match[2] not in units:
        raise UsageError(f"{text!r} is not a time between failures; write 50000h, 30d or 5y, for one GPU")
    return float(match[1]) * units[match[2]]


def run_of(planning: Planning, options: dict[str, object]) -> TrainingRun | None:
    """What the whole run takes, if tokens, a price or failures were given."""
    from choreo.plan.training_run import Failures, training_run

    price, mtbf, tokens = (options[name] for name in ("price_per_gpu_hour", "mtbf", "tokens"))
    if price is None and mtbf is None and tokens is None:
        return None
    step_tokens = planning.global_batch * max(1, planning.seq)
    return training_run(
        planning.best.step.step_time_s,
        step_tokens,
        planning.gpus,
        tokens=1e9 if tokens is None else count_of(str(tokens), "tokens"),
        parameters=planning.workload.parameters,
        price_per_gpu_hour=None if price is None else float(str(price)),
        failures=None if mtbf is None else Failures(mtbf_s(str(mtbf))),
    )
