"""Held against each other: what `plan` predicts of training on this machine, and what `choreo train` measures.

    python benchmarks/train_prediction.py            measures the machine first: about five minutes on two idle cores
    python benchmarks/train_prediction.py --kept     with the calibration that is kept already
    python benchmarks/train_prediction.py --only dp  plans whose name has "dp" in it
    python benchmarks/train_prediction.py --quick    six of the plans

Twenty plans of two small models are trained for a few steps each. The median step and the peak memory of the fullest
rank stand beside the prediction. A plan that fails or takes longer than its limit is told and left out, which counts
as a missed bar. The bars: the median error of the time under 12 % with two ranks and 20 % with four, that of the memory
under 10 %. Nothing is fitted to the grid.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import choreo
from choreo.calibrate.device import calibrate_cpu
from choreo.train.config import TrainConfig
from choreo.train.predict import predict
from choreo.train.result import TrainingRun
from choreo.train.train import train
from choreo.workload import Model, Plan

GPT = Model(
    *("gpt", 4, 256, 4),
    vocab=512,
    norm="layer",
    activation="gelu-tanh",
    bias=True,
    learned_positions=256,
    tied_embeddings=True,
    max_seq=256,
)
LLAMA = Model("llama", 4, 384, 6, ffn=1024, vocab=1024, gated=True, max_seq=256)
SEQ, STEPS = 128, 5
BARS = {2: 0.12, 4: 0.20}
MEMORY_BAR = 0.10
LIMIT_S = 60.0  # of one plan: about fifteen times what it takes on two idle cores
QUICK = (0, 2, 6)  # of each model's plans


@dataclass(frozen=True)
class Case:
    """A plan of a model, with a batch."""

    model: Model
    plan: Plan
    global_batch: int


def plans(model: Model) -> list[Case]:
    """Ten plans: six of two ranks, four of four."""

    def case(global_batch: int = 16, **fields: object) -> Case:
        return Case(model, Plan(precision="fp32", **fields), global_batch)  # type: ignore[arg-type]

    return [
        case(dp=2, micro_batch=8),
        case(dp=2, micro_batch=2),
        case(tp=2, micro_batch=8),
        case(pp=2, micro_batch=2, schedule="1f1b"),
        case(dp=2, micro_batch=8, zero=1) if model is GPT else case(dp=2, micro_batch=8, zero=3),
        case(pp=2, micro_batch=4, schedule="gpipe") if model is GPT else case(dp=2, micro_batch=8, recompute="full"),
        case(dp=4, micro_batch=4),
        case(dp=2, tp=2, micro_batch=8),
        case(dp=2, pp=2, micro_batch=2, schedule="1f1b"),
        case(pp=4, micro_batch=2, schedule="1f1b") if model is GPT else case(dp=4, micro_batch=4, zero=3),
    ]


def main() -> int:
    """Calibrate, run the grid, print the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", action="store_true", help="use the calibration that is kept")
    parser.add_argument("--only", default="", help="plans whose name has this in it")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each run; the first does not count")
    parser.add_argument("--quick", action="store_true", help="six plans: data and tensor parallel, two ranks and four")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds a plan may take")
    asked = parser.parse_args()
    cases = [
        one
        for model in (GPT, LLAMA)
        for number, one in enumerate(plans(model))
        if asked.only in f"{model.name} {one.plan}" and (number in QUICK or not asked.quick)
    ]
    if not cases:
        parser.error(f"no plan has {asked.only!r} in its name")
    if asked.kept:
        return grid(cases, asked.steps, asked.limit)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHOREO_CONSTANTS"] = str(Path(folder) / "constants.json")
        start_s = time.monotonic()
        print("measuring this machine", flush=True)
        choreo.calibrate((2, 4)).save(force=True)
        print(f"communication: {time.monotonic() - start_s:.0f} s", flush=True)
        found = calibrate_cpu()
        found.save(force=True)
        print(f"{found.summary()}; {time.monotonic() - start_s:.0f} s, load {found.load_average:.1f}\n", flush=True)
        return grid(cases, asked.steps, asked.limit)


def measured(one: Case, steps: int, answers: multiprocessing.Queue[TrainingRun | str]) -> None:
    """Train one case, in a process that can be stopped, and put what it measured or why it failed."""
    try:
        found = train(one.model, plan=one.plan, global_batch=one.global_batch, seq=SEQ, steps=steps, backend="choreo")
    except choreo.ChoreoError as error:
        answers.put(str(error))
    else:
        answers.put(found)


def measure(one: Case, steps: int, limit_s: float) -> TrainingRun | str:
    """What one case measured, or a sentence: it failed, or took longer than the limit."""
    answers: multiprocessing.Queue[TrainingRun | str] = multiprocessing.Queue()
    process = multiprocessing.Process(target=measured, args=(one, steps, answers))
    process.start()
    try:
        return answers.get(timeout=limit_s)
    except queue.Empty:
        return f"nothing after {limit_s:g} s"
    finally:
        process.terminate()
        process.join()


def grid(cases: list[Case], steps: int, limit_s: float) -> int:
    """Run every case, and print predicted beside measured."""
    print(f"{'plan':44}{'predicted':>11}{'measured':>11}{'error':>8}{'predicted':>12}{'measured':>11}{'error':>8}")
    off: dict[int, list[float]] = {}
    memory: list[float] = []
    load = os.getloadavg()[0]
    for one in cases:
        config = TrainConfig(one.model, one.plan, one.global_batch, SEQ)
        said = predict(config)
        run = measure(one, steps, limit_s)
        name = f"{one.model.name} {one.plan}"
        if isinstance(run, str):
            print(f"{name:44}{run}", flush=True)
            continue
        errors = said.time_s / run.time_s - 1, said.memory_bytes / run.memory_bytes - 1
        off.setdefault(one.plan.gpus, []).append(abs(errors[0]))
        memory.append(abs(errors[1]))
        print(
            f"{name:44}{1e3 * said.time_s:8.1f} ms{1e3 * run.time_s:8.1f} ms"
            f"{100 * errors[0]:+6.0f} %{said.memory_bytes / 1e6:9.0f} MB{run.memory_bytes / 1e6:8.0f} MB"
            f"{100 * errors[1]:+6.0f} %",
            flush=True,
        )
    told = [(f"{ranks} ranks", statistics.median(found), BARS.get(ranks, 1.0)) for ranks, found in sorted(off.items())]
    told += [("memory", statistics.median(memory), MEMORY_BAR)] if memory else []
    met = len(memory) == len(cases) and all(median <= bar for _, median, bar in told)
    medians = ", ".join(f"{name} {100 * median:.1f} % (bar {100 * bar:.0f} %)" for name, median, bar in told)
    ran = f"{len(memory)} of {len(cases)} plans ran, load {load:.1f}"
    print(f"{'met' if met else 'missed'}: median errors {medians or 'none'}; {ran}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
