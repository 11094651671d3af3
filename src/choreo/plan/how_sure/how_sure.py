"""How sure a prediction is: the errors on published steps like it, by device, precision, program and kind of model.

On an architecture without published steps, times are as uncertain as where nothing is known.

`errors.toml` has, for each group of published steps, the error that nine of ten stay within.
`tools/planning_accuracy.py --write` makes it from steps that were predicted without their source. The most similar
group with enough steps is used for a job.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from choreo.plan.job import TrainingJob

__all__ = ["FEWEST", "FILE", "NINE_OF_TEN", "UNKNOWN", "Errors", "errors_of", "fits_chance"]

FILE = Path(__file__).parent / "errors.toml"
FEWEST = 9  # the fewest steps of a group from which nine of ten can be told
# Similarity, most similar first: the more fields agree the better, then in this order.
ALIKE = (
    ("architecture", "precision", "software", "experts"),
    ("precision", "software", "experts"),
    ("software", "experts"),
    ("architecture", "precision", "experts"),
    ("software",),
    ("experts",),
    (),
)
NO_STEP = "no published step"
NINE_OF_TEN = 1.645  # standard deviations either side


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors that nine of ten stay within, and what they come from."""

    time: float
    memory: float
    time_like: str
    memory_like: str

    @property
    def compared(self) -> bool:
        """Whether steps like it were compared with their prediction."""
        return not self.time_like.startswith(NO_STEP)

    def range_of(self, value: float, *, memory: bool = False) -> tuple[float, float]:
        """The range in which the true value probably lies.

        >>> Errors(0.25, 0.0, "", "").range_of(1.0)
        (0.8, 1.25)
        """
        within = 1 + (self.memory if memory else self.time)
        return value / within, value * within


# Nothing like it was ever compared with a measurement.
UNKNOWN = Errors(0.5, 0.5, NO_STEP, NO_STEP)


def errors_of(job: TrainingJob) -> Errors:
    """The errors on published steps like a job's.

    >>> from choreo.plan.network import get_cluster
    >>> from choreo.plan.software import get_software
    >>> from choreo.workload import get_model
    >>> place = get_cluster("hgx-h100")
    >>> about = (8, 16, 4096, place, place.chip(), get_software("nemo"), "bf16")
    >>> 0.02 < errors_of(TrainingJob(get_model("llama3-8b"), *about)).time < 0.3
    True
    """
    wanted = {
        "architecture": job.device.architecture,
        "precision": job.precision,
        "software": job.software.name.split("+")[0],
        "experts": "experts" if job.model.experts else "dense",
    }
    (time, time_like), (memory, memory_like) = (_nearest(tuple(wanted.items()), name) for name in ("time", "memory"))
    if job.device.family != "cpu" and not _was_compared(job.device.architecture):
        # Errors on other chips say how well programs are known, not how well this one's curves are.
        time, time_like = UNKNOWN.time, f"{UNKNOWN.time_like} on {job.device.architecture}"
    return Errors(time, memory, time_like, memory_like)


@cache
def _nearest(like: tuple[tuple[str, str], ...], figure: str) -> tuple[float, str]:
    wanted = dict(like)
    for names in ALIKE:
        for group in _groups():
            same = set(group) & set(wanted) == set(names) and all(group[name] == wanted[name] for name in names)
            if same and int(str(group.get(f"{figure}_steps", 0))) >= FEWEST:
                allowed = ", ".join(wanted[name] for name in names) or "any"
                return float(str(group[figure])), f"{group[f'{figure}_steps']} steps: {allowed}"
    return UNKNOWN.time, UNKNOWN.time_like


def _was_compared(architecture: str) -> bool:
    """Whether there are published steps on an architecture."""
    return architecture in _file()["compared"]


def _groups() -> list[Mapping[str, object]]:
    return _file()["groups"]


@cache
def _file() -> Mapping[str, list[Any]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def fits_chance(memory_bytes: float, device_bytes: float, error: float) -> float:
    """How likely a plan fits in memory, if the logarithm of the error is normally distributed.

    >>> fits_chance(50e9, 80e9, 0.1) > 0.99, fits_chance(80e9, 80e9, 0.1)
    (True, 0.5)
    """
    spread = math.log1p(max(error, 1e-3)) / NINE_OF_TEN
    if memory_bytes <= 0:
        return 1.0
    return 0.5 * (1 + math.erf(math.log(device_bytes / memory_bytes) / spread / math.sqrt(2)))
