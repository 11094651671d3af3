"""How fast sweeps and the store are, held to what they promise.

    python benchmarks/record.py [--rows 10000000]

- group-by: ten million samples in Parquet by DuckDB: on the table alone, and through the view `result`, which joins it
  with cases, runs and machines; seconds on the clock, and of the processors.
- price: 10,000 cases of `choreo sweep price`, with the store.
- cores: cases of 10 ms and more on one worker and on all cores, alternating; how much of linear that is, by the clock
  and by what the processors did.
- writers: 16 processes that each make 100 transactions in one store at once.

What was found goes to benchmarks/results/record.json, with the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from choreo.record import Case, Measured, Store, sql
from choreo.record.ask.columns import duckdb_engine
from choreo.record.load import columns_writer, load, loaded_files

RESULTS = Path(__file__).parent / "results" / "record.json"
SIZES, ALGORITHMS = 24, ("ring", "swing", "direct", "halving_doubling", "mst", "bruck", "pat", "hierarchical")


def group_by(rows: int, folder: Path) -> dict[str, Any]:
    """Seconds of a group-by over `rows` samples, the best of five: cold caches are the disk's business."""
    import pyarrow as pa
    from pyarrow import parquet

    with Store(folder) as store:
        run = store.begin("bench", [])
        for algorithm in ALGORITHMS:
            for power in range(SIZES):
                store.add(run, [Measured(Case("all_reduce", algorithm, 8, 8 << power), (1e-6,), "float", "sum")])
        store.end(run)
    load(folder)
    (part,) = loaded_files(folder)["measurement"]
    schema = parquet.read_schema(part)
    draw = np.random.default_rng(7)
    with columns_writer(part, schema) as writer:
        for start in range(0, rows, 1 << 20):
            count = min(1 << 20, rows - start)
            columns = {
                "id": np.arange(start + 1, start + count + 1),
                "case_": draw.integers(1, len(ALGORITHMS) * SIZES + 1, count),
                "run": np.ones(count, np.int64),
                "sample": np.arange(count) % 20,
                "time_s": draw.lognormal(-10, 1, count),
                "datatype": pa.array(["float"] * count),
                "op": pa.array(["sum"] * count),
                "in_place": pa.nulls(count, pa.int64()),
                "wrong": np.zeros(count, np.int64),
            }
            writer.write_table(pa.table(columns).cast(schema))
    queries = {
        "table": "select case_, count(*), avg(time_s), max(time_s) from measurement group by case_",
        "view": "select algorithm, size_bytes, count(*), avg(time_s) from result where kind = 'measured' group by all",
        "median": "select case_, median(time_s) from measurement group by case_",
    }
    found: dict[str, Any] = {"rows": rows, "megabytes": part.stat().st_size / 1e6}
    with duckdb_engine(folder, fresh=False) as ask:
        for name, query in queries.items():
            times, processor = [], []
            for _ in range(5):
                began, used = time.perf_counter(), time.process_time()
                assert len(ask(query, []).rows) == len(ALGORITHMS) * SIZES
                times.append(time.perf_counter() - began)
                processor.append(time.process_time() - used)
            found[f"{name}_s"], found[f"{name}_processor_s"] = min(times), min(processor)
    return found


def price(folder: Path) -> dict[str, Any]:
    """10,000 cases of price on all cores: seconds on the clock; and in one process, seconds of the processor."""
    words = [sys.executable, "-m", "choreo", "sweep", "price", "all_reduce", "-p", "2..21", "--size", "8:1GiB:1.2"]
    words += ["-a", "ring,swing,direct,recursive_doubling,halving_doubling", "-o", str(folder / "out.csv")]
    began = time.perf_counter()
    subprocess.run([*words, "--store", str(folder / "all")], check=True, stderr=subprocess.DEVNULL)
    clock = time.perf_counter() - began
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    subprocess.run([*words, "--store", str(folder / "one"), "--workers", "1"], check=True, stderr=subprocess.DEVNULL)
    processor = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before
    cases = len((folder / "out.csv").read_text().splitlines()) - 1
    for store in ("all", "one"):
        assert sql("select count(*) from task", store=folder / store, oltp=True).rows == [(cases,)]
    return {"cases": cases, "clock_s": clock, "one_processor_s": processor}


def used(words: list[str]) -> tuple[float, float]:
    """The seconds that a command takes, and those of the processors for it and all that it starts.

    They are read while it runs, as nobody is told what a process used that is killed in the end.
    """
    began, last = time.perf_counter(), dict[str, float]()
    child = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    while child.poll() is None:
        known = {str(child.pid), *last}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                if process.name in known or parent in known:
                    threads = [thread.read_text().split()[0] for thread in process.glob("task/*/schedstat")]
                    last[process.name] = sum(map(int, threads)) / 1e9
            except OSError:  # it has ended
                continue
        time.sleep(0.03)
    assert child.returncode == 0
    return time.perf_counter() - began, sum(last.values())


def cores(folder: Path, rounds: int) -> dict[str, Any]:
    """One worker against all cores, in turns, on cases of some 30 ms.

    Of linear by the clock needs a machine that does nothing else. By the processors it is what one process takes over
    what all take together: on free cores, and with work for all of them, that is the same.
    """
    words = [sys.executable, "-m", "choreo", "sweep", "simulate", "all_reduce", "-a", "ring,swing,halving_doubling"]
    words += ["-t", "torus(8x8x4, 45GB/s, 1us)", "--size", "8:1GiB:1.3", "--again", "-o", str(folder / "out.csv")]
    words += ["--store", str(folder / "cores")]
    every = len(os.sched_getaffinity(0))
    runs: dict[int, list[tuple[float, float]]] = {1: [], every: []}
    for _ in range(rounds):
        for workers, taken in runs.items():
            taken.append(used([*words, "--workers", str(workers)]))
    cases = len((folder / "out.csv").read_text().splitlines()) - 1
    clock, processor = ({who: statistics.median(one[at] for one in runs[who]) for who in runs} for at in (0, 1))
    return {
        "cases": cases,
        "case_ms": 1e3 * processor[1] / cases,
        "cores": every,
        "one_s": clock[1],
        "all_s": clock[every],
        "one_processor_s": processor[1],
        "all_processor_s": processor[every],
        "of_linear": clock[1] / clock[every] / every,
        "of_linear_by_processor": processor[1] / processor[every],
    }


def writers(folder: Path) -> dict[str, Any]:
    """16 processes, each with 100 transactions."""
    Store(folder).close()
    began = time.perf_counter()
    children = []
    for writer in range(16):
        child = os.fork()
        if child == 0:
            with Store(folder) as store:
                run = store.begin("bench", [])
                for number in range(100):
                    store.add(run, [Measured(Case("all_reduce", "ring", 8, 100 * writer + number), (1e-6,))])
                store.end(run)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 16
    taken = time.perf_counter() - began
    ((kept,),) = sql("select count(*) from measurement", store=folder, oltp=True).rows
    return {"transactions": 1600, "kept": kept, "seconds": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="of one worker against all cores")
    given = parser.parse_args()
    found: dict[str, Any] = {"load_average": os.getloadavg(), "cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found["group_by"] = one = group_by(given.rows, folder / "columns")
        print(f"{one['rows']:,} rows in {one['megabytes']:.0f} MB of Parquet")
        for name in ("table", "view", "median"):
            print(f"  group by, {name}: {one[f'{name}_s']:.2f} s, {one[f'{name}_processor_s']:.2f} s of processors")
        found["writers"] = one = writers(folder / "writers")
        print(f"16 writers: {one['kept']} of {one['transactions']} kept, {one['seconds']:.1f} s")
        found["price"] = one = price(folder)
        print(f"{one['cases']:,} cases of price: {one['clock_s']:.1f} s; one processor: {one['one_processor_s']:.1f} s")
        found["cores"] = one = cores(folder, given.rounds)
        print(f"{one['cases']} cases of {one['case_ms']:.0f} ms on {one['cores']} cores, of linear:")
        print(f"  {one['of_linear']:.2f} by the clock, {one['of_linear_by_processor']:.2f} by the processors")
    found["load_average_after"] = os.getloadavg()
    print(f"load {found['load_average'][0]:.1f} before, {found['load_average_after'][0]:.1f} after")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
