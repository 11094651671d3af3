"""Print the days, cost and failures of a whole training run, below the plan of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from choreo.cli.output.text.table import echo_line
from choreo.show.plan.words import run_words

if TYPE_CHECKING:
    from choreo.plan.training_run import TrainingRun

__all__ = ["print_run", "with_run"]


def print_run(run: TrainingRun | None) -> None:
    """Print the run, if one was asked for."""
    for label, words in zip(("run", ""), run_words(run) if run is not None else [], strict=False):
        echo_line(words, label=label, indent=8)


def with_run(document: dict[str, object], run: TrainingRun | None) -> dict[str, object]:
    """The document, with the run in it if one was asked for."""
    return document if run is None else document | {"run": run.to_dict()}
