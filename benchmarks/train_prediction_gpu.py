"""Steps of transformers on one GPU, in bf16: what is predicted beside what `choreo train` measures.

    python benchmarks/train_prediction_gpu.py            ten configurations, about six minutes on an H200
    python benchmarks/train_prediction_gpu.py --only full

The GPU must be in the catalogue (`choreo list devices`). The time is the median of the steps after the third; the bar
is a median error of 5 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from choreo.train.train import train
from choreo.workload import Plan

STEPS, WARM = 12, 3
BAR = 0.05
# Model, micro-batch, sequence, recomputation, compiled.
CASES = (
    ("gpt2-124m", 32, 1024, "none", False),
    ("gpt2-124m", 16, 1024, "none", True),
    ("gpt2-124m", 32, 1024, "full", False),
    ("gpt2-350m", 16, 1024, "none", False),
    ("gpt2-350m", 16, 1024, "full", True),
    ("gpt2-774m", 16, 1024, "none", False),
    ("gpt2-774m", 4, 1024, "none", False),
    ("llama3.2-1b", 4, 2048, "none", False),
    ("llama3.2-1b", 4, 2048, "full", True),
    ("gpt2-1.5b", 4, 1024, "full", False),
)


def main() -> int:
    """Run the configurations; 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="configurations whose name has this in it")
    asked = parser.parse_args()
    off = []
    for model, micro_batch, seq, recompute, compiled in CASES:
        name = f"{model} mb{micro_batch} seq{seq} recompute {recompute}{' compiled' if compiled else ''}"
        if asked.only not in name:
            continue
        plan = Plan(micro_batch=micro_batch, precision="bf16", recompute=recompute)
        run = train(model, plan=plan, seq=seq, steps=STEPS, data="synthetic", device="cuda", compile=compiled)
        measured_s, predicted_s = statistics.median(one.time_s for one in run.steps[WARM:]), run.steps[0].predicted_s
        if predicted_s is None:
            sys.exit("nothing is predicted for this GPU: is it in `choreo list devices`?")
        error = predicted_s / measured_s - 1
        off.append(abs(error))
        print(f"{name:52}{1e3 * predicted_s:9.1f} ms{1e3 * measured_s:9.1f} ms{100 * error:+6.0f} %", flush=True)
    if not off:
        parser.error(f"no configuration has {asked.only!r} in its name")
    print(f"median error {100 * statistics.median(off):.1f} %, bar {100 * BAR:.0f} %")
    return int(statistics.median(off) > BAR)


if __name__ == "__main__":
    sys.exit(main())
