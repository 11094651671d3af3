"""Time the kernels of training on this machine's processor, in one process and in several that compute at once.

What is measured is data: `PROBES`. Ranks are processes of one thread (`cpu_rank.py`). All run a probe in the same
window, so that they share what real ranks share: caches, memory and, where they outnumber them, cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from choreo.errors import DeviceError

__all__ = ["PROBES", "CpuProbe", "CpuRanks", "measure_cpu"]

WINDOW_S = 0.015
START_S, ANSWER_S, STOP_S = 300.0, 120.0, 2.0
SIZES = (1 << 13, 1 << 16, 1 << 19, 1 << 22)  # numbers of a memory-bound kernel: from the first cache to memory


@dataclass(frozen=True, slots=True)
class CpuProbe:
    """A kernel: sizes as `MeasuredKernel` has them, and what it moves or computes."""

    kind: str
    m: int
    n: int = 0
    k: int = 0
    dtype: str = "fp32"
    head_dim: int = 0
    bytes_moved: float = 0.0


# m, n, k: rows of a micro-batch by the layers of small models, whole and cut by tensor parallelism; then gradients.
PRODUCTS = (
    *((64, 1024, 256), (128, 256, 256), (256, 512, 512), (512, 768, 256), (512, 256, 1024), (1024, 1024, 256)),
    *((512, 128, 256), (512, 256, 128), (512, 64, 256), (512, 2048, 512), (256, 1024, 1024), (1024, 256, 256)),
)
BACKWARD = (
    *(("gemm_nn", (512, 256, 1024)), ("gemm_nn", (1024, 256, 256)), ("gemm_nn", (512, 512, 2048))),
    *(("gemm_nt", (256, 1024, 512)), ("gemm_nt", (256, 256, 1024)), ("gemm_nt", (512, 2048, 512))),
)
HALF = ((128, 256, 256), (256, 512, 512), (512, 1024, 256), (512, 256, 1024), (512, 128, 256), (256, 1024, 1024))
# Batch, heads, sequence and features of a head.
ATTENTION = ((8, 4, 64, 64), (4, 4, 128, 64), (4, 8, 128, 32), (2, 4, 256, 64), (1, 4, 512, 64))
# Bytes that a kernel moves for each number, the mean of forward and backward where both run: operators read and write
# a number of four bytes each, and backward reads what was kept as well.
BYTES = {
    "elementwise": 12.0,
    "copy": 8.0,
    "activation": 10.0,
    "norm": 10.0,
    "softmax": 10.0,
    "cross_entropy": 8.0,
    "dropout": 9.0,
    "gather": 10.0,
    "reduction": 4.0,
    "cast": 6.0,
    "upcast": 6.0,
    "optimizer": 28.0,
}
PROBES = (
    CpuProbe("operator", 8),
    *(CpuProbe(how, 4) for how in ("whole", "hollow", "cut")),
    *(CpuProbe("gemm", *shape) for shape in PRODUCTS),
    *(CpuProbe(kind, *shape) for kind, shape in BACKWARD),
    *(CpuProbe("gemm", *shape, "bf16") for shape in HALF),
    *(
        CpuProbe(f"attn_{direction}_{mask}", *shape[:3], precision, head_dim=shape[3])
        for precision in ("fp32", "bf16")
        for shape in ATTENTION
        for direction in ("fwd", "fwdbwd")
        for mask in (("causal", "full") if shape[2] == 128 else ("causal",))
    ),
    *(CpuProbe(kind, size, bytes_moved=size * each) for kind, each in BYTES.items() for size in SIZES),
)


def request(probe: CpuProbe, window_s: float) -> str:
    """The line that asks a process for the time of a kernel, which it repeats for `window_s`."""
    fields = {name: getattr(probe, name) for name in ("kind", "m", "n", "k", "dtype", "head_dim")}
    return json.dumps(fields | {"window_s": window_s}) + "\n"


class CpuRanks:
    """Processes that each run one kernel on request."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-m", "choreo.calibrate.device.cpu_rank"]
        # A single rank chooses nothing by constants, and the file that this names may not exist yet.
        environment = {name: value for name, value in os.environ.items() if name != "CHOREO_CONSTANTS"}
        environment["OMP_NUM_THREADS"] = "1"
        self._started = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
            for _ in range(count)
        ]
        try:
            self._answers(count, START_S)
        except BaseException:
            self.close()
            raise

    def time(self, probe: CpuProbe, ranks: int, window_s: float) -> float:
        """Seconds of the kernel at each of this many ranks that run it at once."""
        line = request(probe, window_s)
        for process in self._started[:ranks]:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # `_answers` tells that it ended
                process.stdin.write(line)
                process.stdin.flush()
        return statistics.mean(found["time_s"] for found in self._answers(ranks, ANSWER_S))

    def _answers(self, ranks: int, timeout_s: float) -> list[dict[str, float]]:
        deadline = time.monotonic() + timeout_s
        found = []
        for process in self._started[:ranks]:
            assert process.stdout is not None
            with selectors.DefaultSelector() as ready:
                ready.register(process.stdout, selectors.EVENT_READ)
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    raise DeviceError(f"a process that measures the processor said nothing for {timeout_s:g} s")
            line = process.stdout.readline()
            if not line:
                raise DeviceError(
                    f"a process that measures the processor ended with status {process.wait(STOP_S)}; what it printed "
                    "stands above"
                )
            answer = json.loads(line)
            if "error" in answer:
                raise DeviceError(answer["error"])
            found.append(answer)
        return found

    def close(self) -> None:
        """Stop all processes."""
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def __enter__(self) -> CpuRanks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def measure_cpu(
    processes: Any,
    counts: Sequence[int],
    cores: int,
    *,
    rounds: int = 3,
    progress: Callable[[str], None] | None = None,
) -> dict[int, list[float]]:
    """Seconds of every probe of `PROBES`, for each number of ranks: the median of some rounds over all of them.

    Rounds are far apart, so that a busy moment of the machine spoils only one of them.
    """
    took: dict[int, list[list[float]]] = {count: [[] for _ in PROBES] for count in counts}
    for number in range(rounds):
        for count in counts:
            if progress is not None:
                progress(f"round {number + 1} of {rounds}, {count} at once")
            # A thread's own time is what its work takes; where ranks share a core they wait as long again.
            shared = max(1.0, count / cores)
            for probe, found in zip(PROBES, took[count], strict=True):
                found.append(shared * processes.time(probe, count, WINDOW_S))
    return {count: [statistics.median(times) for times in found] for count, found in took.items()}
