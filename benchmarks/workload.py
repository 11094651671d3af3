"""Whole workloads: nodes a second, chains of collectives beside the bare ones, and traces read.

    python benchmarks/workload.py [--layers 245]

Times are processor seconds of this process. The large step is simulated twice: with ranks that do the same simulated
once, and with every rank by itself. The targets: a million nodes over 1024 ranks in under 60 s, a chain of ring
all_reduces no slower than twice the bare collectives, a trace of 100,000 nodes read in under 2 s.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from choreo import GraphBuilder, build, read_trace, simulate, simulate_workload, write_trace

RANKS, NODE = 1024, 8


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = time.process_time()
    yield
    print(f"{what:60} {time.process_time() - start:8.2f} s", flush=True)


def step(layers: int) -> GraphBuilder:
    """A tensor and data parallel step: an all_reduce inside each server, and gradients between them."""
    graph = GraphBuilder(RANKS)
    inside = [tuple(range(first, first + NODE)) for first in range(0, RANKS, NODE)]
    between = [tuple(range(first, RANKS, NODE)) for first in range(NODE)]
    for rank in range(RANKS):
        last: list[int] = []
        for _ in range(layers):
            forward = graph.compute(rank, "forward", 1e-3, after=last)
            reduced = graph.collective(rank, "all_reduce", "1MiB", inside[rank // NODE], after=[forward])
            last = [graph.compute(rank, "backward", 2e-3, after=[reduced])]
            graph.collective(rank, "reduce_scatter", "8MiB", between[rank % NODE], after=last)
    return graph


def chain(length: int, ranks: int) -> None:
    """Ring all_reduces one after another, bare and as a workload."""
    topology, ring = f"ring({ranks}, 50GB/s, 1us)", build("all_reduce", "ring", ranks)
    start = time.process_time()
    for _ in range(length):
        simulate(ring, topology, "1MiB")
    bare = time.process_time() - start
    graph = GraphBuilder(ranks)
    for rank in range(ranks):
        last: list[int] = []
        for _ in range(length):
            last = [graph.collective(rank, "all_reduce", "1MiB", range(ranks), after=last)]
    start = time.process_time()
    simulate_workload(graph.finish(), topology)
    took = time.process_time() - start
    print(f"{f'{length} ring all_reduces of {ranks} ranks: workload over bare':60} {took / bare:8.2f}")


def calls(count: int) -> list[dict[str, object]]:
    """Operators as ExecutionTraceObserver writes them: two tensors in, one out, and nine attributes."""
    numbers = ("fw_parent", "seq_id", "scope", "tid", "fw_tid")
    told = [{"name": name, "type": "uint64", "value": 0} for name in numbers]
    told += [{"name": name, "type": "string", "value": ""} for name in ("op_schema", "kernel_backend", "kernel_file")]
    found: list[dict[str, object]] = []
    for number in range(2, count + 2):
        values = [[number, number // 2, 0, 1024, 4, "cpu"], [number + 1, number // 3, 0, 1024, 4, "cpu"]]
        side: dict[str, list[Any]] = {
            "values": values,
            "shapes": [[32, 32]] * 2,
            "types": ["Tensor(float)"] * 2,
            "strides": [[32, 1]] * 2,
        }
        out = {key: one[:1] for key, one in side.items()}
        attributes = [{"name": "rf_id", "type": "uint64", "value": number}, *told]
        name = f"aten::op{number % 40}"
        found.append({"id": number, "name": name, "ctrl_deps": 1, "inputs": side, "outputs": out, "attrs": attributes})
    return found


def traces(nodes: int) -> None:
    """Traces of that many nodes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = GraphBuilder(NODE)
        for rank in range(NODE):
            last: list[int] = []
            for number in range(nodes // NODE):
                if number % 10 == 9:
                    last = [graph.collective(rank, "all_reduce", "1MiB", range(NODE), after=last)]
                else:
                    last = [graph.compute(rank, f"kernel {number % 100}", 1e-5, after=last)]
        made = graph.finish()
        with timed(f"Chakra, {nodes} nodes, written"):
            write_trace(made, folder / "step")
        with timed(f"Chakra, {nodes} nodes, read"):
            read_trace(folder / "step")
        events = [
            {
                "ph": "X",
                "cat": "kernel",
                "name": f"kernel {number % 200}",
                "ts": number * 10.0,
                "dur": 9.0,
                "args": {"stream": 7 if number % 3 else 20, "correlation": number},
            }
            for number in range(nodes)
        ]
        (folder / "kineto.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
        with timed(f"Kineto, {nodes} kernels, read"):
            read_trace(folder / "kineto.json")
        (folder / "et.json").write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": calls(nodes)}))
        with timed(f"PyTorch execution trace, {nodes} nodes, read"):
            read_trace(folder / "et.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--layers", type=int, default=245, help="of the step over 1024 ranks: 4 nodes each at every rank"
    )
    layers = parser.parse_args().layers
    with timed(f"{4 * layers * RANKS} nodes over {RANKS} ranks, built"):
        graph = step(layers).finish()
    for fold in (True, False):
        with timed(f"{len(graph)} nodes over {RANKS} ranks, simulated{'' if fold else ', every rank'}"):
            simulate_workload(graph, f"hgx-h100:{RANKS // NODE}", algorithm="ring", fold=fold)
    chain(10, 256)
    traces(100_000)


if __name__ == "__main__":
    main()
