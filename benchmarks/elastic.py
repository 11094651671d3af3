"""How long training stands still when a rank is killed or stopped, against torchrun's restart in the same run.

    python benchmarks/elastic.py [--ranks 4] [--events 3] [--zero 1] [--width 256]

A small MLP. With `choreo.Elastic` the others go on; torchrun starts all processes again, which go on from a checkpoint
that rank 0 writes after every step (DDP over Gloo). Both take turns. Recovery is how much longer than the median the
longest step after the event took. What was found goes to benchmarks/results/elastic.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "elastic.json"
BATCH, BEFORE, FOREVER = 16, 15, 1_000_000
LONGEST_S = 100.0
TO_REACH_S = 0.5


def make(width: int) -> tuple[Any, Any]:
    """The model and its optimizer."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_of(model: Any, width: int, step: int, sample: int) -> Any:
    """The loss of a sample."""
    import torch

    x = torch.randn(8, width, generator=torch.Generator().manual_seed(1000 * step + sample))
    return (model(x) - x.sin()).square().mean()


def tell(*words: object) -> None:
    """Print a line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def elastic_rank(width: int, zero: int) -> None:
    """One rank of a job that survives."""
    import choreo

    model, optimizer = make(width)
    tell("pid", os.getpid())
    with choreo.Elastic(model, optimizer, zero=zero) as job:
        for step in job.steps(FOREVER):
            job.backward(partial(loss_of, model, width, step), samples=range(BATCH))
            job.step()
            tell("step", step, time.monotonic(), len(job.ranks))


def torchrun_rank(width: int, file: Path) -> None:
    """One rank of a job that is started again as a whole."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model, optimizer = make(width)
    dist.init_process_group("gloo")
    rank, ranks, first = dist.get_rank(), dist.get_world_size(), 0
    if file.exists():
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    wrapped = DistributedDataParallel(model)
    tell("pid", os.getpid())
    for step in range(first, FOREVER):
        optimizer.zero_grad()
        sum(loss_of(wrapped, width, step, i) for i in range(rank, BATCH, ranks)).backward()
        optimizer.step()
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, file.with_suffix(".part"))
            file.with_suffix(".part").replace(file)
        dist.barrier()
        tell("step", step, time.monotonic(), ranks)


class Job:
    """A job in progress, and what it prints."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.pids: list[int] = []
        self.done: dict[int, float] = {}  # when each step was done for the first time
        self.ranks = 0  # of the last step
        self._rest = b""

    def look_until(self, ready: Any) -> None:
        """Read what it prints until something holds."""
        end_s = time.monotonic() + LONGEST_S
        while not ready():
            if time.monotonic() > end_s or self.process.poll() is not None:
                raise TimeoutError(f"{' '.join(self._words)}: nothing came for {LONGEST_S:g} s")
            time.sleep(0.002)
            assert self.process.stdout is not None
            with contextlib.suppress(BlockingIOError):
                self._rest += os.read(self.process.stdout.fileno(), 1 << 16)
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                kind, *told = line.decode().rpartition("] ")[2].split()
                if kind == "pid":
                    self.pids.append(int(told[0]))
                elif kind == "step":
                    self.done.setdefault(int(told[0]), float(told[1]))
                    self.ranks = int(told[2])

    def end(self) -> None:
        """Stop it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def recoveries(job: Job, ranks: int, events: list[int]) -> list[float]:
    """What each event costs: a signal to a rank, after which the job has to come to its strength again."""
    found = []
    for number in events:
        job.look_until(lambda: job.ranks == ranks and len(job.pids) >= ranks)
        start = max(job.done, default=0)
        job.look_until(lambda start=start: max(job.done, default=0) >= start + BEFORE)
        last = max(job.done)
        normal_s = statistics.median(job.done[step] - job.done[step - 1] for step in range(last - 8, last))
        victim = job.pids.pop(0)
        event_s = time.monotonic()
        os.kill(victim, number)
        # A step may have been on its way already; what the event held up is the longest of the next few.
        job.look_until(lambda last=last: max(job.done) >= last + 3)
        late = [step for step in sorted(job.done) if step > last and job.done[step] >= event_s][:3]
        gaps = [job.done[step] - max(event_s, job.done[step - 1]) for step in late]
        found.append(max(gaps) - normal_s)
        if number == signal.SIGSTOP:
            os.kill(victim, signal.SIGKILL)
    return found


def main() -> None:
    """Measure both in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--events", type=int, default=3)
    parser.add_argument("--zero", type=int, default=1)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--as", dest="role", choices=("elastic", "torchrun"))
    parser.add_argument("--file", type=Path)
    given = parser.parse_args()
    if given.role == "elastic":
        return elastic_rank(given.width, given.zero)
    if given.role == "torchrun":
        return torchrun_rank(given.width, given.file)
    own = [__file__, "--width", str(given.width), "--zero", str(given.zero)]
    n, restarts = str(given.ranks), str(3 * given.events)
    choreo = [sys.executable, "-m", "choreo", "run", "-n", n, "--restarts", restarts, *own, "--as", "elastic"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n]
    # A restart often finds the addresses of the processes before it, and fails; so torchrun may try again many times.
    torchrun += ["--max-restarts", "100"]
    rows: dict[str, list[float]] = {"killed": [], "stopped": [], "torchrun, killed": []}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.events):
            job = Job(choreo)
            killed, stopped = recoveries(job, given.ranks, [signal.SIGKILL, signal.SIGSTOP])
            job.end()
            file = Path(folder) / f"{time.monotonic()}.pt"
            job = Job([*torchrun, *own, "--as", "torchrun", "--file", str(file)])
            try:
                [peer] = recoveries(job, given.ranks, [signal.SIGKILL])
            except TimeoutError:  # its processes wait for those of an earlier attempt: it counts as this long
                peer = LONGEST_S
            job.end()
            for name, value in zip(rows, (killed, stopped, peer), strict=True):
                rows[name].append(value)
                print(f"{name}: {value:.3f} s", file=sys.stderr)
    print(f"{given.ranks} ranks, zero {given.zero}, width {given.width}; the load was {load:.1f}, and is")
    print(f"{os.getloadavg()[0]:.1f}; recovery in seconds, and how often torchrun's is as long")
    peer = statistics.median(rows["torchrun, killed"])
    for name, values in rows.items():
        median = statistics.median(values)
        note = f"   (to reach: {TO_REACH_S})" if name == "killed" else ""
        print(
            f"{name:18} {median:8.3f}   {min(values):.3f} to {max(values):.3f} {peer / max(median, 1e-3):7.1f}x{note}"
        )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"ranks": given.ranks, "zero": given.zero, "load": load, "recovery_s": rows}, indent=1)
    )
    return None


if __name__ == "__main__":
    main()
