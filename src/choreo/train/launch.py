"""Start the ranks of a training run with the launcher of `choreo run`, and read their reports."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

from choreo.errors import TrainingError
from choreo.run.launch.launch import launch
from choreo.run.launch.on_ray.script import launch_on_ray
from choreo.run.launch.relay import Output
from choreo.train.config import TrainConfig
from choreo.train.elastic.restart import with_checkpoint

__all__ = ["MARK", "run_ranks"]

MARK = "choreo-train "
PREFIX = re.compile(rb"^\[rank (\d+)\] ", re.MULTILINE)


class _Reports(Output):
    """The ranks' stdout: reports go to a function, other lines to stderr."""

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(2)
        self._take = take

    def put(self, lines: bytes) -> None:
        """Take whole lines."""
        for line in lines.splitlines(keepends=True):
            text = PREFIX.sub(b"", line).decode(errors="replace")
            if text.startswith(MARK):
                self._take(json.loads(text.removeprefix(MARK)))
            else:
                super().put(line)


class _Errors(Output):
    """The ranks' stderr, held back: it matters only if no rank could say what was wrong.

    In an elastic run, what the launcher says about lost ranks is shown at once.
    """

    def __init__(self, elastic: bool) -> None:
        super().__init__(2)
        self.lines: list[str] = []
        self._elastic = elastic

    def put(self, lines: bytes) -> None:
        """Keep whole lines."""
        self.lines += lines.decode(errors="replace").splitlines()
        if self._elastic and lines.startswith(b"choreo: "):
            super().put(lines)


def run_ranks(config: TrainConfig, on_report: Callable[[dict[str, Any]], None]) -> None:
    """Run a configuration to its end. Rank 0's reports are passed on; a rank's error is raised here."""
    if not config.elastic or config.survives:
        killed = _run_once(config, on_report)
    else:
        with with_checkpoint(config) as saved:
            for left in reversed(range(config.restarts + 1)):
                killed = _run_once(saved, on_report)
                if not (killed and left):
                    break
                on_report({"note": f"{killed}; all ranks start again"})
    if killed:
        raise TrainingError(killed)


def _run_once(config: TrainConfig, on_report: Callable[[dict[str, Any]], None]) -> str:
    """Run the ranks once; returns a sentence about the rank that was killed, if one was."""
    errors: list[dict[str, Any]] = []

    def take(report: dict[str, Any]) -> None:
        (errors.append if "error" in report else on_report)(report)

    kept = _Errors(config.survives)
    program = ["choreo.train.rank", config.to_json()]
    if config.on == "ray":
        code = launch_on_ray(
            program,
            config.ranks,
            module=True,
            placement=config.placement,
            address=config.address or None,
            resources={"CPU": 1} | ({"GPU": 1} if config.device == "cuda" else {}),
            out=_Reports(take),
            err=kept,
        )
    else:
        code = launch(
            program,
            config.ranks,
            module=True,
            keep_going=config.survives,
            restarts=config.restarts if config.survives else 0,
            out=_Reports(take),
            err=kept,
        )
    if config.survives and code == 0:
        return ""  # whatever happened to some of them
    if code >= 128:
        # What other ranks say about a killed rank is a consequence.
        killed = kept.lines[-1].removeprefix("choreo: ") if kept.lines else "the ranks were stopped"
        killed = re.sub(r"\brank (\d+)", lambda found: config.role(int(found[1])), killed)
        if code - 128 in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the user wants it to end
            raise TrainingError(killed)
        return killed
    if errors:
        raise TrainingError(errors[0]["error"])
    if code:
        sys.stderr.write("".join(f"{line}\n" for line in kept.lines))
        raise TrainingError("a rank failed; its own words are above")
    return ""
