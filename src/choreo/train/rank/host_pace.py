"""The host's pace in launching the kernels of a layer, measured on a model so small that the GPU waits for the host."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from choreo.train.config import TrainConfig
from choreo.train.scale import LAYERS_BETWEEN, shallow

__all__ = ["measure_host_pace"]

WARM, STEPS = 3, 25
Steps = Callable[[int], dict[str, float]]


def measure_host_pace(config: TrainConfig, make_steps: Callable[[TrainConfig], Steps]) -> float:
    """Seconds of a step for each layer of this model; `make_steps` builds a model and returns what trains it.

    A shared host slows down and recovers, so the two models that are compared take turns.
    """
    few, many = (make_steps(small) for small in shallow(config))
    differences = [many(number)["time"] - few(number)["time"] for number in range(WARM + STEPS)]
    return max(0.0, median(differences[WARM:])) / LAYERS_BETWEEN
