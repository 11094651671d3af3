"""What `choreo synthesize` reaches of the bound, cell by cell, and how long it takes.

    python benchmarks/synthesize.py [--only TEXT] [--nodes 1,2,4] [--sizes 1MiB,64MiB] [--graphs 50] [--large]
                                    [--workers 16] [--limit 300] [--rows FILE] [--resume]
    python benchmarks/synthesize.py --table FILE...

A cell is a network, a collective and a size, with the share of the bound that it should reach. Every cell is measured
in a process of its own, `--workers` of them at a time, the largest networks first, and ended after `--limit` seconds.
It is printed with the best of the library beside it and the user seconds that it took; networks that differ in name
only are measured once. Each row is written as soon as it is there, to benchmarks/results/synthesize.jsonl or to
`--rows`; with `--resume` cells that have a schedule in this file are left out. The cells below their bar are named at
the end. `--table` measures nothing: it prints such files as rows of networks, for docs/explanation/synthesis-table.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from synthesis_cells import COLLECTIVES, Cell, catalogue, large, strange, zipf

from choreo.synthesize import search

ROWS = Path(__file__).parent / "results" / "synthesize.jsonl"


@dataclass(frozen=True)
class Found:
    """What a cell reached; nothing if `generator` says why there is no schedule."""

    name: str
    generator: str
    efficiency: float
    bar: float
    library: float
    user_s: float
    may_take_s: float

    @property
    def misses(self) -> list[str]:
        """What it should have reached."""
        if not self.efficiency:
            return [self.generator]
        short = [f"{100 * self.efficiency:.1f} % of {100 * self.bar:.0f}"] if self.efficiency < self.bar else []
        return short + ([f"{self.user_s:.1f} s of {self.may_take_s:.0f}"] if self.user_s > self.may_take_s else [])

    @property
    def line(self) -> str:
        """For the terminal; a star marks what misses its bar."""
        return (
            f"{self.name:<44} {self.generator:<44} {100 * self.efficiency:6.1f} % (library {100 * self.library:5.1f}, "
            f"bar {100 * self.bar:.0f}) {self.user_s:6.2f} s{' *' if self.misses else ''}"
        )


def measured(cell: Cell) -> Found:
    """Synthesize it."""
    before = time.process_time()
    found = search(cell.collective, cell.network, cell.size, traffic=cell.traffic)
    library = 0.0 if found.library is None else found.library["efficiency"]
    took = time.process_time() - before
    return Found(cell.name, found.generator, found.efficiency, cell.bar, library, took, cell.seconds)


def nothing(cell: Cell, why: str, after_s: float) -> Found:
    """The row of a cell that has no schedule."""
    return Found(cell.name, why, 0.0, cell.bar, 0.0, after_s, cell.seconds)


def tell(answer: Connection, cell: Cell) -> None:
    """Measure a cell in a process of its own."""
    before = time.process_time()
    try:
        found = measured(cell)
    except Exception as error:
        found = nothing(cell, f"{type(error).__name__}: {error}", time.process_time() - before)
    answer.send(found)


def all_measured(cells: Iterable[Cell], workers: int, limit_s: float) -> Iterator[Found]:
    """Measure cells, a few at a time, each within a limit of time."""
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # a cell has one core
    context = get_context("forkserver")
    context.set_forkserver_preload(["choreo.synthesize"])
    waiting = sorted(cells, key=lambda cell: cell.network.num_devices)
    running: dict[Connection, tuple[Cell, BaseProcess, float]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            mine, its = context.Pipe(duplex=False)
            cell = waiting.pop()
            started = context.Process(target=tell, args=(its, cell), daemon=True)
            started.start()
            its.close()
            running[mine] = cell, started, time.monotonic() + limit_s
        first = min(until for _, _, until in running.values())
        ready = wait(list(running), timeout=max(0.0, first - time.monotonic()))
        for mine, (cell, process, until) in list(running.items()):
            if mine in ready:
                try:
                    yield mine.recv()
                except EOFError:
                    yield nothing(cell, "its process died", 0.0)
            elif time.monotonic() >= until:
                process.kill()
                yield nothing(cell, f"none in {limit_s:.0f} s", limit_s)
            else:
                continue
            process.join()
            mine.close()
            del running[mine]


def same_network(cell: Cell) -> tuple[object, ...]:
    """Equal for cells that differ in their network's name only."""
    network = cell.network
    links = network.links
    columns = (links.src, links.dst, links.bandwidth_bytes_per_s, links.latency_s, links.overhead_s, links.gap_s)
    blocks = tuple((block.kind, block.size) for block in network.blocks)
    figures = tuple(column.tobytes() for column in (*columns, network.slowdown, network.reduces))
    return blocks, figures, cell.collective, cell.size, str(cell.traffic)


def table(found: Iterable[Found]) -> Iterator[str]:
    """A row for each network and size, the collectives beside each other: what was reached, and by the library."""
    yield "| network | " + " | ".join(COLLECTIVES) + " |"
    yield "| --- " * (1 + len(COLLECTIVES)) + "|"
    rows: dict[str, dict[str, str]] = {}
    for one in found:
        network, collective, size = one.name.removesuffix(" Zipf").rsplit(" ", 2)
        reached = f"{100 * one.efficiency:.1f} ({100 * one.library:.1f})" if one.efficiency else "none"
        rows.setdefault(f"{network}, {size}", {})[collective] = reached
    for network, cells in sorted(rows.items()):
        yield f"| {network} | " + " | ".join(cells.get(collective, "") for collective in COLLECTIVES) + " |"


def summary(found: list[Found]) -> Iterator[str]:
    """How many reach their bar, and which do not."""
    missed = sorted((one for one in found if one.misses), key=lambda one: one.name)
    yield f"\n{len(found) - len(missed)} of {len(found)} cells reach their bar"
    for one in missed:
        yield f"  below: {one.name}: {', '.join(one.misses)}"


def read_rows(*files: Path) -> list[Found]:
    """The rows of files; of several with one name the last."""
    rows = [Found(**json.loads(line)) for file in files for line in file.read_text().splitlines()]
    return list({one.name: one for one in rows}.values())


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--nodes", default="1,2,4")
    parser.add_argument("--sizes", default="1MiB,64MiB,1GiB")
    parser.add_argument("--graphs", type=int, default=50)
    parser.add_argument("--large", action="store_true", help="also 64x64 tori and graphs of 1,024 devices")
    parser.add_argument("--workers", type=int, default=1, help="how many cells are measured at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a cell is given up")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where rows are written, as lines of JSON")
    parser.add_argument("--resume", action="store_true", help="leave out what that file has, and add to it")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print these rows and measure nothing")
    asked = parser.parse_args()
    if asked.table:
        found = read_rows(*asked.table)
        print(*table(found), *summary(found), sep="\n")
        return
    nodes = [int(count) for count in asked.nodes.split(",")]
    cells = [*catalogue(nodes, asked.sizes.split(",")), *strange(asked.graphs), *zipf()]
    cells += large() if asked.large else []
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    found = [one for one in read_rows(asked.rows) if one.efficiency] if asked.resume and asked.rows.exists() else []
    done = {one.name for one in found}
    alike: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        if asked.only in cell.name and cell.name not in done:
            alike.setdefault(same_network(cell), []).append(cell)
    others = {some[0].name: some for some in alike.values()}
    with asked.rows.open("a" if asked.resume else "w") as file:
        for one in all_measured((some[0] for some in alike.values()), asked.workers, asked.limit):
            for cell in others[one.name]:
                row = Found(**asdict(one) | {"name": cell.name})
                found.append(row)
                print(row.line, flush=True)
                print(json.dumps(asdict(row)), file=file, flush=True)
    print(*summary(found), sep="\n")


if __name__ == "__main__":
    main()
