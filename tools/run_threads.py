"""Run all_reduce between threads under the thread sanitizer: `python tools/run_threads.py [CALLS]`; needs gcc."""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

from choreo.algorithms import build
from choreo.run.execute.calls import edges_of
from choreo.run.execute.compile import compile_program
from choreo.run.execute.program import Program

HERE = Path(__file__).parent
STAGE_BYTES = 1 << 20
COUNTS = (5, 3000, 120_000)  # elements; the last is reduced block by block


def main(calls: int) -> int:
    """Build the harness, and give it programs of several algorithms, sizes and numbers of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        binary, programs = Path(folder, "threads"), Path(folder, "programs")
        library = sysconfig.get_config_var("LIBDIR")
        headers = [f"-I{sysconfig.get_paths()['include']}", f"-I{np.get_include()}"]
        paths = [*headers, f"-L{library}", f"-Wl,-rpath,{library}"]
        # The sanitizer does not follow fences; what they order here is atomic in any case, so it has nothing to miss.
        options = ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan", "-Wno-unused-function", "-pthread", *paths]
        python = f"-lpython{sysconfig.get_config_var('LDVERSION')}"
        subprocess.run(["gcc", *options, HERE / "run_threads.c", "-o", binary, python, "-lm"], check=True)
        failed = 0
        for ranks in (2, 3, 5):
            for algorithm in ("ring", "direct", "recursive_doubling", "halving_doubling"):
                for count in COUNTS:
                    programs.write_bytes(
                        _programs(algorithm, ranks, count, calls if count < COUNTS[-1] else calls // 10)
                    )
                    print(f"{algorithm}, {count} elements: ", end="", flush=True)
                    failed += subprocess.run([binary, programs], check=False).returncode != 0
    return failed


def _programs(algorithm: str, ranks: int, count: int, calls: int) -> bytes:
    schedule = build("all_reduce", algorithm, ranks)
    edges = edges_of(schedule, (count,) * (schedule.num_chunks // schedule.chunks_a_block), 4)
    parts = [struct.pack("<4Q", ranks, calls, 8 * STAGE_BYTES, int(edges[-1]))]
    for rank in range(ranks):
        for exposes in (False, True):
            zeros, handed = np.zeros(ranks, np.int64), np.full(ranks, exposes)
            cut = 7 if count > COUNTS[0] else 1  # in parts
            program = compile_program(schedule, rank, edges, zeros, handed, same=True, parts=cut, item_bytes=4)
            parts.append(_packed(program))
    return b"".join(parts)


def _packed(program: Program) -> bytes:
    head = struct.pack("<3Q", len(program.ops), len(program.guards), program.scratch_bytes)
    return head + b"".join(program.as_bytes()[:4])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run all_reduce between threads under the thread sanitizer.")
    parser.add_argument("calls", nargs="?", type=int, default=300, help="calls of each program (300)")
    sys.exit(main(parser.parse_args().calls))
