"""Ranks of torch.distributed for tests: forked from a process that has torch imported, they train many cases."""

from __future__ import annotations

import multiprocessing as mp
import tempfile
import traceback
import warnings
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from choreo.errors import ChoreoError
from choreo.train import TrainConfig
from tests.helpers.ranks.forks import import_torch

__all__ = ["TorchRanks"]

CONTEXT = mp.get_context("fork")


class TorchRanks:
    """So many ranks, started when they are first used; `train` runs a configuration on all of them."""

    def __init__(self, ranks: int, backend: str = "gloo") -> None:
        self.ranks, self.backend = ranks, backend
        self._pipes: list[Pipe] = []
        self._processes: list[ForkProcess] = []

    def train(
        self, config: TrainConfig, others: dict[int, dict[str, Any]] | None = None, timeout_s: float = 60.0
    ) -> dict[str, Any]:
        """What rank 0 reports: its steps, and the memory; an error of any rank is raised.

        `others` are fields that some ranks are told differently.
        """
        if not self._processes:
            self._start()
        for rank, pipe in enumerate(self._pipes):
            pipe.send(replace(config, **(others or {}).get(rank, {})).to_json())
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < self.ranks:
            waited = {id(pipe): rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait([self._pipes[rank] for rank in waited.values()], timeout_s)
            if not ready:
                self.stop()
                raise AssertionError(f"only the ranks {sorted(answers)} answered in {timeout_s} s")
            for rank in [waited[id(pipe)] for pipe in ready]:
                answer = answers[rank] = self._pipes[rank].recv()
                if "error" in answer:
                    self.stop()
                    raise answer["error"]
        return answers[0]

    def losses(self, config: TrainConfig) -> list[float]:
        """The loss of each step."""
        return [step["loss"] for step in self.train(config)["steps"]]

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []

    def _start(self) -> None:
        import_torch()
        store = Path(tempfile.mkdtemp(prefix="choreo-test-")) / "store"
        for rank in range(self.ranks):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_serve, args=(rank, self.ranks, self.backend, str(store), theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)


def _serve(rank: int, ranks: int, backend: str, store: str, pipe: Pipe) -> None:
    import torch
    import torch.distributed as dist

    from choreo.train.rank.loop import train_rank

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(backend, store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    while True:
        try:
            config = TrainConfig.from_json(pipe.recv())
        except EOFError:
            return
        found: dict[str, Any] = {"steps": []}

        def report(told: dict[str, Any], found: dict[str, Any] = found) -> None:
            if "step" in told:
                found["steps"].append(told["step"])
            elif "note" in told:
                found.setdefault("notes", []).append(told["note"])
            else:
                found.update(told)

        try:
            train_rank(config, report)
        except ChoreoError as error:
            found = {"error": error}
        except BaseException:
            found = {"error": AssertionError(f"rank {rank}: {traceback.format_exc()}")}
        pipe.send(found)
