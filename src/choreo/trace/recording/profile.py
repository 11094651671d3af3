"""One step of a torch program, profiled: the execution trace and the profiler's trace, a pair of files per rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["StepProfile", "record_step", "recording"]


@contextmanager
def recording(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Trace what happens inside, at this rank, into a folder that `read_trace` takes once all ranks have written."""
    profile = StepProfile(Path(folder))
    profile.start()
    try:
        yield
    finally:
        profile.stop()


class StepProfile:
    """A profile that is started and stopped once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._profiler: Any = None

    def start(self) -> None:
        """Begin to trace."""
        from torch.profiler import ExecutionTraceObserver, profile

        self._folder.mkdir(parents=True, exist_ok=True)
        self._rank = _rank()
        observer = ExecutionTraceObserver()
        observer.register_callback(str(self._folder / f"et.{self._rank}.json"))
        self._profiler = profile(activities=_activities(), record_shapes=True, execution_trace_observer=observer)
        self._profiler.__enter__()

    def stop(self) -> None:
        """End the trace, and write it."""
        if self._profiler is None:
            return
        if _has_cuda():
            import torch

            torch.cuda.synchronize()
        profiler, self._profiler = self._profiler, None
        profiler.__exit__(None, None, None)
        profiler.export_chrome_trace(str(self._folder / f"kineto.{self._rank}.json"))


def record_step(folder: Path, number: int) -> None:
    """Trace the step of this number, counted from 1: a step ends when an optimizer has stepped."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import profile as profiled

    profile, done = StepProfile(folder), 0
    first = profiled(activities=_activities())  # of the step before: the first profile of a process is slow

    def stepped(*_: Any) -> None:
        nonlocal done
        done += 1
        if done == number - 2:
            first.__enter__()
        elif done == number - 1:
            if number > 2:
                first.__exit__(None, None, None)
            profile.start()
        elif done == number:
            profile.stop()

    register_optimizer_step_post_hook(stepped)
    if number == 1:
        profile.start()


def _activities() -> list[Any]:
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU, ProfilerActivity.CUDA] if _has_cuda() else [ProfilerActivity.CPU]


def _rank() -> int:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    return int(os.environ.get("RANK", "0"))


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())
