"""Fuzz every reader: `python tools/fuzz.py --count 20000 --jobs 2`, or a few of one kind, `--kind model --count 100`.

Each case is a mutant of a file in tests/data/fuzz, read by Choreo in a worker that may take 500 MB more than at its
start and 2 s of a core. What counts against Choreo: a traceback, a warning, a slow one, a large one, one that prints
out of all proportion. A seed gives the same cases again, and `--only N` runs one of them and keeps its file.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", COLUMNS="100")

from fuzzing import mutate, targets

from choreo.errors import ChoreoError

CORPUS = Path(__file__).parent.parent / "tests" / "data" / "fuzz"
MORE_BYTES, CPU_S = 500_000_000, 2.0
PRINTED = 200_000  # characters that a case may print, beside twice its file


def case(kind: str, seed: int, number: int, corpus: list[bytes]) -> tuple[bytes, targets.Target]:
    """The file of a case, and what reads it."""
    random = Random(f"{kind} {seed} {number}")
    target = random.choice(targets.KINDS[kind].targets)
    if number < len(corpus):
        return corpus[number], target  # each file of the corpus as it is
    return mutate.mutant(random.choice(corpus), targets.KINDS[kind].form, random, corpus), target


def run(content: bytes, file: Path, target: targets.Target) -> str:
    """What is wrong with how a file is read; nothing, if it is read or refused in a sentence."""
    file.write_bytes(content)
    printed, told = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()  # as strict as a terminal, the first
    with warnings.catch_warnings(record=True) as warned, redirect_stdout(printed), redirect_stderr(told):
        warnings.simplefilter("always")
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            target(file)
        except ChoreoError as error:
            told.write(str(error))
        except MemoryError:
            return "large: MemoryError"
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"traceback: {type(error).__name__}: {str(error)[:100]} at {Path(last.filename).name}:{last.lineno}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    printed.seek(0)
    said = printed.read() + told.getvalue()
    if warned:
        return f"warning: {warned[0].category.__name__}: {str(warned[0].message)[:100]}"
    if "not enough memory" in said:
        return "large: not enough memory"
    return f"long: {len(said)} characters" if len(said) > PRINTED + 2 * len(content) else ""


def work(kind: str, seed: int, numbers: list[int], folder: Path, out: int) -> None:
    """A worker: run cases, and write a line for each."""
    corpus = read_corpus(kind)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + MORE_BYTES, taken + MORE_BYTES))
    for number in numbers:
        began = time.process_time()
        problem = run(*_parts(case(kind, seed, number, corpus), folder, kind))
        os.write(out, json.dumps([number, problem, time.process_time() - began]).encode() + b"\n")


def _parts(one: tuple[bytes, targets.Target], folder: Path, kind: str) -> tuple[bytes, Path, targets.Target]:
    return one[0], folder / f"case{targets.KINDS[kind].ending}", one[1]


def read_corpus(kind: str) -> list[bytes]:
    """The files of a kind that mutants are made of."""
    return [path.read_bytes() for path in sorted((CORPUS / kind).iterdir())]


def fuzz(kind: str, seed: int, numbers: list[int]) -> dict[int, str]:
    """Run cases in workers, and say what is wrong with which."""
    problems: dict[int, str] = {}
    waiting = list(numbers)
    with tempfile.TemporaryDirectory() as folder:
        for target in targets.KINDS[kind].targets:  # imports what workers need, once for all kinds
            run(*_parts((read_corpus(kind)[0], target), Path(folder), kind))
    while waiting:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            read, write = os.pipe()
            sys.stdout.flush()
            child = os.fork()
            if not child:
                os.close(read)
                try:
                    work(kind, seed, waiting, Path(folder), write)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            os.close(write)
            with os.fdopen(read) as lines:
                for line in lines:
                    number, problem, _ = json.loads(line)
                    waiting.pop(0)
                    if problem:
                        problems[number] = problem
            _, status = os.waitpid(child, 0)
            if waiting:
                ended = os.waitstatus_to_exitcode(status)
                slow = ended == -signal.SIGPROF
                problems[waiting.pop(0)] = (
                    f"slow: more than {CPU_S} s" if slow else f"crash: the worker ended with {ended}"
                )
    return problems


def main() -> int:
    """Fuzz the kinds that are asked for, and print what was found."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kind", action="append", choices=list(targets.KINDS), help="a kind of file; all without it")
    asked.add_argument("--count", type=int, default=200, help="cases of each kind (200)")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--jobs", type=int, default=1, help="kinds at once (1)")
    asked.add_argument("--only", type=int, help="run this case alone, with its output, and keep its file")
    options = asked.parse_args()
    kinds, began = options.kind or list(targets.KINDS), time.monotonic()
    if options.only is not None:
        return _one(kinds[0], options.seed, options.only)
    bad = 0
    fuzz_one = partial(_timed, seed=options.seed, count=options.count)
    with ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
        for kind, (problems, took_s) in zip(kinds, pool.map(fuzz_one, kinds), strict=True):
            bad += len(problems)
            print(f"{kind}: {options.count} cases, {len(problems)} bad, {took_s:.0f} s", flush=True)
            examples: dict[str, int] = {}
            for number, problem in sorted(problems.items()):
                examples.setdefault(problem, number)
            for problem, times in Counter(problems.values()).most_common():
                print(
                    f"  {times} x {problem}; --kind {kind} --seed {options.seed} --only {examples[problem]}", flush=True
                )
    cases, took_s = options.count * len(kinds), time.monotonic() - began
    print(f"{len(kinds)} kinds, {cases} cases, {bad} bad, {took_s:.0f} s", flush=True)
    return 1 if bad else 0


def _timed(kind: str, *, seed: int, count: int) -> tuple[dict[int, str], float]:
    began = time.monotonic()
    return fuzz(kind, seed, list(range(count))), time.monotonic() - began


def _one(kind: str, seed: int, number: int) -> int:
    content, target = case(kind, seed, number, read_corpus(kind))
    file = Path(tempfile.gettempdir()) / f"{kind}-{hashlib.sha256(content).hexdigest()[:8]}{targets.KINDS[kind].ending}"
    file.write_bytes(content)
    print(f"{file}: {len(content)} bytes")
    began = time.process_time()
    try:
        target(file)
    finally:
        print(f"{time.process_time() - began:.1f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
        file.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
