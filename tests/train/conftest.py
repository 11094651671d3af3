"""What tests of `choreo train` share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from choreo.train import TrainConfig

MODULE = importlib.import_module("choreo.train.train")  # by its name it is the function


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """In place of real ranks, ones that report a falling loss, a bit higher with several ranks."""
    asked: list[TrainConfig] = []

    def run_ranks(config: TrainConfig, report: Callable[[dict[str, Any]], None]) -> None:
        asked.append(config)
        for step in range(config.steps):
            loss = 5.0 - 0.1 * step + 1e-7 * config.ranks
            one = {"step": step, "loss": loss, "tokens_per_s": 1e3, "time_s": 0.1, "mfu": 0.5}
            report({"step": one | {"parts": {"compute": 0.06, "tp all_reduce": 0.03, "optimizer": 0.01}}})
        names = [("F", 0), ("B", 0), ("dp all_reduce", -1), ("optimizer", -1)]
        spans = [
            {
                "rank": rank,
                "name": name,
                "micro_batch": batch,
                "chunk": 0,
                "start_s": 0.02 * at,
                "end_s": 0.02 * at + 0.02,
            }
            for rank in range(config.ranks)
            for at, (name, batch) in enumerate(names)
        ]
        report({"memory_bytes": 2e6, "timeline": spans})

    monkeypatch.setattr(MODULE, "run_ranks", run_ranks)
    return asked
