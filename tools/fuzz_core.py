"""Fuzz the compiled executor under sanitizers: `python tools/fuzz_core.py [CASES [SEED]] [--frames N]`; needs gcc.

Programs, the frames that come over sockets, plain and sealed with the right key, the mailboxes of peers on this host,
and the words by which they tell each other of messages. What was not changed must arrive, what was changed must be
refused. With `--frames` the programs stay as they are, and only so many frames are sent to them, most in a stream that
was changed.
"""

from __future__ import annotations

import argparse
import os
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

HERE = Path(__file__).parent
CASES = (
    ("all_reduce", "ring"),
    ("all_reduce", "direct"),
    ("all_gather", "bruck"),
    ("broadcast", "mst"),
    ("all_to_all", "pairwise"),
)
COUNTS = (1, 5, 700, 9000)  # elements
STRIPED = 400_000  # elements of the one call that goes in stripes
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:quarantine_size_mb=8",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "PYTHONMALLOC": "malloc",
    "PYTHONHOME": sys.base_prefix,
}


def main(cases: int, seed: int, frames: int = 0) -> int:
    """Build the harness, and give it programs of several algorithms, sizes and numbers of ranks."""
    from choreo.run.transport.records import libcrypto_path

    with tempfile.TemporaryDirectory() as folder:
        binary, programs = Path(folder, "fuzz_core"), Path(folder, "programs")
        library = sysconfig.get_config_var("LIBDIR")
        headers = [f"-I{sysconfig.get_paths()['include']}", f"-I{np.get_include()}"]
        paths = [*headers, f"-L{library}", f"-Wl,-rpath,{library}"]
        options = ["-O1", "-g", "-fsanitize=address,undefined", "-Wno-unused-function", "-pthread", *paths]
        python = f"-lpython{sysconfig.get_config_var('LDVERSION')}"
        source = [str(HERE / "fuzz_core.c"), "-o", str(binary), python, "-lm", "-ldl"]
        subprocess.run(["gcc", *options, *source], check=True)
        programs.write_bytes(_programs())
        command = [str(binary), str(programs), str(cases), str(seed), libcrypto_path(), str(frames)]
        code = subprocess.run(command, check=False, env=os.environ | SANITIZERS).returncode
        if code or frames:
            return int(bool(code))
        words = [str(HERE.parent / "src/choreo/run/messages/core/words.c"), "-o", f"{folder}/_core.so"]
        subprocess.run(["gcc", "-shared", "-fPIC", *options, *words], check=True)
        wanted = (
            subprocess.check_output(["gcc", f"-print-file-name=lib{name}.so"], text=True) for name in ("asan", "ubsan")
        )
        preload = {"LD_PRELOAD": ":".join(path.strip() for path in wanted)}
        command = [sys.executable, str(HERE / "fuzzing" / "words.py"), folder, str(cases // 10), str(seed)]
        return subprocess.run(command, check=False, env=os.environ | SANITIZERS | preload).returncode


def _programs() -> bytes:
    """Programs as the executor gets them, of small and large calls, staged and exposed."""
    packed = [_packed("broadcast", "mst", 2, STRIPED, 1, exposes=True)]
    for collective, algorithm in CASES:
        for ranks in (2, 3, 5):
            for count in COUNTS:
                for rank in (0, ranks - 1):
                    packed += [_packed(collective, algorithm, ranks, count, rank, exposes=one) for one in (False, True)]
    return struct.pack("<Q", len(packed)) + b"".join(packed)


def _packed(collective: str, algorithm: str, ranks: int, count: int, rank: int, *, exposes: bool) -> bytes:
    schedule = build(collective, algorithm, ranks)
    edges = edges_of(schedule, (count,) * (schedule.num_chunks // schedule.chunks_a_block), 4)
    zeros, handed = np.zeros(ranks, np.int64), np.full(ranks, exposes)
    made = compile_program(schedule, rank, edges, zeros, handed, same=True, parts=1, item_bytes=4)
    sizes = (ranks, rank, len(made.ops), len(made.guards), made.scratch_bytes, 0)
    return struct.pack("<6Q", *sizes) + b"".join(made.as_bytes()[:4])


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("cases", type=int, nargs="?", default=100_000)
    asked.add_argument("seed", type=int, nargs="?", default=1)
    asked.add_argument("--frames", type=int, default=0, help="only frames, and so many")
    given = asked.parse_args()
    sys.exit(main(given.cases, given.seed, given.frames))
