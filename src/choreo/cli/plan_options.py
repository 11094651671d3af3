"""The options of `choreo plan` as a model, a job, and the fields of a plan that are fixed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypedDict

from choreo.cli.recording import keep
from choreo.errors import UsageError

if TYPE_CHECKING:
    from choreo.plan import Planning
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
    "planned",
    "workload_of",
]

# Fields of a plan that can be fixed, and the numbers that give a model.
FIXED = (
    "tp", "pp", "dp", "cp", "ep", "zero", "micro_batch", "interleave", "schedule", "recompute", "recompute_layers",
    "split",
)  # fmt: skip
SWITCHES = ("sequence_parallel", "overlap")
NUMBERS = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "parameters")
# Bytes of a number.
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
    from choreo.workload import Model

    workload = workload_of(options)
    transformer = isinstance(workload, Model)
    for name, example in (("cluster", "--cluster hgx-h100"), ("global_batch", "--global-batch 1024")):
        if options[name] is None:
            raise UsageError(f"say --{name.replace('_', '-')}, as in {example}")
    gpus = get_cluster(str(options["cluster"])).gpus if options["gpus"] is None else int(str(options["gpus"]))
    if gpus is None:
        raise UsageError(f"say --gpus, as in --gpus 512, or how many nodes there are, as in {options['cluster']}:64")
    if isinstance(workload, Model) and options["seq"] is None:
        raise UsageError(f"say how many tokens a sequence has: --seq {workload.max_seq or 8192}")
    default = ("bf16", "megatron-core") if transformer else ("fp16", "torch-eager")
    return JobArguments(
        workload=workload,
        cluster=str(options["cluster"]),
        gpus=gpus,
        global_batch=batch_of(str(options["global_batch"]), gpus),
        seq=1 if options["seq"] is None else int(str(options["seq"])),
        precision=str(options["precision"] or default[0]),
        software=str(options["software"] or default[1]),
        device=None if options["device"] is None else str(options["device"]),
    )


def batch_of(text: str, gpus: int) -> int:
    """A batch from `1024`, or from `256/gpu`."""
    match = re.fullmatch(r"\s*(\d+)\s*(/\s*gpus?)?\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is not a global batch; write 1024, or 256/gpu")
    return int(match[1]) * (gpus if match[2] else 1)


def count_of(text: str) -> float:
    """Parameters from `1.8T`, `70B`, `125e6`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE]\d+)?)\s*([kKmMbBgGtT]?)\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is not a number of parameters; write 1.8T, 70B or 125M")
    return float(match[1]) * SCALES[match[2].lower()]


def planned(options: dict[str, object]) -> Planning:
    """The answer to what was asked on the command line."""
    from choreo.plan import plan

    best = options["best"]
    if not isinstance(best, int) or best < 1:
        raise UsageError(f"--best must be at least 1, not {best}")
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
        **fixed_of(options),
    )
    keep(found)
    return found
