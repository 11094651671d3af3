"""Choreo against Gloo under torch.distributed, in one run, started by torchrun: calls by size, and training steps.

    torchrun --nproc-per-node 2 benchmarks/torch_backend.py [--most 16M] [--rounds 7] [--quick]
    torchrun --nproc-per-node 2 benchmarks/torch_backend.py --only steps --busy 2    beside two programs that compute

Every rank has a process group of each backend, and they take turns, round after round. A round's time is its slowest
rank's; a cell is the median of its rounds. A ratio is how many times as long Gloo takes: 1 is as fast, more is better.
Beside the ratio of a step stand its quartiles over the rounds: on a busy machine a step may take half or twice as long
as the one before, so that steps have four times as many rounds as calls.
The steps are of a small GPT: DDP, FSDP2, tensor parallelism by hand, and a pipeline by 1F1B. "Shows" is the
communication that shows: the step less the same step without any, which for DDP and FSDP2 is that in a group of one
rank. "CPU" is what the busiest rank's processor worked for a step. What was found goes to
benchmarks/results/torch_backend_RANKS.json, with "_busy" after RANKS where --busy is given.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from choreo.bench.result import geometric_mean
from choreo.bench.sizes import sizes_between
from choreo.train.parallel.tensor import copy, reduce
from choreo.units import parse_size

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("choreo", "gloo")
ROUND_S = 0.02  # a round repeats what it times for about this long
STEP_ROUNDS = 4  # of a step, for each round of a call
# A program that computes until its parent is gone.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10000))"
WIDTH, LAYERS, HEADS, WORDS, SEQUENCE, BATCH = 128, 4, 4, 256, 64, 8
Run = Callable[[], object]
Rounds = dict[str, list[tuple[float, float]]]  # by library: seconds of each round, and of the processor


class Block(nn.Module):
    """A layer of a GPT. With a group, its heads and its hidden features are shared out between the ranks."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        self.group, shares = group, 1 if group is None else group.size()
        self.heads, width = HEADS // shares, WIDTH // shares
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * width), nn.Linear(width, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * width), nn.Linear(4 * width, WIDTH)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        normed = copy(self.norms[0](x), self.group)
        q, k, v = self.qkv(normed).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + reduce(self.out(seen.transpose(1, 2).reshape(batch, length, -1)), self.group)
        hidden = nn.functional.gelu(self.up(copy(self.norms[1](x), self.group)))
        return x + reduce(self.down(hidden), self.group)


def gpt(group: Any = None) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [Block(group) for _ in range(LAYERS)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))


def loss(logits: Any, target: Any) -> Any:
    return nn.functional.cross_entropy(logits.reshape(-1, WORDS), target.reshape(-1))


def step_of(module: Any, batch: int = BATCH) -> Run:
    """A step on this many sequences."""
    x = torch.randint(WORDS, (batch, SEQUENCE), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def step() -> None:
        loss(module(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def sharded(group: Any) -> Run:
    module, mesh = gpt(), DeviceMesh.from_group(group, "cpu")
    for block in module:
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return step_of(module)


def pipelined(group: Any) -> Run:
    rank, size = group.rank(), group.size()
    layers = list(gpt())
    first, last = (round(at * len(layers) / size) for at in (rank, rank + 1))
    module = nn.Sequential(*layers[first:last])
    x = torch.randint(WORDS, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(1))
    stage = PipelineStage(module, rank, size, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, n_microbatches=2 * size if 2 * size <= BATCH else size, loss_fn=loss)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def step() -> None:
        schedule.step(*((x,) if rank == 0 else ()), **({"target": x} if rank == size - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps(groups: dict[str, Any]) -> dict[str, tuple[dict[str, Run], Run | None]]:
    """By name: the step of each library, and what a rank does of it without communication."""
    size = dist.get_world_size()
    alone: Any = [dist.new_group([rank], backend="gloo") for rank in range(size)][dist.get_rank()]

    class Alone:  # a rank's share of tensor parallelism, without adding up
        def size(self) -> int:
            return int(size)

    shared = gpt(Alone())
    for block in shared:
        if isinstance(block, Block):
            block.group = None
    return {
        "DDP": (
            {n: step_of(DistributedDataParallel(gpt(), process_group=g)) for n, g in groups.items()},
            step_of(DistributedDataParallel(gpt(), process_group=alone)),
        ),
        "FSDP2": ({n: sharded(g) for n, g in groups.items()}, sharded(alone)),
        "tensor": ({n: step_of(gpt(g)) for n, g in groups.items()}, step_of(shared)),
        "1F1B": ({n: pipelined(g) for n, g in groups.items()}, None),
    }


def calls(group: Any, length: int) -> dict[str, Run]:
    """Calls on this many bytes, synchronous and not."""
    rank, size = group.rank(), group.size()
    count = max(size, length // 4 // size * size)
    x, part = torch.ones(count), torch.ones(count // size)
    peer = rank ^ 1 if rank ^ 1 < size else None

    def ping_pong() -> None:
        if peer is not None:
            for sends in (rank % 2 == 0, rank % 2 == 1):
                if sends:
                    dist.send(x, group=group, group_dst=peer)
                else:
                    dist.recv(x, group=group, group_src=peer)

    found: dict[str, Run] = {
        "all_reduce": lambda: dist.all_reduce(x, dist.ReduceOp.MAX, group=group),
        "all_reduce async": lambda: dist.all_reduce(x, dist.ReduceOp.MAX, group=group, async_op=True).wait(),
        "all_gather": lambda: dist.all_gather_single(x, part, group=group),
        "all_gather async": lambda: dist.all_gather_single(x, part, group=group, async_op=True).wait(),
        "reduce_scatter": lambda: dist.reduce_scatter_single(part, x, dist.ReduceOp.MAX, group=group),
        "broadcast": lambda: dist.broadcast(x, group=group, group_src=0),
        "send/recv": ping_pong,
    }
    return found


def cpu_s() -> float:
    """Seconds that this process has kept processors busy."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def busy_cores(programs: int) -> Iterator[None]:
    """Other programs that compute meanwhile, each in a session of its own, as those of other users are."""
    command = [sys.executable, "-c", BUSY]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(programs)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def race(runs: dict[str, Run], rounds: int, control: Any) -> Rounds:
    """The rounds of each. They take turns."""

    def timed(run: Run, times: int) -> tuple[float, float]:
        dist.barrier(group=control)
        began, worked = time.perf_counter(), cpu_s()
        for _ in range(times):
            run()
        took = torch.tensor([time.perf_counter() - began, cpu_s() - worked]) / times
        dist.all_reduce(took, dist.ReduceOp.MAX, group=control)
        return float(took[0]), float(took[1])

    names = list(runs)
    for name in names:  # what is made once for each kind of call is not of a round
        timed(runs[name], 2)
    fastest = {name: min(timed(runs[name], 3)[0] for _ in range(3)) for name in names}
    times = {name: max(1, min(2000, int(ROUND_S / max(fastest[name], 1e-6)))) for name in names}
    found: Rounds = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 else names[::-1]:
            found[name].append(timed(runs[name], times[name]))
    return found


def quartiles(found: Rounds) -> tuple[float, float]:
    """Between which the ratios of half of the rounds are."""
    ratios = [gloo[0] / own[0] for gloo, own in zip(found["gloo"], found["choreo"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sizes, and fewer rounds")
    parser.add_argument("--most", default="16M", help="the largest size; M is MiB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("calls", "steps"), help="calls by size, or training steps")
    parser.add_argument("--busy", type=int, default=0, help="other programs that compute meanwhile")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size, load = dist.get_rank(), dist.get_world_size(), os.getloadavg()[0]
    groups = {name: dist.new_group(backend=name) for name in LIBRARIES}
    rounds = 3 if arguments.quick else arguments.rounds
    lengths = sizes_between(8, parse_size(arguments.most), factor=128 if arguments.quick else 8)
    cells: list[dict[str, Any]] = []

    def show(name: str, bytes_: int | None, found: Rounds) -> None:
        seconds = {one: statistics.median(took for took, _ in rows) for one, rows in found.items()}
        cpu = {one: statistics.median(worked for _, worked in rows) for one, rows in found.items()}
        ratio = seconds["gloo"] / seconds["choreo"]
        cell: dict[str, Any] = {"name": name, "ranks": size, "size_bytes": bytes_, "ratio": ratio}
        cell |= {f"{one}_us": seconds[one] * 1e6 for one in LIBRARIES}
        cell |= {f"{one}_cpu_us": cpu[one] * 1e6 for one in LIBRARIES}
        text = f"{name:<18}{'' if bytes_ is None else bytes_:>10}"
        text += "".join(f"{seconds[one] * 1e6:>13.1f}" for one in LIBRARIES) + f"{ratio:>8.2f}x"
        if bytes_ is None:
            cell["ratio_quartiles"] = low, high = quartiles(found)
            text += f" ({low:.2f} to {high:.2f})   CPU" + "".join(f"{cpu[one] * 1e6:>13.1f}" for one in LIBRARIES)
        if "alone" in seconds:
            shows = {one: seconds[one] - seconds["alone"] for one in LIBRARIES}
            cell |= {f"{one}_shows_us": shows[one] * 1e6 for one in LIBRARIES}
            text += "   shows" + "".join(f"{shows[one] * 1e6:>13.1f}" for one in LIBRARIES)
        cells.append(cell)
        if rank == 0:
            print(text, flush=True)

    if rank == 0:
        print(f"{size} ranks, us{'':<8}{'bytes':>10}{'choreo':>13}{'gloo':>13}")
    with busy_cores(arguments.busy if rank == 0 else 0):
        for length in lengths if arguments.only != "steps" else ():
            by_library = {name: calls(group, length) for name, group in groups.items()}
            for call in by_library["choreo"]:
                show(call, length, race({name: by_library[name][call] for name in LIBRARIES}, rounds, dist.group.WORLD))
        for name, (runs, alone) in steps(groups).items() if arguments.only != "calls" else ():
            everyone = runs if alone is None else {**runs, "alone": alone}
            show(f"step, {name}", None, race(everyone, STEP_ROUNDS * rounds, dist.group.WORLD))
    if rank == 0:
        for kind in ("calls", "steps") if arguments.only is None else (arguments.only,):
            ratios = [one["ratio"] for one in cells if (one["size_bytes"] is None) == (kind == "steps")]
            print(f"{kind}: Gloo takes {geometric_mean(ratios):.2f} times as long; the worst cell is {min(ratios):.2f}")
        print(f"load average before: {load:.1f}, after: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}")
        RESULTS.mkdir(exist_ok=True)
        document = {"load_average": load, "busy": arguments.busy, "cores": os.cpu_count(), "cells": cells}
        file = RESULTS / f"torch_backend_{size}{'_busy' if arguments.busy else ''}.json"
        file.write_text(json.dumps(document, indent=2) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
